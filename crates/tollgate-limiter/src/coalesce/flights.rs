//! Which calls are in flight, and who waits behind them.

use std::{
    collections::{HashMap, VecDeque, hash_map::Entry},
    hash::Hash,
    sync::PoisonError,
};

// Taken from the parent, so that the model checker can give this file another one.
use super::Mutex;

/// The calls in flight by key, at most one for each. `C` is what is known of a call, `W` is one who waits.
///
/// An entry is there from the `join` that finds nobody in flight until the `end` that finds nobody waiting.
pub(super) struct Flights<K, C, W> {
    state: Mutex<State<K, C, W>>,
}

struct State<K, C, W> {
    flights: HashMap<K, Flight<C, W>>,
    /// Never starts again: whoever leaves late must not take away another's place behind a later call.
    next_place: u64,
}

struct Flight<C, W> {
    call: C,
    /// By place, and so in the order of arrival.
    waiting: VecDeque<(u64, W)>,
}

/// What becomes of a check that has come.
#[derive(Debug)]
pub(super) enum Joined<T> {
    /// Nobody is in flight: its own call is, from now until [`Flights::end`].
    First,
    /// It waits for the next call, at this place.
    Behind(u64, T),
    /// It had better not wait.
    Alone,
}

impl<K: Hash + Eq, C, W> Flights<K, C, W> {
    pub(super) fn new() -> Self {
        Self {
            state: Mutex::new(State {
                flights: HashMap::new(),
                next_place: 0,
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
        let place = state.next_place;
        match state.flights.entry(key) {
            Entry::Vacant(entry) => {
                let waiting = VecDeque::new();
                entry.insert(Flight { call, waiting });
                Joined::First
            }
            Entry::Occupied(mut entry) => {
                let flight = entry.get_mut();
                let Some((waiter, ticket)) = wait(&flight.call) else {
                    return Joined::Alone;
                };
                flight.waiting.push_back((place, waiter));
                state.next_place += 1;
                Joined::Behind(place, ticket)
            }
        }
    }

    /// Takes back the one who waits at `place`; `None` if its call has been sent.
    pub(super) fn leave(&self, key: &K, place: u64) -> Option<W> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let waiting = &mut state.flights.get_mut(key)?.waiting;
        let index = waiting.binary_search_by_key(&place, |(place, _)| *place);
        let (_, waiter) = waiting.remove(index.ok()?)?;
        Some(waiter)
    }

    /// The call in flight has ended, and `next` starts for those it returns: all who wait, in order, up to the
    /// first one but one that does not fit. If that is nobody, nothing is in flight any more.
    pub(super) fn end(&self, key: &K, next: C, mut fits: impl FnMut(&W) -> bool) -> Vec<W> {
        let mut batch = Vec::new();
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(flight) = state.flights.get_mut(key) else {
            return batch;
        };
        while let Some((_, waiter)) = flight.waiting.front() {
            // Asked about each, as it may be counting.
            if !fits(waiter) && !batch.is_empty() {
                break;
            }
            batch.extend(flight.waiting.pop_front().map(|(_, waiter)| waiter));
        }
        if batch.is_empty() {
            state.flights.remove(key);
        } else {
            flight.call = next;
        }
        batch
    }

    /// How many calls are in flight.
    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        let state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.flights.len()
    }
}
