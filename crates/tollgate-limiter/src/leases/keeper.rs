//! The end of batches that are not spent in time.

use std::{
    collections::VecDeque,
    pin::pin,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use tokio::{
    sync::watch,
    time::{Instant, timeout_at},
};
use tollgate_core::{Check, Store};

use super::{
    Shared,
    ledger::{Batch, Ledger},
    refund::Refund,
};

/// A keeper that is late by so much runs on a runtime that is not driven.
const OVERDUE: Duration = Duration::from_millis(500);

/// When the batches that accounts hold end, next first; also of those that were spent before.
#[derive(Default)]
pub(super) struct Ends {
    queue: Mutex<Queue>,
}

#[derive(Default)]
struct Queue {
    ends: VecDeque<End>,
    /// The number of the last keeper. Those before it have nothing to do any more.
    keeper: u64,
}

/// When a batch of the account of `check` ends.
struct End {
    expires: Instant,
    check: Check,
}

/// Takes batches out of their accounts when they end. There is one as long as anything is held, and no task
/// for each batch: most are spent in time, and need none.
pub(super) struct Keeper<S: Store> {
    shared: Arc<Shared<S>>,
    number: u64,
    closing: watch::Receiver<bool>,
}

impl Ends {
    /// Adds one. Returns the number of a keeper that is to be started for it, if there is none who wakes up
    /// in time.
    pub(super) fn add(&self, check: Check, expires: Instant, now: Instant) -> Option<u64> {
        let mut queue = self.lock();
        let is_kept = |next: &End| next.expires <= expires && now < next.expires + OVERDUE;
        let is_kept = queue.ends.front().is_some_and(is_kept);
        // Behind nearly all, but for claims that overtake one another.
        let before = queue.ends.iter().rposition(|it| it.expires <= expires);
        let position = before.map_or(0, |before| before + 1);
        queue.ends.insert(position, End { expires, check });
        (!is_kept).then(|| {
            queue.keeper += 1;
            queue.keeper
        })
    }

    /// When the keeper of this number has to wake up; `None` if it is not needed any more.
    fn next(&self, keeper: u64) -> Option<Instant> {
        let queue = self.lock();
        let next = queue.ends.front().filter(|_| queue.keeper == keeper);
        next.map(|it| it.expires)
    }

    /// What ends until `now`, or all, for the keeper of this number.
    fn take(&self, keeper: u64, now: Option<Instant>) -> Vec<End> {
        let mut queue = self.lock();
        if queue.keeper != keeper {
            return Vec::new();
        }
        let len = queue.ends.len();
        let due = now.map_or(len, |now| {
            queue.ends.partition_point(|it| it.expires <= now)
        });
        queue.ends.drain(..due).collect()
    }

    fn lock(&self) -> MutexGuard<'_, Queue> {
        // Nothing that is done to the queue panics halfway.
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<S: Store> Keeper<S> {
    pub(super) fn new(shared: Arc<Shared<S>>, number: u64) -> Self {
        Self {
            closing: shared.closing.subscribe(),
            shared,
            number,
        }
    }

    pub(super) async fn run(self) {
        let mut closing = self.closing.clone();
        let mut closing = pin!(closing.wait_for(|is_closing| *is_closing));
        let mut is_closing = false;
        while !is_closing && let Some(next) = self.shared.ends.next(self.number) {
            is_closing = timeout_at(next, &mut closing).await.is_ok();
            let now = (!is_closing).then(Instant::now);
            for batch in self.end(now) {
                self.shared.give_back(batch);
            }
        }
    }

    /// Takes what has ended `by` then, or all, out of the accounts, so that nobody spends it any more.
    fn end(&self, by: Option<Instant>) -> impl Iterator<Item = Batch> {
        let ended = self.shared.ends.take(self.number, by).into_iter();
        let now = Instant::now();
        ended.filter_map(move |it| {
            let withdraw = |ledger: &mut Ledger| ledger.withdraw(it.expires);
            self.shared.sets.find(&it.check, now, withdraw).flatten()
        })
    }
}

// === impl Keeper ===

impl<S: Store> Drop for Keeper<S> {
    /// The runtime may have ended: what is held then is lost.
    fn drop(&mut self) {
        for batch in self.end(None) {
            drop(Refund::new(self.shared.clone(), batch));
        }
    }
}
