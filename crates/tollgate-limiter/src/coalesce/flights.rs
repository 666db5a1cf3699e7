//! Which calls are in flight, and who waits behind them.

use foldhash::quality::RandomState;
use std::{
    collections::{HashMap, VecDeque, hash_map::Entry},
    hash::Hash,
    mem,
    sync::PoisonError,
};

// Taken from the parent, so that the model checker can give this file another one.
use super::Mutex;

/// The calls in flight by key, one for each that further checks wait behind. `C` is what is known of a call,
/// `W` is one who waits.
///
/// An entry is there from the `join` that finds nobody in flight until the `end` that finds nobody waiting.
pub(super) struct Flights<K, C, W> {
    state: Mutex<State<K, C, W>>,
}

struct State<K, C, W> {
    flights: HashMap<K, Flight<C, W>, RandomState>,
    /// Numbers flights and places. It never starts again: whoever is late must not end another's flight, nor
    /// take away another's place.
    next: u64,
}

struct Flight<C, W> {
    number: u64,
    call: C,
    /// By place, and so in the order of arrival.
    waiting: VecDeque<(u64, W)>,
}

/// What becomes of a check that has come.
#[derive(Debug)]
pub(super) enum Joined<T> {
    /// Its own call is in flight from now until [`Flights::end`], by this number.
    First(u64),
    /// It waits for the next call, at this place.
    Behind(u64, T),
    /// It had better not wait.
    Alone,
}

/// The call that goes next.
pub(super) struct Next<W> {
    pub(super) number: u64,
    /// For whom, in the order of arrival; never nobody.
    pub(super) waiters: Vec<W>,
}

impl<K: Hash + Eq, C, W> Flights<K, C, W> {
    pub(super) fn new() -> Self {
        Self {
            state: Mutex::new(State {
                flights: HashMap::default(),
                next: 0,
            }),
        }
    }

    /// Starts `call`, unless one is in flight: then `wait` says who waits behind that one, if anybody.
    pub(super) fn join<T>(
        &self,
        key: K,
        call: C,
        wait: impl FnOnce(&C) -> Option<(W, T)>,
    ) -> Joined<T> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let number = state.next;
        state.next += 1;
        match state.flights.entry(key) {
            Entry::Vacant(entry) => {
                entry.insert(Flight {
                    number,
                    call,
                    waiting: VecDeque::new(),
                });
                Joined::First(number)
            }
            Entry::Occupied(mut entry) => {
                let flight = entry.get_mut();
                let Some((waiter, ticket)) = wait(&flight.call) else {
                    return Joined::Alone;
                };
                flight.waiting.push_back((number, waiter));
                Joined::Behind(number, ticket)
            }
        }
    }

    /// Takes back the one who waits at `place`; `None` if its call has been sent.
    pub(super) fn leave(&self, key: &K, place: u64) -> Option<W> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let flight = state.flights.get_mut(key)?;
        let index = flight.index(place)?;
        let (_, waiter) = flight.waiting.remove(index)?;
        Some(waiter)
    }

    /// The flight `number` has ended, and the call `next` goes for all who wait behind it. `None` if that is
    /// nobody, and then nothing is in flight any more; or if another flight has taken its place.
    pub(super) fn end(&self, key: &K, number: u64, next: C) -> Option<Next<W>> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let state = &mut *state;
        let flight = state.flights.get_mut(key)?;
        if flight.number != number {
            return None;
        }
        if flight.waiting.is_empty() {
            state.flights.remove(key);
            return None;
        }
        Some(flight.go_on(&mut state.next, next))
    }

    /// The one who waits at `place` does so no longer: the call `next` goes for it and all who wait with it, and
    /// takes the place of the one in flight. `None` if its call has been sent.
    pub(super) fn take_over(&self, key: &K, place: u64, next: C) -> Option<Next<W>> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let state = &mut *state;
        let flight = state.flights.get_mut(key)?;
        flight.index(place)?;
        Some(flight.go_on(&mut state.next, next))
    }

    /// How many calls are in flight that others may wait behind.
    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        let state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.flights.len()
    }
}

impl<C, W> Flight<C, W> {
    fn index(&self, place: u64) -> Option<usize> {
        let waiting = &self.waiting;
        let index = waiting.binary_search_by_key(&place, |(place, _)| *place);
        index.ok()
    }

    fn go_on(&mut self, numbers: &mut u64, next: C) -> Next<W> {
        self.number = *numbers;
        *numbers += 1;
        self.call = next;
        let waiting = mem::take(&mut self.waiting);
        Next {
            number: self.number,
            waiters: waiting.into_iter().map(|(_, waiter)| waiter).collect(),
        }
    }
}
