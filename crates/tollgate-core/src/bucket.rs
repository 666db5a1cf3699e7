//! The arithmetic of token buckets, with the time passed in.
//!
//! This is `lua/token_bucket.lua` and `lua/adjust.lua` in Rust: the same state, the same order of floating-point
//! operations, so the same decisions. Tests step both over the same histories.

use std::time::Duration;

use crate::{Check, Decision, MAX_CHARGES, Quota, Source, Wait, quota::as_f64};

/// Forgives the rounding of refill arithmetic in comparisons, in tokens. It is never stored, so it does
/// not add up.
pub const SLACK: f64 = 1e-6;

/// The longest time to live, in milliseconds: 2^53. A deeper debt is forgotten after so long, and a bucket with
/// any debt is full by then.
const MAX_PX: f64 = 9_007_199_254_740_992.0;

/// The state of a bucket that is not known to be full.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Bucket {
    /// Tokens left by the last write; below zero for a debt.
    pub tokens: f64,
    /// The time to live given then, in milliseconds.
    pub px: u64,
    /// When the bucket is full and may be forgotten, in milliseconds of the store's clock. A time further
    /// ahead than `px` means that the clock has stepped back: then no time is taken to have passed.
    pub expires_at: u64,
}

impl Bucket {
    /// Whether the bucket is full and forgotten at `now`, as an expired key is.
    #[must_use]
    pub const fn is_expired(&self, now: u64) -> bool {
        now > self.expires_at
    }
}

/// What a bucket turned out to hold, and what the decision needs of it.
struct Reading {
    /// Tokens at the last write, or the capacity of a bucket that is missing.
    base: f64,
    /// Milliseconds since then.
    elapsed: f64,
    /// Milliseconds left to live.
    ttl: f64,
    /// The state to put back if the time to live is out of order.
    heal: Option<Bucket>,
    tokens: f64,
    /// How many requests fit.
    fits: f64,
}

/// Decides `check` against the buckets of its charges, in the same order, at time `now` in milliseconds.
///
/// A bucket that is `None` or expired is full. Buckets that are charged are written back; a denial leaves
/// all as they are, unless a time to live is out of order.
///
/// # Panics
///
/// If there are fewer buckets than charges.
#[must_use]
pub fn decide(check: &Check, buckets: &mut [Option<Bucket>], now: u64) -> Decision {
    assert!(
        buckets.len() >= check.charges().len(),
        "a bucket for each charge"
    );
    let count = as_f64(check.count());
    let charges = check.charges();
    let enforcing = charges.len() - check.shadow();
    let mut granted = count;
    let mut readings = [const { None }; MAX_CHARGES];
    for (i, (charge, bucket)) in charges.iter().zip(&*buckets).enumerate() {
        let cost = as_f64(charge.cost.tokens());
        let reading = read(*bucket, &charge.limit.quota, cost, count, now);
        if i < enforcing {
            granted = granted.min(reading.fits);
        }
        readings[i] = Some(reading);
    }
    let states = charges.iter().zip(buckets).zip(readings);
    let states = states.map(|((charge, bucket), reading)| {
        let reading = reading.expect("read above");
        let cost = as_f64(charge.cost.tokens());
        let quota = &charge.limit.quota;
        settle(bucket, &reading, quota, cost, granted, count, now)
    });
    check.decide(whole(granted), Source::Store, states)
}

fn read(bucket: Option<Bucket>, quota: &Quota, cost: f64, count: f64, now: u64) -> Reading {
    let capacity = as_f64(quota.capacity());
    let (mut base, mut elapsed, mut ttl, mut heal) = (capacity, 0.0, 0.0, None);
    if let Some(bucket) = bucket.filter(|bucket| !bucket.is_expired(now)) {
        base = bucket.tokens;
        let px = bucket.px;
        let mut left = bucket.expires_at - now;
        if left > px {
            left = px;
            heal = Some(Bucket {
                expires_at: now + px,
                ..bucket
            });
        }
        ttl = millis(left);
        elapsed = millis(px - left);
    }
    let tokens = capacity.min(base + elapsed * quota.rate().per_second() / 1000.0);
    let fits = if cost > 0.0 {
        floor((tokens + SLACK) / cost)
    } else {
        count
    };
    Reading {
        base,
        elapsed,
        ttl,
        heal,
        tokens,
        fits,
    }
}

/// Writes one bucket back and tells its remaining tokens and wait.
fn settle(
    bucket: &mut Option<Bucket>,
    reading: &Reading,
    quota: &Quota,
    cost: f64,
    granted: f64,
    count: f64,
    now: u64,
) -> (u64, Wait) {
    let Reading {
        mut base,
        mut elapsed,
        ttl,
        heal,
        mut tokens,
        fits,
    } = *reading;
    let capacity = as_f64(quota.capacity());
    let rate = quota.rate().per_second();
    let charge = granted.min(fits) * cost;
    if charge > 0.0 {
        tokens -= charge;
        base = tokens;
        elapsed = 0.0;
        *bucket = Some(write(tokens, quota, ttl, now));
    } else if heal.is_some() {
        *bucket = heal;
    }

    let wait = if cost > capacity {
        Wait::Never
    } else if fits < count {
        for_millis((full_wait(base, rate, cost) - elapsed).max(0.0))
    } else {
        Wait::None
    };
    (whole(tokens + SLACK), wait)
}

/// The state that leaves `tokens` in a bucket which has `ttl` milliseconds left to live.
fn write(tokens: f64, quota: &Quota, ttl: f64, now: u64) -> Bucket {
    let full_in = (as_f64(quota.capacity()) - tokens) / quota.rate().per_second() * 1000.0;
    // Never shorter than the time it has: a caller with another quota may still count on it.
    let px = whole(full_in.ceil().clamp(1.0, MAX_PX).max(ttl));
    Bucket {
        tokens,
        px,
        expires_at: now + px,
    }
}

/// Takes tokens out of a bucket until at most `tokens` are left at `now`, and none if it has fewer.
pub fn lower(bucket: &mut Option<Bucket>, quota: &Quota, tokens: f64, now: u64) {
    let Reading {
        tokens: held, ttl, ..
    } = read(*bucket, quota, 0.0, 1.0, now);
    if tokens < held {
        *bucket = Some(write(tokens, quota, ttl, now));
    }
}

/// Adds `delta` tokens to a bucket at `now`, up to its capacity; or takes them out if negative, down to `floor`
/// and no further, which may be below zero: a debt. Returns the tokens there are then, rounded down.
///
/// A bucket that holds no more than `floor` keeps what it has, and one that does not change is not written.
/// `delta` and `floor` are at most 10^12 either way.
pub fn adjust(bucket: &mut Option<Bucket>, quota: &Quota, delta: i64, floor: i64, now: u64) -> i64 {
    let Reading {
        tokens: held,
        ttl,
        heal,
        ..
    } = read(*bucket, quota, 0.0, 1.0, now);
    let wanted = held + signed(delta);
    let tokens = if delta < 0 {
        wanted.max(held.min(signed(floor)))
    } else {
        wanted.min(as_f64(quota.capacity()))
    };
    #[expect(clippy::float_cmp, reason = "whether anything changes at all")]
    if tokens != held {
        *bucket = Some(write(tokens, quota, ttl, now));
    } else if heal.is_some() {
        *bucket = heal;
    }
    #[expect(clippy::cast_possible_truncation, reason = "at most 10^12 either way")]
    let tokens = (tokens + SLACK).floor() as i64;
    tokens
}

/// Exact: at most 10^12 either way.
#[expect(clippy::cast_precision_loss, reason = "at most 10^12")]
fn signed(tokens: i64) -> f64 {
    tokens as f64
}

/// Milliseconds after the write that left `base` tokens until `cost` fits. Trimming one part in 10^12 keeps
/// rounding noise from adding a millisecond; the rest makes up for it where it mattered. Of decades, as a deep
/// debt takes, the part is more than a millisecond.
fn full_wait(base: f64, rate: f64, cost: f64) -> f64 {
    let exact = (cost - base) * 1000.0 / rate;
    let trimmed = (exact * (1.0 - 1e-12)).ceil();
    let wait = if base + trimmed * rate / 1000.0 + SLACK < cost {
        (trimmed + 1.0).max(exact.ceil())
    } else {
        trimmed
    };
    // No bucket lives longer than that, and then it is full.
    wait.min(MAX_PX)
}

fn for_millis(wait: f64) -> Wait {
    if wait > 0.0 {
        Wait::For(Duration::from_millis(whole(wait)))
    } else {
        Wait::None
    }
}

/// Exact: a time to live is at most 2^53.
#[expect(clippy::cast_precision_loss, reason = "far below 2^53")]
fn millis(span: u64) -> f64 {
    span as f64
}

/// Rounded down, and 0 if negative. `f64::floor` is a call on processors of the oldest kind, which is what is
/// compiled for by default.
fn floor(number: f64) -> f64 {
    as_f64(whole(number))
}

/// Rounded down, and 0 if negative: only called with numbers up to 2^53.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "what is meant"
)]
fn whole(number: f64) -> u64 {
    number as u64
}

#[cfg(test)]
mod tests {
    use std::num::NonZeroU64;

    use proptest::prelude::*;

    use super::*;
    use crate::{Charge, Cost, KeySpace, Limit, LimitName, Tenant};

    fn charge(limit: &str, capacity: u64, rate: impl Into<f64>, cost: u32) -> Charge {
        let name = LimitName::new(limit).expect("a name");
        let quota = Quota::new(capacity, rate.into()).expect("a quota");
        let key = KeySpace::default().bucket(&Tenant::new("42", "pro").expect("an id"), &name);
        Charge {
            key,
            limit: Limit { name, quota },
            cost: Cost::new(cost),
        }
    }

    fn single(capacity: u64, rate: impl Into<f64>, cost: u32) -> Check {
        Check::single(charge("default", capacity, rate, cost))
    }

    /// Remaining tokens and wait of the only limit.
    fn state(decision: &Decision) -> (u64, Wait) {
        (
            decision.limits[0].remaining.expect("known"),
            decision.limits[0].wait,
        )
    }

    #[test]
    fn a_fresh_bucket_admits_its_capacity_at_any_slow_rate() {
        for rate in [0.999, 0.3, 1.0 / 3.0, 1e-5] {
            for capacity in 1..=1000 {
                let mut bucket = [None];
                for _ in 0..capacity {
                    assert!(decide(&single(capacity, rate, 1), &mut bucket, 0).is_allowed());
                }
                assert!(!decide(&single(capacity, rate, 1), &mut bucket, 0).is_allowed());
            }
        }
    }

    #[test]
    fn a_denied_poll_never_delays_refill() {
        let mut bucket = [None];
        assert!(decide(&single(1, 0.1, 1), &mut bucket, 0).is_allowed());
        for now in 1..10_000 {
            let denied = decide(&single(1, 0.1, 1), &mut bucket, now);
            assert_eq!(
                state(&denied),
                (0, Wait::For(Duration::from_millis(10_000 - now)))
            );
        }
        assert!(decide(&single(1, 0.1, 1), &mut bucket, 10_000).is_allowed());
    }

    #[test]
    fn a_changed_quota_keeps_the_tokens() {
        let mut bucket = [None];
        let hourly = |capacity, rate| single(capacity, rate / 3600.0, 1);
        for _ in 0..2 {
            let _ = decide(&hourly(10, 10.0), &mut bucket, 0);
        }
        // Clamped to the lower capacity, not below.
        assert_eq!(
            state(&decide(&hourly(5, 5.0), &mut bucket, 0)),
            (4, Wait::None)
        );
        assert_eq!(
            state(&decide(&hourly(100, 100.0), &mut bucket, 0)),
            (3, Wait::None)
        );
    }

    #[test]
    fn a_raised_rate_counts_at_once() {
        let mut bucket = [None];
        let _ = decide(&single(10, 0.01, 10), &mut bucket, 0);
        assert_eq!(
            state(&decide(&single(10, 5.0, 1), &mut bucket, 1_000)),
            (4, Wait::None)
        );
    }

    #[test]
    fn lowering_only_ever_takes_tokens_out() {
        let quota = Quota::new(10, 1).expect("a quota");
        let mut bucket = [None];
        lower(&mut bucket[0], &quota, 10.0, 0);
        assert_eq!(bucket, [None], "a full bucket is not worth keeping");
        lower(&mut bucket[0], &quota, 3.5, 0);
        assert_eq!(
            state(&decide(&single(10, 1.0, 0), &mut bucket, 0)),
            (3, Wait::None)
        );
        lower(&mut bucket[0], &quota, 9.0, 500);
        assert_eq!(
            state(&decide(&single(10, 1.0, 0), &mut bucket, 500)),
            (4, Wait::None)
        );
        assert!(
            bucket[0].is_some_and(|bucket| bucket.is_expired(6_501)),
            "full again, and forgotten"
        );
    }

    fn ten_per_ten_seconds() -> Quota {
        Quota::new(10, 1).expect("a quota")
    }

    #[test]
    fn what_is_given_back_never_overflows_the_bucket() {
        let quota = ten_per_ten_seconds();
        let mut bucket = [None];
        assert_eq!(adjust(&mut bucket[0], &quota, 5, 0, 0), 10);
        assert_eq!(bucket, [None], "a full bucket is not worth keeping");
        let _ = decide(&single(10, 1.0, 8), &mut bucket, 0);
        assert_eq!(adjust(&mut bucket[0], &quota, 3, 0, 0), 5);
        assert_eq!(adjust(&mut bucket[0], &quota, 3, 0, 1_500), 9);
        assert_eq!(
            bucket[0].map(|bucket| (bucket.tokens, bucket.expires_at)),
            Some((9.5, 8_000)),
            "it lives as long as before"
        );
        assert_eq!(adjust(&mut bucket[0], &quota, 3, 0, 1_500), 10);
        let full = bucket;
        assert_eq!(adjust(&mut bucket[0], &quota, 3, 0, 1_600), 10);
        assert_eq!(bucket, full, "kept as it is");
    }

    #[test]
    fn taking_stops_at_the_floor() {
        let quota = ten_per_ten_seconds();
        let mut bucket = None;
        for (delta, floor, left) in [
            (-4, 0, 6),
            (-4, 5, 5),
            (-4, 7, 5),
            (-40, 0, 0),
            (-1, 0, 0),
            (-3, -2, -2),
            (-3, -1, -2),
            (0, 9, -2),
            (1, 9, -1),
            (-1_000_000_000_000, -1_000, -1_000),
        ] {
            assert_eq!(
                adjust(&mut bucket, &quota, delta, floor, 0),
                left,
                "{delta} {floor}"
            );
        }
    }

    #[test]
    fn a_debt_refills_as_any_other_bucket() {
        let quota = ten_per_ten_seconds();
        let mut bucket = [None];
        assert_eq!(adjust(&mut bucket[0], &quota, -15, -100, 0), -5);
        let five_and_one = Wait::For(Duration::from_secs(6));
        let denied = decide(&single(10, 1.0, 1), &mut bucket, 0);
        assert_eq!((denied.granted, state(&denied)), (0, (0, five_and_one)));
        assert_eq!(
            state(&decide(&single(10, 1.0, 0), &mut bucket, 0)),
            (0, Wait::None),
            "what is free needs no tokens"
        );
        assert_eq!(adjust(&mut bucket[0], &quota, 0, 0, 4_500), -1);
        assert!(!decide(&single(10, 1.0, 1), &mut bucket, 5_999).is_allowed());
        assert!(decide(&single(10, 1.0, 1), &mut bucket, 6_000).is_allowed());
        assert_eq!(bucket[0].map(|bucket| bucket.expires_at), Some(16_000));
    }

    #[test]
    fn a_debt_for_ever_is_within_what_can_be_written() {
        let slowest = Quota::new(1, 1.0 / 315_360_000.0).expect("a quota");
        let most = 1_000_000_000_000;
        let mut bucket = [None];
        assert_eq!(adjust(&mut bucket[0], &slowest, -most, -most, 7), 1 - most);
        assert_eq!(bucket[0].map(|bucket| bucket.px), Some(1 << 53));
        let mut check = single(1, 1.0, 1);
        check = check.map_charges(|charge| {
            let mut charge = charge.clone();
            charge.limit.quota = slowest;
            charge
        });
        let denied = decide(&check, &mut bucket, 7);
        assert_eq!(state(&denied).1, Wait::For(Duration::from_millis(1 << 53)));
    }

    #[test]
    fn an_adjustment_heals_a_clock_that_stepped_back() {
        let quota = ten_per_ten_seconds();
        let mut bucket = [None];
        let _ = decide(&single(10, 1.0, 4), &mut bucket, 1_000_000);
        assert_eq!(adjust(&mut bucket[0], &quota, 0, 0, 100_000), 6);
        assert_eq!(bucket[0].map(|bucket| bucket.expires_at), Some(104_000));
        bucket[0].as_mut().expect("kept").expires_at = u64::MAX;
        assert_eq!(adjust(&mut bucket[0], &quota, 1, 0, 100_000), 7);
        assert_eq!(bucket[0].map(|bucket| bucket.expires_at), Some(104_000));
    }

    #[test]
    fn a_cost_above_the_capacity_never_fits_and_takes_nothing() {
        let mut bucket = [None];
        assert_eq!(
            state(&decide(&single(10, 1.0, 11), &mut bucket, 0)),
            (10, Wait::Never)
        );
        assert_eq!(bucket, [None]);
    }

    #[test]
    fn several_limits_are_decided_all_or_none() {
        let both =
            || Check::new(vec![charge("a", 10, 1.0, 1), charge("b", 2, 1.0, 1)]).expect("a check");
        let mut buckets = [None, None];
        assert!(decide(&both(), &mut buckets, 0).is_allowed());
        assert!(decide(&both(), &mut buckets, 0).is_allowed());
        let denied = decide(&both(), &mut buckets, 0);
        assert_eq!(denied.limits[0].remaining, Some(8));
        assert_eq!(denied.limits[1].wait, Wait::For(Duration::from_secs(1)));
        assert_eq!(
            denied.tightest().map(|limit| limit.name.as_str()),
            Some("b")
        );
    }

    #[test]
    fn count_grants_what_fits_and_shadow_never_blocks() {
        let check =
            Check::new(vec![charge("a", 10, 1.0, 3), charge("b", 2, 1.0, 1)]).expect("a check");
        let check = check
            .with_count(NonZeroU64::new(5).expect("not 0"))
            .with_shadow(1)
            .expect("one of two");
        let mut buckets = [None, None];
        let decision = decide(&check, &mut buckets, 0);
        assert_eq!(decision.granted, 3);
        assert_eq!(
            (decision.limits[0].remaining, decision.limits[1].remaining),
            (Some(1), Some(0))
        );
        assert_eq!(decision.limits[0].wait, Wait::For(Duration::from_secs(2)));
        assert!(decision.limits[1].shadow && decision.limits[1].lacked_tokens());
    }

    #[test]
    fn a_clock_that_steps_back_locks_nobody_out() {
        let mut bucket = [None];
        let _ = decide(&single(1, 1.0, 1), &mut bucket, 1_000_000);
        // An hour back: nothing is known to have passed, and the state heals at this very check.
        assert!(!decide(&single(1, 1.0, 1), &mut bucket, 100_000).is_allowed());
        assert!(decide(&single(1, 1.0, 1), &mut bucket, 101_000).is_allowed());
    }

    #[test]
    fn a_write_never_shortens_the_time_to_live() {
        let mut bucket = [None];
        let _ = decide(&single(100, 1.0, 100), &mut bucket, 0);
        let _ = decide(&single(100, 1_000.0, 1), &mut bucket, 50_000);
        assert_eq!(bucket[0].map(|bucket| bucket.expires_at), Some(100_000));
    }

    proptest! {
        #[test]
        fn waiting_the_stated_time_suffices(
            capacity in 1_u64..=1_000_000_000_000,
            rate in prop_oneof![1e-5..1.0, 1.0..1e6, Just(7.0 / 3.0), Just(1.0 / 3.0), Just(1.0 / 86_400.0)],
            costs in proptest::collection::vec((1_u64..=1_000_000_000_000, 0_u64..5_000), 1..20),
        ) {
            let Ok(quota) = Quota::new(capacity, rate) else { return Ok(()) };
            let (mut bucket, mut now) = ([None], 0);
            for (cost, pause) in costs {
                now += pause;
                let mut charge = charge("default", 1, 1.0, 1);
                charge.limit.quota = quota;
                charge.cost = Cost::try_from(1 + cost % capacity).expect("in range");
                let check = Check::single(charge);
                let decision = decide(&check.clone(), &mut bucket, now);
                if let Wait::For(wait) = decision.limits[0].wait {
                    let wait = u64::try_from(wait.as_millis()).expect("at most ten years");
                    let before = bucket;
                    prop_assert!(decide(&check.clone(), &mut bucket, now + wait).is_allowed());
                    // Not far more than needed: a hundredth less, and two milliseconds, is too early.
                    bucket = before;
                    let early = (wait - wait / 100).saturating_sub(2);
                    prop_assert!(early == 0 || rate < 1e-2 || !decide(&check, &mut bucket, now + early).is_allowed());
                    now += wait;
                }
            }
        }

        #[test]
        fn waiting_the_stated_time_pays_any_debt(
            capacity in 1_u64..1_000_000,
            rate in prop_oneof![1e-5..1.0, 1.0..1e6, Just(7.0 / 3.0), Just(1.0 / 3.0)],
            debt in prop_oneof![1_i64..100, 1_i64..1_000_000_000_000],
            pause in 0_u64..5_000,
            part in 0.0..1.0,
        ) {
            let Ok(quota) = Quota::new(capacity, rate) else { return Ok(()) };
            // A wait of some thousand years is exact to the millisecond.
            prop_assume!(signed(debt) / rate < 1e11);
            let mut bucket = [None];
            let held = adjust(&mut bucket[0], &quota, -debt, -debt, 0);
            prop_assert_eq!(held, capacity.cast_signed() - debt);
            let mut charge = charge("default", 1, 1.0, 1);
            charge.limit.quota = quota;
            charge.cost = Cost::try_from(1 + whole(part * (as_f64(capacity) - 1.0))).expect("in range");
            let check = Check::single(charge);
            let decision = decide(&check.clone(), &mut bucket, pause);
            let Wait::For(wait) = decision.limits[0].wait else { return Ok(()) };
            prop_assert!(!decision.is_allowed());
            let end = pause + u64::try_from(wait.as_millis()).expect("at most 2^53");
            let early = end.saturating_sub(2 + end / 100);
            prop_assert!(rate < 1e-2 || early < pause || !decide(&check.clone(), &mut bucket.clone(), early).is_allowed());
            prop_assert!(decide(&check, &mut bucket, end).is_allowed(), "{:?} is too short", wait);
        }

        #[test]
        fn no_span_spends_more_than_capacity_and_refill_net_of_what_is_given_back(
            capacity in 1_u64..100,
            rate in 0.01_f64..100.0,
            steps in proptest::collection::vec((0_u64..500, 1_u32..20, -30_i64..30, -20_i64..20), 1..60),
        ) {
            let quota = Quota::new(capacity, rate).expect("a quota");
            let held = |bucket: &[Option<Bucket>; 1], now| read(bucket[0], &quota, 0.0, 1.0, now).tokens;
            let (mut bucket, mut now, mut seen) = ([None], 0_u64, Vec::new());
            for (pause, cost, delta, floor) in steps {
                now += pause;
                let mut spent = 0.0;
                if decide(&single(capacity, rate, cost), &mut bucket, now).is_allowed() {
                    spent = f64::from(cost);
                }
                let (before, ends_at) = (held(&bucket, now), bucket[0].map_or(0, |bucket| bucket.expires_at));
                let told = adjust(&mut bucket[0], &quota, delta, floor, now);
                let after = held(&bucket, now);
                prop_assert!(told <= capacity.cast_signed() && signed(told) <= after + SLACK);
                prop_assert!((after - before) * signed(delta.signum()) <= signed(delta.abs()) + SLACK);
                prop_assert!((after - before) * signed(delta.signum()) >= -SLACK, "the other way");
                prop_assert!(bucket[0].map_or(0, |bucket| bucket.expires_at) >= ends_at, "forgotten early");
                // Every span that ends here: what was given back in it counts against what was spent.
                seen.push((now, 0.0));
                for (since, net) in &mut seen {
                    *net += spent;
                    let most = as_f64(capacity) + rate * millis(now - *since) / 1000.0 + 1e-6;
                    prop_assert!(*net <= most, "{net} spent since {since} at {now}, at most {most}");
                    *net -= (after - before).max(0.0);
                }
            }
        }

        #[test]
        fn flipping_quotas_never_admits_more_than_the_larger_of_both(
            quotas in [(1_u64..100, 0.01_f64..100.0), (1_u64..100, 0.01_f64..100.0)],
            steps in proptest::collection::vec((any::<bool>(), 0_u64..200, 1_u32..5), 1..200),
        ) {
            let (mut bucket, mut now, mut spent) = ([None], 0_u64, 0_u64);
            for (i, (second, pause, cost)) in steps.into_iter().enumerate() {
                now += pause;
                let (capacity, rate) = quotas[usize::from(second)];
                if decide(&single(capacity, rate, cost), &mut bucket, now).is_allowed() {
                    spent += u64::from(cost);
                }
                let (capacity, rate) = (quotas[0].0.max(quotas[1].0), quotas[0].1.max(quotas[1].1));
                // A millisecond of refill for each switch.
                let bound = as_f64(capacity) + rate * millis(now + i as u64 + 1) / 1000.0 + 1e-6;
                prop_assert!(as_f64(spent) <= bound, "{spent} spent, at most {bound}");
            }
        }
    }
}
