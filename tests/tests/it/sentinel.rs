//! A primary that sentinels name: found, followed, and never believed blindly.

use std::time::Duration;

use tokio::time::{Instant, sleep};
use tollgate_core::{Check, Store};
use tollgate_redis::RedisSettings;
use tollgate_tests::{
    Answer, Authority, RedisClient, RedisServer, Sentinel, Sentinels, StubServer, TlsServer,
    Validity, check, quota, with_each_client,
};

use crate::support::decide;

/// After the sentinels have agreed on a primary.
const BACK_WITHIN: Duration = Duration::from_secs(7);

async fn store<S: RedisClient>(url: &str) -> S {
    let builder = S::builder(url).strict(true);
    let connected = S::open(builder.deadline(Duration::from_secs(2))).await;
    connected.expect("a store on the test's own group")
}

fn hourly() -> Check {
    check("a", quota(1_000, "1/h"), 1)
}

/// Waits until the store decides on this server.
async fn is_back_on(store: &impl Store, server: &RedisServer) {
    let (since, before) = (Instant::now(), server.calls("evalsha"));
    loop {
        let answer = store.check(hourly()).await;
        if answer.is_ok() && server.calls("evalsha") > before {
            break;
        }
        assert!(since.elapsed() < BACK_WITHIN, "not back: {answer:?}");
        sleep(Duration::from_millis(10)).await;
    }
}

async fn meanwhile<T: Send + 'static>(
    group: Sentinels,
    work: impl FnOnce(&mut Sentinels) -> T + Send + 'static,
) -> (Sentinels, T) {
    let done = tokio::task::spawn_blocking(move || {
        let mut group = group;
        let outcome = work(&mut group);
        (group, outcome)
    });
    done.await.expect("no panic")
}

async fn the_primary_is_found_and_followed_through_failovers<S: RedisClient>() {
    let group = tokio::task::spawn_blocking(Sentinels::start).await;
    let group = group.expect("a group");
    let port = tollgate_tests::free_port();
    // A sentinel that is not there is no hindrance, nor is one that is frozen.
    let gone = group.url().replace(
        "redis-sentinel://",
        &format!("redis-sentinel://127.0.0.1:{port},"),
    );
    let store = store::<S>(&gone).await;
    assert!(decide(&store, hourly()).await.is_allowed());
    assert!(group.server(0).calls("evalsha") > 0);

    // In good order: the old primary lives on as a replica, and answers `READONLY`.
    let (group, new) = meanwhile(group, |group| {
        group.fail_over();
        group.primary_by(0)
    })
    .await;
    is_back_on(&store, group.server(new)).await;

    // Killed, while one sentinel is frozen and does not hear of it.
    let (group, newer) = meanwhile(group, move |group| {
        group.pause_sentinel(2);
        group.server_mut(new).kill();
        group.wait_for_another_than(new);
        group.primary_by(0)
    })
    .await;
    is_back_on(&store, group.server(newer)).await;

    // The one that was frozen may still name the former primary, which is back and takes itself for one.
    let (group, ()) = meanwhile(group, move |group| {
        group.pause_sentinel(0);
        group.pause_sentinel(1);
        group.server_mut(new).restart();
        group.resume_sentinel(2);
        group.resume_sentinel(0);
        group.resume_sentinel(1);
    })
    .await;
    let fresh = self::store::<S>(&group.url_of(&[2, 1, 0])).await;
    let before = group.server(newer).calls("evalsha");
    assert!(decide(&fresh, hourly()).await.is_allowed());
    assert!(
        group.server(newer).calls("evalsha") > before,
        "the stale one was believed"
    );
}

async fn a_server_that_is_no_primary_is_not_used_whoever_names_it<S: RedisClient>() {
    let primary = RedisServer::start();
    let port = primary.port().to_string();
    let replica = RedisServer::start_with(&["--replicaof", "127.0.0.1", &port]);
    // Two of three are behind the times.
    let sentinels: Vec<_> = [&replica, &replica, &primary]
        .iter()
        .map(|named| {
            let sentinel = StubServer::start(Answer::Silence);
            sentinel.name_primary(named.port());
            sentinel
        })
        .collect();
    let hosts: Vec<_> = sentinels
        .iter()
        .map(|it| format!("127.0.0.1:{}", it.port()))
        .collect();
    let url = format!("redis-sentinel://{}/tollgate", hosts.join(","));
    let builder = S::builder(&url).deadline(BACK_WITHIN);
    let store = S::open(builder).await.expect("a store");
    is_back_on(&store, &primary).await;
    assert_eq!(replica.calls("evalsha"), 0);
}

/// Of thirty that the settings name, all but one are gone. The former primary answers as before.
async fn sentinels_that_are_gone_do_not_hide_a_new_primary<S: RedisClient>() {
    let (former, new) = (RedisServer::start(), RedisServer::start());
    let sentinel = StubServer::start(Answer::Silence);
    sentinel.name_primary(former.port());
    let gone = tollgate_tests::free_port();
    let hosts = format!("127.0.0.1:{gone},").repeat(29);
    let url = format!(
        "redis-sentinel://{hosts}{}",
        Sentinel::place(sentinel.port())
    );
    let store = store::<S>(&url).await;
    assert!(decide(&store, hourly()).await.is_allowed());
    assert!(former.calls("evalsha") > 0);
    sentinel.name_primary(new.port());
    is_back_on(&store, &new).await;
}

async fn the_documented_user_suffices_on_the_servers<S: RedisClient>() {
    let group = tokio::task::spawn_blocking(Sentinels::start).await;
    let group = group.expect("a group");
    let rights =
        "on >secret resetkeys ~tg:* resetchannels -@all +evalsha +script|load +get +pttl +set";
    let mut connection = group.server(0).connection();
    let url = group.url().replace("://", "://tollgate:secret@");
    // Without the second it cannot be asked whether it is a primary, and is believed to be.
    for more in ["+role", "-role"] {
        redis::cmd("ACL")
            .arg(&["SETUSER", "tollgate"])
            .arg(rights.split_whitespace().collect::<Vec<_>>())
            .arg(S::ASKS)
            .arg(more)
            .query::<()>(&mut connection)
            .expect("ACL SETUSER");
        let store = store::<S>(&url).await;
        assert!(decide(&store, hourly()).await.is_allowed(), "{more}");
        let denials: Vec<redis::Value> = redis::cmd("ACL")
            .arg("LOG")
            .query(&mut connection)
            .expect("ACL LOG");
        assert_eq!(denials.is_empty(), more == "+role", "{denials:?}");
    }
}

async fn a_name_that_the_sentinels_do_not_know_is_an_error<S: RedisClient>() {
    let group = tokio::task::spawn_blocking(Sentinels::start).await;
    let group = group.expect("a group");
    let url = group.url().replace("/tollgate", "/elsewhere");
    let error = S::open(S::builder(&url).strict(true)).await;
    let error = error.expect_err("no such name").to_string();
    assert!(error.contains("no primary of this name"), "{error}");
}

/// The primary and the sentinel have a login each, and neither is tried at the other.
async fn sentinels_have_a_login_of_their_own<S: RedisClient>() {
    let primary = RedisServer::start_with(&["--requirepass", "primary"]);
    let settings = "sentinel auth-pass tollgate primary\n\
        user default off\n\
        user tollgate on >sentinel resetchannels -@all +ping +sentinel|get-master-addr-by-name +client|id";
    let sentinel = Sentinel::start(primary.port(), |_| settings.to_owned());
    let url = format!(
        "redis-sentinel://:primary@{}",
        Sentinel::place(sentinel.port())
    );
    let mut settings = RedisSettings::new(&url);
    settings.strict = true;
    settings.deadline = Duration::from_secs(2);
    settings.sentinel.username = Some("tollgate".into());
    for (password, right) in [("hunter2", false), ("sentinel", true)] {
        settings.sentinel.password = Some(password.into());
        let opened = S::open(settings.clone().into()).await;
        match opened {
            Ok(store) => assert!(right && decide(&store, hourly()).await.is_allowed()),
            Err(error) => {
                let text = format!("{error} {error:?}");
                // What the server says, or what redis-rs makes of it.
                let said = text.contains("WRONGPASS") || text.contains("AuthenticationFailed");
                assert!(!right && said, "{text}");
                assert!(!text.contains("hunter2"), "{text}");
            }
        }
    }
}

/// Both speak nothing else, and show a certificate for another name than the address that the sentinel tells.
async fn sentinels_and_their_primary_may_be_behind_tls<S: RedisClient>() {
    let authority = Authority::new();
    let pair = authority.sign("localhost", Validity::Current);
    let primary = TlsServer::start(&pair, &authority, false);
    let sentinel = Sentinel::start(primary.port(), |port| {
        format!(
            "port 0\ntls-port {port}\ntls-replication yes\ntls-auth-clients no\n\
             tls-cert-file {}\ntls-key-file {}\ntls-ca-cert-file {}",
            pair.certificate.display(),
            pair.key.display(),
            authority.certificate().display()
        )
    });
    let url = format!("rediss-sentinel://{}", Sentinel::place(sentinel.port()));
    let builder = S::builder(&url).deadline(BACK_WITHIN);
    let builder = builder.ca_file(authority.certificate());
    let named = S::open(builder.clone().server_name("localhost")).await;
    is_back_on(&named.expect("good settings"), primary.plain()).await;
    let error = S::open(builder.strict(true))
        .await
        .expect_err("another name");
    let error = error.to_string().to_lowercase();
    assert!(error.contains("certificate"), "{error}");
}

with_each_client! {
    #[tokio::test] sentinels_have_a_login_of_their_own
    #[tokio::test] sentinels_and_their_primary_may_be_behind_tls
    #[tokio::test(flavor = "multi_thread", worker_threads = 2)] the_primary_is_found_and_followed_through_failovers
    #[tokio::test] sentinels_that_are_gone_do_not_hide_a_new_primary
    #[tokio::test] a_server_that_is_no_primary_is_not_used_whoever_names_it
    #[tokio::test(flavor = "multi_thread", worker_threads = 2)] the_documented_user_suffices_on_the_servers
    #[tokio::test(flavor = "multi_thread", worker_threads = 2)] a_name_that_the_sentinels_do_not_know_is_an_error
}
