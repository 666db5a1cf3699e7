//! Each way in which Redis may be away, in a short form: under load, with each policy.

use std::time::Duration;

use tokio::time::{Instant, sleep};
use tollgate::FailurePolicy;
use tollgate_tests::{Fault, FaultProxy, RedisServer, free_port};

use crate::faults::{
    BACK_WITHIN, CAPACITY, DEADLINE, Load, REPLICAS, Replica, none_charged_twice, one_of_each,
    survives,
};

const SPAN: Duration = Duration::from_millis(1_200);

async fn survives_at_the_proxy(fault: Fault, most_late: u64) {
    let mut server = RedisServer::start();
    let proxy = FaultProxy::start(server.port());
    let outcome = survives(
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

#[tokio::test]
async fn connections_refused() {
    survives_at_the_proxy(Fault::Refuse, 1).await;
}

#[tokio::test]
async fn connections_reset() {
    survives_at_the_proxy(Fault::Reset, 1).await;
}

/// Late are those that were sent before the breaker opened, and no probe: their connection is given up.
#[tokio::test]
async fn a_black_hole_that_stays_open() {
    survives_at_the_proxy(Fault::BlackHole, 8).await;
}

/// The script ran, the answer never came. Each probe runs as well.
#[tokio::test]
async fn replies_held_back() {
    survives_at_the_proxy(Fault::HoldReplies, 15).await;
}

#[tokio::test]
async fn replies_lost() {
    survives_at_the_proxy(Fault::LoseReplies, 15).await;
}

#[tokio::test]
async fn replies_just_above_the_deadline() {
    let delay = DEADLINE + Duration::from_millis(20);
    survives_at_the_proxy(Fault::DelayReplies(delay), 15).await;
}

#[tokio::test]
async fn reset_in_mid_reply() {
    survives_at_the_proxy(Fault::CutReplies, 15).await;
}

#[tokio::test]
async fn a_server_that_is_stopped() {
    let mut server = RedisServer::start();
    let proxy = FaultProxy::start(server.port());
    let outcome = survives(
        &mut server,
        &proxy,
        SPAN,
        async |server, _| server.pause(),
        async |server, _| server.resume(),
    )
    .await;
    none_charged_twice(&server, &outcome);
}

#[tokio::test]
async fn a_server_that_is_killed_and_comes_back_empty() {
    let mut server = RedisServer::start();
    let proxy = FaultProxy::start(server.port());
    let outcome = survives(
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

#[tokio::test]
async fn a_script_cache_emptied_again_and_again() {
    let mut server = RedisServer::start();
    let proxy = FaultProxy::start(server.port());
    let outcome = survives(
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

#[tokio::test]
async fn all_clients_killed() {
    let mut server = RedisServer::start();
    let proxy = FaultProxy::start(server.port());
    let kill = |server: &RedisServer| {
        let mut kill = redis::cmd("CLIENT");
        kill.arg(&["KILL", "TYPE", "normal", "SKIPME", "yes"]);
        kill.query::<i64>(&mut server.connection())
            .expect("CLIENT KILL");
    };
    let outcome = survives(
        &mut server,
        &proxy,
        Duration::from_millis(300),
        async |server, _| kill(server),
        async |server, _| kill(server),
    )
    .await;
    none_charged_twice(&server, &outcome);
}

#[tokio::test]
async fn memory_reached_with_noeviction() {
    let mut server = RedisServer::start();
    let proxy = FaultProxy::start(server.port());
    let set = |server: &RedisServer, bytes: &str| {
        let mut set = redis::cmd("CONFIG");
        set.arg(&["SET", "maxmemory", bytes]);
        set.query::<()>(&mut server.connection())
            .expect("CONFIG SET");
    };
    let outcome = survives(
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

#[tokio::test]
async fn a_server_that_sleeps() {
    let mut server = RedisServer::start_with(&["--enable-debug-command", "yes"]);
    let proxy = FaultProxy::start(server.port());
    let outcome = survives(
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

#[tokio::test]
async fn a_server_that_is_busy_with_a_script() {
    let mut server = RedisServer::start_with(&["--busy-reply-threshold", "100"]);
    let proxy = FaultProxy::start(server.port());
    let outcome = survives(
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
#[tokio::test]
async fn flapping_gives_no_new_bursts() {
    let server = RedisServer::start();
    let proxy = FaultProxy::start(server.port());
    let local = FailurePolicy::local(REPLICAS);
    let replica = Replica::start(&proxy.url(), local, DEADLINE).await;
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

#[tokio::test]
async fn refused_from_the_start() {
    let port = free_port();
    let start = Instant::now();
    let replicas = one_of_each(&format!("redis://127.0.0.1:{port}")).await;
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

#[tokio::test]
async fn silent_from_the_start() {
    let server = RedisServer::start();
    let proxy = FaultProxy::start_with(server.port(), Fault::BlackHole);
    let replicas = one_of_each(&proxy.url()).await;
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
