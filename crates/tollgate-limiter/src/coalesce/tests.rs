use std::{
    collections::VecDeque,
    num::NonZeroU8,
    sync::atomic::{AtomicUsize, Ordering},
    task::{Context, Poll, Waker},
};

use tokio::{
    task::{JoinHandle, yield_now},
    time::{advance, timeout},
};
use tollgate_core::{
    Cost, KeySpace, Limit, LimitName, ManualClock, MemoryStore, Quota, Tenant, Wait,
};

use super::*;

enum Order {
    Decide,
    Fail(ErrorKind),
    Panic,
}

type Waiting = (Check, oneshot::Sender<Order>);

/// A store over memory whose calls end when the test says so, and how.
#[derive(Clone)]
struct Scripted {
    waiting: Arc<Mutex<VecDeque<Waiting>>>,
    memory: Arc<MemoryStore<ManualClock>>,
}

impl Scripted {
    /// How many checks each call asks for that has come in and not ended.
    fn calls(&self) -> Vec<u64> {
        let waiting = self.waiting.lock().expect("no panic");
        waiting.iter().map(|(check, _)| check.count()).collect()
    }

    fn deadline(&self, call: usize) -> Option<Instant> {
        let waiting = self.waiting.lock().expect("no panic");
        waiting[call].0.deadline().map(Instant::from_std)
    }

    /// Ends the call at this place among those that have not.
    async fn end(&self, call: usize, order: Order) {
        let waiting = self.waiting.lock().expect("no panic").remove(call);
        // A caller that has left does not mind.
        let _ = waiting.expect("a call").1.send(order);
        settle().await;
    }
}

impl Store for Scripted {
    fn check(&self, check: Check) -> CheckFuture {
        let (sender, receiver) = oneshot::channel();
        let mut waiting = self.waiting.lock().expect("no panic");
        waiting.push_back((check.clone(), sender));
        let memory = self.memory.clone();
        CheckFuture::new(async move {
            match receiver.await.expect("an order") {
                Order::Decide => memory.decide(&check),
                Order::Fail(kind) => Err(StoreError::new(kind, ChargeState::Unknown, "as told")),
                Order::Panic => panic!("as told"),
            }
        })
    }

    fn adjust(&self, adjustment: Adjustment) -> AdjustFuture {
        self.memory.adjust(adjustment)
    }
}

#[derive(Default)]
struct Saved(AtomicUsize);

impl Observer for Saved {
    fn call_saved(&self, by: SavedBy) {
        assert_eq!(by, SavedBy::Coalesce);
        self.0.fetch_add(1, Ordering::SeqCst);
    }
}

struct Bench {
    coalesce: Coalesce<Scripted>,
    store: Scripted,
    saved: Arc<Saved>,
}

impl Bench {
    fn new() -> Self {
        let store = Scripted {
            waiting: Arc::default(),
            memory: Arc::new(MemoryStore::with_clock(ManualClock::default())),
        };
        let saved = Arc::new(Saved::default());
        let coalesce = Coalesce::new(store.clone(), saved.clone());
        Self {
            coalesce,
            store,
            saved,
        }
    }

    /// A request that has come and waits. Each goes through a clone of its own.
    async fn come(&self, check: Check) -> JoinHandle<Answer> {
        let coalesce = self.coalesce.clone();
        let request = tokio::spawn(async move { coalesce.check(check).await });
        settle().await;
        request
    }

    async fn all_come(&self, check: &Check, requests: usize) -> Vec<JoinHandle<Answer>> {
        let mut all = Vec::new();
        for _ in 0..requests {
            all.push(self.come(check.clone()).await);
        }
        all
    }

    fn saved(&self) -> usize {
        self.saved.0.load(Ordering::SeqCst)
    }

    fn in_flight(&self) -> usize {
        let flights = &self.coalesce.shared.flights;
        flights.iter().map(Flights::len).sum()
    }
}

/// Lets all tasks do what they can do now.
async fn settle() {
    for _ in 0..20 {
        yield_now().await;
    }
}

/// The answer that is there, or comes at a deadline.
async fn answer(request: JoinHandle<Answer>) -> Answer {
    let answer = timeout(Duration::from_secs(60), request).await;
    answer.expect("it waits for ever").expect("no panic")
}

async fn decided(request: JoinHandle<Answer>) -> Decision {
    answer(request).await.expect("a decision")
}

async fn failed(request: JoinHandle<Answer>) -> ErrorKind {
    answer(request).await.expect_err("a failure").kind()
}

fn charge(tenant: &str, capacity: u64, cost: u32) -> Charge {
    let name = LimitName::default();
    let key = KeySpace::default().bucket(&Tenant::new(tenant, "pro").expect("an id"), &name);
    let quota = Quota::new(capacity, 1).expect("a quota");
    let limit = Limit { name, quota };
    let cost = Cost::new(cost);
    Charge { key, limit, cost }
}

fn check() -> Check {
    Check::single(charge("42", 100, 1))
}

fn of(count: u64) -> Check {
    check().with_count(NonZeroU64::new(count).expect("from 1"))
}

fn within(check: Check, millis: f64) -> Check {
    let deadline = Instant::now() + Duration::from_secs_f64(millis / 1_000.0);
    check.with_deadline(deadline.into_std())
}

#[test]
fn a_check_alone_is_answered_where_it_stands() {
    let coalesce = Coalesce::new(MemoryStore::new(), Arc::new(()));
    // Outside of any runtime, and at the first poll.
    for remaining in [99, 98] {
        let mut future = coalesce.check(check());
        let mut cx = Context::from_waker(Waker::noop());
        let Poll::Ready(Ok(decision)) = std::pin::Pin::new(&mut future).poll(&mut cx) else {
            panic!("at once");
        };
        assert_eq!(decision.limits[0].remaining, Some(remaining));
    }
}

#[tokio::test(start_paused = true)]
async fn what_gathers_behind_a_call_goes_in_one_call() {
    let bench = Bench::new();
    let first = bench.come(check()).await;
    let behind = bench.all_come(&check(), 5).await;
    assert_eq!(bench.store.calls(), [1]);
    bench.store.end(0, Order::Decide).await;
    assert_eq!(bench.store.calls(), [5]);
    // These gather behind the second call.
    let later = bench.all_come(&check(), 2).await;
    bench.store.end(0, Order::Decide).await;
    assert_eq!(bench.store.calls(), [2]);
    bench.store.end(0, Order::Decide).await;

    let mut remaining = Vec::new();
    for request in std::iter::once(first).chain(behind).chain(later) {
        let decision = decided(request).await;
        assert!(decision.is_allowed());
        remaining.push(decision.limits[0].remaining.expect("known"));
    }
    assert_eq!(remaining, [99, 98, 97, 96, 95, 94, 93, 92]);
    assert_eq!(bench.saved(), 4 + 1);
    assert_eq!(bench.in_flight(), 0);
}

#[tokio::test(start_paused = true)]
async fn first_come_first_served_and_only_the_denied_wait() {
    let bench = Bench::new();
    let check = Check::single(charge("42", 7, 2));
    let first = bench.come(check.clone()).await;
    let behind = bench.all_come(&check, 4).await;
    bench.store.end(0, Order::Decide).await;
    bench.store.end(0, Order::Decide).await;
    assert_eq!(decided(first).await.limits[0].remaining, Some(5));
    let mut answers = Vec::new();
    for request in behind {
        let decision = decided(request).await;
        let limit = &decision.limits[0];
        answers.push((decision.granted, limit.remaining, limit.wait));
    }
    let denied = (0, Some(1), Wait::from_millis(1_000));
    assert_eq!(
        answers,
        [
            (1, Some(3), Wait::None),
            (1, Some(1), Wait::None),
            denied,
            denied
        ]
    );
}

#[tokio::test(start_paused = true)]
async fn a_check_for_several_is_a_batch_already() {
    let bench = Bench::new();
    let claim = bench.come(of(50)).await;
    let single = bench.come(check()).await;
    let behind = bench.come(check()).await;
    // Neither does it wait, nor does any wait behind it.
    let other = bench.come(of(30)).await;
    assert_eq!(bench.store.calls(), [50, 1, 30]);
    for _ in 0..3 {
        bench.store.end(0, Order::Decide).await;
    }
    bench.store.end(0, Order::Decide).await;
    let mut granted = Vec::new();
    for request in [claim, single, behind, other] {
        granted.push(decided(request).await.granted);
    }
    assert_eq!(granted, [50, 1, 1, 30]);
}

#[tokio::test(start_paused = true)]
async fn only_checks_of_the_same_charges_share_a_call() {
    let bench = Bench::new();
    let two = || {
        vec![charge("42", 100, 1), {
            let name = LimitName::new("other").expect("a name");
            let tenant = Tenant::new("42", "pro").expect("an id");
            let key = KeySpace::default().bucket(&tenant, &name);
            let quota = Quota::new(1, 1).expect("a quota");
            Charge {
                key,
                limit: Limit { name, quota },
                cost: Cost::FREE,
            }
        }]
    };
    let shadowed = || {
        let check = Check::new(two()).expect("a check");
        check.with_shadow(1).expect("one of two")
    };
    let different = [
        check(),
        Check::single(charge("43", 100, 1)),
        Check::single(charge("42", 101, 1)),
        Check::single(charge("42", 100, 2)),
        check().with_shards(NonZeroU8::new(2).expect("not 0")),
        Check::new(two()).expect("a check"),
        // Twice, since it shares with none, not even with its like.
        shadowed(),
        shadowed(),
    ];
    let calls = different.len();
    for check in different {
        drop(bench.come(check).await);
    }
    assert_eq!(bench.store.calls(), vec![1; calls]);
}

#[tokio::test(start_paused = true)]
async fn when_the_first_leaves_the_others_go_on_at_once() {
    let bench = Bench::new();
    let first = bench.come(check()).await;
    let behind = bench.all_come(&check(), 3).await;
    first.abort();
    settle().await;
    assert_eq!(bench.store.calls(), [1, 3]);
    bench.store.end(1, Order::Decide).await;
    for request in behind {
        assert!(decided(request).await.is_allowed());
    }
    assert_eq!(bench.in_flight(), 0);
}

#[tokio::test(start_paused = true)]
async fn one_that_leaves_in_time_is_not_asked_for_and_later_loses_its_charge() {
    let bench = Bench::new();
    let check = Check::single(charge("42", 4, 1));
    let _first = bench.come(check.clone()).await;
    let mut behind = bench.all_come(&check, 5).await;
    behind.remove(1).abort();
    settle().await;
    bench.store.end(0, Order::Decide).await;
    assert_eq!(bench.store.calls(), [4]);
    behind.remove(0).abort();
    settle().await;
    bench.store.end(0, Order::Decide).await;
    let mut granted = Vec::new();
    for request in behind {
        granted.push(decided(request).await.granted);
    }
    assert_eq!(
        granted,
        [1, 1, 0],
        "3 were left, and the one that is gone took one"
    );
    assert_eq!(bench.saved(), 2, "of the three who were there");
}

#[tokio::test(start_paused = true)]
async fn a_call_fails_those_that_it_asked_for_and_nobody_else() {
    let bench = Bench::new();
    let first = bench.come(check()).await;
    let second = bench.all_come(&check(), 3).await;
    bench.store.end(0, Order::Fail(ErrorKind::Io)).await;
    let third = bench.all_come(&check(), 2).await;
    bench.store.end(0, Order::Fail(ErrorKind::Oom)).await;
    bench.store.end(0, Order::Decide).await;
    assert_eq!(failed(first).await, ErrorKind::Io);
    for request in second {
        assert_eq!(failed(request).await, ErrorKind::Oom);
    }
    for request in third {
        assert!(decided(request).await.is_allowed());
    }
    assert_eq!(bench.saved(), 1, "what failed was not answered");
    assert_eq!(bench.in_flight(), 0);
}

#[tokio::test(start_paused = true)]
async fn a_panic_is_of_concern_only_to_its_own_call() {
    let bench = Bench::new();
    let first = bench.come(check()).await;
    let second = bench.all_come(&check(), 2).await;
    bench.store.end(0, Order::Panic).await;
    assert!(first.await.expect_err("it panicked").is_panic());
    let third = bench.all_come(&check(), 2).await;
    bench.store.end(0, Order::Panic).await;
    for request in second {
        assert_eq!(failed(request).await, ErrorKind::Other);
    }
    bench.store.end(0, Order::Decide).await;
    for request in third {
        assert!(decided(request).await.is_allowed());
    }
    assert_eq!(bench.in_flight(), 0);
}

/// Lets the stage learn that a call takes so many milliseconds, no more.
async fn learn(bench: &Bench, millis: u64) {
    for _ in 0..200 {
        let request = bench.come(Check::single(charge("warm", 200, 1))).await;
        advance(Duration::from_millis(millis)).await;
        bench.store.end(0, Order::Decide).await;
        decided(request).await;
    }
    let round_trip = &bench.coalesce.shared.round_trip;
    assert_eq!(round_trip.long(), Some(Duration::from_millis(millis)));
}

async fn pass(millis: u64) {
    // Timers that are due fire in a later millisecond than the one they were made in.
    for _ in 0..millis {
        advance(Duration::from_millis(1)).await;
        settle().await;
    }
}

#[tokio::test(start_paused = true)]
async fn one_that_cannot_wait_makes_its_own_call_at_once() {
    let bench = Bench::new();
    learn(&bench, 1).await;
    let _first = bench.come(check()).await;
    // A millisecond until the call in flight ends, one for the next, and one for the timers.
    let patient = bench.come(within(check(), 3.0)).await;
    assert_eq!(bench.store.calls(), [1]);
    let hasty = bench.come(within(check(), 2.9)).await;
    assert_eq!(bench.store.calls(), [1, 1]);
    bench.store.end(1, Order::Decide).await;
    assert!(decided(hasty).await.is_allowed());
    // The other still waits for the one in flight.
    assert_eq!(bench.store.calls(), [1]);
    bench.store.end(0, Order::Decide).await;
    bench.store.end(0, Order::Decide).await;
    assert!(decided(patient).await.is_allowed());
}

#[tokio::test(start_paused = true)]
async fn while_nothing_is_known_no_deadline_is_put_at_risk() {
    let bench = Bench::new();
    bench.all_come(&within(check(), 25.0), 3).await;
    assert_eq!(bench.store.calls(), [1, 1, 1]);
}

#[tokio::test(start_paused = true)]
async fn those_behind_an_overdue_call_go_together_and_in_time() {
    let bench = Bench::new();
    learn(&bench, 5).await;
    let silent = bench.come(check()).await;
    // Twice 5 ms and one.
    pass(4).await;
    let mut behind = bench.all_come(&within(check(), 25.0), 5).await;
    pass(6).await;
    assert_eq!(bench.store.calls(), [1]);
    pass(2).await;
    assert_eq!(bench.store.calls(), [1, 5], "one call, not five");
    // The next ones wait behind that.
    behind.push(bench.come(within(check(), 25.0)).await);
    assert_eq!(bench.store.calls(), [1, 5]);
    // The overdue call takes nobody along when it ends after all.
    bench.store.end(0, Order::Decide).await;
    assert!(decided(silent).await.is_allowed());
    assert_eq!(bench.store.calls(), [5]);
    bench.store.end(0, Order::Decide).await;
    assert_eq!(bench.store.calls(), [1]);
    bench.store.end(0, Order::Decide).await;
    for request in behind {
        assert!(decided(request).await.is_allowed());
    }
    assert_eq!((bench.saved(), bench.in_flight()), (4, 0));
}

#[tokio::test(start_paused = true)]
async fn the_one_in_the_greatest_hurry_takes_the_others_along() {
    let bench = Bench::new();
    learn(&bench, 5).await;
    let _slow = bench.come(check()).await;
    let _patient = bench.come(within(check(), 50.0)).await;
    // 5 ms for its call, and one for the timers.
    let start = Instant::now();
    let _hasty = bench.come(within(check(), 12.0)).await;
    pass(5).await;
    assert_eq!(bench.store.calls(), [1]);
    pass(2).await;
    assert_eq!(bench.store.calls(), [1, 2]);
    let latest = start + Duration::from_millis(50);
    assert_eq!(bench.store.deadline(1), Some(latest));
}

#[tokio::test(start_paused = true)]
async fn a_call_that_nobody_polls_any_more_holds_nobody() {
    let bench = Bench::new();
    learn(&bench, 1).await;
    let mut stuck = bench.coalesce.check(check());
    let mut cx = Context::from_waker(Waker::noop());
    assert!(std::pin::Pin::new(&mut stuck).poll(&mut cx).is_pending());
    // Twice 1 ms and one, and one for the timer.
    let held = bench.come(check()).await;
    pass(4).await;
    assert_eq!(bench.store.calls(), [1, 1]);
    bench.store.end(1, Order::Decide).await;
    assert!(decided(held).await.is_allowed());
    let next = bench.come(check()).await;
    assert_eq!(bench.store.calls(), [1, 1], "at once");
    bench.store.end(1, Order::Decide).await;
    assert!(decided(next).await.is_allowed());
    // Never polled at all, and overdue by the time that one comes.
    let never = bench.coalesce.check(check());
    pass(4).await;
    let next = bench.come(check()).await;
    pass(1).await;
    assert_eq!(bench.store.calls(), [1, 1, 1]);
    bench.store.end(2, Order::Decide).await;
    assert!(decided(next).await.is_allowed());
    drop((stuck, never));
    assert_eq!(bench.in_flight(), 0);
}

#[tokio::test(start_paused = true)]
async fn a_store_that_keeps_no_deadline_holds_nobody_for_ever() {
    for deadline in [Some(30_u16), None] {
        let bench = Bench::new();
        learn(&bench, 1).await;
        let start = Instant::now();
        let asked = deadline.map_or_else(check, |millis| within(check(), f64::from(millis)));
        let first = bench.come(check()).await;
        let behind = bench.all_come(&asked, 3).await;
        bench.store.end(0, Order::Decide).await;
        assert!(decided(first).await.is_allowed());
        assert_eq!(bench.store.calls(), [3]);
        for request in behind {
            assert_eq!(failed(request).await, ErrorKind::Timeout);
        }
        let longest = u128::from(deadline.unwrap_or(1_000));
        assert!((longest..=longest + 4).contains(&start.elapsed().as_millis()));
        settle().await;
        assert_eq!((bench.saved(), bench.in_flight()), (0, 0));
    }
}

/// A store that some calls take longer to, and that keeps their deadlines.
#[derive(Clone)]
struct Jittery {
    memory: Arc<MemoryStore<ManualClock>>,
    calls: Arc<AtomicUsize>,
    usual: u64,
    /// Of 1000 calls, and how long they take.
    slow: (usize, u64),
}

impl Store for Jittery {
    fn check(&self, check: Check) -> CheckFuture {
        let call = self.calls.fetch_add(1, Ordering::SeqCst);
        let (slow, millis) = self.slow;
        let is_slow = (call.wrapping_mul(2_654_435_761) >> 7) % 1_000 < slow;
        let takes = Duration::from_millis(if is_slow { millis } else { self.usual });
        let deadline = Instant::from_std(check.deadline().expect("a deadline"));
        let memory = self.memory.clone();
        CheckFuture::new(async move {
            let there = timeout_at(deadline, tokio::time::sleep(takes)).await;
            there.map_err(|_| late())?;
            memory.decide(&check)
        })
    }

    fn adjust(&self, _: Adjustment) -> AdjustFuture {
        unreachable!("nothing is given back here")
    }
}

/// How many of 64 clients' requests fail at their deadline of 25 ms, and how many calls there are for 100.
async fn failures_and_calls(usual: u64, slow: (usize, u64), is_shared: bool) -> (usize, usize) {
    const CLIENTS: usize = 64;
    const REQUESTS: usize = 200;
    let store = Jittery {
        memory: Arc::new(MemoryStore::with_clock(ManualClock::default())),
        calls: Arc::default(),
        usual,
        slow,
    };
    let coalesce = Coalesce::new(store.clone(), Arc::new(()));
    let mut clients = tokio::task::JoinSet::new();
    for _ in 0..CLIENTS {
        let (store, coalesce) = (store.clone(), coalesce.clone());
        clients.spawn(async move {
            let mut failures = 0;
            for _ in 0..REQUESTS {
                let check = within(Check::single(charge("42", 1_000_000, 1)), 25.0);
                let answer = if is_shared {
                    coalesce.check(check).await
                } else {
                    store.check(check).await
                };
                failures += usize::from(answer.is_err());
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
            failures
        });
    }
    let failures = clients.join_all().await.into_iter().sum();
    let calls = store.calls.load(Ordering::SeqCst);
    (failures, calls * 100 / (CLIENTS * REQUESTS))
}

#[tokio::test(start_paused = true)]
async fn jitter_costs_nobody_its_deadline_and_few_savings() {
    for (usual, slow, most_calls) in [
        (1, (50, 15), 15),
        (2, (100, 12), 15),
        (3, (100, 18), 15),
        (3, (20, 18), 15),
        (1, (10, 20), 15),
        (4, (50, 20), 100),
        // Two in a row take too long, as some do alone: there is nothing to be saved.
        (15, (0, 0), 100),
        (12, (0, 0), 15),
    ] {
        assert_eq!(failures_and_calls(usual, slow, false).await, (0, 100));
        let (failures, calls) = failures_and_calls(usual, slow, true).await;
        assert_eq!(failures, 0, "{usual} ms, {slow:?}");
        assert!(calls <= most_calls, "{usual} ms, {slow:?}: {calls} %");
    }
}

#[tokio::test(start_paused = true)]
async fn a_shared_call_has_the_latest_deadline_and_each_check_its_own() {
    let bench = Bench::new();
    learn(&bench, 1).await;
    let start = Instant::now();
    let _first = bench.come(check()).await;
    let short = bench.come(within(check(), 20.0)).await;
    let long = bench.come(within(check(), 30.0)).await;
    let middle = bench.come(within(check(), 25.0)).await;
    bench.store.end(0, Order::Decide).await;
    assert_eq!(bench.store.calls(), [3]);
    let latest = start + Duration::from_millis(30);
    assert_eq!(bench.store.deadline(0), Some(latest));
    for request in [short, middle] {
        assert_eq!(failed(request).await, ErrorKind::Timeout);
    }
    assert_eq!(start.elapsed().as_millis(), 25);
    assert_eq!(bench.store.calls(), [3], "nobody asks twice");
    bench.store.end(0, Order::Decide).await;
    assert!(decided(long).await.is_allowed());
}

#[tokio::test(start_paused = true)]
async fn one_without_a_deadline_takes_it_from_the_call() {
    let bench = Bench::new();
    learn(&bench, 1).await;
    let _first = bench.come(check()).await;
    let _with = bench.come(within(check(), 20.0)).await;
    let _without = bench.come(check()).await;
    let _with = bench.come(within(check(), 20.0)).await;
    bench.store.end(0, Order::Decide).await;
    assert_eq!(
        (bench.store.calls(), bench.store.deadline(0)),
        (vec![3], None)
    );
}

fn runtime() -> tokio::runtime::Runtime {
    let mut builder = tokio::runtime::Builder::new_current_thread();
    builder.enable_time().build().expect("a runtime")
}

#[test]
fn a_runtime_that_ends_before_the_call_is_made_fails_nobody() {
    let bench = Bench::new();
    let (ends, lives) = (runtime(), runtime());
    let first = ends.block_on(bench.come(check()));
    let second = {
        let _within = ends.enter();
        bench.coalesce.check(check())
    };
    let third = lives.block_on(bench.come(check()));
    // Their call would be made in the runtime of the second.
    drop(ends);
    let asked = async {
        let second = tokio::spawn(second);
        settle().await;
        // After the first one's, which is there no more.
        assert_eq!(bench.store.calls(), [1, 1, 1], "each for itself");
        for _ in 0..3 {
            bench.store.end(0, Order::Decide).await;
        }
        [decided(second).await, decided(third).await]
    };
    for decision in lives.block_on(asked) {
        assert!(decision.is_allowed());
    }
    assert!(first.is_finished());
    assert_eq!(bench.in_flight(), 0);
}

#[test]
fn a_runtime_that_ends_while_the_call_is_in_flight_leaves_nobody_waiting() {
    let bench = Bench::new();
    let (ends, lives) = (runtime(), runtime());
    let first = ends.block_on(bench.come(check()));
    let _second = ends.block_on(bench.come(check()));
    let third = lives.block_on(bench.come(check()));
    ends.block_on(bench.store.end(0, Order::Decide));
    assert_eq!(bench.store.calls(), [2]);
    assert!(first.is_finished());
    drop(ends);
    let error = lives.block_on(answer(third)).expect_err("broken off");
    assert_eq!(
        (error.kind(), error.charge()),
        (ErrorKind::Other, ChargeState::Unknown)
    );
    assert_eq!(bench.in_flight(), 0);
}

#[test]
fn shared_calls_are_made_where_the_stage_was_built() {
    let home = runtime();
    let bench = home.block_on(async { Bench::new() });
    let (ends, lives) = (runtime(), runtime());
    let first = ends.block_on(bench.come(check()));
    let _second = ends.block_on(bench.come(check()));
    let third = lives.block_on(bench.come(check()));
    drop(ends);
    assert!(first.is_finished());
    home.block_on(settle());
    assert_eq!(
        bench.store.calls(),
        [1, 1],
        "one of those who were there is gone"
    );
    home.block_on(bench.store.end(1, Order::Decide));
    assert!(lives.block_on(decided(third)).is_allowed());
}

#[tokio::test]
async fn adjustments_pass_through() {
    let bench = Bench::new();
    let request = bench.come(of(10)).await;
    bench.store.end(0, Order::Decide).await;
    let decision = decided(request).await;
    let adjustment = Adjustment::give_back(&of(10), &decision, 4).expect("something");
    let tokens = bench.coalesce.adjust(adjustment).await.expect("tokens");
    assert_eq!(tokens, [94]);
}
