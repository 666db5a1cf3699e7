//! The outermost stage: what happens when the store gives no answer.

use std::{
    fmt,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    task::{Context, Poll, ready},
};

use tokio::time::Instant;
use tollgate_core::{Check, CheckFuture, Decision, Store, StoreError, Verdict};

use crate::Observer;

/// What a request gets when the store gives no answer. Chosen before the incident.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum FailurePolicy {
    /// Let it through, unlimited: for services where an outage of the limiter must not be one of theirs.
    Open,
    /// Refuse it with `503`: for services that would rather be down than unprotected.
    Closed,
}

impl FailurePolicy {
    /// The value of the metric label.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Open => "open",
            Self::Closed => "closed",
        }
    }

    const fn verdict(self) -> Verdict {
        match self {
            Self::Open => Verdict::Allowed,
            Self::Closed => Verdict::Unavailable,
        }
    }
}

/// Asks the store, and decides in its place when it fails. The only stage that makes decisions up, and so
/// the one that cannot fail.
pub(crate) struct Policy {
    store: Box<dyn Store>,
    on_failure: FailurePolicy,
    observer: Arc<dyn Observer>,
    /// Whether the last answer was a failure, so that only changes are logged.
    failing: AtomicBool,
}

impl Policy {
    pub(crate) fn new(
        store: Box<dyn Store>,
        on_failure: FailurePolicy,
        observer: Arc<dyn Observer>,
    ) -> Self {
        Self {
            store,
            on_failure,
            observer,
            failing: AtomicBool::new(false),
        }
    }

    pub(crate) fn observer(&self) -> &dyn Observer {
        &*self.observer
    }

    pub(crate) fn check(self: &Arc<Self>, check: Check) -> PolicyFuture {
        let started = Instant::now();
        let future = self.store.check(check.clone());
        PolicyFuture {
            policy: self.clone(),
            check,
            started,
            future,
        }
    }

    fn conclude(
        &self,
        check: &Check,
        started: Instant,
        answer: Result<Decision, StoreError>,
    ) -> Decision {
        self.observer.store_answered(started.elapsed(), &answer);
        self.log_change(answer.as_ref().err());
        answer.unwrap_or_else(|error| {
            self.observer.store_failed(&error, self.on_failure);
            check.clone().decide_blindly(self.on_failure.verdict())
        })
    }

    fn log_change(&self, error: Option<&StoreError>) {
        // The common case takes no write to the shared flag.
        if self.failing.load(Ordering::Relaxed) == error.is_some()
            || self.failing.swap(error.is_some(), Ordering::Relaxed) == error.is_some()
        {
            return;
        }
        if let Some(error) = error {
            tracing::warn!(
                %error,
                policy = self.on_failure.as_str(),
                "the rate limiter's store gives no answer; its failure policy decides"
            );
        } else {
            tracing::info!("the rate limiter's store answers again");
        }
    }
}

// === impl Policy ===

impl fmt::Debug for Policy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Policy")
            .field("on_failure", &self.on_failure)
            .finish_non_exhaustive()
    }
}

/// The decision to come.
#[derive(Debug)]
pub(crate) struct PolicyFuture {
    policy: Arc<Policy>,
    check: Check,
    started: Instant,
    future: CheckFuture,
}

impl Future for PolicyFuture {
    type Output = Decision;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Decision> {
        let answer = ready!(Pin::new(&mut self.future).poll(cx));
        Poll::Ready(self.policy.conclude(&self.check, self.started, answer))
    }
}
