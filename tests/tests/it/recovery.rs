//! A Redis that comes back, or is another one by now: shared limits return by themselves, and nobody storms
//! the server.

use std::{fs, os::unix::fs::symlink, time::Duration};

use tokio::time::{Instant, sleep};
use tollgate::FailurePolicy;
use tollgate_tests::{Fault, FaultProxy, RedisClient, RedisServer, check, quota, with_each_client};

use crate::faults::{BACK_WITHIN, DEADLINE, Load, Replica, one_of_each};

fn run(server: &RedisServer, command: &[&str]) {
    let mut cmd = redis::cmd(command[0]);
    let done = cmd
        .arg(&command[1..])
        .query::<redis::Value>(&mut server.connection());
    done.unwrap_or_else(|error| panic!("{command:?}: {error}"));
}

fn kill_clients(server: &RedisServer, user: &str) {
    run(server, &["CLIENT", "KILL", "USER", user]);
}

/// The attempts of one replica in `span`, with a few that follow a loss at once.
fn most_attempts(span: Duration) -> u64 {
    10 + 2 * span.as_secs()
}

async fn a_demoted_primary_is_left_although_it_keeps_its_connections<S: RedisClient>() {
    let (old, new) = (RedisServer::start(), RedisServer::start());
    is_left_for::<S>(&old, &new, new.port()).await;
}

/// It answers MASTERDOWN to everything then, instead of READONLY to writes.
async fn a_demoted_primary_that_may_not_answer_from_old_data_is_left_as_well<S: RedisClient>() {
    let old = RedisServer::start_with(&["--replica-serve-stale-data", "no"]);
    is_left_for::<S>(&old, &RedisServer::start(), 1).await;
}

/// The old server becomes a replica of whatever listens on `primary`, and new connections lead to the new.
async fn is_left_for<S: RedisClient>(old: &RedisServer, new: &RedisServer, primary: u16) {
    let proxy = FaultProxy::start(old.port());
    let replicas = one_of_each::<S>(&proxy.url()).await;
    for replica in &replicas {
        replica.shared().await;
    }
    let loads: Vec<_> = replicas
        .iter()
        .map(|it| Load::start(it, Duration::from_millis(10)))
        .collect();
    run(old, &["REPLICAOF", "127.0.0.1", &primary.to_string()]);
    proxy.retarget(new.port());
    let demoted = Instant::now();
    for (replica, load) in replicas.iter().zip(loads) {
        let back = replica.is_back(demoted).await;
        assert!(back < BACK_WITHIN, "{}: {back:?}", replica.policy);
        load.stop().await.keeps_to(replica.policy);
        assert!(replica.errors("readonly") > 0, "{}", replica.policy);
        assert!(replica.charged(new) > 0, "{}", replica.policy);
    }
}

async fn a_server_that_stays_read_only_is_not_stormed<S: RedisClient>() {
    let server = RedisServer::start();
    let proxy = FaultProxy::start(server.port());
    let replica = Replica::start::<S>(&proxy.url(), FailurePolicy::Open, DEADLINE).await;
    replica.shared().await;
    run(&server, &["REPLICAOF", "127.0.0.1", "1"]);
    let (before, span) = (proxy.connections(), Duration::from_secs(3));
    let load = Load::start(&replica, Duration::from_millis(2));
    sleep(span).await;
    let attempts = proxy.connections() - before;
    assert!((1..=most_attempts(span)).contains(&attempts), "{attempts}");
    run(&server, &["REPLICAOF", "NO", "ONE"]);
    let back = replica.is_back(Instant::now()).await;
    assert!(back < BACK_WITHIN, "{back:?}");
    load.stop().await.keeps_to("open");
}

async fn a_moved_address_is_followed<S: RedisClient>() {
    let (mut old, new) = (RedisServer::start(), RedisServer::start());
    let proxy = FaultProxy::start(old.port());
    let replica = Replica::start::<S>(&proxy.url(), FailurePolicy::Closed, DEADLINE).await;
    replica.shared().await;
    proxy.retarget(new.port());
    old.kill();
    let back = replica.is_back(Instant::now()).await;
    assert!(back < BACK_WITHIN, "{back:?}");
    assert!(replica.charged(&new) > 0);
}

/// A name is looked up for each connection, and version 3 logs in anew on each.
async fn a_name_that_leads_elsewhere_is_followed_with_version_3<S: RedisClient>() {
    let start = || RedisServer::start_with(&["--requirepass", "secret"]);
    let (old, new) = (start(), start());
    let proxy = FaultProxy::start(old.port());
    let url = format!("redis://:secret@localhost:{}", proxy.port());
    follows::<S>(&url, old, || proxy.retarget(new.port())).await;
}

/// A path is a name as well.
async fn a_socket_that_leads_elsewhere_is_followed_with_version_3<S: RedisClient>() {
    let dir = tempfile::tempdir().expect("a temporary folder");
    let path = |name: &str| dir.path().join(name).display().to_string();
    let start = |name: &str| {
        let socket = path(name);
        RedisServer::start_with(&["--requirepass", "secret", "--unixsocket", &socket])
    };
    let (old, _new) = (start("old"), start("new"));
    let point = |name: &str| {
        // Another one first: a link cannot be made where one is, but be moved there.
        symlink(path(name), path("next")).expect("a link");
        fs::rename(path("next"), path("redis.sock")).expect("moved");
    };
    point("old");
    let url = format!("unix://{}", path("redis.sock"));
    follows::<S>(&url, old, || point("new")).await;
}

/// The old server is killed once the name has been made to lead elsewhere.
async fn follows<S: RedisClient>(url: &str, mut old: RedisServer, point: impl FnOnce()) {
    let builder = S::builder(url).strict(true).resp(3);
    let builder = if url.contains("secret@") {
        builder
    } else {
        builder.password("secret")
    };
    let store = S::open(builder.deadline(Duration::from_secs(10))).await;
    let store = store.expect("a store");
    let left = async || {
        let answer = store.check(check("a", quota(10, "1/h"), 1)).await;
        answer.map(|decision| decision.limits[0].remaining)
    };
    assert_eq!(left().await.expect("a decision"), Some(9));
    point();
    assert_eq!(left().await.expect("a decision"), Some(8), "not yet");
    old.kill();
    let killed = Instant::now();
    let first = loop {
        match left().await {
            Ok(left) => break left,
            Err(error) => assert!(killed.elapsed() < BACK_WITHIN, "{error}"),
        }
        sleep(Duration::from_millis(10)).await;
    };
    assert_eq!(
        first,
        Some(9),
        "another server, on which the bucket is full"
    );
}

async fn a_changed_password_is_no_loop_and_is_over_when_it_is_changed_back<S: RedisClient>() {
    let server = RedisServer::start();
    let rights = ["~tg:*", "+evalsha", "+script|load", "+get", "+set", "+pttl"];
    let set_password = |password: &str| {
        let user = ["ACL", "SETUSER", "limiter", "on", "resetpass"];
        run(&server, &[&user[..], &[password], &rights].concat());
        kill_clients(&server, "limiter");
    };
    set_password(">secret");
    let proxy = FaultProxy::start(server.port());
    let url = format!("redis://limiter:secret@127.0.0.1:{}", proxy.port());
    let replicas = one_of_each::<S>(&url).await;
    for replica in &replicas {
        replica.shared().await;
    }
    let loads: Vec<_> = replicas
        .iter()
        .map(|it| Load::start(it, Duration::from_millis(5)))
        .collect();
    set_password(">other");
    let (before, span) = (proxy.connections(), Duration::from_secs(3));
    sleep(span).await;
    let attempts = proxy.connections() - before;
    let most = 3 * most_attempts(span);
    assert!(
        (3..=most).contains(&attempts),
        "{attempts} of three replicas"
    );
    set_password(">secret");
    let restored = Instant::now();
    for (replica, load) in replicas.iter().zip(loads) {
        let back = replica.is_back(restored).await;
        assert!(back < BACK_WITHIN, "{}: {back:?}", replica.policy);
        load.stop().await.keeps_to(replica.policy);
        assert!(replica.errors("auth") > 0, "{}", replica.policy);
    }
}

async fn a_server_that_refuses_is_not_stormed<S: RedisClient>() {
    is_not_stormed::<S>(Fault::Reset).await;
}

async fn a_server_that_is_silent_is_not_stormed<S: RedisClient>() {
    is_not_stormed::<S>(Fault::BlackHole).await;
}

async fn is_not_stormed<S: RedisClient>(fault: Fault) {
    let server = RedisServer::start();
    let proxy = FaultProxy::start(server.port());
    let replica = Replica::start::<S>(&proxy.url(), FailurePolicy::Open, DEADLINE).await;
    replica.shared().await;
    let load = Load::start(&replica, Duration::from_millis(2));
    proxy.set(fault);
    let (before, span) = (proxy.connections(), Duration::from_secs(3));
    sleep(span).await;
    let attempts = proxy.connections() - before;
    assert!((1..=most_attempts(span)).contains(&attempts), "{attempts}");
    load.stop().await.keeps_to("open");
}

with_each_client! {
    #[tokio::test] a_demoted_primary_is_left_although_it_keeps_its_connections
    #[tokio::test] a_demoted_primary_that_may_not_answer_from_old_data_is_left_as_well
    #[tokio::test] a_server_that_stays_read_only_is_not_stormed
    #[tokio::test] a_moved_address_is_followed
    #[tokio::test] a_name_that_leads_elsewhere_is_followed_with_version_3
    #[tokio::test] a_socket_that_leads_elsewhere_is_followed_with_version_3
    #[tokio::test] a_changed_password_is_no_loop_and_is_over_when_it_is_changed_back
    #[tokio::test] a_server_that_refuses_is_not_stormed
    #[tokio::test] a_server_that_is_silent_is_not_stormed
}
