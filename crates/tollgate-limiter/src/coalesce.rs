//! While a call is in flight, what asks for the same gathers, and goes in one call.

use std::{
    fmt,
    hash::{BuildHasher, Hash, Hasher, RandomState},
    num::NonZeroU64,
    sync::{Arc, Mutex},
    time::Duration,
};

use tokio::{
    runtime::Handle,
    sync::oneshot,
    time::{Instant, timeout_at},
};
use tollgate_core::{
    AdjustFuture, Adjustment, Charge, ChargeState, Check, CheckFuture, Decision, ErrorKind,
    MAX_TOKENS, Store, StoreError,
};

use self::{
    flights::{Flights, Joined},
    round_trip::RoundTrip,
    shares::shares,
};
use crate::{Observer, SavedBy};

mod flights;
mod round_trip;
mod shares;

/// Enough that threads on as many cores as a server has seldom meet.
const SHARDS: usize = 64;

/// Nobody waits longer for a call to end that is not its own: whoever made that one may have stopped to poll it.
const LONGEST_WAIT: Duration = Duration::from_secs(1);

/// Spares the store calls, without giving up anything: while one call for some buckets is in flight in this
/// process, further checks that ask for the same gather, and the next call asks for all of them at once.
///
/// Checks ask for the same if their buckets, quotas and costs are the same. A busy tenant then costs one call
/// per round trip instead of one per request.
///
/// 1. A check that finds nothing in flight goes to the store at once, within its own future.
/// 2. When the call in flight ends, however it does, one call is made for all that have gathered by then, in a
///    task of its own: none of them can take the others along when it leaves. At most 10^12 are asked for at
///    once, which is all that a call can ask for; the rest goes in the call after that.
/// 3. Each gets the answer that it would have had if all had been asked one by one, in the order in which they
///    came: its own remaining tokens, and a wait only if it was not granted.
/// 4. A check that is dropped before its call is made is not asked for. One that is dropped later loses what it
///    was charged, as it does without this stage. Neither is of concern to the others.
/// 5. A call that fails, or panics, fails the checks that it asked for, with that error. Those that have gathered
///    behind it go on with a call of their own.
/// 6. A check whose deadline would pass before the call in flight and a usual round trip after it are over does
///    not wait, but makes its own call at once; so does one that has waited until only a usual round trip is
///    left, or a second. A shared call has the latest of its checks' deadlines, and each check fails at its own.
/// 7. Checks with charges in shadow pass through: the answer to a shared call does not tell to how many of the
///    granted a shadow charge applied, so nobody could be told whether it was one of them. So do checks that
///    would have to wait outside of a Tokio runtime.
///
/// Clones share what they know. An entry is kept for each call in flight, and nothing else.
///
/// # Panics
///
/// A check that waits does so with Tokio's timer, which the runtime must have enabled.
pub struct Coalesce<S> {
    shared: Arc<Shared<S>>,
}

struct Shared<S> {
    store: S,
    observer: Arc<dyn Observer>,
    round_trip: RoundTrip,
    hasher: RandomState,
    flights: [Flights<Key, Instant, Waiter>; SHARDS],
}

type Answer = Result<Decision, StoreError>;

impl<S: Store> Coalesce<S> {
    /// Shares the calls to `store`, and tells `observer` of each check that needed none of its own.
    pub fn new(store: S, observer: Arc<dyn Observer>) -> Self {
        let shared = Shared {
            store,
            observer,
            round_trip: RoundTrip::default(),
            hasher: RandomState::new(),
            flights: std::array::from_fn(|_| Flights::new()),
        };
        Self {
            shared: Arc::new(shared),
        }
    }
}

// === impl Coalesce ===

impl<S: Store> Store for Coalesce<S> {
    /// Decides `check`, in a call of its own or in one for several checks.
    ///
    /// # Cancel safety
    ///
    /// A check that is dropped while it waits for its call to be made is not charged; later, it may be.
    fn check(&self, check: Check) -> CheckFuture {
        if check.shadow() > 0 {
            return self.shared.store.check(check);
        }
        let now = Instant::now();
        let key = Key(check.clone());
        let joined = self.shared.flights(&key).join(key.clone(), now, |started| {
            self.shared.wait(check.clone(), *started, now)
        });
        match joined {
            Joined::First => self.shared.call(check, Some(key)),
            Joined::Alone => self.shared.call(check, None),
            Joined::Behind(place, waiting) => {
                let shared = self.shared.clone();
                let seat = Seat { shared, key, place };
                CheckFuture::new(waiting.answer(seat, check))
            }
        }
    }

    /// Passes it on.
    fn adjust(&self, adjustment: Adjustment) -> AdjustFuture {
        self.shared.store.adjust(adjustment)
    }

    fn node(&self, tag: &str) -> usize {
        self.shared.store.node(tag)
    }
}

impl<S> Clone for Coalesce<S> {
    fn clone(&self) -> Self {
        Self {
            shared: self.shared.clone(),
        }
    }
}

impl<S: fmt::Debug> fmt::Debug for Coalesce<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Coalesce")
            .field("store", &self.shared.store)
            .finish_non_exhaustive()
    }
}

impl<S> Shared<S> {
    #[expect(
        clippy::cast_possible_truncation,
        reason = "any bits of the hash will do"
    )]
    fn flights(&self, key: &Key) -> &Flights<Key, Instant, Waiter> {
        &self.flights[self.hasher.hash_one(key.0.tag()) as usize % SHARDS]
    }

    /// Lets `check` wait for the call that has `started` to end, if it can.
    fn wait(&self, check: Check, started: Instant, now: Instant) -> Option<(Waiter, Waiting)> {
        let deadline = check.deadline().map(Instant::from_std);
        let until = self.may_wait_until(deadline, started, now)?;
        let runtime = Handle::try_current().ok()?;
        let (sender, receiver) = oneshot::channel();
        let waiter = Waiter {
            check,
            runtime,
            answer: sender,
        };
        let waiting = Waiting {
            answer: receiver,
            until,
        };
        Some((waiter, waiting))
    }

    fn may_wait_until(
        &self,
        deadline: Option<Instant>,
        started: Instant,
        now: Instant,
    ) -> Option<Instant> {
        let longest = now + LONGEST_WAIT;
        let Some(deadline) = deadline else {
            return Some(longest);
        };
        let usual = self.round_trip.usual();
        let sent_by = deadline.checked_sub(usual)?;
        let sent_at = (started + usual).max(now);
        (sent_at <= sent_by).then(|| sent_by.min(longest))
    }
}

impl<S: Store> Shared<S> {
    /// Makes a call within the future of the one who asks. With a key, it is the one in flight for that.
    fn call(self: &Arc<Self>, check: Check, flight: Option<Key>) -> CheckFuture {
        let call = Call::new(self.clone(), flight);
        self.store
            .check(check)
            .inspect(move |answer| call.ended(answer))
    }

    /// Makes one call for all who have gathered.
    async fn call_for(self: Arc<Self>, batch: Vec<Waiter>, call: Call<S>) {
        let Some(check) = gather(&batch) else {
            return;
        };
        let answer = self.store.check(check).await;
        call.ended(&answer);
        let counts: Vec<_> = batch.iter().map(|waiter| waiter.check.count()).collect();
        let answers: Vec<Answer> = match answer {
            Ok(whole) => shares(&whole, counts.into_iter()).map(Ok).collect(),
            Err(error) => vec![Err(error); batch.len()],
        };
        for (i, (waiter, answer)) in batch.into_iter().zip(answers).enumerate() {
            if i > 0 && answer.is_ok() {
                self.observer.call_saved(SavedBy::Coalesce);
            }
            // One who has left loses it.
            let _ = waiter.answer.send(answer);
        }
    }
}

/// The check that asks for all of them.
fn gather(batch: &[Waiter]) -> Option<Check> {
    // No deadline is later than any.
    let is_later = |a: &Check, b: &Check| match (a.deadline(), b.deadline()) {
        (Some(a), Some(b)) => a > b,
        (None, _) => true,
        (_, None) => false,
    };
    let checks = batch.iter().map(|waiter| &waiter.check);
    let latest = checks.reduce(|a, b| if is_later(b, a) { b } else { a })?;
    let counts = batch.iter().map(|waiter| waiter.check.count());
    let total = NonZeroU64::new(counts.fold(0, u64::saturating_add))?;
    Some(latest.clone().with_count(total))
}

/// What checks that can share a call have in common.
#[derive(Clone)]
struct Key(Check);

impl PartialEq for Key {
    fn eq(&self, other: &Self) -> bool {
        let (a, b) = (&self.0, &other.0);
        let same = |(a, b): (&Charge, &Charge)| {
            a.key == b.key && a.limit.quota == b.limit.quota && a.cost == b.cost
        };
        a.shards() == b.shards()
            && a.charges().len() == b.charges().len()
            && a.charges().iter().zip(b.charges()).all(same)
    }
}

// No quota has a rate that is not a number.
impl Eq for Key {}

impl Hash for Key {
    fn hash<H: Hasher>(&self, state: &mut H) {
        for charge in self.0.charges() {
            charge.key.hash(state);
            charge.cost.hash(state);
        }
    }
}

/// A call on its way. When it ends, however it does, those who have gathered behind it go on.
struct Call<S: Store> {
    shared: Arc<Shared<S>>,
    started: Instant,
    flight: Option<Key>,
}

impl<S: Store> Call<S> {
    fn new(shared: Arc<Shared<S>>, flight: Option<Key>) -> Self {
        Self {
            shared,
            started: Instant::now(),
            flight,
        }
    }

    /// An error may come without a round trip.
    fn ended(&self, answer: &Answer) {
        if answer.is_ok() {
            self.shared.round_trip.observe(self.started.elapsed());
        }
    }
}

impl<S: Store> Drop for Call<S> {
    fn drop(&mut self) {
        let Some(key) = self.flight.take() else {
            return;
        };
        let mut total = 0_u64;
        let fits = |waiter: &Waiter| {
            total = total.saturating_add(waiter.check.count());
            total <= MAX_TOKENS
        };
        let batch = self.shared.flights(&key).end(&key, Instant::now(), fits);
        let Some(first) = batch.first() else {
            return;
        };
        let runtime = first.runtime.clone();
        // Made before the task: one that never runs ends it as well.
        let next = Self::new(self.shared.clone(), Some(key));
        runtime.spawn(self.shared.clone().call_for(batch, next));
    }
}

/// One for whom the next call is made.
struct Waiter {
    check: Check,
    /// Where the next call can be made: a call may end outside of any runtime.
    runtime: Handle,
    answer: oneshot::Sender<Answer>,
}

/// The other side of a [`Waiter`].
struct Waiting {
    answer: oneshot::Receiver<Answer>,
    /// If it is still waiting then, it makes its own call.
    until: Instant,
}

impl Waiting {
    async fn answer<S: Store>(mut self, seat: Seat<S>, check: Check) -> Answer {
        if let Ok(answer) = timeout_at(self.until, &mut self.answer).await {
            return answer.unwrap_or_else(|_| Err(lost()));
        }
        if seat.leave() {
            return seat.shared.call(check, None).await;
        }
        // The call has been made, and is slow.
        let answer = match check.deadline().map(Instant::from_std) {
            Some(deadline) => timeout_at(deadline, self.answer).await,
            None => Ok(self.answer.await),
        };
        match answer {
            Ok(answer) => answer.unwrap_or_else(|_| Err(lost())),
            Err(_) => Err(late()),
        }
    }
}

/// A place among those who wait, given up when dropped.
struct Seat<S> {
    shared: Arc<Shared<S>>,
    key: Key,
    place: u64,
}

impl<S> Seat<S> {
    /// Whether the call has not been made yet; then it will not ask for this one.
    fn leave(&self) -> bool {
        let flights = self.shared.flights(&self.key);
        flights.leave(&self.key, self.place).is_some()
    }
}

impl<S> Drop for Seat<S> {
    fn drop(&mut self) {
        self.leave();
    }
}

fn late() -> StoreError {
    let error = "no answer within the deadline";
    StoreError::new(ErrorKind::Timeout, ChargeState::Unknown, error)
}

fn lost() -> StoreError {
    let error = "a call for several checks broke off";
    StoreError::new(ErrorKind::Other, ChargeState::Unknown, error)
}

#[cfg(test)]
mod model;
#[cfg(test)]
mod schedules;
#[cfg(test)]
mod tests;
