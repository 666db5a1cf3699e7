//! The scripts on a real Redis against the Rust model.
//!
//! Time passes by moving TTLs, so nothing sleeps. The server's clock runs on, though: between our look at a
//! bucket and the script's, a tick may pass. So the model is asked for each time that the script may have
//! seen, which the server's own clock around the call bounds, and one of these answers has to be the
//! script's.

use std::num::NonZeroU64;

use proptest::{collection::vec, prelude::*, test_runner::TestRunner};
use tollgate_core::{Adjustment, Bucket, BucketKey, Check, Quota, bucket};
use tollgate_tests::{RedisServer, Script, adjust_argv, argv, change, charge};

use crate::support::{pass, remaining, retry_ms, unpack};

const CASES: u32 = 150;
/// Any instant will do for the model.
const NOW: u64 = 1_000_000_000_000;

#[derive(Clone, Debug)]
struct Step {
    pass: i64,
    costs: Vec<u64>,
    count: u64,
    shadow: usize,
    /// Delta and floor for each key, in place of a check.
    amounts: Option<Vec<(i64, i64)>>,
}

/// What a step asks of the buckets.
enum Call {
    Check(Check),
    Adjust(Adjustment),
}

/// What the server says just before the script, and its clock before and after, in microseconds.
struct Observed {
    buckets: Vec<Option<Bucket>>,
    reply: Vec<i64>,
    ticks: u64,
}

fn quotas() -> impl Strategy<Value = Quota> {
    let rate = prop_oneof![
        Just(7.0 / 3.0),
        Just(1.0 / 86_400.0),
        (-4.0..3.0).prop_map(|exponent| 10_f64.powf(exponent))
    ];
    (1_u64..200, rate).prop_map(|(capacity, rate)| Quota::new(capacity, rate).expect("a quota"))
}

fn histories() -> impl Strategy<Value = (Vec<Quota>, Vec<Step>)> {
    (1_usize..=3).prop_flat_map(|keys| {
        let pass = prop_oneof![Just(0_i64), 1_i64..2_000, 1_i64..1_000_000];
        let amounts = vec((-40_i64..40, -30_i64..30), keys);
        let amounts = prop::option::weighted(0.3, amounts);
        let step = (pass, vec(0_u64..30, keys), 1_u64..4, 0..=keys, amounts);
        let step = step.prop_map(|(pass, costs, count, shadow, amounts)| Step {
            pass,
            costs,
            count,
            shadow,
            amounts,
        });
        (vec(quotas(), keys), vec(step, 1..12))
    })
}

fn to_call(quotas: &[Quota], step: &Step, case: u64) -> Call {
    let Some(amounts) = &step.amounts else {
        return Call::Check(to_check(quotas, step, case));
    };
    let changes = quotas.iter().zip(amounts).enumerate();
    let changes = changes.map(|(i, (quota, (delta, floor)))| {
        change(&case.to_string(), &format!("l{i}"), *quota, *delta, *floor)
    });
    Call::Adjust(Adjustment::new(changes.collect()).expect("an adjustment"))
}

fn to_check(quotas: &[Quota], step: &Step, case: u64) -> Check {
    let charges = quotas.iter().zip(&step.costs).enumerate();
    let charges = charges
        .map(|(i, (quota, cost))| charge(&case.to_string(), &format!("l{i}"), *quota, *cost));
    let check = Check::new(charges.collect()).expect("a check");
    let check = check.with_count(NonZeroU64::new(step.count).expect("from 1"));
    check.with_shadow(step.shadow).expect("at most all")
}

impl Call {
    fn keys(&self) -> Vec<&str> {
        let text = BucketKey::as_str;
        match self {
            Self::Check(check) => check.charges().iter().map(|it| text(&it.key)).collect(),
            Self::Adjust(it) => it.changes().iter().map(|it| text(&it.key)).collect(),
        }
    }

    fn args(&self) -> Vec<String> {
        match self {
            Self::Check(check) => argv(check),
            Self::Adjust(adjustment) => adjust_argv(adjustment),
        }
    }

    fn model(&self, buckets: &[Option<Bucket>], now: u64) -> Vec<i64> {
        match self {
            Self::Check(check) => model(check, buckets, now),
            Self::Adjust(adjustment) => {
                let changes = adjustment.changes().iter().zip(buckets);
                let adjust = |(it, bucket): (&tollgate_core::Change, &Option<Bucket>)| {
                    bucket::adjust(&mut bucket.clone(), &it.quota, it.delta, it.floor, now)
                };
                changes.map(adjust).collect()
            }
        }
    }
}

/// Looks and calls in one pipeline, so that little time passes between.
fn observe(connection: &mut redis::Connection, script: &Script, call: &Call) -> Observed {
    let keys = call.keys();
    let mut pipeline = redis::pipe();
    pipeline.cmd("TIME");
    for key in &keys {
        pipeline.cmd("GET").arg(key).cmd("PTTL").arg(key);
    }
    pipeline
        .add_command(script.command(&keys, &call.args()))
        .cmd("TIME");
    let mut replies: Vec<redis::Value> = pipeline.query(connection).expect("replies");

    let end = micros(replies.pop().expect("a time"));
    let reply =
        redis::from_redis_value(replies.pop().expect("the script's reply")).expect("numbers");
    let mut replies = replies.into_iter();
    let start = micros(replies.next().expect("a time"));
    let buckets = keys.iter().map(|_| {
        let value: Option<Vec<u8>> =
            redis::from_redis_value(replies.next().expect("a value")).expect("a string");
        let left: i64 = redis::from_redis_value(replies.next().expect("a TTL")).expect("a number");
        value.map(|value| as_bucket(&value, left))
    });
    Observed {
        buckets: buckets.collect(),
        reply,
        ticks: (end - start) / 1_000 + 1,
    }
}

fn micros(time: redis::Value) -> u64 {
    let (seconds, micros): (u64, u64) = redis::from_redis_value(time).expect("a time");
    seconds * 1_000_000 + micros
}

#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "a whole TTL"
)]
fn as_bucket(value: &[u8], left: i64) -> Bucket {
    let (tokens, px) = unpack(value);
    Bucket {
        tokens,
        px: px as u64,
        expires_at: NOW + u64::try_from(left).expect("a TTL"),
    }
}

fn model(check: &Check, buckets: &[Option<Bucket>], now: u64) -> Vec<i64> {
    let decision = bucket::decide(&check.clone(), &mut buckets.to_vec(), now);
    let integer = |number: u64| i64::try_from(number).expect("at most 10^12");
    let states = decision
        .limits
        .iter()
        .flat_map(|limit| [integer(remaining(limit)), retry_ms(limit.wait)]);
    std::iter::once(integer(decision.granted))
        .chain(states)
        .collect()
}

#[test]
fn scripts_on_a_real_redis_agree_with_the_model() {
    let server = RedisServer::start();
    let connection = std::cell::RefCell::new(server.connection());
    let script = Script::load(&mut connection.borrow_mut(), Script::TOKEN_BUCKET);
    let adjust = Script::load(&mut connection.borrow_mut(), Script::ADJUST);
    let case = std::cell::Cell::new(0);
    let config = ProptestConfig {
        cases: CASES,
        failure_persistence: None,
        ..ProptestConfig::default()
    };
    let outcome = TestRunner::new(config).run(&histories(), |(quotas, steps)| {
        let connection = &mut connection.borrow_mut();
        // Buckets of its own for each history, also while a failing one is being shrunk.
        case.set(case.get() + 1);
        for (i, step) in steps.iter().enumerate() {
            let call = to_call(&quotas, step, case.get());
            for key in call.keys() {
                pass(connection, key, step.pass);
            }
            let script = match &call {
                Call::Check(_) => &script,
                Call::Adjust(_) => &adjust,
            };
            let seen = observe(connection, script, &call);
            // Later keys are looked at later: a tick may pass before one and not before another.
            let candidates = shifts(&seen).any(|buckets| call.model(&buckets, NOW) == seen.reply);
            prop_assert!(
                candidates,
                "step {}: {:?} from {:?}",
                i,
                seen.reply,
                seen.buckets
            );
        }
        Ok(())
    });
    outcome.unwrap_or_else(|failure| panic!("{failure}"));
}

/// The buckets at every combination of the ticks that may have passed for each.
fn shifts(seen: &Observed) -> impl Iterator<Item = Vec<Option<Bucket>>> {
    let ticks = seen.ticks + 1;
    let keys = u32::try_from(seen.buckets.len()).expect("at most 3");
    (0..ticks.pow(keys)).map(move |mut combination| {
        let buckets = seen.buckets.iter().map(|bucket| {
            let tick = combination % ticks;
            combination /= ticks;
            bucket.map(|bucket| Bucket {
                expires_at: bucket.expires_at - tick,
                ..bucket
            })
        });
        buckets.collect()
    })
}
