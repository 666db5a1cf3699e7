//! What an operator reads in the log: one line for each change, none for each request.

use std::{
    error::Error,
    io,
    sync::{Arc, Mutex},
    time::Duration,
};

use tokio::time::{Instant, sleep, timeout};
use tollgate::FailurePolicy;
use tollgate_quota::{Change, PostgresSource, QuotaSource};
use tollgate_redis::RedisSettings;
use tollgate_tests::{
    Answer, Fault, FaultProxy, PostgresServer, RedisClient, RedisServer, StubServer, check, quota,
    with_each_client,
};
use tracing::{Dispatch, subscriber::NoSubscriber};

use crate::faults::{DEADLINE, Load, Replica};

#[derive(Clone, Default)]
struct Lines(Arc<Mutex<Vec<u8>>>);

impl io::Write for Lines {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().expect("no panic").extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Lines {
    fn take(&self) -> Vec<String> {
        let bytes = std::mem::take(&mut *self.0.lock().expect("no panic"));
        let text = String::from_utf8(bytes).expect("UTF-8");
        text.lines().map(str::to_owned).collect()
    }
}

/// What is logged on this thread until the second value is dropped.
fn catch() -> (Lines, impl Sized) {
    let lines = Lines::default();
    let writer = lines.clone();
    let subscriber = tracing_subscriber::fmt()
        .with_ansi(false)
        .with_writer(move || writer.clone())
        .finish();
    // With a single listener, the thread that comes to a line of the log first is asked whether it listens,
    // and the answer is kept for all; and that may be the thread of another test.
    let second = Dispatch::new(NoSubscriber::new());
    let caught = tracing::subscriber::set_default(subscriber);
    (lines, (second, caught))
}

/// On one thread with all of its tasks, so that only its own lines are caught.
async fn an_outage_is_told_when_it_starts_and_when_it_ends<S: RedisClient>() {
    let (lines, _caught) = catch();
    let server = RedisServer::start();
    let proxy = FaultProxy::start(server.port());
    let replica = Replica::start::<S>(&proxy.url(), FailurePolicy::Open, DEADLINE).await;
    let built = lines.take();
    assert!(
        built.len() == 1 && built[0].contains("a day or longer to fill"),
        "{built:#?}"
    );
    replica.shared().await;
    sleep(Duration::from_millis(1_200)).await;
    assert_eq!(lines.take(), [""; 0], "nothing to tell on a good day");

    let load = Load::start(&replica, Duration::from_millis(2));
    proxy.set(Fault::Refuse);
    sleep(Duration::from_millis(2_500)).await;
    let started = lines.take();
    assert_eq!(started.len(), 2, "{started:#?}");
    for said in ["no connection to Redis", "store fails"] {
        let warns = |line: &String| line.contains(said) && line.contains("WARN");
        assert!(started.iter().any(warns), "{said}: {started:#?}");
    }

    proxy.set(Fault::None);
    replica.is_back(Instant::now()).await;
    sleep(Duration::from_millis(1_200)).await;
    let ended = lines.take();
    assert_eq!(ended.len(), 2, "{ended:#?}");
    for said in ["connected to Redis again", "store answers again"] {
        assert!(ended.iter().any(|line| line.contains(said)), "{ended:#?}");
    }
    load.stop().await.keeps_to("open");
}

#[tokio::test]
async fn that_postgres_is_away_is_told_once() {
    let (lines, _caught) = catch();
    let mut server = PostgresServer::start();
    let source = PostgresSource::builder(&server.url()).timeout(Duration::from_secs(20));
    let source = source.connect().await.expect("a source");
    let mut changes = source.changes().expect("it listens");
    assert_eq!(lines.take(), [""; 0], "nothing to tell on a good day");

    server.kill();
    // Several attempts long.
    sleep(Duration::from_millis(1_500)).await;
    let error = source.load("acme", None).await;
    error.expect_err("no Postgres");
    server.restart();
    let back = timeout(Duration::from_secs(20), changes.recv()).await;
    assert_eq!(back.expect("in time"), Ok(Change::Anything));
    let told = lines.take();
    assert_eq!(told.len(), 2, "{told:#?}");
    assert!(
        told[0].contains("WARN") && told[0].contains("cannot hear"),
        "{told:#?}"
    );
    assert!(
        told[1].contains("INFO") && told[1].contains("hears of"),
        "{told:#?}"
    );
}

async fn a_server_that_may_forget_buckets_in_use_is_told_once<S: RedisClient>() {
    let (lines, _caught) = catch();
    for (policy, warns) in [("allkeys-lru", true), ("volatile-ttl", false)] {
        let server = RedisServer::start_with(&["--maxmemory", "9mb", "--maxmemory-policy", policy]);
        let store = S::open(S::builder(&server.url()).strict(true)).await;
        store.expect("a store");
        let said = lines.take();
        let warned = said
            .iter()
            .filter(|line| line.contains("may evict") && line.contains(policy));
        assert_eq!(warned.count(), usize::from(warns), "{said:#?}");
    }
}

async fn one_lost_of_several_connections_is_told_as_that<S: RedisClient>() {
    let (lines, _caught) = catch();
    let server = RedisServer::start();
    let builder = S::builder(&server.url()).strict(true).connections(3);
    let store = S::open(builder).await.expect("a store");
    let mut connection = server.connection();
    let mut run = |command: &[&str]| {
        let mut cmd = redis::cmd(command[0]);
        let done = cmd
            .arg(&command[1..])
            .query::<redis::Value>(&mut connection);
        done.expect("done")
    };
    // Ours and two of the store's are as many as it takes.
    run(&["CONFIG", "SET", "maxclients", "3"]);
    let list = run(&["CLIENT", "LIST", "TYPE", "normal"]);
    let list: String = redis::from_redis_value(list).expect("a text");
    let ids = list.lines().map(|line| line.split([' ', '=']).nth(1));
    let own: String = redis::from_redis_value(run(&["CLIENT", "ID"])).expect("a number");
    let other = ids.flatten().find(|id| *id != own).expect("the store's");
    run(&["CLIENT", "KILL", "ID", other]);
    sleep(Duration::from_millis(1_500)).await;
    let said = lines.take();
    let fewer = |line: &&String| line.contains("WARN") && line.contains("fewer connections");
    assert_eq!(said.iter().filter(fewer).count(), 1, "{said:#?}");
    assert!(
        !said.iter().any(|line| line.contains("no connection")),
        "{said:#?}"
    );
    drop(store);
}

async fn no_secret_is_logged<S: RedisClient>() {
    let (lines, _caught) = catch();
    let server = RedisServer::start_with(&["--requirepass", "secret"]);
    let host = format!("127.0.0.1:{}", server.port());
    for url in [
        format!("redis://hunter2:hunter2@{host}"),
        format!("redis-cluster://:hunter2@{host}"),
        format!("redis-sentinel://:hunter2@{host}/primary"),
    ] {
        let mut settings = RedisSettings::new(&url);
        if url.starts_with("redis-sentinel") {
            settings.sentinel.password = Some("hunter2".into());
        }
        let store = S::open(settings.into())
            .await
            .expect("it starts all the same");
        let error = store.check(check("a", quota(10, "1/h"), 1)).await;
        tracing::warn!(error = %error.expect_err("no login"), ?store);
    }
    let said = lines.take();
    assert!(said.len() >= 6, "{said:#?}");
    assert!(
        !said.iter().any(|line| line.contains("hunter2")),
        "{said:#?}"
    );
}

/// What a strict store says, another one, and the log; on servers that do not know `command`.
async fn told_without<S: RedisClient>(
    command: &str,
    scheme: &str,
    resp: u8,
    lines: &Lines,
) -> Vec<String> {
    let server =
        RedisServer::start_with(&["--requirepass", "hunter2", "--rename-command", command, ""]);
    let url = format!("{scheme}://:hunter2@127.0.0.1:{}", server.port());
    let builder = || S::builder(&url).resp(resp).deadline(DEADLINE);
    if let Err(refused) = S::open(builder().strict(true)).await {
        tracing::warn!(%refused, ?refused);
    }
    let store = S::open(builder()).await.expect("it starts all the same");
    let error = store.check(check("hunter2", quota(10, "1/h"), 1)).await;
    let error = error.expect_err("a command is missing");
    tracing::warn!(%error, ?error, source = error.source().map(tracing::field::display));
    lines.take()
}

/// Redis repeats what it does not know.
async fn what_the_server_repeats_is_not_told<S: RedisClient>() {
    let (lines, _caught) = catch();
    for (command, resp) in [("HELLO", 3), ("AUTH", 2), ("EVALSHA", 2), ("SCRIPT", 2)] {
        for scheme in ["redis", "redis-cluster"] {
            let said = told_without::<S>(command, scheme, resp, &lines).await;
            let told = said.concat();
            assert!(!told.contains("hunter2"), "{said:#?}");
            assert!(!told.contains("redis.call"), "{said:#?}");
            if command == "HELLO" {
                assert!(told.contains("unknown command 'HELLO'"), "{said:#?}");
            }
        }
    }
}

/// As Redis 8 and Valkey refuse.
async fn no_user_is_named<S: RedisClient>() {
    for reply in [
        "NOPERM User hunter2 has no permissions to run the 'evalsha' command",
        "ERR ACL failure in script: User hunter2 has no permissions to run the 'get' command",
    ] {
        let stub = StubServer::start(Answer::Error(reply.to_owned()));
        let store = S::open(S::builder(&stub.url())).await.expect("a store");
        let error = store.check(check("a", quota(10, "1/h"), 1)).await;
        let error = error.expect_err("refused");
        assert_eq!(error.kind(), tollgate_core::ErrorKind::Auth);
        let text = format!("{error} {error:?} {:?}", error.source());
        assert!(text.contains("this user has no permissions"), "{text}");
        assert!(!text.contains("hunter2"), "{text}");
    }
}

with_each_client! {
    #[tokio::test] what_the_server_repeats_is_not_told
    #[tokio::test] no_user_is_named
    #[tokio::test] one_lost_of_several_connections_is_told_as_that
    #[tokio::test] no_secret_is_logged
    #[tokio::test] an_outage_is_told_when_it_starts_and_when_it_ends
    #[tokio::test] a_server_that_may_forget_buckets_in_use_is_told_once
}
