//! Redis that is absent, silent, read-only or full.

use std::{
    net::{Ipv4Addr, TcpListener},
    time::Duration,
};

use tokio::{
    io::copy_bidirectional,
    net::TcpStream,
    sync::watch,
    time::{Instant, sleep, timeout},
};
use tollgate_core::{ChargeState, ErrorKind, StoreError};
use tollgate_redis::ConnectError;
use tollgate_tests::{RedisClient, RedisServer, check, free_port, quota, with_each_client};

use crate::support::{decide, remaining, store_of};

/// What a busy machine may add to a deadline before we call it a hang.
const SCHEDULING: Duration = Duration::from_millis(500);

async fn fails(store: &impl RedisClient) -> StoreError {
    let asked = store.check(check("a", quota(10, "1/h"), 1));
    asked.await.expect_err("no decision")
}

/// Asks until the store decides, for at most 5 s.
async fn decides_within_5s(store: &impl RedisClient) -> u64 {
    let end = Instant::now() + Duration::from_secs(5);
    loop {
        match store.check(check("a", quota(10, "1/h"), 1)).await {
            Ok(decision) => return remaining(&decision.limits[0]),
            Err(error) => assert!(Instant::now() < end, "{error}"),
        }
        sleep(Duration::from_millis(10)).await;
    }
}

async fn a_store_starts_without_redis_and_works_once_redis_comes<S: RedisClient>() {
    let port = free_port();
    let start = Instant::now();
    let store = S::open(S::builder(&format!("redis://127.0.0.1:{port}"))).await;
    let store = store.expect("a store without Redis");
    assert!(
        start.elapsed() < Duration::from_secs(1) + SCHEDULING,
        "{:?}",
        start.elapsed()
    );
    let error = fails(&store).await;
    assert_eq!(
        (error.kind(), error.charge()),
        (ErrorKind::Io, ChargeState::NotCharged),
        "{error}"
    );
    let _server = RedisServer::start_on(port);
    assert_eq!(decides_within_5s(&store).await, 9);
}

async fn a_strict_store_tells_that_redis_is_absent<S: RedisClient>() {
    let port = free_port();
    let builder = S::builder(&format!("redis://user:hunter2@127.0.0.1:{port}"));
    let error = S::open(builder.strict(true)).await.expect_err("no Redis");
    assert!(
        matches!(&error, ConnectError::Unreachable { address, .. } if *address == format!("127.0.0.1:{port}")),
        "{error:?}"
    );
    assert!(!format!("{error} {error:?}").contains("hunter2"), "{error}");
}

async fn a_redis_that_never_answers_hangs_nobody<S: RedisClient>() {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a port");
    let url = format!("redis://{}", listener.local_addr().expect("its address"));
    let start = Instant::now();
    let store = S::open(S::builder(&url)).await.expect("a store");
    assert!(
        start.elapsed() < Duration::from_secs(1) + SCHEDULING,
        "{:?}",
        start.elapsed()
    );
    for _ in 0..10 {
        let start = Instant::now();
        let error = fails(&store).await;
        assert!(
            matches!(error.kind(), ErrorKind::Io | ErrorKind::Timeout),
            "{error}"
        );
        assert!(
            start.elapsed() < Duration::from_millis(25) + SCHEDULING,
            "{:?}",
            start.elapsed()
        );
    }
    let strict = S::open(S::builder(&url).strict(true)).await;
    assert!(
        matches!(strict, Err(ConnectError::Unreachable { .. })),
        "{strict:?}"
    );
}

async fn a_redis_that_falls_silent_costs_the_deadline_and_is_asked_once<S: RedisClient>() {
    let server = RedisServer::start();
    let builder = S::builder(&server.url()).strict(true);
    let store = S::open(builder.deadline(Duration::from_millis(100)))
        .await
        .expect("a store");
    // Kept: closing it would end the pause.
    let mut pausing = server.connection();
    redis::cmd("CLIENT")
        .arg("PAUSE")
        .arg(700)
        .arg("ALL")
        .query::<()>(&mut pausing)
        .expect("CLIENT PAUSE");
    let start = Instant::now();
    let error = fails(&store).await;
    assert_eq!(
        (error.kind(), error.charge()),
        (ErrorKind::Timeout, ChargeState::Unknown),
        "{error}"
    );
    assert!(
        start.elapsed() >= Duration::from_millis(100)
            && start.elapsed() < Duration::from_millis(100) + SCHEDULING
    );
    // That one was sent, and Redis runs it after the pause: once, not again.
    sleep(Duration::from_millis(700)).await;
    assert_eq!(decides_within_5s(&store).await, 8);
}

/// Passes connections on to `port`, until told that the present one falls silent.
async fn proxy(listener: tokio::net::TcpListener, port: u16, mut silence: watch::Receiver<()>) {
    loop {
        let (mut client, _) = listener.accept().await.expect("a client");
        let mut server = TcpStream::connect((Ipv4Addr::LOCALHOST, port))
            .await
            .expect("Redis");
        silence.mark_unchanged();
        let mut silence = silence.clone();
        tokio::spawn(async move {
            tokio::select! {
                _ = copy_bidirectional(&mut client, &mut server) => {}
                _ = silence.changed() => {
                    // Open, but nothing passes any more.
                    std::future::pending::<()>().await;
                }
            }
        });
    }
}

async fn a_connection_that_falls_silent_under_steady_traffic_is_replaced<S: RedisClient>() {
    let server = RedisServer::start();
    let listener = tokio::net::TcpListener::bind((Ipv4Addr::LOCALHOST, 0))
        .await
        .expect("a port");
    let url = format!("redis://{}", listener.local_addr().expect("its address"));
    let (fall_silent, silence) = watch::channel(());
    let proxy = tokio::spawn(proxy(listener, server.port(), silence));
    let builder = S::builder(&url).strict(true);
    let store = S::open(builder.deadline(Duration::from_millis(100)))
        .await
        .expect("a store");
    let free = || store.check(check("a", quota(10, "1/h"), 0));
    while free().await.is_err() {}
    fall_silent.send_replace(());
    while free().await.is_ok() {}
    timeout(Duration::from_secs(5), async {
        while free().await.is_err() {}
    })
    .await
    .expect("a new connection within 5 s");
    proxy.abort();
}

async fn a_lost_connection_is_not_answered_by_sending_again<S: RedisClient>() {
    let server = RedisServer::start();
    let store = store_of::<S>(&server).await;
    let mut connection = server.connection();
    assert!(
        decide(&store, check("a", quota(10, "1/h"), 1))
            .await
            .is_allowed()
    );
    let mut pausing = server.connection();
    redis::cmd("CLIENT")
        .arg("PAUSE")
        .arg(300)
        .arg("WRITE")
        .query::<()>(&mut pausing)
        .expect("CLIENT PAUSE");
    let call = tokio::spawn(store.check(check("a", quota(10, "1/h"), 1)));
    sleep(Duration::from_millis(100)).await;
    redis::cmd("CLIENT")
        .arg("KILL")
        .arg("TYPE")
        .arg("normal")
        .arg("SKIPME")
        .arg("yes")
        .query::<i64>(&mut connection)
        .expect("CLIENT KILL");
    let error = call
        .await
        .expect("no panic")
        .expect_err("a lost connection");
    assert_eq!(
        (error.kind(), error.charge()),
        (ErrorKind::Io, ChargeState::Unknown),
        "{error}"
    );
    // Redis dropped the call with its connection, and nobody sent it again: 9, then 8.
    assert_eq!(decides_within_5s(&store).await, 8);
}

async fn a_check_given_up_while_the_connection_is_away_never_charges_later<S: RedisClient>() {
    let server = RedisServer::start();
    let builder = S::builder(&server.url()).strict(true);
    let store = S::open(builder.deadline(Duration::from_millis(30)))
        .await
        .expect("a store");
    let mut connection = server.connection();
    let quota = quota(1_000, "1/h");
    let mut decided = 0;
    for _ in 0..20 {
        redis::cmd("CLIENT")
            .arg("KILL")
            .arg("TYPE")
            .arg("normal")
            .arg("SKIPME")
            .arg("yes")
            .query::<i64>(&mut connection)
            .expect("CLIENT KILL");
        // fred has noticed, and waits at least 50 ms before it reconnects: the check is queued.
        sleep(Duration::from_millis(5)).await;
        let given_up = timeout(Duration::from_millis(5), store.check(check("a", quota, 1)));
        if matches!(given_up.await, Ok(Ok(_))) {
            decided += 1;
        }
        let free = || store.check(check("a", quota, 0));
        while free().await.is_err() {
            sleep(Duration::from_millis(5)).await;
        }
    }
    let (tokens, _) =
        crate::support::state(&mut connection, "tg:{tenant:a}:default").unwrap_or((1_000.0, 0.0));
    // A machine that stalls may let a few calls get through after all, whose answer came too late.
    let lost = 1_000.0 - tokens - f64::from(decided);
    assert!(
        lost <= 5.0,
        "{lost} of 20 charged although nobody waited any more"
    );
}

async fn a_server_turned_replica_is_left_for_the_primary_and_charges_nothing<S: RedisClient>() {
    let server = RedisServer::start();
    let store = store_of::<S>(&server).await;
    let mut connection = server.connection();
    let mut replicate = |host: &str, port: &str| {
        redis::cmd("REPLICAOF")
            .arg(host)
            .arg(port)
            .query::<()>(&mut connection)
            .expect("REPLICAOF");
    };
    replicate("127.0.0.1", &free_port().to_string());
    let connections = || server.info("stats", "total_connections_received");
    let before = connections();
    let error = fails(&store).await;
    assert_eq!(
        (error.kind(), error.charge()),
        (ErrorKind::ReadOnly, ChargeState::NotCharged),
        "{error}"
    );
    // Each look at the counter is a connection as well.
    let mut looks = 1;
    timeout(Duration::from_secs(5), async {
        while connections() <= before + looks {
            looks += 1;
            sleep(Duration::from_millis(10)).await;
        }
    })
    .await
    .expect("a new connection, which may lead to the new primary");
    replicate("NO", "ONE");
    assert_eq!(decides_within_5s(&store).await, 9);
}

async fn a_full_redis_is_out_of_memory_and_charges_nothing<S: RedisClient>() {
    let server = RedisServer::start();
    let store = store_of::<S>(&server).await;
    let mut connection = server.connection();
    let mut set = |name: &str, value: &str| {
        redis::cmd("CONFIG")
            .arg("SET")
            .arg(name)
            .arg(value)
            .query::<()>(&mut connection)
            .expect("CONFIG SET");
    };
    set("maxmemory", "1");
    let error = fails(&store).await;
    assert_eq!(
        (error.kind(), error.charge()),
        (ErrorKind::Oom, ChargeState::NotCharged),
        "{error}"
    );
    set("maxmemory", "0");
    assert_eq!(
        remaining(&decide(&store, check("a", quota(10, "1/h"), 1)).await.limits[0]),
        9
    );
}

async fn the_last_clone_closes_the_connection<S: RedisClient>() {
    let server = RedisServer::start();
    let store = store_of::<S>(&server).await;
    let clone = store.clone();
    drop(store);
    assert!(
        decide(&clone, check("a", quota(10, "1/h"), 1))
            .await
            .is_allowed()
    );
    drop(clone);
    // Our own look is one connection.
    timeout(Duration::from_secs(5), async {
        while server.info("clients", "connected_clients") > 1 {
            sleep(Duration::from_millis(10)).await;
        }
    })
    .await
    .expect("all other connections closed");
}

async fn bad_settings_are_refused_before_anything_is_opened<S: RedisClient>() {
    for url in [
        "",
        "http://localhost",
        "redis-sentinel://localhost",
        "redis://localhost/first",
    ] {
        assert!(
            matches!(S::open(S::builder(url)).await, Err(ConnectError::Url(_))),
            "{url}"
        );
    }
    let zero = S::open(S::builder("redis://localhost").deadline(Duration::ZERO)).await;
    assert_eq!(zero.expect_err("refused"), ConnectError::ZeroDeadline);
}

async fn debug_output_shows_no_secret<S: RedisClient>() {
    let server = RedisServer::start();
    redis::cmd("CONFIG")
        .arg("SET")
        .arg("requirepass")
        .arg("hunter2")
        .query::<()>(&mut server.connection())
        .expect("CONFIG SET");
    let builder = S::builder(&format!("redis://:hunter2@127.0.0.1:{}", server.port())).strict(true);
    assert!(!format!("{builder:?}").contains("hunter2"));
    let store = S::open(builder).await.expect("a store");
    assert!(!format!("{store:?}").contains("hunter2"), "{store:?}");
}

with_each_client! {
    #[tokio::test] a_store_starts_without_redis_and_works_once_redis_comes
    #[tokio::test] a_strict_store_tells_that_redis_is_absent
    #[tokio::test] a_redis_that_never_answers_hangs_nobody
    #[tokio::test] a_redis_that_falls_silent_costs_the_deadline_and_is_asked_once
    #[tokio::test] a_connection_that_falls_silent_under_steady_traffic_is_replaced
    #[tokio::test] a_lost_connection_is_not_answered_by_sending_again
    #[tokio::test] a_check_given_up_while_the_connection_is_away_never_charges_later
    #[tokio::test] a_server_turned_replica_is_left_for_the_primary_and_charges_nothing
    #[tokio::test] a_full_redis_is_out_of_memory_and_charges_nothing
    #[tokio::test] the_last_clone_closes_the_connection
    #[tokio::test] bad_settings_are_refused_before_anything_is_opened
    #[tokio::test] debug_output_shows_no_secret
}
