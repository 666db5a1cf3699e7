//! One claim: the call that makes it.

use std::{sync::Arc, time::Duration};

use tokio::{
    sync::{oneshot, watch},
    time::{Instant, timeout_at},
};
use tollgate_core::{ChargeState, Check, ErrorKind, Store, StoreError};

use super::{
    CALLS_OF_A_CLAIM, Shared,
    ledger::{LINGER, Ledger, Order, Rest},
};

/// A claim that takes longer has failed. It may be the circuit breaker's probe, which nothing else is meanwhile.
const LONGEST_CLAIM: Duration = Duration::from_millis(500);

/// A claim that is being made. What it may be granted is counted as leased from before the call.
pub(super) struct Claim<S: Store> {
    shared: Arc<Shared<S>>,
    /// A request that it pays for, as many times as the check says.
    check: Check,
    /// Until the other side is dropped, if it is not urgent.
    lingers: Option<oneshot::Receiver<()>>,
    /// Whether the account has heard how it has ended.
    is_settled: bool,
    closing: watch::Receiver<bool>,
}

impl<S: Store> Claim<S> {
    /// A claim for requests such as `check`.
    pub(super) fn new(shared: Arc<Shared<S>>, check: &Check, order: Order) -> Self {
        let check = check.clone().with_count(order.count);
        shared.count(&check, order.count.get(), true);
        Self {
            closing: shared.closing.subscribe(),
            shared,
            check,
            lingers: order.lingers,
            is_settled: false,
        }
    }

    /// Whether no more claims are to be made.
    pub(super) fn comes_too_late(&self) -> bool {
        *self.closing.borrow()
    }

    /// When claims that are not urgent go, all at once: a store that takes several checks in one call has them at
    /// hand then.
    fn next_round(&self) -> Instant {
        let now = Instant::now();
        // A whole number of rounds makes a second.
        let in_round = (now - self.shared.epoch).subsec_nanos() % LINGER.subsec_nanos();
        now + LINGER - Duration::from_nanos(in_round.into())
    }

    pub(super) async fn run(mut self) {
        if let Some(becomes_urgent) = self.lingers.take() {
            let _ = timeout_at(self.next_round(), becomes_urgent).await;
            if self.comes_too_late() {
                (0..CALLS_OF_A_CLAIM).for_each(|_| self.shared.spare_call());
                return;
            }
        }
        let settings = &self.shared.settings;
        let sent = Instant::now();
        // Nobody waits for it longer than for a call of its own, and when it comes later than this, not
        // much of it can be spent.
        let deadline = sent + LONGEST_CLAIM.min(settings.life / 2);
        let call = self.check.clone().with_deadline(deadline.into_std());
        let answer = timeout_at(deadline, self.shared.store.check(call)).await;
        let answer = answer.unwrap_or_else(|_| Err(late()));
        if let Err(error) = &answer {
            tracing::debug!(%error, "a claim of the rate limiter failed");
        }

        let now = Instant::now();
        let settled = self.shared.sets.find(&self.check, now, |ledger| {
            ledger.settle(settings, &self.check, answer, sent, now)
        });
        let Some(settled) = settled else {
            return;
        };
        self.is_settled = true;
        self.shared.count(&self.check, settled.gone, false);
        if let Some(order) = settled.next {
            self.shared.claim(&self.check, order);
        }
        match settled.rest {
            Rest::None => self.shared.spare_call(),
            Rest::Held => self.shared.keep(self.check.clone(), sent + settings.life),
            Rest::Void(batch) => self.shared.give_back(batch),
        }
    }
}

// === impl Claim ===

impl<S: Store> Drop for Claim<S> {
    fn drop(&mut self) {
        if !self.is_settled {
            let now = Instant::now();
            self.shared.sets.find(&self.check, now, Ledger::abandon);
            self.shared.count(&self.check, self.check.count(), false);
        }
    }
}

pub(super) fn late() -> StoreError {
    let error = "no answer within the time that a lease has for it";
    StoreError::new(ErrorKind::Timeout, ChargeState::Unknown, error)
}
