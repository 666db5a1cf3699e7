//! Adjustments on a real Redis.

use std::{future::poll_fn, task::Poll, time::Duration};

use tokio::{
    task::JoinSet,
    time::{Instant, sleep, timeout},
};
use tollgate_core::{
    Adjustment, Change, ChargeState, Check, ErrorKind, Quota, Store, StoreError, Verdict, Wait,
};
use tollgate_tests::{
    Fault, FaultProxy, RedisClient, RedisServer, change, charge, check, quota, with_each_client,
};

use crate::{
    faults::SCHEDULING,
    support::{decide, pass, pttl, remaining, state, store, store_of},
};

const KEY: &str = "tg:{tenant:a}:default";

fn adjustment(changes: Vec<Change>) -> Adjustment {
    Adjustment::new(changes).expect("an adjustment")
}

/// What the default bucket of tenant `a` holds after a change.
async fn adjust(store: &impl Store, quota: Quota, delta: i64, floor: i64) -> i64 {
    let one = adjustment(vec![change("a", "default", quota, delta, floor)]);
    store.adjust(one).await.expect("carried out")[0]
}

async fn fails(store: &impl Store, changes: Vec<Change>) -> StoreError {
    let answer = store.adjust(adjustment(changes)).await;
    answer.expect_err("not carried out")
}

#[tokio::test]
async fn what_is_given_back_can_be_spent_again_up_to_the_capacity() {
    let server = RedisServer::start();
    let store = store(&server).await;
    let quota = quota(10, "1/h");
    let granted = check("a", quota, 4);
    let decision = decide(&store, granted.clone()).await;
    let back = Adjustment::give_back(&granted, &decision, 1).expect("four tokens");
    assert_eq!(store.adjust(back).await.expect("carried out"), [10]);
    assert!(decide(&store, check("a", quota, 10)).await.is_allowed());
    assert_eq!(adjust(&store, quota, 3, 0).await, 3);
    assert!(!decide(&store, check("a", quota, 4)).await.is_allowed());
    assert!(decide(&store, check("a", quota, 3)).await.is_allowed());
    assert_eq!(adjust(&store, quota, 1_000_000_000_000, 0).await, 10);
    assert!(!decide(&store, check("a", quota, 11)).await.is_allowed());
}

#[tokio::test]
async fn a_bucket_that_does_not_change_is_not_written() {
    let server = RedisServer::start();
    let store = store(&server).await;
    let mut connection = server.connection();
    let quota = quota(10, "1/h");
    for (delta, floor) in [(5, 0), (0, 0), (-5, 10), (-5, 11)] {
        assert_eq!(adjust(&store, quota, delta, floor).await, 10);
        assert!(state(&mut connection, KEY).is_none(), "missing means full");
    }
    assert!(decide(&store, check("a", quota, 8)).await.is_allowed());
    assert_eq!(adjust(&store, quota, 8, 0).await, 10);
    // Full, but others with a slower quota may count on the key: it lives on.
    let (left, writes) = (pttl(&mut connection, KEY), server.calls("set"));
    assert!(left > 28_700_000, "{left}");
    let full = state(&mut connection, KEY);
    for (delta, floor) in [(5, 0), (0, 0), (-5, 10)] {
        assert_eq!(adjust(&store, quota, delta, floor).await, 10);
    }
    assert_eq!(
        (state(&mut connection, KEY), server.calls("set")),
        (full, writes)
    );
    let now = pttl(&mut connection, KEY);
    assert!((left - 10_000..=left).contains(&now), "{now} of {left}");
}

#[tokio::test]
async fn a_time_to_live_is_never_shortened_and_heals() {
    let server = RedisServer::start();
    let store = store(&server).await;
    let mut connection = server.connection();
    let (slow, fast) = (quota(10, "1/h"), quota(10, "10/s"));
    assert!(decide(&store, check("a", slow, 10)).await.is_allowed());
    for delta in [4, -2] {
        let _ = adjust(&store, fast, delta, 0).await;
        let left = pttl(&mut connection, KEY);
        assert!((35_990_000..=36_000_000).contains(&left), "{left}");
    }
    // Changed or not, a key without a TTL, or with one too long, gets its own back.
    for (delta, break_it) in [
        (0, "PERSIST"),
        (1, "PERSIST"),
        (0, "PEXPIRE"),
        (1, "PEXPIRE"),
    ] {
        let year = (break_it == "PEXPIRE").then_some(31_536_000_000_i64);
        let broken = redis::cmd(break_it)
            .arg(KEY)
            .arg(year)
            .query::<i64>(&mut connection);
        assert_eq!(broken.expect(break_it), 1);
        let before = adjust(&store, slow, delta, 0).await;
        let left = pttl(&mut connection, KEY);
        assert!((35_900_000..=36_000_000).contains(&left), "{left}");
        assert_eq!(adjust(&store, slow, 0, 0).await, before);
    }
}

#[tokio::test]
async fn a_debt_refills_as_any_other_bucket() {
    let server = RedisServer::start();
    let store = store(&server).await;
    let mut connection = server.connection();
    let quota = quota(10, "1/m");
    assert_eq!(adjust(&store, quota, -15, -100).await, -5);
    let left = pttl(&mut connection, KEY);
    assert!((890_000..=900_000).contains(&left), "{left}");
    let denied = decide(&store, check("a", quota, 1)).await;
    assert_eq!(
        (denied.verdict, remaining(&denied.limits[0])),
        (Verdict::Denied, 0)
    );
    let Wait::For(wait) = denied.limits[0].wait else {
        panic!("it fits one day: {denied:?}");
    };
    assert!((350..=360).contains(&wait.as_secs()), "{wait:?}");
    assert!(
        decide(&store, check("a", quota, 0)).await.is_allowed(),
        "free"
    );
    pass(&mut connection, KEY, 270_000);
    assert_eq!(adjust(&store, quota, 0, 0).await, -1);
    assert!(!decide(&store, check("a", quota, 1)).await.is_allowed());
    pass(&mut connection, KEY, 90_000);
    assert!(decide(&store, check("a", quota, 1)).await.is_allowed());
    assert!(!decide(&store, check("a", quota, 1)).await.is_allowed());
}

#[tokio::test]
async fn taking_stops_at_the_floor() {
    let server = RedisServer::start();
    let store = store(&server).await;
    let quota = quota(10, "1/d");
    for (delta, floor, left) in [
        (-4, 0, 6),
        (-4, 5, 5),
        (-4, 7, 5),
        (-40, 0, 0),
        (-3, -2, -2),
        (-3, -1, -2),
        (1, 9, -1),
        (-1_000_000_000_000, -1_000_000, -1_000_000),
    ] {
        let held = adjust(&store, quota, delta, floor).await;
        assert_eq!(held, left, "{delta} {floor}");
    }
}

#[tokio::test]
async fn the_deepest_debt_at_the_slowest_rate_is_still_a_bucket() {
    let server = RedisServer::start();
    let store = store(&server).await;
    let slowest = Quota::new(1, 1.0 / 315_360_000.0).expect("a quota");
    let most = 1_000_000_000_000;
    assert_eq!(adjust(&store, slowest, -most, -most).await, 1 - most);
    let (_, px) = state(&mut server.connection(), KEY).expect("a bucket");
    assert_eq!(px, 2_f64.powi(53));
    let denied = decide(&store, check("a", slowest, 1)).await;
    assert_eq!((denied.granted, remaining(&denied.limits[0])), (0, 0));
    let thousand_years = Duration::from_secs(1_000 * 31_536_000);
    assert!(
        denied.limits[0].wait > Wait::For(thousand_years),
        "{denied:?}"
    );
    assert_eq!(adjust(&store, slowest, most, 0).await, 1);
    assert!(decide(&store, check("a", slowest, 1)).await.is_allowed());
}

#[tokio::test]
async fn several_buckets_change_at_once_or_not_at_all() {
    let server = RedisServer::start();
    let store = store(&server).await;
    let mut connection = server.connection();
    let hourly = quota(10, "1/h");
    let several = || {
        vec![
            change("a", "x", hourly, -12, -5),
            change("a", "y", quota(3, "0.25/h"), -1, 0),
            change("a", "z", hourly, 1, 0),
        ]
    };
    let held = store.adjust(adjustment(several())).await;
    assert_eq!(held.expect("carried out"), [-2, 2, 10]);
    let z = "tg:{tenant:a}:z";
    assert!(state(&mut connection, z).is_none());
    redis::cmd("SET")
        .arg(z)
        .arg("foreign")
        .query::<()>(&mut connection)
        .expect("SET");
    let error = fails(&store, several()).await;
    assert_eq!(
        (error.kind(), error.charge()),
        (ErrorKind::NotABucket, ChargeState::NotCharged),
        "{error}"
    );
    for (limit, tokens) in [("x", -2.0), ("y", 2.0)] {
        let (held, _) = state(&mut connection, &format!("tg:{{tenant:a}}:{limit}")).expect("kept");
        assert_eq!(held, tokens, "{limit}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn checks_and_adjustments_of_many_keep_one_account() {
    let server = RedisServer::start();
    let (store, replica) = (store(&server).await, store(&server).await);
    let daily = quota(100, "1/d");
    let mut tasks = JoinSet::new();
    for i in 0..300_u64 {
        let store = if i % 2 == 0 { &store } else { &replica }.clone();
        tasks.spawn(async move {
            let granted = check("a", daily, 1);
            let decision = decide(&store, granted.clone()).await;
            let back = Adjustment::give_back(&granted, &decision, 1);
            match back {
                Some(back) if i % 3 == 0 => {
                    store.adjust(back).await.expect("carried out");
                    0
                }
                _ => decision.granted,
            }
        });
    }
    let kept: u64 = tasks.join_all().await.into_iter().sum();
    assert!(kept <= 100, "{kept} of a capacity of 100");
    let left = decide(&store, check("a", daily, 0)).await;
    assert_eq!(remaining(&left.limits[0]) + kept, 100);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_lost_the_script_gets_it_again_and_adjusts_once() {
    let server = RedisServer::start();
    let store = store(&server).await;
    let hourly = quota(1_000, "1/h");
    let loads = server.calls("script|load");
    assert_eq!(adjust(&store, hourly, -1, 0).await, 999);
    assert_eq!(server.calls("script|load"), loads + 1, "on demand");
    redis::cmd("SCRIPT")
        .arg("FLUSH")
        .query::<()>(&mut server.connection())
        .expect("SCRIPT FLUSH");
    let mut tasks = JoinSet::new();
    for _ in 0..100 {
        let store = store.clone();
        tasks.spawn(async move { adjust(&store, hourly, -1, 0).await });
    }
    let mut held = tasks.join_all().await;
    held.sort_unstable();
    assert_eq!(held, (899..999).collect::<Vec<_>>(), "each once");
    assert!((2..=6).contains(&(server.calls("script|load") - loads)));
}

async fn an_adjustment_whose_answer_was_lost_is_not_carried_out_again<S: RedisClient>() {
    let server = RedisServer::start();
    let proxy = FaultProxy::start(server.port());
    let builder = S::builder(&proxy.url()).strict(true);
    let builder = builder.deadline(Duration::from_secs(3));
    let store = S::open(builder).await.expect("a store");
    let quota = quota(1_000, "1/d");
    assert_eq!(adjust(&store, quota, -1, 0).await, 999);
    proxy.set(Fault::LoseReplies);
    let one = adjustment(vec![change("a", "default", quota, -1, 0)]);
    let call = tokio::spawn(store.adjust(one));
    let mut connection = server.connection();
    let mut held = move || state(&mut connection, KEY).expect("a bucket").0.round();
    until(|| held() == 998.0).await;
    // The reply has to be lost as well.
    sleep(Duration::from_millis(100)).await;
    proxy.set(Fault::None);
    let error = call
        .await
        .expect("no panic")
        .expect_err("the answer is lost");
    assert_eq!(error.charge(), ChargeState::Unknown, "{error}");
    let end = Instant::now() + Duration::from_secs(5);
    while store.check(check("a", quota, 0)).await.is_err() {
        assert!(Instant::now() < end, "not back");
        sleep(Duration::from_millis(10)).await;
    }
    assert_eq!(adjust(&store, quota, 0, 0).await, 998);
}

/// Waits for what has to come true.
async fn until(mut is_so: impl FnMut() -> bool) {
    let waiting = async {
        while !is_so() {
            sleep(Duration::from_millis(1)).await;
        }
    };
    timeout(Duration::from_secs(5), waiting)
        .await
        .expect("within 5 s");
}

async fn an_adjustment_ends_at_its_own_deadline_or_the_stores<S: RedisClient>() {
    let server = RedisServer::start();
    let proxy = FaultProxy::start(server.port());
    let quota = quota(10, "1/h");
    for (own, stores) in [(None, 100), (Some(100), 60_000)] {
        proxy.set(Fault::None);
        let builder = S::builder(&proxy.url()).strict(true);
        let builder = builder.deadline(Duration::from_millis(stores));
        let store = S::open(builder).await.expect("a store");
        proxy.set(Fault::HoldReplies);
        let start = Instant::now();
        let mut one = adjustment(vec![change("a", "default", quota, -1, 0)]);
        if let Some(own) = own {
            one = one.with_deadline((start + Duration::from_millis(own)).into_std());
        }
        let error = store.adjust(one).await.expect_err("no answer");
        assert_eq!(
            (error.kind(), error.charge()),
            (ErrorKind::Timeout, ChargeState::Unknown),
            "{error}"
        );
        let took = start.elapsed();
        assert!(
            took >= Duration::from_millis(100) && took < Duration::from_millis(100) + SCHEDULING
        );
    }
}

async fn an_adjustment_that_nobody_waits_for_any_more_runs_to_its_end<S: RedisClient>() {
    let server = RedisServer::start();
    let store = store_of::<S>(&server).await;
    let quota = quota(10, "1/h");
    // The script is not there yet: one call is refused, the next has to follow from a task.
    let one = adjustment(vec![change("a", "default", quota, -4, 0)]);
    let mut given_up = Box::pin(store.adjust(one));
    let sent = poll_fn(|cx| Poll::Ready(given_up.as_mut().poll(cx))).await;
    assert!(sent.is_pending(), "no answer comes within one poll");
    drop(given_up);
    let mut connection = server.connection();
    until(|| state(&mut connection, KEY).is_some()).await;
    assert_eq!(adjust(&store, quota, 0, 0).await, 6);
}

async fn a_full_or_read_only_redis_adjusts_nothing<S: RedisClient>() {
    let server = RedisServer::start();
    let store = store_of::<S>(&server).await;
    let mut connection = server.connection();
    let quota = quota(10, "1/h");
    assert_eq!(adjust(&store, quota, -4, 0).await, 6);
    let mut config = |args: &[&str]| {
        let mut command = redis::cmd(args[0]);
        command
            .arg(&args[1..])
            .query::<()>(&mut connection)
            .expect(args[0]);
    };
    let take = || vec![change("a", "default", quota, -1, 0)];
    config(&["CONFIG", "SET", "maxmemory", "1"]);
    let error = fails(&store, take()).await;
    assert_eq!(
        (error.kind(), error.charge()),
        (ErrorKind::Oom, ChargeState::NotCharged),
        "{error}"
    );
    config(&["CONFIG", "SET", "maxmemory", "0"]);
    config(&["CONFIG", "SET", "min-replicas-to-write", "1"]);
    let error = fails(&store, take()).await;
    assert_eq!(error.charge(), ChargeState::NotCharged, "{error}");
    config(&["CONFIG", "SET", "min-replicas-to-write", "0"]);
    assert_eq!(adjust(&store, quota, 0, 0).await, 6);
}

#[tokio::test]
async fn a_shadow_limit_that_lacked_tokens_gets_nothing_back() {
    let server = RedisServer::start();
    let store = store(&server).await;
    let charges = vec![
        charge("a", "default", quota(10, "1/h"), 1),
        charge("a", "watched", quota(2, "1/h"), 1),
    ];
    let three = std::num::NonZeroU64::new(3).expect("not 0");
    let granted = Check::new(charges).expect("a check").with_count(three);
    let granted = granted.with_shadow(1).expect("one of two");
    let decision = decide(&store, granted.clone()).await;
    let back = Adjustment::give_back(&granted, &decision, 3).expect("three");
    assert_eq!(store.adjust(back).await.expect("carried out"), [10]);
    let watched = charge("a", "watched", quota(2, "1/h"), 0);
    let read = decide(&store, Check::single(watched)).await;
    assert_eq!(remaining(&read.limits[0]), 0);
}

with_each_client! {
    #[tokio::test] an_adjustment_whose_answer_was_lost_is_not_carried_out_again
    #[tokio::test] an_adjustment_ends_at_its_own_deadline_or_the_stores
    #[tokio::test] an_adjustment_that_nobody_waits_for_any_more_runs_to_its_end
    #[tokio::test] a_full_or_read_only_redis_adjusts_nothing
}
