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
                Order::Decide => memory.decide(check),
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
async fn a_check_for_several_takes_as_many_as_fit() {
    let bench = Bench::new();
    let first = bench.come(of(50)).await;
    let behind = [
        bench.come(of(30)).await,
        bench.come(of(40)).await,
        bench.come(of(1)).await,
    ];
    bench.store.end(0, Order::Decide).await;
    assert_eq!(bench.store.calls(), [71]);
    bench.store.end(0, Order::Decide).await;
    assert_eq!(decided(first).await.granted, 50);
    let mut granted = Vec::new();
    for request in behind {
        granted.push(decided(request).await.granted);
    }
    assert_eq!(granted, [30, 20, 0]);
}

#[tokio::test(start_paused = true)]
async fn no_call_asks_for_more_than_the_store_accepts() {
    let bench = Bench::new();
    let _first = bench.come(check()).await;
    for count in [MAX_TOKENS - 1, 1, 1] {
        drop(bench.come(of(count)).await);
    }
    bench.store.end(0, Order::Decide).await;
    assert_eq!(bench.store.calls(), [MAX_TOKENS]);
    bench.store.end(0, Order::Decide).await;
    assert_eq!(bench.store.calls(), [1]);
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

/// Lets the stage learn that a call takes a millisecond, no more.
async fn learn(bench: &Bench) {
    for _ in 0..50 {
        let request = bench.come(check()).await;
        advance(Duration::from_millis(1)).await;
        bench.store.end(0, Order::Decide).await;
        decided(request).await;
    }
    assert!(bench.coalesce.shared.round_trip.usual() < Duration::from_micros(1_100));
}

#[tokio::test(start_paused = true)]
async fn one_that_cannot_wait_makes_its_own_call_at_once() {
    let bench = Bench::new();
    learn(&bench).await;
    let _first = bench.come(check()).await;
    // A millisecond until the call in flight ends, and one for the next.
    let patient = bench.come(within(check(), 3.0)).await;
    assert_eq!(bench.store.calls(), [1]);
    let hasty = bench.come(within(check(), 1.9)).await;
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
async fn one_that_has_waited_too_long_makes_its_own_call_in_time() {
    let bench = Bench::new();
    learn(&bench).await;
    let _silent = bench.come(check()).await;
    let request = bench.come(within(check(), 25.0)).await;
    advance(Duration::from_millis(23)).await;
    settle().await;
    assert_eq!(bench.store.calls(), [1]);
    advance(Duration::from_millis(1)).await;
    settle().await;
    assert_eq!(bench.store.calls(), [1, 1]);
    bench.store.end(1, Order::Decide).await;
    assert!(decided(request).await.is_allowed());
    // It is asked for once.
    bench.store.end(0, Order::Decide).await;
    assert!(bench.store.calls().is_empty());
    assert_eq!(bench.in_flight(), 0);
}

#[tokio::test(start_paused = true)]
async fn without_a_deadline_nobody_waits_for_ever_for_another() {
    let bench = Bench::new();
    // Never polled, and never dropped.
    let _stuck = bench.coalesce.check(check());
    let request = bench.come(check()).await;
    advance(LONGEST_WAIT + Duration::from_millis(1)).await;
    settle().await;
    bench.store.end(1, Order::Decide).await;
    assert!(decided(request).await.is_allowed());
}

#[tokio::test(start_paused = true)]
async fn a_shared_call_has_the_latest_deadline_and_each_check_its_own() {
    let bench = Bench::new();
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

#[test]
fn a_runtime_that_ends_leaves_nobody_waiting() {
    let runtime = || {
        let mut builder = tokio::runtime::Builder::new_current_thread();
        builder.enable_time().build().expect("a runtime")
    };
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
    let answers = lives.block_on(async { [second.await, third.await.expect("no panic")] });
    for answer in answers {
        assert_eq!(answer.expect_err("broken off").kind(), ErrorKind::Other);
    }
    assert!(first.is_finished());
    assert_eq!(bench.in_flight(), 0);
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
