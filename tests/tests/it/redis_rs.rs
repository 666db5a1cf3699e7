//! What only redis-rs does, or might do wrong. What holds for every client is tested with each.

use std::time::Duration;

use tokio::{
    task::JoinSet,
    time::{sleep, timeout},
};
use tollgate_core::{ChargeState, ErrorKind, Store};
use tollgate_redis::{RedisRsStore, RedisStore};
use tollgate_tests::{Answer, FaultProxy, RedisServer, StubServer, check, quota};

use crate::support::{decide, remaining, store_of};

fn run(server: &RedisServer, command: &[&str]) {
    let mut cmd = redis::cmd(command[0]);
    let done = cmd
        .arg(&command[1..])
        .query::<redis::Value>(&mut server.connection());
    done.unwrap_or_else(|error| panic!("{command:?}: {error}"));
}

#[tokio::test]
async fn both_libraries_share_the_buckets_of_one_redis() {
    let server = RedisServer::start();
    let fred = store_of::<RedisStore>(&server).await;
    let redis_rs = store_of::<RedisRsStore>(&server).await;
    let quota = quota(10, "1/h");
    for left in [9, 7, 5, 3, 1] {
        let by_fred = decide(&fred, check("a", quota, 1)).await;
        assert_eq!(remaining(&by_fred.limits[0]), left);
        let by_redis_rs = decide(&redis_rs, check("a", quota, 1)).await;
        assert_eq!(remaining(&by_redis_rs.limits[0]), left - 1);
    }
}

/// The library does not look at error replies. The connection stays what it was before the login was lost.
#[tokio::test]
async fn a_server_that_wants_a_login_gets_a_new_connection() {
    let stub = StubServer::start(Answer::Granted(5));
    let proxy = FaultProxy::start(stub.port());
    let builder = RedisRsStore::builder(&proxy.url()).strict(true);
    let builder = builder.deadline(Duration::from_secs(10));
    let store = builder.connect().await.expect("a store");
    let ask = || store.check(check("a", quota(10, "1/h"), 1));
    assert!(ask().await.is_ok());
    stub.set(Answer::Error("NOAUTH Authentication required.".to_owned()));
    let before = proxy.connections();
    let error = ask().await.expect_err("refused");
    assert_eq!(
        (error.kind(), error.charge()),
        (ErrorKind::Auth, ChargeState::NotCharged),
        "{error}"
    );
    stub.set(Answer::Granted(5));
    timeout(Duration::from_secs(5), async {
        while proxy.connections() == before || ask().await.is_err() {
            sleep(Duration::from_millis(10)).await;
        }
    })
    .await
    .expect("a new connection that works");
}

/// Nothing is said to a server without a password unless it is asked something.
#[tokio::test]
async fn a_server_that_asks_for_a_password_is_no_connection() {
    let server = RedisServer::start_with(&["--requirepass", "secret"]);
    let refused = RedisRsStore::builder(&server.url()).strict(true).connect();
    let error = refused.await.expect_err("no password");
    assert!(error.to_string().contains("NOAUTH"), "{error}");
}

#[tokio::test]
async fn a_database_and_a_user_are_chosen_for_each_connection() {
    let server = RedisServer::start();
    let rights = [
        "~tg:*",
        "+evalsha",
        "+script|load",
        "+get",
        "+set",
        "+pttl",
        "+select",
    ];
    run(
        &server,
        &[&["ACL", "SETUSER", "limiter", "on", ">secret"], &rights[..]].concat(),
    );
    let proxy = FaultProxy::start(server.port());
    let url = format!("redis://limiter:secret@127.0.0.1:{}/3", proxy.port());
    let store = RedisRsStore::builder(&url).strict(true);
    let store = store
        .deadline(Duration::from_secs(10))
        .connect()
        .await
        .expect("a store");
    assert!(
        decide(&store, check("a", quota(10, "1/h"), 1))
            .await
            .is_allowed()
    );
    proxy.reset_present();
    timeout(Duration::from_secs(5), async {
        while store.check(check("a", quota(10, "1/h"), 1)).await.is_err() {
            sleep(Duration::from_millis(10)).await;
        }
    })
    .await
    .expect("another connection");
    assert_eq!(server.info("keyspace", "db0"), 0);
    let mut connection = server.connection();
    run_on(&mut connection, &["SELECT", "3"]);
    let state = crate::support::state(&mut connection, "tg:{tenant:a}:default");
    assert_eq!(state.map(|(tokens, _)| tokens.round()), Some(8.0));
}

fn run_on(connection: &mut redis::Connection, command: &[&str]) {
    let mut cmd = redis::cmd(command[0]);
    cmd.arg(&command[1..]).query::<()>(connection).expect("OK");
}

/// Given up before the connection's task came to it, a call is not sent at all.
#[tokio::test]
async fn a_call_given_up_at_once_costs_at_most_its_one_run() {
    let server = RedisServer::start();
    let store = store_of::<RedisRsStore>(&server).await;
    let quota = quota(1_000, "1/h");
    let of_tenant = |i: u64, cost| check(&i.to_string(), quota, cost);
    let mut given_up = JoinSet::new();
    for i in 0..100 {
        let call = store.check(of_tenant(i, 1));
        given_up.spawn(timeout(Duration::from_micros(10 * i), call));
    }
    given_up.join_all().await;
    sleep(Duration::from_millis(300)).await;
    for i in 0..100 {
        let left = remaining(&decide(&store, of_tenant(i, 0)).await.limits[0]);
        assert!((999..=1_000).contains(&left), "{i}: {left}");
    }
}

/// Calls of many tasks go to the server in few packets: that is what this library is for.
#[tokio::test]
async fn calls_side_by_side_are_written_together() {
    let server = RedisServer::start();
    let store = store_of::<RedisRsStore>(&server).await;
    decide(&store, check("a", quota(1_000, "1/h"), 1)).await;
    let reads = || server.info("stats", "total_reads_processed");
    let before = reads();
    let mut calls = JoinSet::new();
    for _ in 0..500 {
        calls.spawn(store.check(check("a", quota(1_000, "1/h"), 1)));
    }
    assert!(calls.join_all().await.into_iter().all(|it| it.is_ok()));
    let reads = reads() - before;
    assert!(reads <= 250, "{reads} reads for 500 calls");
}
