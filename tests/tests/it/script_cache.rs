//! A server that lost the script.

use std::time::{Duration, SystemTime};

use tokio::task::JoinSet;
use tollgate_tests::{RedisClient, RedisServer, check, quota, with_each_client};

use crate::support::{decide, remaining, store_of};

async fn an_emptied_script_cache_under_load_fails_nobody<S: RedisClient>() {
    let server = RedisServer::start();
    let store = store_of::<S>(&server).await;
    let hourly = quota(1_000, "1/h");
    assert!(decide(&store, check("a", hourly, 1)).await.is_allowed());
    let loads = server.calls("script|load");
    redis::cmd("SCRIPT")
        .arg("FLUSH")
        .query::<()>(&mut server.connection())
        .expect("SCRIPT FLUSH");
    let mut tasks = JoinSet::new();
    for _ in 0..100 {
        let store = store.clone();
        tasks.spawn(async move { decide(&store, check("a", hourly, 1)).await.is_allowed() });
    }
    assert!(tasks.join_all().await.into_iter().all(|allowed| allowed));
    let last = decide(&store, check("a", hourly, 1)).await;
    assert_eq!(remaining(&last.limits[0]), 898, "102 charged, each once");
    let loads = server.calls("script|load") - loads;
    assert!((1..=5).contains(&loads), "{loads} loads for 100 calls");
}

async fn checks_that_are_cancelled_while_the_script_loads_leave_nobody_stuck<S: RedisClient>() {
    let server = RedisServer::start();
    let store = store_of::<S>(&server).await;
    for round in 0..20 {
        redis::cmd("SCRIPT")
            .arg("FLUSH")
            .query::<()>(&mut server.connection())
            .expect("SCRIPT FLUSH");
        let mut tasks = JoinSet::new();
        for i in 0..20_u64 {
            let call = store.check(check("a", quota(1_000, "1/h"), 1));
            tasks.spawn(tokio::time::timeout(Duration::from_micros(50 * i), call));
        }
        let _ = tasks.join_all().await;
        assert!(
            store
                .check(check("b", quota(1_000, "1/h"), 1))
                .await
                .is_ok(),
            "round {round}"
        );
    }
}

async fn a_redis_that_restarted_empty_is_used_again_by_itself<S: RedisClient>() {
    let mut server = RedisServer::start();
    let store = store_of::<S>(&server).await;
    let hourly = quota(10, "1/h");
    assert!(decide(&store, check("a", hourly, 1)).await.is_allowed());
    server.restart();
    let back = SystemTime::now();
    let decision = loop {
        match store.check(check("a", hourly, 1)).await {
            Ok(decision) => break decision,
            Err(error) => assert!(
                back.elapsed().expect("a clock") < Duration::from_secs(5),
                "{error}"
            ),
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    };
    assert_eq!(remaining(&decision.limits[0]), 9);
}

with_each_client! {
    #[tokio::test(flavor = "multi_thread", worker_threads = 2)] an_emptied_script_cache_under_load_fails_nobody
    #[tokio::test(flavor = "multi_thread", worker_threads = 2)] checks_that_are_cancelled_while_the_script_loads_leave_nobody_stuck
    #[tokio::test] a_redis_that_restarted_empty_is_used_again_by_itself
}
