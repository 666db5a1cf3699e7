//! The first of the inner stages: tokens claimed in batches, and spent from memory.

use std::{fmt, num::NonZeroU64, sync::Arc, time::Duration};

use tokio::{
    sync::watch,
    time::{Instant, timeout},
};
use tollgate_core::{AdjustFuture, Adjustment, Check, CheckFuture, Decision, Source, Store, Wait};

use self::{
    claim::Claim,
    ledger::{Answer, Ledger, Spent, Way},
    sets::Sets,
};
use crate::{Observer, SavedBy};

mod claim;
mod demand;
mod ledger;
mod sets;
mod settings;

pub use self::settings::LeaseSettings;

/// How long giving everything back may take when the service ends.
const SHUTDOWN: Duration = Duration::from_millis(1_500);

/// Claims tokens for several requests in one call, and spends them from memory.
///
/// Only checks that [may be leased](Check::is_leased) are, each set of buckets, costs and quotas as a whole;
/// all others are passed on.
///
/// 1. *Claim.* As many requests as came in the last [`target`](LeaseSettings::target) span, at most a
///    [`share`](LeaseSettings::share) of what each bucket had left at the store's last answer. If that is for
///    fewer than three, each request makes its own call: near the limit nothing is claimed, and nothing lost.
/// 2. *Renew.* When a quarter is left, in the background, one claim at a time. Requests that find nothing left
///    wait for the claim on its way if it is likely to pay for them in time; one that was granted fewer
///    answers the others with the store's own denial.
/// 3. *Expire.* What is not spent within its [`life`](LeaseSettings::life), counted from when the claim was
///    sent, goes back to the store, also when no request comes any more, when a request comes with another
///    quota, and at [`shutdown`](Self::shutdown). That is tried once.
/// 4. *Fail.* A claim that fails leaves nothing behind: its error goes to those who wait for it, and the next
///    claim is made after a single request has got an answer. Its tokens may be lost until the bucket
///    refills, and so are those of a replica that crashes. What was claimed before a failure is charged
///    already: it can be spent, and is never charged again.
///
/// **Bound.** Over any span of `T` seconds, at most `capacity + rate × T` tokens are spent, and what was leased
/// at its start. That is what [`Observer::leased`] adds up to, from before a claim is sent until after its rest
/// was given back. A call whose answer was lost is not counted; the store may still carry it out.
///
/// **Remaining** is what the store had left at its last answer, and what this replica holds and has not spent.
/// A limit in shadow that lacked tokens for a part of a claim shows that for all of it.
///
/// A check that is dropped before it is ready gives its turn to another if it still waits, and loses its
/// tokens otherwise. Must be used within a Tokio runtime. When it is dropped, what is leased is given back in the
/// background.
pub struct Leases<S: Store> {
    shared: Arc<Shared<S>>,
}

/// What the stage and its claims share.
struct Shared<S> {
    store: S,
    settings: LeaseSettings,
    observer: Arc<dyn Observer>,
    sets: Sets,
    /// Each claim has a receiver, so it is known when there is none any more.
    closing: watch::Sender<bool>,
}

impl<S: Store> Leases<S> {
    /// Leases from `store`.
    ///
    /// # Panics
    ///
    /// If a setting is out of its range.
    pub fn new(store: S, settings: LeaseSettings, observer: Arc<dyn Observer>) -> Self {
        if let Some(fault) = settings.fault() {
            panic!("lease settings: {fault}");
        }
        Self {
            shared: Arc::new(Shared {
                store,
                sets: Sets::new(settings.max_sets),
                settings,
                observer,
                closing: watch::Sender::new(false),
            }),
        }
    }

    /// Claims nothing from now on, and gives everything back that was not spent. Checks go on, one call each.
    ///
    /// Returns when that is done, but within 2 s also when the store is silent; then the rest is lost until
    /// the buckets refill.
    ///
    /// # Cancel safety
    ///
    /// What has begun goes on in the background.
    pub async fn shutdown(&self) {
        self.shared.closing.send_replace(true);
        // Those that are late have a deadline of their own.
        let _ = timeout(SHUTDOWN, self.shared.closing.closed()).await;
    }
}

// === impl Leases ===

impl<S: Store> Store for Leases<S> {
    fn check(&self, check: Check) -> CheckFuture {
        let shared = &self.shared;
        if !is_leasable(&check) {
            return shared.store.check(check);
        }
        let now = Instant::now();
        let settings = &shared.settings;
        let request = shared.sets.open(&check, settings, now, |ledger| {
            ledger.request(&check, settings, now)
        });
        let Some(request) = request else {
            return shared.store.check(check);
        };
        let starts_claim = request.claim.is_some();
        if let Some(count) = request.claim {
            shared.claim(&check, count);
        }
        match request.way {
            Way::Spend(spent) => {
                shared.count(&check, 1, false);
                shared.observer.call_saved(SavedBy::Lease);
                CheckFuture::ready(Ok(allow(check, &spent)))
            }
            Way::Ask => shared.ask(check, request.era),
            Way::Wait(turn) => {
                let shared = shared.clone();
                CheckFuture::new(async move {
                    match turn.await {
                        Ok(Ok(Answer::Granted(spent))) => {
                            if !starts_claim {
                                shared.observer.call_saved(SavedBy::Lease);
                            }
                            Ok(allow(check, &spent))
                        }
                        Ok(Ok(Answer::Denied { source, states })) => {
                            Ok(check.decide(0, source, states.iter().copied()))
                        }
                        Ok(Err(error)) => Err(error),
                        Err(_) => shared.ask(check, request.era).await,
                    }
                })
            }
        }
    }

    fn adjust(&self, adjustment: Adjustment) -> AdjustFuture {
        self.shared.store.adjust(adjustment)
    }

    fn node(&self, tag: &str) -> usize {
        self.shared.store.node(tag)
    }
}

impl<S: Store> Drop for Leases<S> {
    fn drop(&mut self) {
        self.shared.closing.send_replace(true);
    }
}

impl<S: Store + fmt::Debug> fmt::Debug for Leases<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Leases")
            .field("store", &self.shared.store)
            .field("settings", &self.shared.settings)
            .finish_non_exhaustive()
    }
}

impl<S: Store> Shared<S> {
    /// Starts a claim in the background.
    fn claim(self: &Arc<Self>, check: &Check, count: NonZeroU64) {
        let claim = Claim::new(self.clone(), check, count);
        if !claim.comes_too_late() {
            tokio::spawn(claim.run());
        }
    }

    /// Makes the request's own call.
    fn ask(self: &Arc<Self>, check: Check, era: u64) -> CheckFuture {
        let (shared, payer, sent) = (self.clone(), check.clone(), Instant::now());
        self.store.check(check).inspect(move |answer| {
            let now = Instant::now();
            let learn = |ledger: &mut Ledger| ledger.learn(era, sent, answer, now);
            shared.sets.find(&payer, now, learn);
        })
    }

    /// Counts so many requests of `check` as leased, or not any more.
    fn count(&self, check: &Check, requests: u64, more: bool) {
        let costs = check.charges().iter().map(|it| it.cost.tokens());
        let tokens = costs
            .fold(0_u64, u64::saturating_add)
            .saturating_mul(requests);
        let tokens = i64::try_from(tokens).unwrap_or(i64::MAX);
        if tokens > 0 {
            let change = if more { tokens } else { -tokens };
            self.observer.leased(check.key_class(), change);
        }
    }
}

/// Whether a lease can stand in for a call.
fn is_leasable(check: &Check) -> bool {
    let is_charged = || check.charges().iter().any(|it| it.cost.tokens() > 0);
    check.is_leased() && check.count() == 1 && is_charged()
}

/// Allows what was paid for.
fn allow(check: Check, spent: &Spent) -> Decision {
    let payer = check.clone();
    let enforcing = payer.charges().len() - payer.shadow();
    let pairs = payer.charges().iter().zip(&*spent.states).enumerate();
    let states = pairs.map(|(i, (charge, &(remaining, wait)))| {
        let held = spent.unspent.saturating_mul(charge.cost.tokens());
        let remaining = remaining.saturating_add(held);
        let wait = if i < enforcing { Wait::None } else { wait };
        (remaining.min(charge.limit.quota.capacity()), wait)
    });
    check.decide(1, Source::Lease, states)
}

#[cfg(test)]
mod tests;
