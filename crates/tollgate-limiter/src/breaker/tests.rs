use std::{
    collections::VecDeque,
    sync::{Arc, Mutex},
    time::Duration,
};

use tokio::{
    sync::oneshot,
    time::{Instant, advance},
};
use tollgate_core::{Charge, Cost, KeySpace, Limit, LimitName, Quota, Source, Tenant, Wait};

use super::*;

type Answer = Result<(), ErrorKind>;

/// A store whose answers the test gives, one by one, in the order of the calls.
#[derive(Clone, Default)]
struct Scripted {
    waiting: Arc<Mutex<VecDeque<oneshot::Sender<Answer>>>>,
}

impl Scripted {
    /// How many calls have come in and wait.
    fn calls(&self) -> usize {
        self.waiting.lock().expect("no panic").len()
    }

    fn answer(&self, answer: Answer) {
        let caller = self.waiting.lock().expect("no panic").pop_front();
        // A caller that has left does not mind.
        let _ = caller.expect("a call").send(answer);
    }
}

impl Store for Scripted {
    fn check(&self, check: Check) -> CheckFuture {
        let (sender, receiver) = oneshot::channel();
        self.waiting.lock().expect("no panic").push_back(sender);
        CheckFuture::new(async move {
            match receiver.await.expect("an answer") {
                Ok(()) => Ok(check.decide(1, Source::Store, [(0, Wait::None)])),
                Err(kind) => Err(StoreError::new(kind, ChargeState::Unknown, "as told")),
            }
        })
    }

    fn adjust(&self, _: Adjustment) -> AdjustFuture {
        AdjustFuture::ready(Ok(Vec::new()))
    }

    /// Tenants with long ids are on another server.
    fn node(&self, tag: &str) -> usize {
        usize::from(tag.len() > "tenant:42".len())
    }
}

#[derive(Default)]
struct States(Mutex<Vec<BreakerState>>);

impl Observer for States {
    fn breaker_changed(&self, state: BreakerState) {
        self.0.lock().expect("no panic").push(state);
    }
}

struct Bench {
    breaker: Breaker<Scripted>,
    store: Scripted,
    states: Arc<States>,
}

impl Bench {
    fn new(settings: BreakerSettings) -> Self {
        let (store, states) = (Scripted::default(), Arc::new(States::default()));
        let breaker = Breaker::new(store.clone(), settings, states.clone());
        Self {
            breaker,
            store,
            states,
        }
    }

    fn state(&self) -> BreakerState {
        *self
            .states
            .0
            .lock()
            .expect("no panic")
            .last()
            .expect("the first")
    }

    /// A call that is answered at once; `false` if it was not let through.
    async fn call(&self, answer: Answer) -> bool {
        self.call_for("42", answer).await
    }

    async fn call_for(&self, tenant: &str, answer: Answer) -> bool {
        let future = self.breaker.check(check_of(tenant));
        if self.store.calls() == 0 {
            assert_eq!(
                future.await.expect_err("open").kind(),
                ErrorKind::BreakerOpen
            );
            return false;
        }
        self.store.answer(answer);
        assert_eq!(future.await.map(drop).map_err(|error| error.kind()), answer);
        true
    }

    /// Whether tokens that are given back are let through.
    async fn gives_back(&self) -> bool {
        let decision = check().decide(1, Source::Store, [(0, Wait::None)]);
        let rest = Adjustment::give_back(&check(), &decision, 1).expect("a token");
        self.breaker.adjust(rest).await.is_ok()
    }

    async fn open(&self) {
        for _ in 0..5 {
            assert!(self.call(Err(ErrorKind::Timeout)).await);
        }
        assert_eq!(self.state(), BreakerState::Open);
    }
}

fn check() -> Check {
    check_of("42")
}

fn check_of(tenant: &str) -> Check {
    let name = LimitName::default();
    let tenant = Tenant::new(tenant, "pro").expect("an id");
    let key = KeySpace::default().bucket(&tenant, &name);
    let limit = Limit {
        name,
        quota: Quota::new(1, 1).expect("a quota"),
    };
    Check::single(Charge {
        key,
        limit,
        cost: Cost::ONE,
    })
}

#[tokio::test(start_paused = true)]
async fn failures_in_a_row_open_it_and_then_nothing_reaches_the_store() {
    let bench = Bench::new(BreakerSettings::default());
    for _ in 0..4 {
        assert!(bench.call(Err(ErrorKind::Io)).await);
    }
    // One success in between starts the row anew.
    assert!(bench.call(Ok(())).await);
    bench.open().await;
    for _ in 0..100 {
        assert!(!bench.call(Ok(())).await);
    }
}

#[tokio::test(start_paused = true)]
async fn a_failure_rate_opens_it_once_there_are_enough_calls() {
    let bench = Bench::new(BreakerSettings::default());
    for _ in 0..9 {
        assert!(bench.call(Ok(())).await && bench.call(Err(ErrorKind::Timeout)).await);
    }
    assert_eq!(bench.state(), BreakerState::Closed, "18 calls are too few");
    assert!(bench.call(Ok(())).await && bench.call(Err(ErrorKind::Timeout)).await);
    assert_eq!(bench.state(), BreakerState::Open);
}

#[tokio::test(start_paused = true)]
async fn failures_are_forgotten_with_the_window() {
    let bench = Bench::new(BreakerSettings::default());
    for _ in 0..50 {
        assert!(bench.call(Ok(())).await && bench.call(Err(ErrorKind::Timeout)).await);
        // At one pair a second there are never 20 calls in 10 s.
        advance(Duration::from_millis(1_200)).await;
    }
    assert_eq!(bench.state(), BreakerState::Closed);
    advance(Duration::from_secs(3_600)).await;
    assert!(bench.call(Err(ErrorKind::Timeout)).await);
    assert_eq!(bench.state(), BreakerState::Closed);
}

#[tokio::test(start_paused = true)]
async fn one_probe_goes_through_and_closes_it() {
    let bench = Bench::new(BreakerSettings::default());
    bench.open().await;
    advance(Duration::from_millis(301)).await;
    let probe = bench.breaker.check(check());
    assert_eq!(
        (bench.state(), bench.store.calls()),
        (BreakerState::HalfOpen, 1)
    );
    for _ in 0..500 {
        let kind = bench
            .breaker
            .check(check())
            .await
            .expect_err("no second probe")
            .kind();
        assert_eq!(kind, ErrorKind::BreakerOpen);
    }
    assert_eq!(bench.store.calls(), 1, "exactly one reached the store");
    bench.store.answer(Ok(()));
    assert!(probe.await.is_ok());
    assert_eq!(bench.state(), BreakerState::Closed);
    assert!(bench.call(Ok(())).await);
}

#[tokio::test(start_paused = true)]
async fn the_cool_down_doubles_up_to_its_bound_and_jitter_only_shortens_it() {
    let bench = Bench::new(BreakerSettings::default());
    bench.open().await;
    for millis in [250, 500, 1_000, 2_000, 2_000] {
        let start = Instant::now();
        while !bench.call(Err(ErrorKind::Timeout)).await {
            advance(Duration::from_millis(1)).await;
        }
        let pause = start.elapsed().as_millis();
        assert!(
            (millis * 4 / 5..=millis + 1).contains(&pause),
            "{pause} ms, more than {millis} or much less"
        );
    }
    // Closing makes it start anew.
    while !bench.call(Ok(())).await {
        advance(Duration::from_millis(1)).await;
    }
    bench.open().await;
    advance(Duration::from_millis(301)).await;
    assert!(bench.call(Ok(())).await);
}

#[tokio::test(start_paused = true)]
async fn a_probe_that_is_cancelled_does_not_wedge_it() {
    let bench = Bench::new(BreakerSettings::default());
    bench.open().await;
    advance(Duration::from_millis(301)).await;
    let mut probe = bench.breaker.check(check());
    assert!(futures_poll(&mut probe).await.is_none());
    drop(probe);
    bench.store.answer(Ok(()));
    assert_eq!(bench.state(), BreakerState::HalfOpen);
    assert!(bench.call(Ok(())).await, "the next check is the probe");
    assert_eq!(bench.state(), BreakerState::Closed);
}

#[tokio::test(start_paused = true)]
async fn a_probe_that_nobody_polls_any_more_does_not_wedge_it() {
    let bench = Bench::new(BreakerSettings::default());
    bench.open().await;
    advance(Duration::from_millis(301)).await;
    let deadline = Instant::now() + Duration::from_millis(25);
    let held = bench
        .breaker
        .check(check().with_deadline(deadline.into_std()));
    let kind = bench
        .breaker
        .check(check())
        .await
        .expect_err("a probe is under way")
        .kind();
    assert_eq!(kind, ErrorKind::BreakerOpen);
    advance(Duration::from_millis(25)).await;
    // The next check is the probe, and what becomes of the former one does not matter.
    let probe = bench.breaker.check(check());
    assert_eq!(bench.store.calls(), 2);
    drop(held);
    assert_eq!(bench.state(), BreakerState::HalfOpen);
    bench.store.answer(Ok(()));
    bench.store.answer(Ok(()));
    assert!(probe.await.is_ok());
    assert_eq!(bench.state(), BreakerState::Closed);
}

#[tokio::test(start_paused = true)]
async fn a_probe_with_a_far_deadline_makes_way_after_the_cool_down_and_may_still_succeed() {
    let bench = Bench::new(BreakerSettings::default());
    bench.open().await;
    advance(Duration::from_millis(301)).await;
    let deadline = Instant::now() + Duration::from_secs(30);
    let far = || check().with_deadline(deadline.into_std());
    let first = bench.breaker.check(far());
    advance(Duration::from_millis(249)).await;
    assert!(bench.breaker.check(check()).await.is_err());
    assert_eq!(bench.store.calls(), 1, "a probe is under way");
    advance(Duration::from_millis(1)).await;
    let second = bench.breaker.check(far());
    assert_eq!(bench.store.calls(), 2);
    // A former probe that fails says nothing; one that succeeds does.
    bench.store.answer(Err(ErrorKind::Timeout));
    assert!(first.await.is_err());
    assert_eq!(bench.state(), BreakerState::HalfOpen);
    advance(Duration::from_millis(250)).await;
    let third = bench.breaker.check(far());
    bench.store.answer(Ok(()));
    assert!(second.await.is_ok());
    assert_eq!(bench.state(), BreakerState::Closed);
    bench.store.answer(Err(ErrorKind::Timeout));
    assert!(third.await.is_err());
    assert!(bench.call(Ok(())).await);
}

#[tokio::test(start_paused = true)]
async fn tokens_are_given_back_unless_it_is_open_and_cools_down() {
    let bench = Bench::new(BreakerSettings::default());
    assert!(bench.gives_back().await);
    bench.open().await;
    assert!(!bench.gives_back().await);
    advance(Duration::from_millis(301)).await;
    assert!(bench.gives_back().await);
    assert_eq!(bench.state(), BreakerState::Open, "that is no probe");
    let probe = bench.breaker.check(check());
    assert_eq!(bench.state(), BreakerState::HalfOpen);
    assert!(bench.gives_back().await);
    bench.store.answer(Err(ErrorKind::Timeout));
    assert!(probe.await.is_err());
    assert!(!bench.gives_back().await);
}

#[tokio::test(start_paused = true)]
async fn a_call_dropped_at_its_deadline_has_failed() {
    let bench = Bench::new(BreakerSettings::default());
    for dropped_after in [10, 10, 10, 10, 10, 30, 30, 30, 30] {
        let deadline = Instant::now() + Duration::from_millis(25);
        let call = bench
            .breaker
            .check(check().with_deadline(deadline.into_std()));
        advance(Duration::from_millis(dropped_after)).await;
        drop(call);
        bench.store.answer(Ok(()));
    }
    assert_eq!(
        bench.state(),
        BreakerState::Closed,
        "a client that left early says nothing"
    );
    let deadline = Instant::now() + Duration::from_millis(25);
    let call = bench
        .breaker
        .check(check().with_deadline(deadline.into_std()));
    advance(Duration::from_millis(25)).await;
    drop(call);
    assert_eq!(bench.state(), BreakerState::Open);
}

#[tokio::test(start_paused = true)]
async fn a_probe_that_meets_a_lost_script_or_panics_does_not_wedge_it() {
    let bench = Bench::new(BreakerSettings::default());
    bench.open().await;
    advance(Duration::from_millis(301)).await;
    assert!(bench.call(Err(ErrorKind::NoScript)).await);
    assert_eq!(bench.state(), BreakerState::Open);
    advance(Duration::from_millis(601)).await;
    let probe = tokio::spawn(bench.breaker.check(check()));
    tokio::task::yield_now().await;
    // The store's end goes away without an answer, on which its future panics.
    bench.store.waiting.lock().expect("no panic").clear();
    assert!(probe.await.expect_err("a panic").is_panic());
    assert!(bench.call(Ok(())).await);
    assert_eq!(bench.state(), BreakerState::Closed);
}

#[tokio::test(start_paused = true)]
async fn answers_from_before_say_nothing() {
    let bench = Bench::new(BreakerSettings::default());
    let late: Vec<_> = (0..3).map(|_| bench.breaker.check(check())).collect();
    let old = std::mem::take(&mut *bench.store.waiting.lock().expect("no panic"));
    bench.open().await;
    advance(Duration::from_millis(301)).await;
    let probe = bench.breaker.check(check());
    for (call, answer) in late.into_iter().zip(old) {
        let _ = answer.send(Ok(()));
        assert!(call.await.is_ok());
    }
    assert_eq!(
        bench.state(),
        BreakerState::HalfOpen,
        "still waiting for the probe"
    );
    bench.store.answer(Err(ErrorKind::Timeout));
    assert!(probe.await.is_err());
    assert_eq!(bench.state(), BreakerState::Open);
}

#[tokio::test(start_paused = true)]
async fn what_concerns_single_checks_does_not_open_it() {
    let bench = Bench::new(BreakerSettings::default());
    for _ in 0..100 {
        assert!(bench.call(Err(ErrorKind::NotABucket)).await);
        assert!(bench.call(Err(ErrorKind::Oom)).await);
    }
    assert_eq!(bench.state(), BreakerState::Closed);
}

#[tokio::test(start_paused = true)]
async fn a_server_that_fails_does_not_keep_others_from_being_asked() {
    let bench = Bench::new(BreakerSettings::default());
    for _ in 0..4 {
        assert!(bench.call(Err(ErrorKind::Timeout)).await);
        assert!(bench.call_for("another", Ok(())).await);
    }
    assert!(bench.call(Err(ErrorKind::Timeout)).await);
    assert!(!bench.call(Ok(())).await, "five in a row on one server");
    assert!(bench.call_for("another", Ok(())).await);
    assert_eq!(
        bench.state(),
        BreakerState::Open,
        "that of the worst server"
    );
    advance(Duration::from_millis(301)).await;
    assert!(bench.call(Ok(())).await);
    assert_eq!(bench.state(), BreakerState::Closed);
}

/// Polls once.
async fn futures_poll(future: &mut CheckFuture) -> Option<Result<Decision, StoreError>> {
    std::future::poll_fn(|cx| match std::pin::Pin::new(&mut *future).poll(cx) {
        std::task::Poll::Ready(answer) => std::task::Poll::Ready(Some(answer)),
        std::task::Poll::Pending => std::task::Poll::Ready(None),
    })
    .await
}
