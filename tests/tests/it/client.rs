//! What the Redis client is known to do wrong as it is shipped, and must not do here; each against a real
//! server behind a proxy.

use std::{
    io::{BufRead, BufReader},
    process::{Command, Stdio},
    time::Duration,
};

use tokio::{
    task::JoinSet,
    time::{Instant, sleep, timeout},
};
use tollgate_core::{ChargeState, ErrorKind};
use tollgate_tests::{Fault, FaultProxy, RedisClient, RedisServer, check, quota, with_each_client};

use crate::{
    faults::{BACK_WITHIN, SCHEDULING},
    support::state,
};

const DEADLINE: Duration = Duration::from_millis(200);
const CAPACITY: u64 = 1_000_000;

async fn behind<S: RedisClient>(proxy: &FaultProxy) -> S {
    let builder = S::builder(&proxy.url()).strict(true);
    S::open(builder.deadline(DEADLINE)).await.expect("a store")
}

async fn ask(store: &impl RedisClient) -> Result<(), ErrorKind> {
    let check = check("a", quota(CAPACITY, "36/h"), 1);
    store
        .check(check)
        .await
        .map(drop)
        .map_err(|error| error.kind())
}

fn charged(server: &RedisServer) -> u64 {
    let state = state(&mut server.connection(), "tg:{tenant:a}:default");
    CAPACITY - state.map_or(CAPACITY, |(tokens, _)| tokens.round() as u64)
}

async fn works_within_5s(store: &impl RedisClient) {
    let end = Instant::now() + BACK_WITHIN;
    while let Err(kind) = ask(store).await {
        assert!(Instant::now() < end, "{kind:?}");
        sleep(Duration::from_millis(10)).await;
    }
}

async fn calls_in_flight_are_not_replayed_on_the_next_connection<S: RedisClient>() {
    let server = RedisServer::start();
    let proxy = FaultProxy::start(server.port());
    // Time enough for a client that would send again.
    let builder = S::builder(&proxy.url()).strict(true);
    let builder = builder.deadline(Duration::from_secs(3));
    let store = S::open(builder).await.expect("a store");
    ask(&store).await.expect("a decision");
    proxy.set(Fault::LoseReplies);
    let mut calls = JoinSet::new();
    for _ in 0..20 {
        let call = store.check(check("a", quota(CAPACITY, "36/h"), 1));
        calls.spawn(call);
    }
    timeout(Duration::from_secs(5), async {
        while charged(&server) < 21 {
            sleep(Duration::from_millis(1)).await;
        }
    })
    .await
    .expect("all sent and run");
    // The last reply has to be lost as well.
    sleep(Duration::from_millis(100)).await;
    // Resets the connection whose replies were lost; the next one is well.
    proxy.set(Fault::None);
    for answer in calls.join_all().await {
        let error = answer.expect_err("the connection is gone");
        assert_eq!(error.charge(), ChargeState::Unknown, "{error}");
    }
    works_within_5s(&store).await;
    sleep(Duration::from_millis(200)).await;
    assert_eq!(charged(&server), 22, "each ran once");
}

async fn a_client_whose_connection_ended_is_followed_by_another_however_often<S: RedisClient>() {
    let server = RedisServer::start();
    let proxy = FaultProxy::start(server.port());
    let store = behind::<S>(&proxy).await;
    for _ in 0..5 {
        proxy.reset_present();
        works_within_5s(&store).await;
    }
    assert!(proxy.connections() >= 6);
    // The former ones are closed: one is the store's, one is our look.
    timeout(Duration::from_secs(5), async {
        while server.info("clients", "connected_clients") > 2 {
            sleep(Duration::from_millis(10)).await;
        }
    })
    .await
    .expect("one connection");
}

/// No reply ever comes, and the socket's buffers fill up until the client is stuck in a write.
async fn a_client_that_is_stuck_in_a_write_is_replaced<S: RedisClient>() {
    let server = RedisServer::start();
    let proxy = FaultProxy::start(server.port());
    let store = behind::<S>(&proxy).await;
    ask(&store).await.expect("a decision");
    proxy.silence_present();
    // Ids of a thousand bytes are hashed, so it takes many: 8 charges in each.
    let charges = (0..8).map(|i| {
        tollgate_tests::charge(
            "a",
            &format!("limit-{}-{i}", "x".repeat(50)),
            quota(10, "1/h"),
            1,
        )
    });
    let large = tollgate_core::Check::new(charges.collect()).expect("a check");
    let mut calls = JoinSet::new();
    for _ in 0..6_000 {
        calls.spawn(store.check(large.clone()));
    }
    let answers = calls.join_all().await;
    assert!(answers.iter().all(Result::is_err));
    works_within_5s(&store).await;
}

async fn a_silent_connection_hangs_no_call_and_is_replaced<S: RedisClient>() {
    let server = RedisServer::start();
    let proxy = FaultProxy::start(server.port());
    let store = behind::<S>(&proxy).await;
    ask(&store).await.expect("a decision");
    proxy.silence_present();
    let start = Instant::now();
    assert_eq!(ask(&store).await, Err(ErrorKind::Timeout));
    assert!(
        start.elapsed() < DEADLINE + SCHEDULING,
        "{:?}",
        start.elapsed()
    );
    works_within_5s(&store).await;
    assert_eq!(charged(&server), 2, "what was swallowed did not run");
}

#[test]
fn ten_seconds_of_silence_take_fred_no_memory_and_leave_nothing_behind() {
    ten_seconds_of_silence("fred");
}

#[test]
fn ten_seconds_of_silence_take_redis_rs_no_memory_and_leave_nothing_behind() {
    ten_seconds_of_silence("redis-rs");
}

fn ten_seconds_of_silence(client: &str) {
    let server = RedisServer::start();
    let proxy = FaultProxy::start(server.port());
    let mut child = Command::new(env!("CARGO_BIN_EXE_silence"))
        .args([&proxy.url(), client])
        .stdout(Stdio::piped())
        .spawn()
        .expect("a process");
    let output = BufReader::new(child.stdout.take().expect("its output"));
    let mut lines = output.lines().map(|line| line.expect("UTF-8"));
    let mut told = || lines.next().expect("the process says why it ended above");

    assert_eq!(told(), "ready");
    let served = charged(&server);
    assert!(served > 0);
    proxy.set(Fault::BlackHole);
    let grown = told();
    let kib = grown
        .strip_prefix("grown ")
        .and_then(|kib| kib.parse::<u64>().ok());
    assert!(
        kib.expect("a number") < 1_024,
        "{grown} KiB in 8 s of silence; a queue of 8 000 calls is more"
    );
    let sent_late = charged(&server) - served;
    proxy.set(Fault::None);
    assert_eq!(told(), "back");
    assert!(child.wait().expect("our own child").success());
    // In the second before the silence is noticed 1 000 calls were written; they were in the network, and no
    // client can call them back. Of the 9 000 after that, none.
    let late = charged(&server) - served - sent_late;
    assert!(late <= 1_500, "{late} of 10 000 ran after all");
}

with_each_client! {
    #[tokio::test] calls_in_flight_are_not_replayed_on_the_next_connection
    #[tokio::test] a_client_whose_connection_ended_is_followed_by_another_however_often
    #[tokio::test] a_client_that_is_stuck_in_a_write_is_replaced
    #[tokio::test] a_silent_connection_hangs_no_call_and_is_replaced
}
