//! The innermost stage: after repeated failures, an error at once.

use std::{
    fmt,
    sync::{Arc, LazyLock, Mutex, MutexGuard, PoisonError, RwLock},
    time::Duration,
};

use tokio::time::Instant;
use tollgate_core::{
    AdjustFuture, Adjustment, ChargeState, Check, CheckFuture, Decision, ErrorKind, KeySpace,
    Store, StoreError,
};

use crate::Observer;

/// How many parts the window of failure rates has: whole parts are forgotten at a time.
const SLOTS: u32 = 10;

/// When the circuit breaker opens, and for how long.
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub struct BreakerSettings {
    /// So many failures in a row open it. Default 5.
    pub failures_in_a_row: u32,
    /// Such a share of failed calls in the window opens it. Default 0.5.
    pub failure_rate: f64,
    /// But only if there were so many calls in the window. Default 20.
    pub at_least: u32,
    /// The window of the failure rate. Default 10 s.
    pub window: Duration,
    /// How long it stays open at first, less up to a fifth of it. Default 250 ms.
    pub cool_down: Duration,
    /// It stays open twice as long after each probe that fails, up to this. Default 2 s.
    pub longest_cool_down: Duration,
}

/// So long, and nobody waits for it.
const LONGEST: Duration = Duration::from_secs(24 * 3_600);

impl BreakerSettings {
    /// What is wrong with the settings, by field.
    pub(crate) fn fault(&self) -> Option<&'static str> {
        let is_span = |span: Duration| !span.is_zero() && span <= LONGEST;
        if self.failures_in_a_row == 0 {
            Some("`failures_in_a_row` must be at least 1")
        } else if !(self.failure_rate > 0.0 && self.failure_rate <= 1.0) {
            Some("`failure_rate` must be above 0 and at most 1")
        } else if !is_span(self.window) {
            Some("`window` must be above 0 and at most a day")
        } else if !is_span(self.cool_down) || !is_span(self.longest_cool_down) {
            Some("`cool_down` and `longest_cool_down` must be above 0 and at most a day")
        } else {
            None
        }
    }
}

impl Default for BreakerSettings {
    fn default() -> Self {
        Self {
            failures_in_a_row: 5,
            failure_rate: 0.5,
            at_least: 20,
            window: Duration::from_secs(10),
            cool_down: Duration::from_millis(250),
            longest_cool_down: Duration::from_secs(2),
        }
    }
}

/// What the circuit breaker does with calls, numbered as the gauge `ratelimit_breaker_state` shows it. Of a
/// store with several servers, that of the one that is worst off.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum BreakerState {
    /// Lets all through.
    Closed = 0,
    /// Lets one through, to see whether the store answers again.
    HalfOpen = 1,
    /// Lets none through.
    Open = 2,
}

/// Keeps calls from a store that fails, and lets one through now and then to see whether it still does.
///
/// 1. *Closed*, it lets all calls through. It opens after so many failures in a row, or when too large a
///    share of the calls in the window failed.
/// 2. *Open*, it answers with an error at once: no network, no waiting.
/// 3. After the cool-down it is *half-open*: the next call is a real check that goes through as a probe, all
///    others get an error at once. A probe that succeeds closes it; one that fails opens it for twice as
///    long.
/// 4. A probe that is dropped before it has an answer, or panics, says nothing: the next call is the probe.
///    One that is dropped at its deadline has failed. One that is kept beyond it, or for longer than the
///    cool-down, makes way for another; it may still succeed.
/// 5. A failure that may concern single checks alone counts as an answer: a foreign value under a key, and
///    no memory for new buckets, when denials and reads still work.
/// 6. The answer to a call from before the last change of state says nothing.
/// 7. Each server of a store that has [several](Store::node) has a circuit of its own, so that one that fails
///    is not asked, and the others are.
///
/// Ours, after weighing what there is: `failsafe` 1.3 lets any number of calls through when half-open, and
/// `recloser` 1.4 wants several there. `tower-resilience-circuitbreaker` 0.14 has the single probe, safe to
/// cancel, but no cool-down that grows and has jitter, no way to count a call that was given up at its
/// deadline, and a clock that a test cannot pause.
pub(crate) struct Breaker<S> {
    store: S,
    settings: BreakerSettings,
    panel: Arc<Panel>,
    /// Of the first server, which most stores have alone.
    first: Arc<Circuit>,
    /// Of the others, by their number less one.
    others: RwLock<Vec<Arc<Circuit>>>,
}

impl<S: Store> Breaker<S> {
    pub(crate) fn new(store: S, settings: BreakerSettings, observer: Arc<dyn Observer>) -> Self {
        observer.breaker_changed(BreakerState::Closed);
        let panel = Panel {
            observer,
            states: Mutex::new(Vec::new()),
        };
        let panel = Arc::new(panel);
        Self {
            store,
            settings,
            first: Arc::new(Circuit::new(0, settings, panel.clone())),
            others: RwLock::new(Vec::new()),
            panel,
        }
    }

    /// The circuit of the server that has the buckets under `tag`.
    fn circuit(&self, tag: &str) -> Arc<Circuit> {
        let Some(index) = self.store.node(tag).checked_sub(1) else {
            return self.first.clone();
        };
        let known = self.others.read().unwrap_or_else(PoisonError::into_inner);
        if let Some(circuit) = known.get(index) {
            return circuit.clone();
        }
        drop(known);
        let mut circuits = self.others.write().unwrap_or_else(PoisonError::into_inner);
        while circuits.len() <= index {
            let circuit = Circuit::new(circuits.len() + 1, self.settings, self.panel.clone());
            circuits.push(Arc::new(circuit));
        }
        circuits[index].clone()
    }
}

// === impl Breaker ===

impl<S: Store> Store for Breaker<S> {
    fn check(&self, check: Check) -> CheckFuture {
        let deadline = check.deadline().map(Instant::from_std);
        let circuit = self.circuit(check.tag());
        let Some(turn) = circuit.admit(deadline) else {
            return CheckFuture::ready(Err(open()));
        };
        let ticket = Ticket {
            turn,
            deadline,
            circuit: Some(circuit),
        };
        self.store
            .check(check)
            .inspect(|answer| ticket.report(answer))
    }

    /// Passes it on unless the circuit is open and cools down. Only checks are counted and only they probe:
    /// what is given back waits for nobody, and is not kept back when no check comes.
    fn adjust(&self, adjustment: Adjustment) -> AdjustFuture {
        if self.circuit(adjustment.tag()).cools_down(Instant::now()) {
            AdjustFuture::ready(Err(open()))
        } else {
            self.store.adjust(adjustment)
        }
    }

    fn node(&self, tag: &str) -> usize {
        self.store.node(tag)
    }

    fn keys(&self) -> KeySpace {
        self.store.keys()
    }
}

impl<S: fmt::Debug> fmt::Debug for Breaker<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Breaker")
            .field("store", &self.store)
            .finish_non_exhaustive()
    }
}

fn open() -> StoreError {
    /// One for all: there may be as many as requests.
    static OPEN: LazyLock<StoreError> = LazyLock::new(|| {
        let error = "the circuit breaker is open: too many checks have failed";
        StoreError::new(ErrorKind::BreakerOpen, ChargeState::NotCharged, error)
    });
    OPEN.clone()
}

/// Shows one state for all circuits.
struct Panel {
    observer: Arc<dyn Observer>,
    states: Mutex<Vec<BreakerState>>,
}

impl Panel {
    fn show(&self, node: usize, state: BreakerState) {
        // An observer that panics leaves whole states behind.
        let mut states = self.states.lock().unwrap_or_else(PoisonError::into_inner);
        if states.len() <= node {
            states.resize(node + 1, BreakerState::Closed);
        }
        states[node] = state;
        let worst = states.iter().max();
        self.observer
            .breaker_changed(worst.copied().unwrap_or(state));
    }
}

/// What all calls to one server share.
struct Circuit {
    node: usize,
    settings: BreakerSettings,
    panel: Arc<Panel>,
    position: Mutex<Position>,
}

struct Position {
    state: State,
    /// Counts the changes of state, so that an answer to a call from before one is told apart.
    turn: u64,
}

enum State {
    Closed {
        in_a_row: u32,
        window: Window,
    },
    Open {
        until: Instant,
        cool_down: Duration,
    },
    HalfOpen {
        /// Until when it keeps others out.
        probe: Option<Instant>,
        cool_down: Duration,
        /// The turn before the first probe's.
        since: u64,
    },
}

// === impl Circuit ===

impl Circuit {
    fn new(node: usize, settings: BreakerSettings, panel: Arc<Panel>) -> Self {
        Self {
            node,
            settings,
            panel,
            position: Mutex::new(Position {
                state: State::closed(&settings),
                turn: 0,
            }),
        }
    }

    /// Lets a call through in this turn, or not.
    fn admit(&self, deadline: Option<Instant>) -> Option<u64> {
        let mut position = self.lock();
        if let State::Closed { .. } = position.state {
            return Some(position.turn);
        }
        let now = Instant::now();
        if let State::Open { until, cool_down } = position.state
            && now >= until
        {
            let next = State::HalfOpen {
                probe: None,
                cool_down,
                since: position.turn + 1,
            };
            self.change(&mut position, next);
        }
        match &mut position.state {
            State::Closed { .. } => {}
            State::Open { .. } => return None,
            State::HalfOpen {
                probe: Some(until), ..
            } if now < *until => return None,
            State::HalfOpen {
                probe, cool_down, ..
            } => {
                let longest = now + *cool_down;
                *probe = Some(deadline.map_or(longest, |it| it.min(longest)));
                // A former probe, which perhaps nobody polls any more, cannot fail from now on.
                position.turn += 1;
            }
        }
        Some(position.turn)
    }

    fn cools_down(&self, now: Instant) -> bool {
        matches!(self.lock().state, State::Open { until, .. } if now < until)
    }

    fn report(&self, turn: u64, failure: Option<&dyn fmt::Display>, now: Instant) {
        let mut position = self.lock();
        let is_probe = |since| failure.is_none() && turn > since;
        let is_former_probe =
            matches!(position.state, State::HalfOpen { since, .. } if is_probe(since));
        if position.turn != turn && !is_former_probe {
            return;
        }
        let settings = &self.settings;
        let next = match (&mut position.state, failure) {
            (State::Closed { in_a_row, window }, failure) => {
                window.count(now, failure.is_some());
                *in_a_row = if failure.is_some() { *in_a_row + 1 } else { 0 };
                let failing = *in_a_row >= settings.failures_in_a_row
                    || window.exceeds(settings.at_least, settings.failure_rate);
                if failure.is_none() || !failing {
                    return;
                }
                State::open(now, settings.cool_down)
            }
            (State::HalfOpen { cool_down, .. }, Some(_)) => {
                State::open(now, (*cool_down * 2).min(settings.longest_cool_down))
            }
            (State::HalfOpen { .. }, None) => State::closed(settings),
            // Nothing is let through in the turn of an open circuit.
            (State::Open { .. }, _) => return,
        };
        // A store with one server needs no number.
        let node = Some(self.node).filter(|&node| node > 0);
        match (&next, failure) {
            (State::Closed { .. }, _) => {
                tracing::info!(node, "the rate limiter's store answers again");
            }
            // A probe that failed is no news.
            (_, Some(error)) if matches!(position.state, State::Closed { .. }) => {
                tracing::warn!(%error, node, "the rate limiter's store fails; the failure policy decides");
            }
            _ => {}
        }
        self.change(&mut position, next);
    }

    /// A call ended without an answer.
    fn abandon(&self, turn: u64) {
        let mut position = self.lock();
        if position.turn == turn
            && let State::HalfOpen { probe, .. } = &mut position.state
        {
            *probe = None;
        }
    }

    fn change(&self, position: &mut Position, next: State) {
        position.turn += 1;
        position.state = next;
        let state = match position.state {
            State::Closed { .. } => BreakerState::Closed,
            State::Open { .. } => BreakerState::Open,
            State::HalfOpen { .. } => BreakerState::HalfOpen,
        };
        self.panel.show(self.node, state);
    }

    fn lock(&self) -> MutexGuard<'_, Position> {
        // An observer that panics leaves a whole state behind.
        self.position.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

// === impl State ===

impl State {
    fn closed(settings: &BreakerSettings) -> Self {
        Self::Closed {
            in_a_row: 0,
            window: Window::new(settings.window),
        }
    }

    fn open(now: Instant, cool_down: Duration) -> Self {
        // Replicas that lost the same store together do not come back to it together. Never longer: a demoted
        // server can cost two cool-downs, one whose probe finds out and one for its connection to be replaced.
        let jitter = 0.8 + 0.2 * fastrand::f64();
        Self::Open {
            until: now + cool_down.mul_f64(jitter),
            cool_down,
        }
    }
}

/// The right to make one call, and the duty to tell how it went.
struct Ticket {
    turn: u64,
    deadline: Option<Instant>,
    circuit: Option<Arc<Circuit>>,
}

// === impl Ticket ===

impl Ticket {
    fn report(mut self, answer: &Result<Decision, StoreError>) {
        let Some(circuit) = self.circuit.take() else {
            return;
        };
        let about_the_store =
            |error: &&StoreError| !matches!(error.kind(), ErrorKind::NotABucket | ErrorKind::Oom);
        let failure = answer.as_ref().err().filter(about_the_store);
        let failure = failure.map(|error| error as &dyn fmt::Display);
        circuit.report(self.turn, failure, Instant::now());
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        let Some(circuit) = self.circuit.take() else {
            return;
        };
        let now = Instant::now();
        if self.deadline.is_some_and(|deadline| now >= deadline) {
            circuit.report(self.turn, Some(&"no answer within the deadline"), now);
        } else {
            circuit.abandon(self.turn);
        }
    }
}

/// How many calls there were of late, and how many failed.
struct Window {
    slot: Duration,
    /// Calls and failures.
    slots: [(u32, u32); SLOTS as usize],
    current: usize,
    /// When the current slot ends; not known before the first call.
    ends: Option<Instant>,
}

// === impl Window ===

impl Window {
    const fn new(span: Duration) -> Self {
        Self {
            slot: match span.checked_div(SLOTS) {
                Some(slot) => slot,
                None => span,
            },
            slots: [(0, 0); SLOTS as usize],
            current: 0,
            ends: None,
        }
    }

    fn count(&mut self, now: Instant, failed: bool) {
        let mut ends = self.ends.unwrap_or(now + self.slot);
        for _ in 0..SLOTS {
            if now < ends {
                break;
            }
            self.current = (self.current + 1) % self.slots.len();
            self.slots[self.current] = (0, 0);
            ends += self.slot;
        }
        // After a pause longer than the window nothing is left in it, and it starts anew.
        self.ends = Some(if now < ends { ends } else { now + self.slot });
        let (calls, failures) = &mut self.slots[self.current];
        *calls += 1;
        *failures += u32::from(failed);
    }

    fn exceeds(&self, at_least: u32, rate: f64) -> bool {
        let (calls, failures) = self
            .slots
            .iter()
            .fold((0, 0), |sum, slot| (sum.0 + slot.0, sum.1 + slot.1));
        calls >= at_least && f64::from(failures) >= rate * f64::from(calls)
    }
}

#[cfg(test)]
mod tests;
