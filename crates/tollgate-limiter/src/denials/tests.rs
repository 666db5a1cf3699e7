use std::{
    collections::HashMap,
    num::NonZeroU64,
    pin::Pin,
    sync::{
        Mutex,
        atomic::{AtomicU64, Ordering},
    },
    task::{Context, Poll, Waker},
};

use proptest::{collection::vec, prelude::*};
use tokio::time::advance;
use tollgate_core::{
    Bucket, Change, ChargeState, ErrorKind, KeySpace, Limit, LimitName, StoreError, StoreFuture,
    Tenant, Verdict,
};

use super::*;

fn charge(limit: &str, (capacity, rate): (u64, f64), cost: u64) -> Charge {
    let tenant = Tenant::new("42", "pro").expect("an id");
    let name = LimitName::new(limit).expect("a name");
    let key = KeySpace::default().bucket(&tenant, &name);
    let quota = Quota::new(capacity, rate).expect("a quota");
    Charge {
        key,
        limit: Limit { name, quota },
        cost: Cost::try_from(cost).expect("a cost"),
    }
}

fn single(quota: (u64, f64), cost: u64) -> Check {
    Check::single(charge("default", quota, cost))
}

fn count(check: Check, count: u64) -> Check {
    check.with_count(NonZeroU64::new(count).expect("from 1"))
}

/// Adds tokens, or takes some out, down to a debt of 5.
fn adjustment(charge: &Charge, delta: i64) -> Adjustment {
    let change = Change {
        key: charge.key.clone(),
        quota: charge.limit.quota,
        delta,
        floor: -5,
    };
    Adjustment::new(vec![change]).expect("an adjustment")
}

/// A store far away: a call that was sent runs when the test says so. Its clock shows whole milliseconds,
/// which begin at other times than those of the callers.
#[derive(Clone)]
struct Remote(Arc<Mutex<Server>>);

struct Server {
    start: Instant,
    phase: Duration,
    buckets: HashMap<BucketKey, Bucket>,
    /// Runs at once what comes in.
    is_near: bool,
    on_the_way: Vec<Call>,
    calls: u64,
}

enum Call {
    Check(Check, Reply<Decision>),
    Adjust(Adjustment, Reply<Vec<i64>>),
}

type Reply<T> = Arc<Mutex<Option<T>>>;

impl Remote {
    fn new(phase: Duration, is_near: bool) -> Self {
        Self(Arc::new(Mutex::new(Server {
            start: Instant::now(),
            phase,
            buckets: HashMap::new(),
            is_near,
            on_the_way: Vec::new(),
            calls: 0,
        })))
    }

    fn near() -> Self {
        Self::new(Duration::ZERO, true)
    }

    fn with<T>(&self, act: impl FnOnce(&mut Server) -> T) -> T {
        act(&mut self.0.lock().expect("no panic"))
    }

    fn calls(&self) -> u64 {
        self.with(|server| server.calls)
    }

    /// Runs the call number `index` of those on the way.
    fn run(&self, index: usize) {
        self.with(|server| {
            let call = server.on_the_way.remove(index);
            server.run(call);
        });
    }

    fn send<T: Send + 'static>(&self, call: impl FnOnce(Reply<T>) -> Call) -> StoreFuture<T> {
        let reply = Reply::default();
        self.with(|server| {
            server.calls += 1;
            let call = call(reply.clone());
            if server.is_near {
                server.run(call);
            } else {
                server.on_the_way.push(call);
            }
        });
        StoreFuture::new(std::future::poll_fn(move |_| {
            match reply.lock().expect("no panic").take() {
                Some(answer) => Poll::Ready(Ok(answer)),
                None => Poll::Pending,
            }
        }))
    }
}

impl Server {
    fn now(&self) -> u64 {
        let since = Instant::now() - self.start + self.phase;
        u64::try_from(since.as_millis()).expect("not that long")
    }

    fn run(&mut self, call: Call) {
        match call {
            Call::Check(check, reply) => {
                *reply.lock().expect("no panic") = Some(self.decide(&check));
            }
            Call::Adjust(adjustment, reply) => {
                let now = self.now();
                let adjust = |change: &Change| {
                    let mut bucket = self.buckets.get(&change.key).copied();
                    let (delta, floor) = (change.delta, change.floor);
                    let left = bucket::adjust(&mut bucket, &change.quota, delta, floor, now);
                    self.buckets
                        .extend(bucket.map(|it| (change.key.clone(), it)));
                    left
                };
                let left = adjustment.changes().iter().map(adjust).collect();
                *reply.lock().expect("no panic") = Some(left);
            }
        }
    }

    fn decide(&mut self, check: &Check) -> Decision {
        let keys: Vec<_> = check.charges().iter().map(|it| it.key.clone()).collect();
        let mut buckets: Vec<_> = keys
            .iter()
            .map(|key| self.buckets.get(key).copied())
            .collect();
        let decision = bucket::decide(check, &mut buckets, self.now());
        let written = keys.into_iter().zip(buckets);
        self.buckets
            .extend(written.filter_map(|(key, bucket)| Some((key, bucket?))));
        decision
    }

    /// What it would decide now.
    fn probe(&self, check: &Check) -> Decision {
        let keys = check.charges().iter().map(|it| &it.key);
        let mut buckets: Vec<_> = keys.map(|key| self.buckets.get(key).copied()).collect();
        bucket::decide(check, &mut buckets, self.now())
    }
}

impl Store for Remote {
    fn check(&self, check: Check) -> CheckFuture {
        self.send(|reply| Call::Check(check, reply))
    }

    fn adjust(&self, adjustment: Adjustment) -> AdjustFuture {
        self.send(|reply| Call::Adjust(adjustment, reply))
    }
}

#[derive(Default)]
struct Saved(AtomicU64);

impl Observer for Saved {
    fn call_saved(&self, by: SavedBy) {
        assert_eq!(by, SavedBy::DenialCache);
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

fn over(store: &Remote) -> DenialCache<Remote> {
    DenialCache::new(store.clone(), Arc::new(()))
}

async fn ask(store: &impl Store, check: &Check) -> Decision {
    store.check(check.clone()).await.expect("a decision")
}

/// What the only limit has left, and for how many milliseconds it denies.
fn state(decision: &Decision) -> (Source, Option<u64>, Wait) {
    let limit = &decision.limits[0];
    (decision.source, limit.remaining, limit.wait)
}

const fn millis(millis: u64) -> Wait {
    Wait::For(Duration::from_millis(millis))
}

/// Takes all that the quota's bucket holds, and is denied once more.
async fn drain(store: &impl Store, quota: (u64, f64)) {
    assert!(ask(store, &single(quota, quota.0)).await.is_allowed());
    let denied = ask(store, &single(quota, 1)).await;
    assert_eq!(
        (denied.verdict, denied.source),
        (Verdict::Denied, Source::Store)
    );
}

#[tokio::test(start_paused = true)]
async fn a_known_denial_costs_no_call_for_a_second_and_tells_the_whole_wait() {
    let (remote, saved) = (Remote::near(), Arc::new(Saved::default()));
    let cache = DenialCache::new(remote.clone(), saved.clone());
    let quota = (5, 0.1);
    drain(&cache, quota).await;
    assert_eq!(remote.calls(), 2);

    advance(Duration::from_micros(400_300)).await;
    let denied = ask(&cache, &single(quota, 1)).await;
    assert_eq!((denied.verdict, denied.granted), (Verdict::Denied, 0));
    // 9 599.7 ms are left.
    assert_eq!(
        state(&denied),
        (Source::DenialCache, Some(0), millis(9_600))
    );
    advance(Duration::from_micros(599_600)).await;
    assert_eq!(
        ask(&cache, &single(quota, 1)).await.source,
        Source::DenialCache
    );
    assert_eq!((remote.calls(), saved.0.load(Ordering::Relaxed)), (2, 2));

    advance(Duration::from_micros(100)).await;
    let denied = ask(&cache, &single(quota, 1)).await;
    assert_eq!(state(&denied), (Source::Store, Some(0), millis(9_000)));
    assert_eq!((remote.calls(), saved.0.load(Ordering::Relaxed)), (3, 2));
}

#[tokio::test(start_paused = true)]
async fn only_the_denied_cost_and_larger_ones_are_known() {
    let remote = Remote::near();
    let cache = over(&remote);
    let quota = (10, 1.0);
    assert!(ask(&cache, &single(quota, 8)).await.is_allowed());
    let denied = ask(&cache, &single(quota, 5)).await;
    assert_eq!(state(&denied), (Source::Store, Some(2), millis(3_000)));
    // Reading asks, and so does a cost that may fit.
    assert_eq!(ask(&cache, &single(quota, 0)).await.source, Source::Store);
    assert!(ask(&cache, &single(quota, 1)).await.is_allowed());

    advance(Duration::from_millis(10)).await;
    let larger = ask(&cache, &single(quota, 7)).await;
    assert_eq!(
        state(&larger),
        (Source::DenialCache, Some(2), millis(4_990))
    );
    let never = ask(&cache, &single(quota, 11)).await;
    assert_eq!(state(&never), (Source::DenialCache, Some(2), Wait::Never));

    // The smallest counts, whichever was denied last.
    let denied = ask(&cache, &single(quota, 2)).await;
    assert_eq!(state(&denied), (Source::Store, Some(1), millis(990)));
    assert_eq!(
        ask(&cache, &single(quota, 2)).await.source,
        Source::DenialCache
    );
    assert_eq!(
        ask(&cache, &single(quota, 5)).await.source,
        Source::DenialCache
    );
}

#[tokio::test(start_paused = true)]
async fn of_denials_that_overtake_each_other_the_smallest_cost_is_kept() {
    for order in [[0, 1], [1, 0]] {
        let remote = Remote::near();
        let cache = over(&remote);
        let quota = (10, 1.0);
        assert!(ask(&cache, &single(quota, 9)).await.is_allowed());
        remote.with(|server| server.is_near = false);
        let mut calls = [2, 5].map(|cost| cache.check(single(quota, cost)));
        remote.run(0);
        remote.run(0);
        for i in order {
            assert!(!poll(&mut calls[i]).expect("an answer").is_allowed());
        }
        remote.with(|server| server.is_near = true);
        let denied = ask(&cache, &single(quota, 2)).await;
        assert_eq!(
            state(&denied),
            (Source::DenialCache, Some(1), millis(1_000))
        );
    }
}

#[tokio::test(start_paused = true)]
async fn a_cost_above_the_capacity_is_asked_for_once_a_second() {
    let remote = Remote::near();
    let cache = over(&remote);
    for _ in 0..10 {
        let never = ask(&cache, &single((10, 1.0), 11)).await;
        assert_eq!(
            (never.limits[0].remaining, never.limits[0].wait),
            (Some(10), Wait::Never)
        );
        advance(Duration::from_millis(199)).await;
    }
    assert_eq!(remote.calls(), 2);
    // It says nothing of costs that may fit.
    assert!(ask(&cache, &single((10, 1.0), 10)).await.is_allowed());
}

#[tokio::test(start_paused = true)]
async fn another_quota_voids_what_is_known() {
    let remote = Remote::near();
    let cache = over(&remote);
    drain(&cache, (5, 0.1)).await;
    advance(Duration::from_millis(500)).await;
    assert!(ask(&cache, &single((5, 1000.0), 1)).await.is_allowed());
    // The first one's refill is in the bucket.
    assert!(ask(&cache, &single((5, 0.1), 1)).await.is_allowed());

    let sharded = |n| single((5, 0.1), 5).with_shards(NonZeroU8::new(n).expect("from 1"));
    assert_eq!(ask(&cache, &sharded(1)).await.source, Source::Store);
    assert_eq!(ask(&cache, &sharded(1)).await.source, Source::DenialCache);
    assert_eq!(ask(&cache, &sharded(2)).await.source, Source::Store);
}

#[tokio::test(start_paused = true)]
async fn of_split_buckets_only_a_single_limit_teaches() {
    let store = Remote::near();
    let cache = over(&store);
    let four = NonZeroU8::new(4).expect("not 0");
    let small = charge("a", (5, 0.1), 5);
    let both = Check::new(vec![small.clone(), charge("b", (5, 0.1), 5)]).expect("a check");
    let both = both.with_shards(four);
    let alone = Check::single(small).with_shards(four);
    let _ = ask(&cache, &both).await;
    assert_eq!(ask(&cache, &both).await.source, Source::Store);
    assert_eq!(ask(&cache, &both).await.source, Source::Store);
    assert_eq!(ask(&cache, &alone).await.source, Source::Store);
    assert_eq!(ask(&cache, &alone).await.source, Source::DenialCache);
}

#[tokio::test(start_paused = true)]
async fn of_several_limits_only_the_known_ones_have_numbers() {
    let cache = over(&Remote::near());
    let quota = (2, 0.1);
    let of = |limits: &[(&str, u64)]| {
        let charges = limits.iter().map(|(name, cost)| charge(name, quota, *cost));
        Check::new(charges.collect()).expect("a check")
    };
    assert!(ask(&cache, &of(&[("a", 1), ("b", 2)])).await.is_allowed());
    assert!(!ask(&cache, &of(&[("b", 1)])).await.is_allowed());

    let denied = ask(&cache, &of(&[("a", 1), ("b", 1)])).await;
    assert_eq!((denied.source, denied.granted), (Source::DenialCache, 0));
    let numbers = denied.limits.iter().map(|it| (it.remaining, it.wait));
    assert_eq!(
        numbers.collect::<Vec<_>>(),
        [(None, Wait::None), (Some(0), millis(10_000))]
    );
    assert_eq!(denied.tightest().map(|it| it.name.as_str()), Some("b"));
    // The other one was not charged, and is still asked about.
    assert!(ask(&cache, &of(&[("a", 1), ("b", 0)])).await.is_allowed());
}

#[tokio::test(start_paused = true)]
async fn a_limit_in_shadow_neither_denies_nor_teaches() {
    let remote = Remote::near();
    let cache = over(&remote);
    let quota = (1, 0.1);
    let shadow = || {
        let charges = vec![charge("a", (100, 1.0), 1), charge("b", quota, 1)];
        Check::new(charges)
            .expect("a check")
            .with_shadow(1)
            .expect("one of two")
    };
    for lacked in [false, true, true] {
        let allowed = ask(&cache, &shadow()).await;
        assert_eq!(
            (allowed.is_allowed(), allowed.limits[1].lacked_tokens()),
            (true, lacked)
        );
    }
    let enforced = Check::single(charge("b", quota, 1));
    assert_eq!(ask(&cache, &enforced).await.source, Source::Store);
    assert_eq!(ask(&cache, &enforced).await.source, Source::DenialCache);
    assert!(ask(&cache, &shadow()).await.is_allowed());
}

#[tokio::test(start_paused = true)]
async fn a_grant_of_fewer_than_wanted_tells_as_much_as_a_denial() {
    let remote = Remote::near();
    let cache = over(&remote);
    let quota = (5, 0.1);
    let some = ask(&cache, &count(single(quota, 2), 4)).await;
    assert_eq!((some.granted, some.limits[0].wait), (2, millis(10_000)));
    let denied = ask(&cache, &count(single(quota, 2), 4)).await;
    assert_eq!(denied.granted, 0);
    assert_eq!(
        state(&denied),
        (Source::DenialCache, Some(1), millis(10_000))
    );
    assert!(ask(&cache, &single(quota, 1)).await.is_allowed());
}

/// Always gives the same answer.
struct Same(Result<Source, ErrorKind>, AtomicU64);

impl Store for Same {
    fn check(&self, check: Check) -> CheckFuture {
        self.1.fetch_add(1, Ordering::Relaxed);
        CheckFuture::ready(match self.0 {
            Ok(source) => Ok(check.decide(0, source, [(0, millis(10_000))])),
            Err(kind) => Err(StoreError::new(kind, ChargeState::Unknown, "as told")),
        })
    }

    fn adjust(&self, _: Adjustment) -> AdjustFuture {
        unreachable!("nothing is given back here")
    }
}

#[tokio::test(start_paused = true)]
async fn only_denials_of_the_store_itself_are_known() {
    let cases = [
        (Ok(Source::Store), 1),
        (Ok(Source::Fallback), 3),
        (Ok(Source::Lease), 3),
        (Err(ErrorKind::Timeout), 3),
    ];
    for (answer, calls) in cases {
        let cache = DenialCache::new(Same(answer, AtomicU64::new(0)), Arc::new(()));
        for _ in 0..3 {
            let _ = cache.check(single((1, 0.1), 1)).await;
        }
        assert_eq!(cache.store.1.load(Ordering::Relaxed), calls, "{answer:?}");
    }
}

fn poll<T>(future: &mut StoreFuture<T>) -> Option<T> {
    match Pin::new(future).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(answer) => Some(answer.expect("it never fails")),
        Poll::Pending => None,
    }
}

#[tokio::test(start_paused = true)]
async fn what_is_given_back_voids_denials_from_before_and_no_others() {
    let remote = Remote::near();
    let cache = over(&remote);
    let (quota, key) = ((5, 0.1), charge("default", (5, 0.1), 1));
    let tick = || advance(Duration::from_millis(1));
    drain(&cache, quota).await;
    // Taken out: as much denied as before.
    let _ = cache.adjust(adjustment(&key, -3)).await;
    assert_eq!(
        ask(&cache, &single(quota, 1)).await.source,
        Source::DenialCache
    );
    remote.with(|server| server.is_near = false);

    // A denial on its way back while tokens are given back.
    let mut denial = cache.check(single(quota, 5).with_count(NonZeroU64::MIN));
    assert!(poll(&mut denial).is_some(), "known");
    let mut given_back = cache.adjust(adjustment(&key, 5));
    tick().await;
    let mut denied = cache.check(single(quota, 1));
    remote.run(1);
    tick().await;
    assert!(!poll(&mut denied).expect("an answer").is_allowed());
    remote.run(0);
    let mut allowed = cache.check(single(quota, 1));
    remote.run(0);
    assert!(poll(&mut allowed).expect("an answer").is_allowed());

    // And one that was sent before, and comes back after the tokens.
    let mut late = cache.check(single(quota, 2));
    remote.run(0);
    tick().await;
    assert!(poll(&mut given_back).is_some());
    assert!(!poll(&mut late).expect("an answer").is_allowed());
    tick().await;
    remote.with(|server| server.is_near = true);
    assert_eq!(ask(&cache, &single(quota, 2)).await.source, Source::Store);
    // From now on they are learnt again.
    assert_eq!(
        ask(&cache, &single(quota, 2)).await.source,
        Source::DenialCache
    );
}

#[tokio::test(start_paused = true)]
async fn those_denied_most_stay_and_memory_is_bounded() {
    let cache = over(&Remote::near()).with_max_entries(1_000);
    let of = |tenant: String, cost| {
        let mut charge = charge("default", (1, 0.1), cost);
        let tenant = Tenant::new(tenant, "pro").expect("an id");
        charge.key = KeySpace::default().bucket(&tenant, &charge.limit.name);
        Check::single(charge)
    };
    let known = |name: &str| {
        let is_known = |i: &usize| {
            let check = of(format!("{name}{i}"), 2);
            cache.denials.known.contains_key(&check.charges()[0].key)
        };
        (0..100).filter(is_known).count()
    };
    let mut asked_again = 0;
    for i in 0..20_000_usize {
        // A flood of tenants, each denied twice.
        let _ = ask(&cache, &of(i.to_string(), 2)).await;
        let _ = ask(&cache, &of(i.saturating_sub(300).to_string(), 2)).await;
        if i >= 5_000 {
            let denied = ask(&cache, &of(format!("denied{}", i % 100), 2)).await;
            asked_again += usize::from(denied.source == Source::Store);
            // Denied once, and busy ever since with what is not denied.
            let busy = |cost| of(format!("busy{}", i % 100), cost);
            if i < 5_100 {
                let _ = ask(&cache, &busy(2)).await;
            }
            let _ = ask(&cache, &busy(0)).await;
        }
    }
    let kept = cache.denials.known.len();
    assert!(kept <= 1_024, "{kept} kept");
    assert_eq!((known("denied"), known("busy")), (100, 0));
    // Each is learnt anew at most a few times before it counts as one of these.
    assert!(asked_again <= 300, "{asked_again}");
}

#[derive(Clone, Debug)]
enum Step {
    /// Microseconds.
    Advance(u64),
    /// To when the last denial's wait has passed on the store's side, and so many microseconds further.
    ToEdge(i64),
    Send(Ask),
    ByAnother(Ask),
    Run(usize),
    Deliver(usize),
    /// Sends an adjustment, or runs the one that was sent, or delivers its answer.
    GiveBack(i64),
    Quota,
}

/// Costs under the limits a and b.
#[derive(Clone, Debug)]
struct Ask {
    costs: [u64; 2],
    count: u64,
    both: bool,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let ask = (
        0_u64..8,
        0_u64..8,
        prop_oneof![3 => Just(1_u64), 1 => 2_u64..5],
        any::<bool>(),
    );
    let ask = ask.prop_map(|(a, b, count, both)| Ask {
        costs: [a, b],
        count,
        both,
    });
    let edge = prop_oneof![-2_500_i64..200, -900_000_i64..0];
    vec(
        prop_oneof![
            4 => (1_u64..30_000).prop_map(Step::Advance),
            6 => (1_u64..1_500).prop_map(Step::Advance),
            6 => edge.prop_map(Step::ToEdge),
            16 => ask.clone().prop_map(Step::Send),
            2 => ask.prop_map(Step::ByAnother),
            10 => any::<usize>().prop_map(Step::Run),
            10 => any::<usize>().prop_map(Step::Deliver),
            1 => (-3_i64..6).prop_map(Step::GiveBack),
            1 => Just(Step::Quota),
        ],
        1..150,
    )
}

fn rates() -> impl Strategy<Value = f64> {
    prop_oneof![
        Just(50.0),
        Just(7.0 / 3.0),
        Just(1.0 / 86_400.0),
        (-5.0..3.0).prop_map(|exponent| 10_f64.powf(exponent)),
    ]
}

/// The cache before a store far away, and beside them a store that is asked everything at once.
struct Trial {
    quotas: [(u64, f64); 2],
    remote: Remote,
    cache: DenialCache<Remote>,
    plain: Remote,
    pending: Vec<CheckFuture>,
    adjustment: Option<(Instant, AdjustFuture)>,
    /// When the last denial's wait is over.
    edge: Instant,
    cached: u64,
}

impl Trial {
    fn new(quotas: [(u64, f64); 2], phase: Duration, is_near: bool) -> Self {
        let remote = Remote::new(phase, is_near);
        Self {
            quotas,
            cache: over(&remote),
            remote,
            plain: Remote::new(phase, true),
            pending: Vec::new(),
            adjustment: None,
            edge: Instant::now(),
            cached: 0,
        }
    }

    fn check(&self, ask: &Ask) -> Check {
        let [a, b] = ask.costs;
        let mut charges = vec![charge("a", self.quotas[0], a)];
        if ask.both {
            charges.push(charge("b", self.quotas[0], b));
        }
        count(Check::new(charges).expect("a check"), ask.count)
    }

    async fn step(&mut self, step: Step) {
        match step {
            Step::Advance(micros) => self.advance(Duration::from_micros(micros)).await,
            Step::ToEdge(micros) => {
                let offset = Duration::from_micros(micros.unsigned_abs());
                let target = if micros < 0 {
                    self.edge.checked_sub(offset)
                } else {
                    Some(self.edge + offset)
                };
                let span = target.and_then(|it| it.checked_duration_since(Instant::now()));
                self.advance(span.unwrap_or_default()).await;
            }
            Step::Send(ask) => self.send(self.check(&ask)),
            Step::ByAnother(ask) => {
                let check = self.check(&ask);
                for store in [&self.remote, &self.plain] {
                    let _ = store.with(|server| server.decide(&check));
                }
            }
            Step::Run(index) => {
                let on_the_way = self.remote.with(|server| server.on_the_way.len());
                // An adjustment runs when it is its turn.
                if on_the_way > 0 && self.adjustment.is_none() {
                    self.remote.run(index % on_the_way);
                }
            }
            Step::Deliver(index) => self.deliver(index),
            Step::GiveBack(delta) => self.give_back(delta),
            Step::Quota => {
                self.settle();
                self.quotas.swap(0, 1);
                self.debit();
                // That is an event, unless this process asks by the new quota as well.
                self.send(self.check(&Ask {
                    costs: [0, 0],
                    count: 1,
                    both: true,
                }));
                self.settle();
            }
        }
    }

    /// Takes a token by the new quota. Before anything is written by it, a bucket is full and forgotten as
    /// soon as it would have been by the former one, which nothing in a denial tells.
    fn debit(&self) {
        for limit in ["a", "b"] {
            for store in [&self.remote, &self.plain] {
                let debit = adjustment(&charge(limit, self.quotas[0], 1), -1);
                store.with(|server| server.run(Call::Adjust(debit, Reply::default())));
            }
        }
    }

    async fn advance(&mut self, span: Duration) {
        let overdue = |(sent, _): &(Instant, _)| Instant::now() + span >= *sent + LONGEST;
        if self.adjustment.as_ref().is_some_and(overdue) {
            self.settle();
        }
        advance(span).await;
    }

    fn send(&mut self, check: Check) {
        let truth = self.remote.with(|server| server.probe(&check));
        let calls = self.remote.calls();
        let plain = self.plain.with(|server| server.decide(&check));
        let mut future = self.cache.check(check);
        let is_near = self.remote.with(|server| server.is_near);
        if is_near {
            assert_eq!(truth.granted, plain.granted);
        }
        if let Some(wait) = truth.limits.iter().map(|it| it.wait).max()
            && let Wait::For(wait) = wait
        {
            self.edge = Instant::now() + wait;
        }
        if self.remote.calls() > calls {
            self.pending.push(future);
            return;
        }
        self.cached += 1;
        let decision = poll(&mut future).expect("known at once");
        assert_eq!(
            (decision.source, decision.granted),
            (Source::DenialCache, 0)
        );
        assert_eq!(truth.granted, 0, "{decision:?}, but {truth:?}");
        for (known, truth) in decision.limits.iter().zip(&truth.limits) {
            if known.lacked_tokens() {
                assert!(truth.lacked_tokens(), "{known:?}, but {truth:?}");
                assert!(known.remaining.expect("known") < known.cost.tokens());
            }
        }
    }

    fn deliver(&mut self, index: usize) {
        if !self.pending.is_empty() {
            let index = index % self.pending.len();
            if poll(&mut self.pending[index]).is_some() {
                drop(self.pending.swap_remove(index));
            }
        }
    }

    /// One after the other: of two that overlap, the second may run unseen when the first is answered.
    fn give_back(&mut self, delta: i64) {
        if let Some((_, future)) = &mut self.adjustment {
            let is_call = |call: &Call| matches!(call, Call::Adjust(..));
            let index = self
                .remote
                .with(|server| server.on_the_way.iter().position(is_call));
            if let Some(index) = index {
                self.remote.run(index);
            } else if poll(future).is_some() {
                self.adjustment = None;
            }
        } else {
            let adjustment = adjustment(&charge("a", self.quotas[0], 1), delta);
            drop(self.plain.adjust(adjustment.clone()));
            self.adjustment = Some((Instant::now(), self.cache.adjust(adjustment)));
        }
    }

    /// All calls run, all answers delivered.
    fn settle(&mut self) {
        while self.remote.with(|server| !server.on_the_way.is_empty()) {
            self.remote.run(0);
        }
        for mut future in self.pending.drain(..) {
            assert!(poll(&mut future).is_some());
        }
        if let Some((_, mut future)) = self.adjustment.take() {
            assert!(poll(&mut future).is_some());
        }
    }
}

fn paused<T>(test: impl Future<Output = T>) -> T {
    let mut runtime = tokio::runtime::Builder::new_current_thread();
    let runtime = runtime.enable_time().start_paused(true).build();
    runtime.expect("a runtime").block_on(test)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 500, failure_persistence: None, ..ProptestConfig::default() })]

    /// With calls that take their time both ways and overtake each other, every denial from memory is one
    /// that the store would have given at that moment. And when calls arrive at once, so that both can be
    /// compared, each decision is the plain store's own.
    #[test]
    fn it_never_denies_what_the_store_would_allow(
        quotas in [(1_u64..20, rates()), (1_u64..20, rates())],
        phase in 0_u64..1_000,
        is_near in any::<bool>(),
        steps in steps(),
    ) {
        paused(async {
            let mut trial = Trial::new(quotas, Duration::from_micros(phase), is_near);
            for step in steps {
                trial.step(step).await;
            }
        });
    }

    /// The last moment at which a denial is known is one at which the store still denies, however the
    /// milliseconds of its clock fall, and whatever fraction of a token the bucket holds.
    #[test]
    fn what_is_known_ends_before_the_store_may_allow(
        capacity in 1_u64..20,
        (rate, other) in (rates(), rates()),
        phase in 0_u64..1_000,
        (pause, there, back) in (0_u64..5_000, 0_u64..2_000, 0_u64..2_000),
        left in 1_u64..1_200_000,
    ) {
        let (quota, other) = ((capacity, rate), (capacity, other));
        let key = charge("default", quota, 1);
        paused(async {
            let remote = Remote::new(Duration::from_micros(phase), false);
            let cache = over(&remote);
            let micros = |micros| advance(Duration::from_micros(micros));
            remote.with(|server| server.decide(&single(other, capacity)));
            micros(pause).await;
            let debit = Call::Adjust(adjustment(&key, -1), Reply::default());
            remote.with(|server| server.run(debit));
            let probe = || remote.with(|server| server.probe(&single(quota, 1)));
            let Wait::For(wait) = probe().limits[0].wait else { return };
            advance(wait.saturating_sub(Duration::from_micros(left))).await;

            let mut future = cache.check(single(quota, 1));
            micros(there).await;
            remote.run(0);
            micros(back).await;
            assert!(poll(&mut future).is_some());
            if let Some(Known::Denial(denial)) = cache.denials.known.peek(&key.key) {
                let last = denial.until - Duration::from_nanos(1);
                advance(last.duration_since(Instant::now())).await;
                assert!(!probe().is_allowed(), "known until {:?}", denial.until);
            }
        });
    }

    /// A lone client that waits as long as it is told gets in then, and is not told to wait much longer than
    /// the store would have said.
    #[test]
    fn a_stated_wait_suffices(
        capacity in 1_u64..20,
        rate in rates(),
        phase in 0_u64..1_000,
        (there, back) in (0_u64..3_000, 0_u64..3_000),
        (denied, asked) in (1_u64..20, 0_u64..20),
        pause in 0_u64..1_000_000,
    ) {
        let denied = denied.min(capacity);
        let asked = (denied + asked).min(capacity);
        let quota = (capacity, rate);
        paused(async {
            let remote = Remote::new(Duration::from_micros(phase), false);
            let cache = over(&remote);
            let micros = |micros| advance(Duration::from_micros(micros));
            let _ = remote.with(|server| server.decide(&single(quota, capacity)));
            let mut future = cache.check(single(quota, denied));
            micros(there).await;
            remote.run(0);
            micros(back).await;
            prop_assume!(!poll(&mut future).expect("an answer").is_allowed());
            micros(pause).await;
            let mut future = cache.check(single(quota, asked));
            let Some(decision) = poll(&mut future) else { return Ok(()) };
            let Wait::For(wait) = decision.limits[0].wait else { panic!("{decision:?}") };
            let truth = remote.with(|server| server.probe(&single(quota, asked)));
            let Wait::For(stated) = truth.limits[0].wait else { panic!("{truth:?}") };
            prop_assert!(wait <= stated + Duration::from_micros(back) + Duration::from_millis(3), "{wait:?}, {stated:?}");
            advance(wait).await;
            prop_assert!(remote.with(|server| server.probe(&single(quota, asked))).is_allowed());
            Ok(())
        })?;
    }
}
