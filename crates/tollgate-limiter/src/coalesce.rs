//! While a call is in flight, what asks for the same gathers, and goes in one call.

use std::{
    fmt,
    hash::{Hash, Hasher},
    mem,
    num::NonZeroU64,
    sync::{Arc, Mutex},
    time::Duration,
};

use foldhash::quality::RandomState;
use tokio::{
    runtime::Handle,
    sync::oneshot,
    time::{Instant, timeout_at},
};
use tollgate_core::{
    AdjustFuture, Adjustment, Charge, ChargeState, Check, CheckFuture, Decision, ErrorKind,
    KeySpace, Store, StoreError,
};

use self::{
    flights::{Flights, Joined, Next},
    round_trip::RoundTrip,
    shares::shares,
};
use crate::{Observer, SavedBy, taken::hash_of_taken};

mod flights;
mod round_trip;
mod shares;

/// Enough that threads on as many cores as a server has seldom meet.
const SHARDS: usize = 64;

/// A shared call without a deadline is given up after this time, and no call is waited for any longer.
const LONGEST: Duration = Duration::from_secs(1);

/// Timers count whole milliseconds, and may be late by one.
const TICK: Duration = Duration::from_millis(1);

/// Spares the store calls, without giving up anything: while one call for some buckets is in flight in this
/// process, further checks that ask for the same gather, and the next call asks for all of them at once.
///
/// Checks ask for the same if their buckets, quotas and costs are the same. A busy tenant then costs one call
/// per round trip instead of one per request.
///
/// 1. A check that finds nothing in flight goes to the store at once, within its own future.
/// 2. When the call in flight ends, however it does, one call is made for all that have gathered by then, in a
///    task of its own: none of them can take the others along when it leaves. The task runs on the runtime in
///    which this was built, or else on that of one of those who wait.
/// 3. Each gets the answer that it would have had if all had been asked one by one, in the order in which they
///    came: its own remaining tokens, and a wait only if it was not granted.
/// 4. Nobody waits for long behind a call that is overdue: one that takes longer than twice the mean of late and
///    a millisecond, and at most a second. The first to find it so sends one call for all that have gathered,
///    which takes the place of the overdue one: there may be two calls in flight then, but not one for each who
///    waits. A call whose caller has stopped to poll it is overdue like any other.
/// 5. A check with a deadline waits only while there is as much time left as the longest of the last 64 to 128
///    calls took, so that it fails no sooner than with a call of its own. If the call in flight is not expected to
///    end by then, going by the mean, it makes its own call at once; if that does not end by then all the same,
///    it sends the call for all that have gathered. Before the first call has ended, nothing is known, and such a
///    check does not wait.
/// 6. A shared call has the latest of its checks' deadlines, or a second if one of them has none, and is given up
///    then, whether or not the store keeps deadlines. Each check fails at its own.
/// 7. A check that is dropped before its call is made is not asked for. One that is dropped later loses what it
///    was charged, as it does without this stage. Neither is of concern to the others.
/// 8. A call that fails, or panics, fails the checks that it asked for, with that error. Those that have gathered
///    behind it go on with a call of their own. If the runtime that was to make a call ends before it is made,
///    nothing was charged, and each makes its own.
/// 9. Checks for more than one request pass through: they are batches already. So do checks with charges in
///    shadow: the answer to a shared call does not tell to how many of the granted a shadow charge applied, so
///    nobody could be told whether it was one of them. And so do checks that would have to wait outside of a
///    Tokio runtime.
///
/// Clones share what they know. An entry is kept for each call in flight, and nothing else.
///
/// # Panics
///
/// A check that waits does so with Tokio's timer, which its runtime and the one that makes the shared calls must
/// have enabled.
pub struct Coalesce<S> {
    shared: Arc<Shared<S>>,
}

struct Shared<S> {
    store: S,
    observer: Arc<dyn Observer>,
    round_trip: RoundTrip,
    /// The one in which this was built: as a rule it outlives the others, and is driven.
    runtime: Option<Handle>,
    hasher: RandomState,
    flights: [Flights<Key, Instant, Waiter>; SHARDS],
}

type Answer = Result<Decision, StoreError>;

impl<S: Store> Coalesce<S> {
    /// Shares the calls to `store`, and tells `observer` of each check that was answered without one of its own.
    ///
    /// Built within a Tokio runtime, it makes the shared calls there.
    pub fn new(store: S, observer: Arc<dyn Observer>) -> Self {
        let shared = Shared {
            store,
            observer,
            round_trip: RoundTrip::default(),
            runtime: Handle::try_current().ok(),
            hasher: RandomState::default(),
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
        if check.shadow() > 0 || check.count() > 1 {
            return self.shared.store.check(check);
        }
        let now = Instant::now();
        let key = Key::new(check.clone(), &self.shared.hasher);
        let joined = self.shared.flights(&key).join(key.clone(), now, |started| {
            self.shared.wait(&check, *started, now)
        });
        match joined {
            Joined::First(number) => self.shared.call(check, now, Some((key, number))),
            Joined::Alone => self.shared.call(check, now, None),
            Joined::Behind(place, waiting) => {
                let seat = Seat {
                    shared: self.shared.clone(),
                    key,
                    place,
                    is_taken: true,
                };
                CheckFuture::new(waiting.answer(seat))
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

    fn keys(&self) -> KeySpace {
        self.shared.store.keys()
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
        &self.flights[key.hash as usize % SHARDS]
    }

    /// Lets `check` wait for the call that has `started` to end, if it can.
    fn wait(&self, check: &Check, started: Instant, now: Instant) -> Option<(Waiter, Waiting)> {
        let deadline = check.deadline().map(Instant::from_std);
        let until = self.may_wait_until(deadline, started, now)?;
        let runtime = Handle::try_current().ok()?;
        let (sender, receiver) = oneshot::channel();
        let waiter = Waiter {
            deadline,
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
        let overdue = self.overdue(started);
        let Some(deadline) = deadline else {
            return Some(overdue);
        };
        let sent_by = deadline.checked_sub(self.round_trip.long()? + TICK)?;
        let sent_at = (started + self.round_trip.usual()).max(now);
        (sent_at <= sent_by).then(|| sent_by.min(overdue))
    }

    /// When a call that has `started` should long have ended.
    fn overdue(&self, started: Instant) -> Instant {
        started + (2 * self.round_trip.usual() + TICK).min(LONGEST)
    }
}

impl<S: Store> Shared<S> {
    /// Makes a call within the future of the one who asks: the one in flight of that number for that key, if any.
    fn call(
        self: &Arc<Self>,
        check: Check,
        started: Instant,
        flight: Option<(Key, u64)>,
    ) -> CheckFuture {
        let call = Call::new(self.clone(), started, flight);
        self.store
            .check(check)
            .inspect(move |answer| call.ended(answer))
    }

    /// Has the call in flight that has `started` now made for those who have gathered, in a task of its own.
    fn send(self: &Arc<Self>, key: Key, started: Instant, next: Next<Waiter>, runtime: &Handle) {
        // Made before the task: if that never runs, it still ends.
        let batch = Batch::new(key.check.clone(), next.waiters);
        let call = Call::new(self.clone(), started, Some((key, next.number)));
        let runtime = self.runtime.as_ref().unwrap_or(runtime);
        runtime.spawn(self.clone().call_for(batch, call));
    }

    async fn call_for(self: Arc<Self>, mut batch: Batch, call: Call<S>) {
        let Some(check) = batch.send() else {
            return;
        };
        let deadline = check.deadline().map(Instant::from_std);
        let deadline = deadline.unwrap_or_else(|| Instant::now() + LONGEST);
        let answer = timeout_at(deadline, self.store.check(check)).await;
        let answer = answer.unwrap_or_else(|_| Err(late()));
        call.observe(&answer, Instant::now());
        let served = batch.answer(answer);
        // But for the call that was made.
        for _ in 1..served {
            self.observer.call_saved(SavedBy::Coalesce);
        }
    }
}

/// What checks that can share a call have in common: one of them.
#[derive(Clone)]
struct Key {
    check: Check,
    hash: u64,
}

impl Key {
    fn new(check: Check, hasher: &RandomState) -> Self {
        let hash = hash_of_taken(&check, hasher);
        Self { check, hash }
    }
}

impl PartialEq for Key {
    fn eq(&self, other: &Self) -> bool {
        let (a, b) = (&self.check, &other.check);
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
        state.write_u64(self.hash);
    }
}

/// A call on its way. When it ends, however it does, those who have gathered behind it go on.
struct Call<S: Store> {
    shared: Arc<Shared<S>>,
    started: Instant,
    flight: Option<(Key, u64)>,
}

impl<S: Store> Call<S> {
    const fn new(shared: Arc<Shared<S>>, started: Instant, flight: Option<(Key, u64)>) -> Self {
        Self {
            shared,
            started,
            flight,
        }
    }

    /// The answer is there.
    fn ended(mut self, answer: &Answer) {
        let now = Instant::now();
        self.observe(answer, now);
        self.go_on(now);
    }

    /// An error may come without a round trip.
    fn observe(&self, answer: &Answer, now: Instant) {
        if answer.is_ok() {
            self.shared.round_trip.observe(now - self.started);
        }
    }

    /// Ends the flight, if there is one that has not.
    fn go_on(&mut self, now: Instant) {
        let Some((key, number)) = self.flight.take() else {
            return;
        };
        let Some(next) = self.shared.flights(&key).end(&key, number, now) else {
            return;
        };
        let Some(runtime) = next.waiters.first().map(|waiter| waiter.runtime.clone()) else {
            return;
        };
        self.shared.send(key, now, next, &runtime);
    }
}

impl<S: Store> Drop for Call<S> {
    fn drop(&mut self) {
        if self.flight.is_some() {
            self.go_on(Instant::now());
        }
    }
}

/// One for whom the next call is made.
struct Waiter {
    /// Of its check.
    deadline: Option<Instant>,
    /// Where the next call can be made: a call may end outside of any runtime.
    runtime: Handle,
    /// Dropped without an answer if the call is never made.
    answer: oneshot::Sender<Answer>,
}

/// Those for whom one call is made. Once it has been sent, none of them goes without an answer.
struct Batch {
    /// What each of them asks for.
    check: Check,
    waiters: Vec<Waiter>,
    is_sent: bool,
}

impl Batch {
    const fn new(check: Check, waiters: Vec<Waiter>) -> Self {
        Self {
            check,
            waiters,
            is_sent: false,
        }
    }

    /// The check that asks for all who have not left. `None` if all have.
    fn send(&mut self) -> Option<Check> {
        self.waiters.retain(|waiter| !waiter.answer.is_closed());
        let count = NonZeroU64::new(self.waiters.len() as u64)?;
        let mut deadlines = self.waiters.iter().map(|waiter| waiter.deadline);
        // None at all is later than any.
        let latest = deadlines.try_fold(None, |latest, it| it.map(|it| latest.max(Some(it))));
        let check = self.check.clone().with_count(count);
        self.is_sent = true;
        Some(match latest.flatten() {
            Some(latest) => check.with_deadline(latest.into_std()),
            None => check.without_deadline(),
        })
    }

    /// Gives each its own, and says how many were there to get a decision. One who has left loses it.
    fn answer(mut self, whole: Answer) -> usize {
        let waiters = mem::take(&mut self.waiters);
        match whole {
            Ok(whole) => shares(&whole, waiters.len())
                .zip(waiters)
                .filter_map(|(own, waiter)| waiter.answer.send(Ok(own)).ok())
                .count(),
            Err(error) => {
                self.waiters = waiters;
                self.fail(&error);
                0
            }
        }
    }

    fn fail(&mut self, error: &StoreError) {
        for waiter in self.waiters.drain(..) {
            // One who has left does not mind.
            let _ = waiter.answer.send(Err(error.clone()));
        }
    }
}

impl Drop for Batch {
    fn drop(&mut self) {
        if self.is_sent {
            self.fail(&lost());
        }
    }
}

/// The other side of a [`Waiter`].
struct Waiting {
    answer: oneshot::Receiver<Answer>,
    /// If it is still waiting then, it sends the call for all who do.
    until: Instant,
}

impl Waiting {
    async fn answer<S: Store>(mut self, mut seat: Seat<S>) -> Answer {
        let mut answer = timeout_at(self.until, &mut self.answer).await;
        if answer.is_err() {
            seat.take_over();
            let deadline = seat.key.check.deadline().map(Instant::from_std);
            let last = deadline.unwrap_or_else(|| Instant::now() + LONGEST + TICK);
            answer = timeout_at(last, &mut self.answer).await;
        }
        let Ok(answer) = answer else {
            return Err(late());
        };
        // Whoever answers, or drops the other side, has taken it from its place.
        seat.is_taken = false;
        if let Ok(answer) = answer {
            return answer;
        }
        // Its call was never made.
        let check = seat.key.check.clone();
        seat.shared.call(check, Instant::now(), None).await
    }
}

/// A place among those who wait, given up when dropped.
struct Seat<S> {
    shared: Arc<Shared<S>>,
    key: Key,
    place: u64,
    /// Whether there may be one to give up.
    is_taken: bool,
}

impl<S> Seat<S> {
    /// If the call for those who wait has not been sent, sends it, from the runtime that polls this.
    fn take_over(&self)
    where
        S: Store,
    {
        let (key, now) = (&self.key, Instant::now());
        let next = self.shared.flights(key).take_over(key, self.place, now);
        if let Some(next) = next {
            self.shared.send(key.clone(), now, next, &Handle::current());
        }
    }
}

impl<S> Drop for Seat<S> {
    fn drop(&mut self) {
        if self.is_taken {
            let flights = self.shared.flights(&self.key);
            flights.leave(&self.key, self.place);
        }
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
