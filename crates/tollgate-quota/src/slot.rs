//! What is known of one tenant, and when to ask again.

use std::{
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use tokio::{sync::Notify, time::Instant};

use crate::Account;

/// After a source failed, it is left alone for so long.
const RETRY_PAUSE: Duration = Duration::from_secs(1);

/// What is known of one tenant.
#[derive(Default)]
pub(crate) struct Slot {
    state: Mutex<State>,
    loaded: Notify,
}

#[derive(Default)]
struct State {
    /// What each source said last, and when; nothing of a source that was never heard.
    parts: Vec<Option<Part>>,
    /// All that together.
    account: Option<Arc<Account>>,
    /// When to load again; nothing before the first load has ended.
    times: Option<Times>,
    loading: bool,
    /// Something changed while it was being loaded.
    again: bool,
    /// Whether a source failed the last time.
    fails: bool,
}

#[derive(Clone)]
struct Part {
    account: Option<Arc<Account>>,
    heard: Instant,
}

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
    pub(crate) next: Next,
}

/// What is to be done for a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Next {
    /// Nothing.
    Go,
    /// A load in the background.
    Load,
    /// A load, and it is waited for.
    LoadAndWait,
    /// Somebody loads, and it is waited for.
    Wait,
}

/// How a load ended.
pub(crate) struct Outcome {
    /// The age of what a source said that fails now.
    pub(crate) stale: Option<Duration>,
    /// Whether to load once more, for what has changed in the meantime.
    pub(crate) again: bool,
}

impl Slot {
    /// What is known, and what is to be done. Who is told to load must do so.
    pub(crate) fn ask(&self) -> Answer {
        let mut state = self.lock();
        let now = Instant::now();
        let next = match state.times {
            None if state.loading => Next::Wait,
            None => Next::LoadAndWait,
            Some(times) => {
                let due = now >= times.refresh && !state.loading;
                // While a source fails, waiting for it would slow every request for nothing.
                let wait = now >= times.expiry && !state.fails;
                match (due, wait) {
                    (true, true) => Next::LoadAndWait,
                    (false, true) => Next::Wait,
                    (true, false) => Next::Load,
                    (false, false) => Next::Go,
                }
            }
        };
        state.loading |= matches!(next, Next::Load | Next::LoadAndWait);
        Answer {
            account: state.account.clone(),
            heard: state.is_heard(),
            next,
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
        if self.lock().loading {
            loaded.await;
        }
    }

    /// What each source said last.
    pub(crate) fn parts(&self) -> Vec<Option<Arc<Account>>> {
        let state = self.lock();
        let account = |part: &Option<Part>| part.as_ref()?.account.clone();
        state.parts.iter().map(account).collect()
    }

    /// Takes in what the sources said.
    pub(crate) fn finish(
        &self,
        answers: Vec<Result<Option<Account>, ()>>,
        ttl: Duration,
        unknown_ttl: Duration,
    ) -> Outcome {
        let mut state = self.lock();
        let now = Instant::now();
        state.fails = answers.iter().any(Result::is_err);
        state.parts.resize(answers.len(), None);
        let mut stale = None;
        for (part, answer) in state.parts.iter_mut().zip(answers) {
            if let Ok(account) = answer {
                let account = account.map(Arc::new);
                *part = Some(Part {
                    account,
                    heard: now,
                });
            } else if let Some(part) = part {
                stale = stale.max(Some(now - part.heard));
            }
        }
        state.account = merge(&state.parts);
        let span = match (state.fails, &state.account) {
            (true, _) => RETRY_PAUSE,
            (false, Some(_)) => ttl,
            (false, None) => unknown_ttl,
        };
        // Tenants that came together need not be loaded together for ever.
        let span = span.mul_f64(0.9 + 0.2 * fastrand::f64());
        state.times = Some(Times {
            refresh: now + span.mul_f64(0.8),
            expiry: now + span,
        });
        let again = std::mem::take(&mut state.again);
        state.loading = again;
        drop(state);
        if !again {
            self.loaded.notify_waiters();
        }
        Outcome { stale, again }
    }

    /// Notes that the account has changed. Whether it is to be loaded, by who is told so.
    pub(crate) fn expire(&self) -> bool {
        let mut state = self.lock();
        state.again |= state.loading;
        !std::mem::replace(&mut state.loading, true)
    }

    /// Notes that the account may have changed: the next request loads it, and waits.
    pub(crate) fn age(&self) {
        let mut state = self.lock();
        let now = Instant::now();
        state.again |= state.loading;
        if let Some(times) = &mut state.times {
            times.refresh = times.refresh.min(now);
            times.expiry = times.expiry.min(now);
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
    let mut accounts = parts
        .iter()
        .flatten()
        .filter_map(|part| part.account.as_ref());
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
        state.again = false;
        state.loading = false;
        state.times = Some(Times {
            refresh: now + RETRY_PAUSE,
            expiry: now + RETRY_PAUSE,
        });
        drop(state);
        self.slot.loaded.notify_waiters();
    }
}
