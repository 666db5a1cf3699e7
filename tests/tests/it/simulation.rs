//! The scripts, the Rust model and the textbook's script over the same histories, with a clock that the test
//! moves: no server, no waiting, thousands of histories.

use std::{cell::RefCell, collections::HashMap, num::NonZeroU64, rc::Rc};

use mlua::{Function, Lua, Table, Value, Variadic};
use proptest::{collection::vec, prelude::*, test_runner::TestRunner};
use tollgate_core::{Adjustment, Bucket, BucketKey, Check, Decision, MAX_TOKENS, Quota, bucket};
use tollgate_tests::{Script, adjust_argv, argv, change, charge};

use crate::support::{retry_ms, unpack};

mod lua54;

const START: u64 = 1_000_000_000_000;
const CASES: u32 = 2_000;

/// As much of Redis as the scripts see.
#[derive(Default)]
struct Keyspace {
    now: u64,
    keys: HashMap<Vec<u8>, Entry>,
}

struct Entry {
    value: Stored,
    expires_at: Option<u64>,
}

enum Stored {
    Text(Vec<u8>),
    Hash(HashMap<Vec<u8>, Vec<u8>>),
}

impl Keyspace {
    fn entry(&mut self, key: &[u8]) -> Option<&mut Entry> {
        let now = self.now;
        // As Redis does: a key is gone once the clock is past its time, not when it reaches it.
        let expired = |entry: &Entry| entry.expires_at.is_some_and(|at| now > at);
        if self.keys.get(key).is_some_and(expired) {
            self.keys.remove(key);
        }
        self.keys.get_mut(key)
    }

    fn expire(&mut self, key: &[u8], millis: &[u8]) {
        let millis: u64 = text(millis).parse().expect("a whole TTL");
        assert!(millis > 0, "a TTL of 0 deletes the key");
        let at = self.now + millis;
        self.entry(key).expect("a key to expire").expires_at = Some(at);
    }

    fn call(&mut self, lua: &Lua, command: &str, args: &[Vec<u8>]) -> mlua::Result<Value> {
        let bulk = |bytes: Option<&[u8]>| match bytes {
            Some(bytes) => lua.create_string(bytes).map(Value::String),
            None => Ok(Value::Boolean(false)),
        };
        match (command, args) {
            ("GET", [key]) => match self.entry(key).map(|entry| &entry.value) {
                Some(Stored::Text(value)) => bulk(Some(value)),
                Some(Stored::Hash(_)) => panic!("GET of a hash"),
                None => bulk(None),
            },
            ("PTTL", [key]) => {
                let now = self.now;
                let left = match self.entry(key).map(|entry| entry.expires_at) {
                    Some(Some(at)) => as_number(at - now),
                    Some(None) => -1.0,
                    None => -2.0,
                };
                Ok(Value::Number(left))
            }
            ("SET", [key, value, px, millis]) if px == b"PX" => {
                let value = Stored::Text(value.clone());
                self.keys.insert(
                    key.clone(),
                    Entry {
                        value,
                        expires_at: None,
                    },
                );
                self.expire(key, millis);
                Ok(Value::Boolean(true))
            }
            ("TIME", []) => {
                let (seconds, micros) = (self.now / 1_000, self.now % 1_000 * 1_000);
                let time = [seconds.to_string(), micros.to_string()];
                lua.create_sequence_from(time).map(Value::Table)
            }
            ("HMGET", [key, fields @ ..]) => {
                let hash = match self.entry(key).map(|entry| &entry.value) {
                    Some(Stored::Hash(hash)) => Some(hash),
                    Some(Stored::Text(_)) => panic!("HMGET of a string"),
                    None => None,
                };
                let values = fields
                    .iter()
                    .map(|field| bulk(hash.and_then(|hash| hash.get(field)).map(Vec::as_slice)));
                lua.create_sequence_from(values.collect::<mlua::Result<Vec<_>>>()?)
                    .map(Value::Table)
            }
            ("HSET", [key, a, x, b, y]) => {
                let hash = HashMap::from([(a.clone(), x.clone()), (b.clone(), y.clone())]);
                let value = Stored::Hash(hash);
                self.keys.insert(
                    key.clone(),
                    Entry {
                        value,
                        expires_at: None,
                    },
                );
                Ok(Value::Number(2.0))
            }
            ("PEXPIRE", [key, millis]) => {
                self.expire(key, millis);
                Ok(Value::Number(1.0))
            }
            _ => panic!("{command} with {} arguments", args.len()),
        }
    }
}

/// A script in a Lua 5.1 of its own, as Redis embeds it.
struct Simulated {
    lua: Lua,
    script: Function,
    keyspace: Rc<RefCell<Keyspace>>,
}

impl Simulated {
    fn new(source: &str) -> Self {
        Self::on(Rc::default(), source)
    }

    /// A script on a keyspace that others may use, too.
    fn on(keyspace: Rc<RefCell<Keyspace>>, source: &str) -> Self {
        let lua = Lua::new();
        install(&lua, &keyspace).expect("the stubs");
        let script = lua
            .load(source)
            .into_function()
            .expect("a script that compiles");
        Self {
            lua,
            script,
            keyspace,
        }
    }

    fn check(&self, check: &Check) -> Vec<i64> {
        let keys = check.charges().iter().map(|charge| &charge.key);
        self.run(keys, argv(check))
    }

    fn adjust(&self, adjustment: &Adjustment) -> Vec<i64> {
        let keys = adjustment.changes().iter().map(|change| &change.key);
        self.run(keys, adjust_argv(adjustment))
    }

    fn run<'a>(&self, keys: impl Iterator<Item = &'a BucketKey>, args: Vec<String>) -> Vec<i64> {
        let keys: Vec<_> = keys.map(ToString::to_string).collect();
        self.lua.globals().set("KEYS", keys).expect("KEYS");
        self.lua.globals().set("ARGV", args).expect("ARGV");
        let reply: Table = self.script.call(()).expect("a reply");
        assert!(
            !reply.contains_key("err").expect("a table"),
            "{:?}",
            reply.get::<String>("err")
        );
        reply
            .sequence_values()
            .map(|number| as_integer(number.expect("a number")))
            .collect()
    }
}

fn install(lua: &Lua, keyspace: &Rc<RefCell<Keyspace>>) -> mlua::Result<()> {
    let (redis, packing) = (lua.create_table()?, lua.create_table()?);
    let keyspace = keyspace.clone();
    let call = lua.create_function(move |lua, args: Variadic<Value>| {
        let args: Vec<_> = args.iter().map(as_argument).collect();
        let (command, args) = args.split_first().expect("a command");
        keyspace.borrow_mut().call(lua, text(command), args)
    })?;
    redis.set("call", call)?;
    let pack = lua.create_function(|lua, (format, a, b): (String, f64, f64)| {
        assert_eq!(format, "<dd");
        lua.create_string([a.to_le_bytes(), b.to_le_bytes()].concat())
    })?;
    packing.set("pack", pack)?;
    let unpack = lua.create_function(|_, (format, value): (String, mlua::LuaString)| {
        assert_eq!(format, "<dd");
        Ok(unpack(&value.as_bytes()))
    })?;
    packing.set("unpack", unpack)?;
    lua.globals().set("redis", redis)?;
    lua.globals().set("struct", packing)
}

/// What Redis makes of an argument of `redis.call`.
fn as_argument(value: &Value) -> Vec<u8> {
    match value {
        Value::String(text) => text.as_bytes().to_vec(),
        Value::Integer(number) => number.to_string().into_bytes(),
        Value::Number(number) => number.to_string().into_bytes(),
        other => panic!("Redis takes no {other:?}"),
    }
}

fn text(bytes: &[u8]) -> &str {
    std::str::from_utf8(bytes).expect("text")
}

#[expect(clippy::cast_precision_loss, reason = "a TTL is far below 2^53")]
fn as_number(millis: u64) -> f64 {
    millis as f64
}

#[expect(
    clippy::cast_possible_truncation,
    reason = "as Redis does, after the check that nothing is lost"
)]
fn as_integer(number: f64) -> i64 {
    assert!(number.fract() == 0.0, "Redis would cut {number}");
    number as i64
}

#[derive(Clone, Debug)]
struct History {
    /// Two quotas for each key; which one applies may change with every step.
    quotas: Vec<[Quota; 2]>,
    steps: Vec<Step>,
}

#[derive(Clone, Debug)]
struct Step {
    event: Event,
    costs: Vec<Size>,
    count: u64,
    shadow: usize,
    second_quota: bool,
    /// In place of a check.
    amounts: Option<Vec<Amount>>,
}

/// What an adjustment does to one bucket: delta and floor, each of which may be negative.
#[derive(Clone, Copy, Debug)]
struct Amount {
    delta: (Size, bool),
    floor: (Size, bool),
}

#[derive(Clone, Copy, Debug)]
enum Event {
    Nothing,
    /// So many milliseconds pass.
    Pass(u64),
    /// This part of the time in which the first bucket would fill passes.
    PassPart(f64),
    /// The clock steps back.
    Back(u64),
    /// One key loses its TTL.
    Persist(usize),
}

/// A number of tokens, most often such that it matters.
#[derive(Clone, Copy, Debug)]
enum Size {
    Small(u64),
    Part(f64),
    Above,
    Most,
}

impl Size {
    fn signed(self, negative: bool, capacity: u64) -> i64 {
        let tokens = self.of(capacity).cast_signed();
        if negative { -tokens } else { tokens }
    }

    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_precision_loss,
        clippy::cast_sign_loss,
        reason = "any whole number near it will do"
    )]
    fn of(self, capacity: u64) -> u64 {
        match self {
            Self::Small(cost) => cost,
            Self::Part(part) => (capacity as f64 * part) as u64,
            Self::Above => (capacity + 1).min(MAX_TOKENS),
            Self::Most => MAX_TOKENS,
        }
    }
}

fn quotas() -> impl Strategy<Value = Quota> {
    let rate = prop_oneof![
        prop::sample::select(vec![
            1.0 / 86_400.0,
            1.0 / 3_600.0,
            7.0 / 3.0,
            1.0 / 3.0,
            0.1,
            0.3,
            1.0,
            5.0,
            50.0,
            1_000.0,
            100_000.0,
        ]),
        (-5.0..5.0).prop_map(|exponent| 10_f64.powf(exponent)),
    ];
    let capacity = prop_oneof![1_u64..20, 1_u64..1_000, 1_u64..=1_000_000];
    (capacity, rate).prop_filter_map("fills within ten years", |(capacity, rate)| {
        Quota::new(capacity, rate).ok()
    })
}

fn events(odd: bool) -> BoxedStrategy<Event> {
    let usual = prop_oneof![
        3 => Just(Event::Nothing),
        2 => (1_u64..10).prop_map(Event::Pass),
        2 => (1_u64..5_000).prop_map(Event::Pass),
        2 => (0.0..1.2).prop_map(Event::PassPart),
    ];
    if !odd {
        return usual.boxed();
    }
    prop_oneof![
        8 => usual,
        1 => (1_u64..10_000_000).prop_map(Event::Back),
        1 => (0_usize..8).prop_map(Event::Persist),
    ]
    .boxed()
}

fn steps(keys: usize, odd: bool) -> impl Strategy<Value = Step> {
    let size = prop_oneof![
        6 => (1_u64..5).prop_map(Size::Small),
        1 => Just(Size::Small(0)),
        2 => (0.0..1.0).prop_map(Size::Part),
        1 => Just(Size::Above),
    ];
    let count = prop_oneof![2 => Just(1), 1 => 1_u64..12];
    let shadow = prop_oneof![2 => Just(0), 1 => 0..=keys];
    let second = if odd {
        any::<bool>().boxed()
    } else {
        Just(false).boxed()
    };
    let amounts = if odd {
        prop::option::weighted(0.3, vec(amounts(), keys)).boxed()
    } else {
        Just(None).boxed()
    };
    (events(odd), vec(size, keys), count, shadow, second, amounts).prop_map(
        |(event, costs, count, shadow, second_quota, amounts)| Step {
            event,
            costs,
            count,
            shadow,
            second_quota,
            amounts,
        },
    )
}

fn amounts() -> impl Strategy<Value = Amount> {
    let size = || {
        let size = prop_oneof![
            4 => (0_u64..5).prop_map(Size::Small),
            4 => (0.0..1.0).prop_map(Size::Part),
            2 => Just(Size::Above),
            1 => Just(Size::Most),
        ];
        (size, any::<bool>())
    };
    (size(), size()).prop_map(|(delta, floor)| Amount { delta, floor })
}

/// With `odd`, also adjustments, quotas that change, keys that lose their TTL, and a clock that steps back.
fn histories(odd: bool) -> impl Strategy<Value = History> {
    let keys = prop_oneof![2 => Just(1_usize), 1 => 2_usize..=8];
    keys.prop_flat_map(move |keys| {
        let quotas = vec([quotas(), quotas()], keys);
        (quotas, vec(steps(keys, odd), 1..30)).prop_map(|(quotas, steps)| History { quotas, steps })
    })
}

fn to_check(quotas: &[[Quota; 2]], step: &Step) -> Check {
    let charges = quotas
        .iter()
        .zip(&step.costs)
        .enumerate()
        .map(|(i, (quotas, cost))| {
            let quota = quotas[usize::from(step.second_quota)];
            charge("42", &format!("l{i}"), quota, cost.of(quota.capacity()))
        });
    let check = Check::new(charges.collect()).expect("a check");
    let check = check.with_count(NonZeroU64::new(step.count).expect("from 1"));
    check.with_shadow(step.shadow).expect("at most all")
}

/// The adjustment that stands in place of the step's check.
fn to_adjustment(quotas: &[[Quota; 2]], step: &Step) -> Option<Adjustment> {
    let amounts = step.amounts.as_ref()?;
    let changes = quotas.iter().zip(amounts).enumerate();
    let changes = changes.map(|(i, (quotas, Amount { delta, floor }))| {
        let quota = quotas[usize::from(step.second_quota)];
        let tokens = |(size, negative): (Size, bool)| size.signed(negative, quota.capacity());
        change(
            "42",
            &format!("l{i}"),
            quota,
            tokens(*delta),
            tokens(*floor),
        )
    });
    Some(Adjustment::new(changes.collect()).expect("an adjustment"))
}

fn adjust_model(adjustment: &Adjustment, buckets: &mut [Option<Bucket>], now: u64) -> Vec<i64> {
    let changes = adjustment.changes().iter().zip(buckets);
    changes
        .map(|(it, bucket)| bucket::adjust(bucket, &it.quota, it.delta, it.floor, now))
        .collect()
}

fn reply(decision: &Decision) -> Vec<i64> {
    let integer = |number: u64| i64::try_from(number).expect("at most 10^12");
    let states = decision.limits.iter().flat_map(|limit| {
        [
            integer(crate::support::remaining(limit)),
            retry_ms(limit.wait),
        ]
    });
    std::iter::once(integer(decision.granted))
        .chain(states)
        .collect()
}

#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "any whole number near it will do"
)]
fn after(event: Event, now: u64, quota: &Quota) -> u64 {
    match event {
        Event::Nothing | Event::Persist(_) => now,
        Event::Pass(millis) => now + millis,
        Event::PassPart(part) => {
            now + (quota.seconds_for(quota.capacity()) * 1_000.0 * part) as u64
        }
        Event::Back(millis) => now - millis,
    }
}

/// `adjust` is on the keyspace of `script`.
fn check_against_model(
    script: &Simulated,
    adjust: &Simulated,
    history: &History,
) -> Result<(), TestCaseError> {
    *script.keyspace.borrow_mut() = Keyspace {
        now: START,
        ..Keyspace::default()
    };
    let mut buckets: Vec<Option<Bucket>> = vec![None; history.quotas.len()];
    for (i, step) in history.steps.iter().enumerate() {
        let check = to_check(&history.quotas, step);
        let now = {
            let mut keyspace = script.keyspace.borrow_mut();
            keyspace.now = after(step.event, keyspace.now, &history.quotas[0][0]);
            if let Event::Persist(key) = step.event {
                persist(
                    &mut keyspace,
                    &check,
                    &mut buckets,
                    key % history.quotas.len(),
                );
            }
            keyspace.now
        };
        for bucket in &mut buckets {
            // As Redis, which forgets a key for good once it finds it expired, even if the clock steps back.
            *bucket = bucket.filter(|bucket| !bucket.is_expired(now));
        }
        let keys: Vec<_> = check
            .charges()
            .iter()
            .map(|charge| charge.key.clone())
            .collect();
        let (answer, model) = match to_adjustment(&history.quotas, step) {
            Some(adjustment) => (
                adjust.adjust(&adjustment),
                adjust_model(&adjustment, &mut buckets, now),
            ),
            None => (
                script.check(&check),
                reply(&bucket::decide(&check, &mut buckets, now)),
            ),
        };
        prop_assert_eq!(answer, model, "step {}", i);
        for (key, bucket) in keys.iter().zip(&buckets) {
            let bucket =
                bucket.map(|bucket| (bucket.tokens, as_number(bucket.px), Some(bucket.expires_at)));
            prop_assert_eq!(
                stored(script, key.as_str()),
                bucket,
                "state of {} after step {}",
                key,
                i
            );
        }
    }
    Ok(())
}

fn persist(keyspace: &mut Keyspace, check: &Check, buckets: &mut [Option<Bucket>], key: usize) {
    let name = check.charges()[key].key.as_str().as_bytes();
    if let Some(entry) = keyspace.entry(name) {
        entry.expires_at = None;
        // To the model, no TTL is one that ends later than any that was given.
        buckets[key]
            .as_mut()
            .expect("as in the keyspace")
            .expires_at = u64::MAX;
    }
}

fn stored(script: &Simulated, key: &str) -> Option<(f64, f64, Option<u64>)> {
    let mut keyspace = script.keyspace.borrow_mut();
    let entry = keyspace.entry(key.as_bytes())?;
    let Stored::Text(value) = &entry.value else {
        panic!("a bucket is a string");
    };
    let (tokens, px) = unpack(value);
    // The model writes "no TTL" as the end of time.
    Some((tokens, px, entry.expires_at.or(Some(u64::MAX))))
}

fn run(
    histories: impl Strategy<Value = History>,
    test: impl Fn(&History) -> Result<(), TestCaseError>,
) {
    let config = ProptestConfig {
        cases: CASES,
        failure_persistence: None,
        ..ProptestConfig::default()
    };
    let outcome = TestRunner::new(config).run(&histories, |history| test(&history));
    outcome.unwrap_or_else(|failure| panic!("{failure}"));
}

#[test]
fn scripts_and_model_agree_to_the_bit_whatever_happens() {
    let script = Simulated::new(Script::TOKEN_BUCKET);
    let adjust = Simulated::on(script.keyspace.clone(), Script::ADJUST);
    run(histories(true), |history| {
        check_against_model(&script, &adjust, history)
    });
}

/// In real arithmetic both compute the same tokens at every instant: one from the last write, the other by
/// adding up what each call saw. In floating point these differ by less than 10^-9, and both compare with
/// an allowance of 10^-6, so they can only differ where the exact tokens are within 10^-9 of the edge of
/// that allowance. Random rates do not get there, and the round ones are chosen so that no whole number of
/// milliseconds does.
#[test]
fn script_admits_exactly_what_the_textbook_admits() {
    let script = Simulated::new(Script::TOKEN_BUCKET);
    let textbook = Simulated::new(Script::TEXTBOOK);
    run(histories(false), |history| {
        for simulated in [&script, &textbook] {
            *simulated.keyspace.borrow_mut() = Keyspace {
                now: START,
                ..Keyspace::default()
            };
        }
        for (i, step) in history.steps.iter().enumerate() {
            let now = after(
                step.event,
                script.keyspace.borrow().now,
                &history.quotas[0][0],
            );
            script.keyspace.borrow_mut().now = now;
            textbook.keyspace.borrow_mut().now = now;
            let check = to_check(&history.quotas, step);
            prop_assert_eq!(
                script.check(&check)[0],
                textbook.check(&check)[0],
                "step {}",
                i
            );
        }
        Ok(())
    });
}
