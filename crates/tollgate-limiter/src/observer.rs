//! Who is told what the limiter does.

use std::sync::Arc;

use tokio::time::Instant;
use tollgate_core::{Decision, StoreError};
use tollgate_quota::{QuotaEvent, Quotas};

use crate::{BreakerState, FailurePolicy};

/// Is told what a limiter does, for metrics and the like.
///
/// The methods run on the way of a request: they must not block.
pub trait Observer: Send + Sync + 'static {
    /// A limiter was built, with these quotas and this policy. Label sets can start at 0.
    fn built(&self, quotas: &Quotas, policy: &FailurePolicy) {
        let _ = (quotas, policy);
    }

    /// Something happened to the quotas.
    fn quotas(&self, event: QuotaEvent) {
        let _ = event;
    }

    /// A request was decided.
    fn decided(&self, key_class: &str, decision: &Decision) {
        let _ = (key_class, decision);
    }

    /// A request had no identity, and was refused or let through for that.
    fn unidentified(&self) {}

    /// The store answered, or failed, just now; it was `asked` then. Who does not want to know how long that took need
    /// not look at the clock.
    fn store_answered(&self, asked: Instant, answer: &Result<Decision, StoreError>) {
        let _ = (asked, answer);
    }

    /// A check was answered without a call of its own to the store.
    fn call_saved(&self, by: SavedBy) {
        let _ = by;
    }

    /// So many tokens more are claimed by this process and not spent yet; less, if negative.
    fn leased(&self, key_class: &str, tokens: i64) {
        let _ = (key_class, tokens);
    }

    /// The circuit breaker is in this state from now on.
    fn breaker_changed(&self, state: BreakerState) {
        let _ = state;
    }

    /// A local fallback decides, or would now, with this number of replicas.
    fn replicas_used(&self, replicas: u32) {
        let _ = replicas;
    }

    /// The store failed, and `policy` decided in its place.
    fn store_failed(&self, error: &StoreError, policy: &FailurePolicy) {
        let _ = (error, policy);
    }
}

/// What has spared the store a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum SavedBy {
    /// A denial known already.
    DenialCache,
    /// A call for several checks at once.
    Coalesce,
    /// Tokens claimed before.
    Lease,
}

impl SavedBy {
    /// Each value.
    pub const ALL: [Self; 3] = [Self::DenialCache, Self::Coalesce, Self::Lease];

    /// The value of the metric label.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::DenialCache => "denial_cache",
            Self::Coalesce => "coalesce",
            Self::Lease => "lease",
        }
    }
}

/// Watches nothing.
impl Observer for () {}

impl<O: Observer + ?Sized> Observer for Arc<O> {
    fn built(&self, quotas: &Quotas, policy: &FailurePolicy) {
        (**self).built(quotas, policy);
    }

    fn quotas(&self, event: QuotaEvent) {
        (**self).quotas(event);
    }

    fn decided(&self, key_class: &str, decision: &Decision) {
        (**self).decided(key_class, decision);
    }

    fn unidentified(&self) {
        (**self).unidentified();
    }

    fn store_answered(&self, asked: Instant, answer: &Result<Decision, StoreError>) {
        (**self).store_answered(asked, answer);
    }

    fn call_saved(&self, by: SavedBy) {
        (**self).call_saved(by);
    }

    fn leased(&self, key_class: &str, tokens: i64) {
        (**self).leased(key_class, tokens);
    }

    fn breaker_changed(&self, state: BreakerState) {
        (**self).breaker_changed(state);
    }

    fn replicas_used(&self, replicas: u32) {
        (**self).replicas_used(replicas);
    }

    fn store_failed(&self, error: &StoreError, policy: &FailurePolicy) {
        (**self).store_failed(error, policy);
    }
}
