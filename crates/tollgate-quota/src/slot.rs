//! What is known of one tenant, and when to ask again.

use std::{
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use tokio::{sync::Notify, time::Instant};

use crate::{Account, backoff::pause_after};

/// What is known of one tenant.
#[derive(Default)]
pub(crate) struct Slot {
    state: Mutex<State>,
    loaded: Notify,
}

#[derive(Default)]
struct State {
    /// What each source said last; nothing of a source that was never heard.
    parts: Vec<Option<Part>>,
    /// All that together.
    account: Option<Arc<Account>>,
    /// When to load again; nothing before the first load has ended.
    times: Option<Times>,
    /// When the load under way was asked for.
    load: Option<Instant>,
    /// Something changed while it was being loaded.
    again: bool,
    /// Whether a source gave no answer the last time.
    fails: bool,
    /// How often in a row one failed for this tenant.
    failures: u32,
}

/// The account; nothing if the source does not know the tenant.
type Part = Option<Arc<Account>>;

#[derive(Clone, Copy)]
struct Times {
    /// From here on it is loaded again in the background.
    refresh: Instant,
    /// From here on a request waits for that.
    expiry: Instant,
}

/// What a request gets.
pub(crate) struct Answer {
    pub(crate) account: Option<Arc<Account>>,
    /// Whether all sources were heard at least once.
    pub(crate) heard: bool,
    /// Whether the one who asks is to load.
    pub(crate) load: bool,
    /// For how long the load under way may be waited for, if at all.
    pub(crate) wait: Option<Duration>,
}

/// What a source said in a load.
pub(crate) enum Said {
    Account(Option<Account>),
    /// No answer, or one that makes no sense.
    Failed,
    /// It was not asked, and will not be before this.
    Paused(Instant),
}

impl Slot {
    /// What is known, and what is to be done. Who is told to load must do so.
    ///
    /// A load is waited for within `patience` of its start only: were it for each request anew, a source that
    /// hangs would slow all of them.
    pub(crate) fn ask(&self, patience: Duration) -> Answer {
        let mut state = self.lock();
        let now = Instant::now();
        let (due, wanted) = match state.times {
            None => (true, true),
            // While a source fails, waiting for it would slow every request for nothing.
            Some(times) => (now >= times.refresh, now >= times.expiry && !state.fails),
        };
        let load = due && state.load.is_none();
        if load {
            state.load = Some(now);
        }
        let started = state.load.filter(|_| wanted);
        let wait = started.and_then(|started| patience.checked_sub(now - started));
        Answer {
            account: state.account.clone(),
            heard: state.is_heard(),
            load,
            wait: wait.filter(|rest| !rest.is_zero()),
        }
    }

    /// What is known, and whether all sources were heard at least once.
    pub(crate) fn peek(&self) -> (Option<Arc<Account>>, bool) {
        let state = self.lock();
        (state.account.clone(), state.is_heard())
    }

    /// Until a load ends.
    pub(crate) async fn loaded(&self) {
        let mut loaded = std::pin::pin!(self.loaded.notified());
        // Heard from here on, so that an end between the look and the wait is not missed.
        loaded.as_mut().enable();
        if self.lock().load.is_some() {
            loaded.await;
        }
    }

    /// What each source said last.
    pub(crate) fn parts(&self) -> Vec<Option<Arc<Account>>> {
        let state = self.lock();
        state.parts.iter().cloned().map(Option::flatten).collect()
    }

    /// Takes in what the sources said. Whether to load once more, for what has changed in the meantime.
    pub(crate) fn finish(&self, answers: Vec<Said>, ttl: Duration, unknown_ttl: Duration) -> bool {
        let mut state = self.lock();
        let now = Instant::now();
        state.parts.resize(answers.len(), None);
        let mut failed = false;
        let mut paused = None;
        for (part, said) in state.parts.iter_mut().zip(answers) {
            match said {
                Said::Account(account) => *part = Some(account.map(Arc::new)),
                Said::Failed => failed = true,
                Said::Paused(until) => paused = paused.max(Some(until)),
            }
        }
        state.fails = failed || paused.is_some();
        if failed {
            state.failures = state.failures.saturating_add(1);
        } else if paused.is_none() {
            state.failures = 0;
        }
        state.account = merge(&state.parts);
        state.times = Some(if state.fails {
            // Who was not asked for because of a pause has not failed.
            let retry = if failed { state.failures } else { 1 };
            let retry = now + pause_after(retry);
            let retry = paused.map_or(retry, |until| retry.max(until));
            Times {
                refresh: retry,
                expiry: retry,
            }
        } else {
            let span = state.account.as_ref().map_or(unknown_ttl, |_| ttl);
            // Tenants that came together need not be loaded together for ever.
            let span = span.mul_f64(0.9 + 0.2 * fastrand::f64());
            Times {
                refresh: now + span.mul_f64(0.8),
                expiry: now + span,
            }
        });
        let again = std::mem::take(&mut state.again);
        if !again {
            state.load = None;
            drop(state);
            self.loaded.notify_waiters();
        }
        again
    }

    /// Notes that the account has changed. Whether it is to be loaded, by who is told so.
    pub(crate) fn expire(&self) -> bool {
        let mut state = self.lock();
        state.again |= state.load.is_some();
        let load = state.load.is_none();
        state.load.get_or_insert_with(Instant::now);
        load
    }

    /// Notes that the account may have changed: the next request has it loaded, and does not wait for that more
    /// than it would have.
    pub(crate) fn age(&self) {
        let mut state = self.lock();
        let now = Instant::now();
        state.again |= state.load.is_some();
        if let Some(times) = &mut state.times {
            times.refresh = times.refresh.min(now);
        }
    }

    /// Frees the slot if a load is given up, as at the end of a runtime.
    pub(crate) fn loading(self: &Arc<Self>) -> Unfinished {
        Unfinished {
            slot: self.clone(),
            done: false,
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // Nothing in here panics half-way.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn is_heard(&self) -> bool {
        !self.parts.is_empty() && self.parts.iter().all(Option::is_some)
    }
}

/// The first source that says something of a kind has it.
fn merge(parts: &[Option<Part>]) -> Option<Arc<Account>> {
    let mut accounts = parts.iter().flatten().flatten();
    let first = accounts.next()?;
    let Some(second) = accounts.next() else {
        return Some(first.clone());
    };
    let mut merged = Account::clone(first);
    merged.fill_from(second);
    accounts.for_each(|account| merged.fill_from(account));
    Some(Arc::new(merged))
}

/// A load under way.
pub(crate) struct Unfinished {
    slot: Arc<Slot>,
    done: bool,
}

impl Unfinished {
    pub(crate) fn done(mut self) {
        self.done = true;
    }
}

impl Drop for Unfinished {
    fn drop(&mut self) {
        if self.done {
            return;
        }
        // Given up: by a panic in a source, or with its runtime.
        let mut state = self.slot.lock();
        let now = Instant::now();
        state.fails = true;
        state.failures = state.failures.saturating_add(1);
        state.again = false;
        state.load = None;
        let retry = now + pause_after(state.failures);
        state.times = Some(Times {
            refresh: retry,
            expiry: retry,
        });
        drop(state);
        self.slot.loaded.notify_waiters();
    }
}
