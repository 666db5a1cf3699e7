//! Each way in which Redis may be away, in a short form: under load, with each policy.

use std::time::Duration;

use tokio::time::{Instant, sleep};
use tollgate::FailurePolicy;
use tollgate_tests::{Fault, FaultProxy, RedisClient, RedisServer, free_port, with_each_client};

use crate::faults::{
    BACK_WITHIN, CAPACITY, DEADLINE, Load, REPLICAS, Replica, none_charged_twice, one_of_each,
    survives,
};

const SPAN: Duration = Duration::from_millis(1_200);

async fn survives_at_the_proxy<S: RedisClient>(fault: Fault, most_late: u64) {
    let mut server = RedisServer::start();
    let proxy = FaultProxy::start(server.port());
    let outcome = survives::<S>(
        &mut server,
        &proxy,
        SPAN,
        async |_, proxy| proxy.set(fault),
        async |_, proxy| proxy.set(Fault::None),
    )
    .await;
    none_charged_twice(&server, &outcome);
    for (replica, _) in &outcome {
        assert!(replica.metric("ratelimit_store_errors_total", "") > 0);
        let allowed = replica.metric("ratelimit_decisions_total", "outcome=\"allowed\"");
        let late = replica.charged(&server) - allowed;
        assert!(
            late <= most_late,
            "{}: {late} charged for nobody",
            replica.policy
        );
    }
}

async fn connections_refused<S: RedisClient>() {
    survives_at_the_proxy::<S>(Fault::Refuse, 1).await;
}

async fn connections_reset<S: RedisClient>() {
    survives_at_the_proxy::<S>(Fault::Reset, 1).await;
}

/// Late are those that were sent before the breaker opened, and no probe: their connection is given up.
async fn a_black_hole_that_stays_open<S: RedisClient>() {
    survives_at_the_proxy::<S>(Fault::BlackHole, 8).await;
}

/// The script ran, the answer never came. Each probe runs as well.
async fn replies_held_back<S: RedisClient>() {
    survives_at_the_proxy::<S>(Fault::HoldReplies, 15).await;
}

async fn replies_lost<S: RedisClient>() {
    survives_at_the_proxy::<S>(Fault::LoseReplies, 15).await;
}

async fn replies_just_above_the_deadline<S: RedisClient>() {
    let delay = DEADLINE + Duration::from_millis(20);
    survives_at_the_proxy::<S>(Fault::DelayReplies(delay), 15).await;
}

async fn reset_in_mid_reply<S: RedisClient>() {
    survives_at_the_proxy::<S>(Fault::CutReplies, 15).await;
}

async fn a_server_that_is_stopped<S: RedisClient>() {
    let mut server = RedisServer::start();
    let proxy = FaultProxy::start(server.port());
    let outcome = survives::<S>(
        &mut server,
        &proxy,
        SPAN,
        async |server, _| server.pause(),
        async |server, _| server.resume(),
    )
    .await;
    none_charged_twice(&server, &outcome);
}

async fn a_server_that_is_killed_and_comes_back_empty<S: RedisClient>() {
    let mut server = RedisServer::start();
    let proxy = FaultProxy::start(server.port());
    let outcome = survives::<S>(
        &mut server,
        &proxy,
        SPAN,
        async |server, _| server.kill(),
        async |server, _| server.restart(),
    )
    .await;
    for (replica, _) in outcome {
        assert_eq!(
            replica.errors("noscript"),
            0,
            "loading the script is no failure"
        );
    }
}

async fn a_script_cache_emptied_again_and_again<S: RedisClient>() {
    let mut server = RedisServer::start();
    let proxy = FaultProxy::start(server.port());
    let outcome = survives::<S>(
        &mut server,
        &proxy,
        Duration::ZERO,
        async |server, _| {
            for _ in 0..10 {
                let flushed = redis::cmd("SCRIPT")
                    .arg("FLUSH")
                    .query(&mut server.connection());
                flushed.expect("SCRIPT FLUSH")
            }
        },
        async |_, _| {},
    )
    .await;
    for (replica, tally) in &outcome {
        assert_eq!(replica.errors("noscript"), 0, "{tally:?}");
    }
    none_charged_twice(&server, &outcome);
}

async fn all_clients_killed<S: RedisClient>() {
    let mut server = RedisServer::start();
    let proxy = FaultProxy::start(server.port());
    let kill = |server: &RedisServer| {
        let mut kill = redis::cmd("CLIENT");
        kill.arg(&["KILL", "TYPE", "normal", "SKIPME", "yes"]);
        kill.query::<i64>(&mut server.connection())
            .expect("CLIENT KILL");
    };
    let outcome = survives::<S>(
        &mut server,
        &proxy,
        Duration::from_millis(300),
        async |server, _| kill(server),
        async |server, _| kill(server),
    )
    .await;
    none_charged_twice(&server, &outcome);
}

async fn memory_reached_with_noeviction<S: RedisClient>() {
    let mut server = RedisServer::start();
    let proxy = FaultProxy::start(server.port());
    let set = |server: &RedisServer, bytes: &str| {
        let mut set = redis::cmd("CONFIG");
        set.arg(&["SET", "maxmemory", bytes]);
        set.query::<()>(&mut server.connection())
            .expect("CONFIG SET");
    };
    let outcome = survives::<S>(
        &mut server,
        &proxy,
        SPAN,
        async |server, _| set(server, "1"),
        async |server, _| set(server, "0"),
    )
    .await;
    for (replica, _) in &outcome {
        assert!(replica.errors("oom") > 5, "not hidden by the breaker");
    }
    none_charged_twice(&server, &outcome);
}

async fn a_server_that_sleeps<S: RedisClient>() {
    let mut server = RedisServer::start_with(&["--enable-debug-command", "yes"]);
    let proxy = FaultProxy::start(server.port());
    let outcome = survives::<S>(
        &mut server,
        &proxy,
        Duration::ZERO,
        async |server, _| {
            let mut connection = server.connection();
            let slept = tokio::task::spawn_blocking(move || {
                redis::cmd("DEBUG")
                    .arg("SLEEP")
                    .arg("1.5")
                    .query::<()>(&mut connection)
            });
            slept.await.expect("no panic").expect("DEBUG SLEEP");
        },
        async |_, _| {},
    )
    .await;
    none_charged_twice(&server, &outcome);
}

async fn a_server_that_is_busy_with_a_script<S: RedisClient>() {
    let mut server = RedisServer::start_with(&["--busy-reply-threshold", "100"]);
    let proxy = FaultProxy::start(server.port());
    let outcome = survives::<S>(
        &mut server,
        &proxy,
        SPAN,
        async |server, _| {
            let mut connection = server.connection();
            std::thread::spawn(move || {
                let mut endless = redis::cmd("EVAL");
                // Ends with an error, when it is killed.
                let _ = endless
                    .arg("while true do end")
                    .arg(0)
                    .query::<()>(&mut connection);
            });
        },
        async |server, _| {
            let mut kill = redis::cmd("SCRIPT");
            kill.arg("KILL")
                .query::<()>(&mut server.connection())
                .expect("SCRIPT KILL");
        },
    )
    .await;
    none_charged_twice(&server, &outcome);
}

/// One second away, one second there: a local bucket is handed out once, not with each outage.
async fn flapping_gives_no_new_bursts<S: RedisClient>() {
    let server = RedisServer::start();
    let proxy = FaultProxy::start(server.port());
    let local = FailurePolicy::local(REPLICAS);
    let replica = Replica::start::<S>(&proxy.url(), local, DEADLINE).await;
    let load = Load::start(&replica, Duration::from_millis(2));
    for _ in 0..5 {
        proxy.set(Fault::Refuse);
        sleep(Duration::from_secs(1)).await;
        proxy.set(Fault::None);
        sleep(Duration::from_secs(1)).await;
    }
    let back = replica.is_back(Instant::now()).await;
    assert!(back < BACK_WITHIN, "{back:?}");
    let tally = load.stop().await;
    tally.keeps_to("local");
    let share = CAPACITY / u64::from(REPLICAS);
    assert!(
        tally.fallback_allowed + tally.fallback_denied > share,
        "{tally:?}"
    );
    assert!(tally.store_allowed > 0, "{tally:?}");
    // At most an immediate attempt for each loss, and seven in the second of each outage.
    assert!(proxy.connections() <= 50, "{}", proxy.connections());
}

async fn refused_from_the_start<S: RedisClient>() {
    let port = free_port();
    let start = Instant::now();
    let replicas = one_of_each::<S>(&format!("redis://127.0.0.1:{port}")).await;
    assert!(
        start.elapsed() < Duration::from_secs(3),
        "{:?}",
        start.elapsed()
    );
    let loads: Vec<_> = replicas
        .iter()
        .map(|it| Load::start(it, Duration::from_millis(10)))
        .collect();
    sleep(Duration::from_millis(500)).await;
    let _server = RedisServer::start_on(port);
    let up = Instant::now();
    for (replica, load) in replicas.iter().zip(loads) {
        let back = replica.is_back(up).await;
        assert!(back < BACK_WITHIN, "{}: {back:?}", replica.policy);
        load.stop().await.keeps_to(replica.policy);
        assert!(replica.errors("io") > 0);
    }
}

async fn silent_from_the_start<S: RedisClient>() {
    let server = RedisServer::start();
    let proxy = FaultProxy::start_with(server.port(), Fault::BlackHole);
    let replicas = one_of_each::<S>(&proxy.url()).await;
    for replica in &replicas {
        let load = Load::start(replica, Duration::from_millis(10));
        sleep(Duration::from_millis(200)).await;
        let tally = load.stop().await;
        tally.keeps_to(replica.policy);
        assert_eq!(tally.store_allowed, 0, "{tally:?}");
    }
    proxy.set(Fault::None);
    let up = Instant::now();
    for replica in &replicas {
        let back = replica.is_back(up).await;
        assert!(back < BACK_WITHIN, "{}: {back:?}", replica.policy);
    }
}

with_each_client! {
    #[tokio::test] connections_refused
    #[tokio::test] connections_reset
    #[tokio::test] a_black_hole_that_stays_open
    #[tokio::test] replies_held_back
    #[tokio::test] replies_lost
    #[tokio::test] replies_just_above_the_deadline
    #[tokio::test] reset_in_mid_reply
    #[tokio::test] a_server_that_is_stopped
    #[tokio::test] a_server_that_is_killed_and_comes_back_empty
    #[tokio::test] a_script_cache_emptied_again_and_again
    #[tokio::test] all_clients_killed
    #[tokio::test] memory_reached_with_noeviction
    #[tokio::test] a_server_that_sleeps
    #[tokio::test] a_server_that_is_busy_with_a_script
    #[tokio::test] flapping_gives_no_new_bursts
    #[tokio::test] refused_from_the_start
    #[tokio::test] silent_from_the_start
}
