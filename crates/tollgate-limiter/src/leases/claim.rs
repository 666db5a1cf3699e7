//! One claim, from the call that makes it to the one that gives back what was not spent.

use std::{future::poll_fn, num::NonZeroU64, pin::pin, sync::Arc, task::Poll, time::Duration};

use tokio::{
    sync::{oneshot, watch},
    time::{Instant, timeout_at},
};
use tollgate_core::{Adjustment, ChargeState, Check, Decision, ErrorKind, Store, StoreError};

use super::{Shared, ledger::Ledger};

/// A claim that takes longer has failed. It may be the circuit breaker's probe, which nothing else is meanwhile.
const LONGEST_CLAIM: Duration = Duration::from_millis(500);

/// Giving back is not worth more time: the bucket refills meanwhile.
pub(super) const GIVE_BACK: Duration = Duration::from_secs(1);

/// A claim that is being made, or has been. What it holds is counted as leased from before the call until
/// after the one that gives the rest back, and no longer, however it ends.
pub(super) struct Claim<S: Store> {
    shared: Arc<Shared<S>>,
    /// A request that it pays for, as many times as the check says.
    check: Check,
    stage: Stage,
    closing: watch::Receiver<bool>,
}

#[derive(Clone, Copy)]
enum Stage {
    /// The store is asked.
    Asked,
    /// The account has it, as a batch of this number.
    Held(u64),
    /// So much was left when its time was over.
    Over(u64),
}

impl<S: Store> Claim<S> {
    /// A claim for `count` requests such as `check`.
    pub(super) fn new(shared: Arc<Shared<S>>, check: &Check, count: NonZeroU64) -> Self {
        let check = check.clone().with_count(count);
        shared.count(&check, count.get(), true);
        Self {
            closing: shared.closing.subscribe(),
            shared,
            check,
            stage: Stage::Asked,
        }
    }

    /// Whether no more claims are to be made.
    pub(super) fn comes_too_late(&self) -> bool {
        *self.closing.borrow()
    }

    pub(super) async fn run(mut self) {
        let settings = &self.shared.settings;
        let sent = Instant::now();
        let expires = sent + settings.life;
        // Nobody waits for it longer than for a call of its own, and when it comes later than this, not
        // much of it can be spent.
        let deadline = sent + LONGEST_CLAIM.min(settings.life / 2);
        let call = self.check.clone().with_deadline(deadline.into_std());
        let answer = timeout_at(deadline, self.shared.store.check(call)).await;
        let answer = answer.unwrap_or_else(|_| Err(late()));

        let (held, spent) = oneshot::channel();
        let now = Instant::now();
        let settled = self.shared.sets.find(&self.check, now, |ledger| {
            ledger.settle(settings, &self.check, &answer, expires, held, now)
        });
        let (batch, handed, next) =
            settled.map_or((None, 0, None), |it| (it.batch, it.handed, it.next));
        let granted = answer.as_ref().map_or(0, |decision| decision.granted);
        self.shared.count(
            &self.check,
            self.check.count().saturating_sub(granted) + handed,
            false,
        );
        self.stage = batch.map_or(Stage::Over(granted), Stage::Held);
        if let Some(count) = next {
            self.shared.claim(&self.check, count);
        }
        let decision = match answer {
            Ok(decision) => decision,
            Err(error) => {
                tracing::debug!(%error, "a claim of the rate limiter failed");
                self.shared.spare_call();
                return;
            }
        };
        if batch.is_some() {
            self.hold(spent, expires).await;
            self.end();
        }
        self.give_back(&decision).await;
    }

    /// Waits until nothing is left, or the time is over.
    async fn hold(&mut self, spent: oneshot::Receiver<()>, expires: Instant) {
        let mut spent = pin!(spent);
        let mut closing = pin!(self.closing.wait_for(|is_closing| *is_closing));
        let end = poll_fn(|cx| {
            if spent.as_mut().poll(cx).is_ready() || closing.as_mut().poll(cx).is_ready() {
                Poll::Ready(())
            } else {
                Poll::Pending
            }
        });
        // Either way it is over.
        let _ = timeout_at(expires, end).await;
    }

    /// Takes what is left out of the account, so that nobody spends it any more.
    fn end(&mut self) {
        let left = match self.stage {
            Stage::Asked => {
                self.find(Ledger::abandon);
                Some(self.check.count())
            }
            Stage::Held(batch) => self.find(|ledger| ledger.withdraw(batch)),
            Stage::Over(unspent) => Some(unspent),
        };
        self.stage = Stage::Over(left.unwrap_or(0));
    }

    fn find<T>(&self, work: impl FnOnce(&mut Ledger) -> T) -> Option<T> {
        self.shared.sets.find(&self.check, Instant::now(), work)
    }

    /// Gives the rest back, at most once: nobody knows whether a try that failed has.
    async fn give_back(&self, decision: &Decision) {
        let Stage::Over(unspent) = self.stage else {
            return;
        };
        let Some(adjustment) = Adjustment::give_back(&self.check, decision, unspent) else {
            self.shared.spare_call();
            return;
        };
        let deadline = Instant::now() + GIVE_BACK;
        let adjustment = adjustment.with_deadline(deadline.into_std());
        let answer = timeout_at(deadline, self.shared.store.adjust(adjustment)).await;
        if let Err(error) = answer.unwrap_or_else(|_| Err(late())) {
            tracing::debug!(%error, "unspent tokens of a lease may be lost until the bucket refills");
        }
    }
}

// === impl Claim ===

impl<S: Store> Drop for Claim<S> {
    fn drop(&mut self) {
        self.end();
        if let Stage::Over(unspent) = self.stage {
            self.shared.count(&self.check, unspent, false);
        }
    }
}

fn late() -> StoreError {
    let error = "no answer within the time that a lease has for it";
    StoreError::new(ErrorKind::Timeout, ChargeState::Unknown, error)
}
