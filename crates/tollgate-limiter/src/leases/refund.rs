//! What is left of a claim, on its way back.

use std::{sync::Arc, time::Duration};

use tokio::{
    sync::watch,
    time::{Instant, timeout_at},
};
use tollgate_core::{Adjustment, Store};

use super::{Shared, claim::late, ledger::Batch};

/// Giving back is not worth more time: the bucket refills meanwhile.
const GIVE_BACK: Duration = Duration::from_secs(1);

/// A batch that nobody can spend from any more. What is left of it is counted as leased until it is given
/// back, and no longer, however that ends.
pub(super) struct Refund<S: Store> {
    shared: Arc<Shared<S>>,
    batch: Batch,
    _closing: watch::Receiver<bool>,
}

impl<S: Store> Refund<S> {
    pub(super) fn new(shared: Arc<Shared<S>>, batch: Batch) -> Self {
        Self {
            _closing: shared.closing.subscribe(),
            shared,
            batch,
        }
    }

    /// At most once: nobody knows whether a try that failed has.
    pub(super) async fn run(self) {
        let Batch {
            payer,
            decision,
            unspent,
            ..
        } = &self.batch;
        let Some(adjustment) = Adjustment::give_back(payer, decision, *unspent) else {
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

// === impl Refund ===

impl<S: Store> Drop for Refund<S> {
    fn drop(&mut self) {
        let batch = &self.batch;
        self.shared.count(&batch.payer, batch.unspent, false);
    }
}
