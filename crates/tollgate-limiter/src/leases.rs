//! The first of the inner stages: tokens claimed in batches, and spent from memory.

use std::{
    fmt,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use tokio::{
    runtime::Handle,
    sync::watch,
    time::{Instant, timeout},
};
use tollgate_core::{
    AdjustFuture, Adjustment, Check, CheckFuture, Decision, KeySpace, Source, Store, Wait,
};

use self::{
    claim::Claim,
    keeper::{Ends, Keeper},
    ledger::{Answer, Batch, Ledger, Order, Spent, Way},
    refund::Refund,
    sets::Sets,
};
use crate::{Observer, SavedBy};

mod claim;
mod demand;
mod keeper;
mod ledger;
mod refund;
mod sets;
mod settings;

pub use self::settings::LeaseSettings;

/// How long giving everything back may take when the service ends.
const SHUTDOWN: Duration = Duration::from_millis(1_500);

/// The claim itself, and giving back what is left of it.
const CALLS_OF_A_CLAIM: u64 = 2;

/// Claims tokens for several requests in one call, and spends them from memory.
///
/// Only checks that [may be leased](Check::is_leased) are, each set of buckets, costs and quotas as a whole;
/// all others are passed on.
///
/// 1. *Claim.* As many requests as came in the last [`target`](LeaseSettings::target) span, at most a
///    [`share`](LeaseSettings::share) of what each bucket had left at the store's last answer. If that is for
///    fewer than three, each request makes its own call: near the limit nothing is claimed, and nothing lost.
/// 2. *Renew.* When a quarter is left, in the background, one claim at a time. As long as that lasts, the claim may
///    linger for up to 10 ms, to go together with those of other sets. Requests that find nothing left wait for
///    the claim on its way if it is likely to pay for them in time. One that was granted fewer answers those who
///    have waited since it was sent with the store's own denial; the others make a call.
/// 3. *Expire.* What is not spent within its [`life`](LeaseSettings::life), counted from when the claim was
///    sent, goes back to the store, also when no request comes any more, when a request comes with another
///    quota or number of shards, and at [`shutdown`](Self::shutdown). That is tried once.
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
/// **Calls saved.** Each claim costs a call, and giving its rest back another. [`Observer::call_saved`] is told of
/// a request that is answered without a call of its own only when earlier ones have made up for those two of
/// every claim, whichever tenant it was for. So once they have, the sum is the requests that made no call, less
/// the claims, less the calls that gave back.
///
/// Claims run on the runtime that it was built in, if it was built in one, and so need that one to be driven;
/// else on that of the request. They end with it, and what they hold is lost until the bucket refills.
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
    ends: Ends,
    /// Claims that are not urgent go at whole multiples of [`LINGER`](ledger::LINGER) from then.
    epoch: Instant,
    /// Where claims run, if not where the request does: that runtime may be driven for the request only.
    runtime: Option<Handle>,
    /// Calls that claims have made, or may make to give back, and that no request has made up for yet.
    owed: AtomicU64,
    /// Each task that works on claims has a receiver, so it is known when there is none any more.
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
                ends: Ends::default(),
                epoch: Instant::now(),
                settings,
                observer,
                runtime: Handle::try_current().ok(),
                owed: AtomicU64::new(0),
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
        if !is_leasable(&check) || *shared.closing.borrow() {
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
        if let Some(order) = request.claim {
            shared.claim(&check, order);
        }
        match request.way {
            Way::Spend(spent) => {
                shared.count(spent.other_payer.as_ref().unwrap_or(&check), 1, false);
                shared.spare_call();
                if spent.ends_batch {
                    shared.spare_call();
                }
                CheckFuture::ready(Ok(allow(&check, &spent)))
            }
            Way::Ask { void } => {
                for batch in void {
                    shared.give_back(batch);
                }
                shared.ask(check, request.era)
            }
            Way::Wait(turn) => {
                let shared = shared.clone();
                CheckFuture::new(async move {
                    match turn.await {
                        Ok(Ok(Answer::Granted(spent))) => {
                            shared.spare_call();
                            Ok(allow(&check, &spent))
                        }
                        Ok(Ok(Answer::Denied { source, states })) => {
                            shared.spare_call();
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

    fn keys(&self) -> KeySpace {
        self.shared.store.keys()
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
    fn claim(self: &Arc<Self>, check: &Check, order: Order) {
        let claim = Claim::new(self.clone(), check, order);
        if claim.comes_too_late() {
            return;
        }
        self.owed.fetch_add(CALLS_OF_A_CLAIM, Ordering::Relaxed);
        // Nobody waits for the task itself, which tells the account how it ends.
        self.spawn(claim.run());
    }

    /// Sees to it that the batch of the account of `check` ends in time.
    fn keep(self: &Arc<Self>, check: Check, expires: Instant) {
        if let Some(number) = self.ends.add(check, expires, Instant::now()) {
            self.spawn(Keeper::new(self.clone(), number).run());
        }
    }

    /// Gives back what is left of a batch, in the background.
    fn give_back(self: &Arc<Self>, batch: Batch) {
        self.spawn(Refund::new(self.clone(), batch).run());
    }

    fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) {
        match &self.runtime {
            Some(runtime) => drop(runtime.spawn(task)),
            None => drop(tokio::spawn(task)),
        }
    }

    /// A call was not made that would have been without leases, or was reckoned with.
    fn spare_call(&self) {
        let pay = |owed: u64| owed.checked_sub(1);
        let relaxed = Ordering::Relaxed;
        if self.owed.fetch_update(relaxed, relaxed, pay).is_err() {
            self.observer.call_saved(SavedBy::Lease);
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
fn allow(check: &Check, spent: &Spent) -> Decision {
    let enforcing = check.charges().len() - check.shadow();
    let pairs = check.charges().iter().zip(&*spent.states).enumerate();
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
