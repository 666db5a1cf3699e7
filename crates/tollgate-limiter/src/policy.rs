//! The outermost stage: one deadline, and what happens when no answer comes by then.

use std::{
    fmt,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    task::{Context, Poll},
    time::Duration,
};

use tokio::time::{Instant, Sleep, sleep_until};
use tollgate_core::{
    ChargeState, Check, CheckFuture, Decision, ErrorKind, Source, Store, StoreError, Verdict,
};

use tollgate_quota::FailureMode;

use crate::{Observer, ReplicaCount, local::Local};

/// What a request gets when the store gives no answer. Chosen before the incident.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum FailurePolicy {
    /// Let it through, unlimited: for services where an outage of the limiter must not be one of theirs.
    Open,
    /// Refuse it with `503`: for services that would rather be down than unprotected.
    Closed,
    /// Limit it in this process, to this replica's share of the quota.
    ///
    /// With N replicas, each admits at `rate / N`, with bursts of `capacity / N` or the largest cost seen,
    /// whichever is more. A tenant that was just seen drained starts drained.
    Local {
        /// The number N.
        replicas: Arc<dyn ReplicaCount>,
    },
}

impl FailurePolicy {
    /// [`Local`](Self::Local) with this source of the number of replicas, in the simplest case a number.
    pub fn local(replicas: impl ReplicaCount) -> Self {
        Self::Local {
            replicas: Arc::new(replicas),
        }
    }

    /// The number of replicas, if it matters.
    fn replicas(&self) -> Option<u32> {
        match self {
            Self::Local { replicas } => Some(replicas.replicas()),
            Self::Open | Self::Closed => None,
        }
    }

    /// How strict it is.
    pub(crate) const fn mode(&self) -> FailureMode {
        match self {
            Self::Open => FailureMode::Open,
            Self::Closed => FailureMode::Closed,
            Self::Local { .. } => FailureMode::Local,
        }
    }

    /// The value of the metric label.
    #[must_use]
    pub const fn as_str(&self) -> &'static str {
        match self {
            Self::Open => "open",
            Self::Closed => "closed",
            Self::Local { .. } => "local",
        }
    }
}

/// Asks the store, and decides in its place when it fails or is late. The only stage that makes decisions
/// up, and so the one that cannot fail.
pub(crate) struct Policy<S> {
    store: S,
    on_failure: FailurePolicy,
    deadline: Duration,
    local: Local,
    observer: Arc<dyn Observer>,
    warned_of_junk: AtomicBool,
}

impl<S: Store> Policy<S> {
    pub(crate) fn new(
        store: S,
        on_failure: FailurePolicy,
        deadline: Duration,
        observer: Arc<dyn Observer>,
    ) -> Self {
        Self {
            store,
            on_failure,
            deadline,
            local: Local::new(),
            observer,
            warned_of_junk: AtomicBool::new(false),
        }
    }

    pub(crate) fn observer(&self) -> &dyn Observer {
        &*self.observer
    }

    /// Asks, at `now`, about a request that came at `started`. `on_failure` is the policy of this request, if it is
    /// another than the limiter's.
    pub(crate) fn check(
        self: &Arc<Self>,
        check: &Check,
        on_failure: Option<FailurePolicy>,
        started: Instant,
        now: Instant,
    ) -> Answer<S> {
        let deadline = started + self.deadline;
        let asked = check.clone().with_deadline(deadline.into_std());
        match self.store.check(asked).into_ready() {
            Ok(answer) => {
                let on_failure = on_failure.as_ref();
                Answer::Now(self.conclude(check, on_failure, now, answer))
            }
            Err(future) => Answer::Later(PolicyFuture {
                policy: self.clone(),
                on_failure,
                check: check.clone(),
                asked: now,
                deadline,
                future,
                timer: None,
            }),
        }
    }

    /// Notes what requests like this one cost, before the first of them is checked.
    pub(crate) fn note_costs(&self, check: &Check) {
        self.local.note_costs(check);
    }

    pub(crate) const fn deadline(&self) -> Duration {
        self.deadline
    }

    pub(crate) const fn on_failure(&self) -> &FailurePolicy {
        &self.on_failure
    }

    /// The stages within, which do not invent anything.
    pub(crate) const fn store(&self) -> &S {
        &self.store
    }

    fn conclude(
        &self,
        check: &Check,
        on_failure: Option<&FailurePolicy>,
        asked: Instant,
        answer: Result<Decision, StoreError>,
    ) -> Decision {
        let on_failure = on_failure.unwrap_or(&self.on_failure);
        let was_asked = match &answer {
            Ok(decision) => decision.source == Source::Store,
            Err(error) => error.kind() != ErrorKind::BreakerOpen,
        };
        if was_asked {
            self.observer.store_answered(asked, &answer);
        }
        match answer {
            Ok(decision) => {
                // Also for a request with another policy: the next one of its tenant may have the local one.
                let replicas = on_failure.replicas().or_else(|| self.on_failure.replicas());
                if let Some(replicas) = replicas {
                    self.observer.replicas_used(replicas);
                    self.local.note_answer(check, &decision, replicas);
                }
                decision
            }
            Err(error) => {
                if was_asked {
                    self.observer.store_failed(&error, on_failure);
                    self.log(&error, on_failure);
                }
                self.decide(check, on_failure)
            }
        }
    }

    fn decide(&self, check: &Check, on_failure: &FailurePolicy) -> Decision {
        match on_failure {
            FailurePolicy::Open => check.decide_blindly(Verdict::Allowed),
            FailurePolicy::Closed => check.decide_blindly(Verdict::Unavailable),
            FailurePolicy::Local { replicas } => {
                let replicas = replicas.replicas();
                self.observer.replicas_used(replicas);
                self.local.decide(check, replicas)
            }
        }
    }

    /// Changes of state are logged by the breaker; here only what it does not count.
    fn log(&self, error: &StoreError, on_failure: &FailurePolicy) {
        let policy = on_failure.as_str();
        if error.kind() == ErrorKind::NotABucket
            && !self.warned_of_junk.swap(true, Ordering::Relaxed)
        {
            tracing::warn!(
                %error,
                policy,
                "something else lives under a bucket's key; give the rate limiter a prefix of its own"
            );
        } else {
            tracing::debug!(%error, policy, "a check of the rate limiter failed");
        }
    }
}

// === impl Policy ===

impl<S> fmt::Debug for Policy<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Policy")
            .field("on_failure", &self.on_failure)
            .field("deadline", &self.deadline)
            .finish_non_exhaustive()
    }
}

/// What becomes of a check.
pub(crate) enum Answer<S> {
    Now(Decision),
    Later(PolicyFuture<S>),
}

/// The decision to come of a store that has been asked.
pub(crate) struct PolicyFuture<S> {
    policy: Arc<Policy<S>>,
    /// The policy of this request, if it is another than the limiter's.
    on_failure: Option<FailurePolicy>,
    check: Check,
    /// When the store was asked.
    asked: Instant,
    deadline: Instant,
    future: CheckFuture,
    /// Only there once the store has been waited for.
    timer: Option<Pin<Box<Sleep>>>,
}

// === impl PolicyFuture ===

impl<S: Store> Future for PolicyFuture<S> {
    type Output = Decision;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Decision> {
        let this = &mut *self;
        let answer = match Pin::new(&mut this.future).poll(cx) {
            Poll::Ready(answer) => answer,
            Poll::Pending => {
                let timer = this
                    .timer
                    .get_or_insert_with(|| Box::pin(sleep_until(this.deadline)));
                if timer.as_mut().poll(cx).is_pending() {
                    return Poll::Pending;
                }
                // Lets the stages within know that nobody waits any more.
                this.future = CheckFuture::ready(Err(late()));
                Err(late())
            }
        };
        let on_failure = this.on_failure.as_ref();
        Poll::Ready(
            this.policy
                .conclude(&this.check, on_failure, this.asked, answer),
        )
    }
}

impl<S> fmt::Debug for PolicyFuture<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PolicyFuture")
            .field("policy", &self.policy)
            .field("check", &self.check)
            .finish_non_exhaustive()
    }
}

fn late() -> StoreError {
    let error = "no answer within the deadline";
    StoreError::new(ErrorKind::Timeout, ChargeState::Unknown, error)
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use tollgate_core::{
        AdjustFuture, Adjustment, Charge, Cost, KeySpace, Limit, LimitName, MemoryStore, Quota,
        Source, Tenant,
    };

    use super::*;

    /// Answers after `delay` from memory, if it is well.
    struct Remote {
        memory: MemoryStore,
        delay: Duration,
        well: Arc<AtomicBool>,
    }

    impl Store for Remote {
        fn check(&self, check: Check) -> CheckFuture {
            let (answer, delay) = (self.memory.decide(&check), self.delay);
            let well = self.well.load(Ordering::SeqCst);
            CheckFuture::new(async move {
                tokio::time::sleep(delay).await;
                if well { answer } else { Err(late()) }
            })
        }

        fn adjust(&self, _: Adjustment) -> AdjustFuture {
            unreachable!("nothing is given back here")
        }
    }

    #[derive(Default)]
    struct Log(Mutex<Vec<String>>);

    impl Observer for Log {
        fn store_failed(&self, error: &StoreError, policy: &FailurePolicy) {
            let line = format!("{} {}", error.kind().as_str(), policy.as_str());
            self.0.lock().expect("no panic").push(line);
        }
    }

    struct Bench {
        policy: Arc<Policy<Remote>>,
        log: Arc<Log>,
        well: Arc<AtomicBool>,
    }

    fn bench(on_failure: FailurePolicy, delay: u64) -> Bench {
        let (log, well) = (Arc::new(Log::default()), Arc::new(AtomicBool::new(true)));
        let store = Remote {
            memory: MemoryStore::new(),
            delay: Duration::from_millis(delay),
            well: well.clone(),
        };
        let deadline = Duration::from_millis(25);
        let policy = Arc::new(Policy::new(store, on_failure, deadline, log.clone()));
        Bench { policy, log, well }
    }

    async fn decide<S: Store>(
        policy: &Arc<Policy<S>>,
        on_failure: Option<FailurePolicy>,
    ) -> Decision {
        let now = Instant::now();
        match policy.check(&check(), on_failure, now, now) {
            Answer::Now(decision) => decision,
            Answer::Later(future) => future.await,
        }
    }

    /// A request of cost 1 on 100 tokens, one an hour.
    fn check() -> Check {
        let name = LimitName::default();
        let key = KeySpace::default().bucket(&Tenant::new("42", "pro").expect("an id"), &name);
        let quota = Quota::new(100, 1.0 / 3600.0).expect("a quota");
        let limit = Limit { name, quota };
        Check::single(Charge {
            key,
            limit,
            cost: Cost::ONE,
        })
    }

    #[tokio::test(start_paused = true)]
    async fn a_check_ends_at_its_deadline_whatever_the_store_does() {
        let start = Instant::now();
        let silent = bench(FailurePolicy::Closed, 1_000_000);
        let decision = decide(&silent.policy, None).await;
        assert_eq!(start.elapsed(), Duration::from_millis(25));
        assert_eq!(
            (decision.verdict, decision.source),
            (Verdict::Unavailable, Source::Fallback)
        );
        assert_eq!(*silent.log.0.lock().expect("no panic"), ["timeout closed"]);

        let prompt = bench(FailurePolicy::Closed, 24);
        assert_eq!(decide(&prompt.policy, None).await.source, Source::Store);
    }

    #[tokio::test(start_paused = true)]
    async fn the_stages_within_are_told_the_deadline() {
        struct Deaf;
        impl Store for Deaf {
            fn check(&self, check: Check) -> CheckFuture {
                let deadline = Instant::from_std(check.deadline().expect("a deadline"));
                assert_eq!(deadline - Instant::now(), Duration::from_millis(25));
                CheckFuture::ready(Err(late()))
            }

            fn adjust(&self, _: Adjustment) -> AdjustFuture {
                unreachable!("nothing is given back here")
            }
        }
        let deadline = Duration::from_millis(25);
        let policy = Arc::new(Policy::new(
            Deaf,
            FailurePolicy::Open,
            deadline,
            Arc::new(()),
        ));
        assert!(decide(&policy, None).await.is_allowed());
    }

    #[tokio::test(start_paused = true)]
    async fn a_request_can_have_a_policy_of_its_own() {
        let bench = bench(FailurePolicy::Open, 1_000);
        let own = decide(&bench.policy, Some(FailurePolicy::Closed)).await;
        assert_eq!(own.verdict, Verdict::Unavailable);
        assert_eq!(decide(&bench.policy, None).await.verdict, Verdict::Allowed);
        assert_eq!(
            *bench.log.0.lock().expect("no panic"),
            ["timeout closed", "timeout open"]
        );
    }

    #[tokio::test(start_paused = true)]
    async fn the_local_policy_goes_on_from_what_the_store_said_last() {
        let bench = bench(FailurePolicy::local(4), 1);
        for _ in 0..80 {
            assert!(decide(&bench.policy, None).await.is_allowed());
        }
        bench.well.store(false, Ordering::SeqCst);
        let mut admitted = 0;
        for _ in 0..50 {
            let decision = decide(&bench.policy, None).await;
            assert_eq!(decision.source, Source::Fallback);
            admitted += u32::from(decision.is_allowed());
        }
        assert_eq!(
            admitted, 5,
            "20 tokens were left, and this is one of 4 replicas"
        );
    }
}
