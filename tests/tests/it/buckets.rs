//! The bucket on a real Redis.

use std::{num::NonZeroU64, time::Duration};

use tollgate_core::{Check, Store, Wait};
use tollgate_tests::{RedisServer, Script, charge, check, quota};

use crate::support::{decide, pass, pttl, remaining, state, store};

const KEY: &str = "tg:{tenant:a}:default";

fn set_ttl(connection: &mut redis::Connection, command: &str, millis: Option<i64>) {
    let set: i64 = redis::cmd(command)
        .arg(KEY)
        .arg(millis)
        .query(connection)
        .expect(command);
    assert_eq!(set, 1, "{command}");
}

/// One more than the capacity is asked for, call by call or all at once; how many are admitted?
fn admitted(
    connection: &mut redis::Connection,
    script: &Script,
    capacity: usize,
    rate: &str,
    at_once: bool,
) -> i64 {
    let key = format!("tg:{{{rate}}}:{capacity}:{at_once}");
    let (calls, count) = if at_once {
        (1, capacity + 1)
    } else {
        (capacity + 1, 1)
    };
    let args = [
        capacity.to_string(),
        rate.to_owned(),
        "1".to_owned(),
        count.to_string(),
    ];
    let mut pipeline = redis::pipe();
    for _ in 0..calls {
        pipeline.add_command(script.command(&[&key], &args));
    }
    let replies: Vec<Vec<i64>> = pipeline.query(connection).expect("replies");
    replies.iter().map(|reply| reply[0]).sum()
}

#[test]
fn a_fresh_bucket_admits_exactly_its_capacity_at_any_slow_rate() {
    let server = RedisServer::start();
    let mut connection = server.connection();
    let script = Script::load(&mut connection, Script::TOKEN_BUCKET);
    // At 0.999/s a token is due within the burst if the machine stalls for a second: few calls there.
    for (rate, step) in [
        ("0.999", 37),
        ("0.3333333333333333", 37),
        ("0.0001", 37),
        ("0.00001", 1),
    ] {
        for capacity in 1..=1_000 {
            let expected = i64::try_from(capacity).expect("small");
            let at_once = admitted(&mut connection, &script, capacity, rate, true);
            assert_eq!(at_once, expected, "{capacity} at once at {rate}");
            if capacity % step == 0 {
                let one_by_one = admitted(&mut connection, &script, capacity, rate, false);
                assert_eq!(one_by_one, expected, "{capacity} one by one at {rate}");
            }
        }
    }
}

#[tokio::test]
async fn a_denial_writes_nothing() {
    let server = RedisServer::start();
    let store = store(&server).await;
    let mut connection = server.connection();
    let quota = quota(3, "1/h");
    assert!(decide(&store, check("a", quota, 3)).await.is_allowed());
    let (before, writes, left) = (
        state(&mut connection, KEY),
        server.calls("set"),
        pttl(&mut connection, KEY),
    );
    for _ in 0..50 {
        assert!(!decide(&store, check("a", quota, 1)).await.is_allowed());
        // A cost of 0 reads, whatever the bucket holds.
        assert!(decide(&store, check("a", quota, 0)).await.is_allowed());
    }
    assert_eq!(state(&mut connection, KEY), before);
    assert_eq!(server.calls("set"), writes);
    assert!(pttl(&mut connection, KEY) <= left, "the TTL runs on");
    assert!(
        decide(&store, check("never seen", quota, 0))
            .await
            .is_allowed()
    );
    assert!(state(&mut connection, "tg:{tenant:never seen}:default").is_none());
}

#[tokio::test]
async fn denied_all_or_none_takes_nothing_from_the_limit_that_had_room() {
    let server = RedisServer::start();
    let store = store(&server).await;
    let both = || {
        let charges = vec![
            charge("a", "roomy", quota(10, "1/h"), 1),
            charge("a", "tight", quota(1, "1/h"), 1),
        ];
        Check::new(charges).expect("a check")
    };
    assert!(decide(&store, both()).await.is_allowed());
    for _ in 0..5 {
        let denied = decide(&store, both()).await;
        assert!(!denied.is_allowed());
        assert_eq!(remaining(&denied.limits[0]), 9);
        assert_eq!(
            denied.tightest().map(|limit| limit.name.as_str()),
            Some("tight")
        );
    }
}

#[tokio::test]
async fn count_and_shadow_reach_the_script() {
    let server = RedisServer::start();
    let store = store(&server).await;
    let charges = vec![charge("a", "watched", quota(2, "1/h"), 1)];
    let watched = Check::new(charges)
        .expect("a check")
        .with_shadow(1)
        .expect("one");
    let three = NonZeroU64::new(3).expect("not 0");
    let decision = decide(&store, watched.with_count(three)).await;
    assert_eq!(decision.granted, 3);
    assert!(decision.limits[0].shadow && decision.limits[0].lacked_tokens());
    let plain = check("a", quota(7, "1/h"), 3).with_count(three);
    let decision = decide(&store, plain).await;
    assert_eq!((decision.granted, remaining(&decision.limits[0])), (2, 1));
}

#[tokio::test]
async fn a_key_without_ttl_heals_within_one_check_and_keeps_its_tokens() {
    let server = RedisServer::start();
    let store = store(&server).await;
    let mut connection = server.connection();
    let quota = quota(10, "1/h");
    let _ = decide(&store, check("a", quota, 4)).await;
    for (cost, allowed, tokens) in [(7, false, 6.0), (1, true, 5.0)] {
        set_ttl(&mut connection, "PERSIST", None);
        assert_eq!(
            decide(&store, check("a", quota, cost)).await.is_allowed(),
            allowed
        );
        let (left, px) = state(&mut connection, KEY).expect("a bucket");
        assert!((left - tokens).abs() < 0.01, "{left} tokens");
        let ttl = pttl(&mut connection, KEY);
        assert!(ttl > 14_390_000 && px >= 14_400_000.0, "{ttl} of {px}");
    }
}

#[tokio::test]
async fn a_clock_that_stepped_back_heals_within_one_check_and_locks_nobody_out() {
    let server = RedisServer::start();
    let store = store(&server).await;
    let mut connection = server.connection();
    let quota = quota(10, "1/h");
    let _ = decide(&store, check("a", quota, 4)).await;
    for (cost, allowed, tokens, most) in [(7, false, 6.0, 14_400_000), (1, true, 5.0, 18_000_000)] {
        // To the bucket, a clock a year back is a TTL that ends a year later.
        set_ttl(&mut connection, "PEXPIRE", Some(31_536_000_000));
        assert_eq!(
            decide(&store, check("a", quota, cost)).await.is_allowed(),
            allowed
        );
        let (left, _) = state(&mut connection, KEY).expect("a bucket");
        assert!((left - tokens).abs() < 0.01, "{left} tokens");
        let ttl = pttl(&mut connection, KEY);
        assert!((most - 10_000..=most).contains(&ttl), "{ttl}");
    }
}

#[tokio::test]
async fn a_bucket_is_not_forgotten_before_it_has_refilled() {
    let server = RedisServer::start();
    let store = store(&server).await;
    let mut connection = server.connection();
    // Three tokens, one per 15 s: empty, it lives the 45 s until it is full.
    let slow = quota(3, "1/15s");
    for _ in 0..3 {
        assert!(decide(&store, check("a", slow, 1)).await.is_allowed());
    }
    let ttl = pttl(&mut connection, KEY);
    assert!((40_000..=45_000).contains(&ttl), "{ttl}");
    pass(&mut connection, KEY, 10_000);
    let denied = decide(&store, check("a", slow, 1)).await;
    let Wait::For(wait) = denied.limits[0].wait else {
        panic!("denied, with a wait: {denied:?}");
    };
    assert!(
        wait <= Duration::from_secs(5) && wait > Duration::from_secs(1),
        "{wait:?}"
    );

    let daily = quota(1, "1/d");
    assert!(decide(&store, check("b", daily, 1)).await.is_allowed());
    let ttl = pttl(&mut connection, "tg:{tenant:b}:default");
    assert!((86_390_000..=86_400_000).contains(&ttl), "{ttl}");

    let tenth = quota(1, "0.1/s");
    assert!(decide(&store, check("c", tenth, 1)).await.is_allowed());
    pass(&mut connection, "tg:{tenant:c}:default", 2_000);
    assert!(!decide(&store, check("c", tenth, 1)).await.is_allowed());
}

#[tokio::test]
async fn waits_below_a_second_are_kept_and_suffice() {
    let server = RedisServer::start();
    let store = store(&server).await;
    // A machine that stalls may refill the bucket between two calls; then the next try counts.
    for (rate, longest) in [("5/s", 200), ("1/1.5s", 1_500), ("0.3/s", 3_334)] {
        let quota = quota(1, rate);
        let wait = loop {
            let decision = decide(&store, check(rate, quota, 1)).await;
            if let Wait::For(wait) = decision.limits[0].wait {
                break wait;
            }
        };
        let millis = wait.as_millis();
        assert!((1..=longest).contains(&millis), "{millis} ms at {rate}");
        if longest < 1_000 {
            tokio::time::sleep(wait).await;
            assert!(
                decide(&store, check(rate, quota, 1)).await.is_allowed(),
                "{rate}"
            );
        } else {
            let key = format!("tg:{{tenant:{}}}:default", rate.replace('/', "%2F"));
            pass(
                &mut server.connection(),
                &key,
                i64::try_from(millis).expect("small"),
            );
            assert!(
                decide(&store, check(rate, quota, 1)).await.is_allowed(),
                "{rate}"
            );
        }
    }
}

#[tokio::test]
async fn a_changed_quota_keeps_the_tokens_of_a_live_bucket() {
    let server = RedisServer::start();
    let (store, replica) = (store(&server).await, store(&server).await);
    let (small, large) = (quota(10, "10/h"), quota(100, "100/h"));
    for _ in 0..2 {
        let _ = decide(&store, check("a", small, 1)).await;
    }
    let lowered = decide(&store, check("a", quota(5, "5/h"), 1)).await;
    assert_eq!(remaining(&lowered.limits[0]), 4);
    let raised = decide(&store, check("a", large, 1)).await;
    assert_eq!(remaining(&raised.limits[0]), 3);
    // A restarted replica finds what the others left.
    assert_eq!(
        remaining(&decide(&replica, check("a", large, 0)).await.limits[0]),
        3
    );

    let mut admitted = 0;
    for i in 0..200 {
        let (store, quota) = if i % 2 == 0 {
            (&store, small)
        } else {
            (&replica, large)
        };
        admitted += u32::from(decide(store, check("rolling", quota, 1)).await.is_allowed());
    }
    assert!(admitted <= 100, "{admitted} of a capacity of 100");
}

#[tokio::test]
async fn a_cost_above_the_capacity_never_fits_and_takes_nothing() {
    let server = RedisServer::start();
    let store = store(&server).await;
    let denied = decide(&store, check("a", quota(10, "1/s"), 11)).await;
    assert_eq!((denied.granted, denied.limits[0].wait), (0, Wait::Never));
    // The capacity fell below the cost while the bucket was in use.
    assert!(
        decide(&store, check("b", quota(10, "1/h"), 8))
            .await
            .is_allowed()
    );
    let denied = decide(&store, check("b", quota(5, "1/h"), 8)).await;
    assert_eq!(denied.limits[0].wait, Wait::Never);
    assert_eq!(
        remaining(&decide(&store, check("b", quota(5, "1/h"), 1)).await.limits[0]),
        1
    );
}

#[tokio::test]
async fn slow_and_fractional_rates_need_no_work_around() {
    let server = RedisServer::start();
    let store = store(&server).await;
    let mut connection = server.connection();
    let daily = quota(1, "1/d");
    assert!(decide(&store, check("a", daily, 1)).await.is_allowed());
    let Wait::For(wait) = decide(&store, check("a", daily, 1)).await.limits[0].wait else {
        panic!("one a day");
    };
    assert!((86_390..=86_400).contains(&wait.as_secs()), "{wait:?}");

    let tenth = quota(2, "0.1/s");
    for _ in 0..2 {
        assert!(decide(&store, check("b", tenth, 1)).await.is_allowed());
    }
    pass(&mut connection, "tg:{tenant:b}:default", 5_000);
    let Wait::For(wait) = decide(&store, check("b", tenth, 1)).await.limits[0].wait else {
        panic!("half a token");
    };
    assert!(wait <= Duration::from_secs(5), "{wait:?}");
    pass(&mut connection, "tg:{tenant:b}:default", 5_000);
    assert!(decide(&store, check("b", tenth, 1)).await.is_allowed());

    let large = decide(&store, check("c", quota(100_000, "100000/d"), 1)).await;
    assert_eq!(remaining(&large.limits[0]), 99_999);
}

#[test]
fn no_pair_of_capacity_and_rate_is_an_argument_error() {
    let server = RedisServer::start();
    let mut connection = server.connection();
    let script = Script::load(&mut connection, Script::TOKEN_BUCKET);
    // A plain generator of numbers; the pairs are the same in every run.
    let mut random = 0x9E37_79B9_7F4A_7C15_u64;
    let mut next = |bound: u64| {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        random % bound
    };
    let mut pipeline = redis::pipe();
    let mut pairs = 0;
    while pairs < 1_000 {
        let exponent = u32::try_from(next(12)).expect("small");
        let capacity = 1 + next(10_u64.pow(exponent + 1));
        let rate = (1 + next(1_000), 1 + next(86_400));
        let rate = format!("{}/{}s", rate.0, rate.1)
            .parse::<tollgate_core::Rate>()
            .expect("a rate");
        let Ok(quota) = tollgate_core::Quota::new(capacity, rate.per_second()) else {
            // More than ten years: refused before it reaches Redis.
            continue;
        };
        pairs += 1;
        let check = check(&pairs.to_string(), quota, 1 + next(capacity));
        let key = check.charges()[0].key.as_str();
        for _ in 0..2 {
            pipeline.add_command(script.command(&[key], &tollgate_tests::argv(&check)));
        }
    }
    let replies: Vec<Vec<i64>> = pipeline.query(&mut connection).expect("no argument error");
    assert!(replies.iter().step_by(2).all(|reply| reply[0] == 1));
}

#[tokio::test]
async fn a_store_behind_the_trait_is_a_store() {
    let server = RedisServer::start();
    let store: std::sync::Arc<dyn Store> = std::sync::Arc::new(store(&server).await);
    assert!(
        store
            .check(check("a", quota(1, "1/h"), 1))
            .await
            .expect("a decision")
            .is_allowed()
    );
}
