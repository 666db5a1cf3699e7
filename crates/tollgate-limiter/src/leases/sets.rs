//! All accounts.

use std::{
    collections::HashMap,
    hash::{Hash, Hasher},
    sync::{Mutex, MutexGuard, PoisonError},
};

use foldhash::quality::RandomState;
use tokio::time::Instant;
use tollgate_core::{Charge, Check};

use super::{LeaseSettings, ledger::Ledger};
use crate::taken::hash_of_taken;

/// Enough that threads on as many cores as a server has seldom meet.
const SHARDS: usize = 64;

/// Below this many accounts, a shard is not worth sweeping.
const MIN_SWEEP: usize = 64;

/// The accounts of all sets of buckets that are leased, or were asked for of late.
pub(super) struct Sets {
    shards: Box<[Mutex<Shard>]>,
    hasher: RandomState,
    /// How many accounts one shard may keep.
    room: usize,
}

struct Shard {
    ledgers: HashMap<Set, Ledger, RandomState>,
    /// The number of accounts at which the idle ones are looked for next.
    sweep_at: usize,
    /// Looking for them earlier is in vain.
    not_before: Option<Instant>,
}

/// A set of buckets and what is taken from each, whatever their quotas: as part of a check.
struct Set {
    check: Check,
    hash: u64,
}

// === impl Set ===

impl PartialEq for Set {
    fn eq(&self, other: &Self) -> bool {
        let (a, b) = (&self.check, &other.check);
        let same = |(a, b): (&Charge, &Charge)| a.cost == b.cost && a.key == b.key;
        let pairs = a.charges().iter().zip(b.charges());
        a.shadow() == b.shadow() && a.charges().len() == b.charges().len() && { pairs }.all(same)
    }
}

impl Eq for Set {}

impl Hash for Set {
    fn hash<H: Hasher>(&self, state: &mut H) {
        state.write_u64(self.hash);
    }
}

impl Sets {
    pub(super) fn new(max: usize) -> Self {
        let shard = || {
            Mutex::new(Shard {
                ledgers: HashMap::default(),
                sweep_at: MIN_SWEEP,
                not_before: None,
            })
        };
        Self {
            shards: std::iter::repeat_with(shard).take(SHARDS).collect(),
            hasher: RandomState::default(),
            room: max.div_ceil(SHARDS),
        }
    }

    /// Works on the account of `check`, which is opened if need be. `None` if there is no room for it.
    pub(super) fn open<T>(
        &self,
        check: &Check,
        settings: &LeaseSettings,
        now: Instant,
        work: impl FnOnce(&mut Ledger) -> T,
    ) -> Option<T> {
        let set = self.set(check);
        let mut shard = self.shard(&set);
        if let Some(ledger) = shard.ledgers.get_mut(&set) {
            return Some(work(ledger));
        }
        if !shard.has_room(self.room, settings, now) {
            return None;
        }
        let ledger = Ledger::new(check.clone(), settings, now);
        Some(work(shard.ledgers.entry(set).or_insert(ledger)))
    }

    /// Works on the account of `check`, if there is one, and closes it if it is idle then.
    pub(super) fn find<T>(
        &self,
        check: &Check,
        now: Instant,
        work: impl FnOnce(&mut Ledger) -> T,
    ) -> Option<T> {
        let set = self.set(check);
        let mut shard = self.shard(&set);
        let ledger = shard.ledgers.get_mut(&set)?;
        let done = work(ledger);
        if ledger.is_idle(now) {
            shard.ledgers.remove(&set);
        }
        Some(done)
    }

    fn set(&self, check: &Check) -> Set {
        Set {
            check: check.clone(),
            hash: hash_of_taken(check, &self.hasher),
        }
    }

    #[expect(
        clippy::cast_possible_truncation,
        reason = "any bits of the hash will do"
    )]
    fn shard(&self, set: &Set) -> MutexGuard<'_, Shard> {
        let shard = &self.shards[set.hash as usize % SHARDS];
        // Nothing that is done to an account panics halfway.
        shard.lock().unwrap_or_else(PoisonError::into_inner)
    }

    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        let len = |shard: &Mutex<Shard>| shard.lock().expect("no panic").ledgers.len();
        self.shards.iter().map(len).sum()
    }
}

impl Shard {
    /// Whether one more account can be kept, after forgetting the idle ones if need be.
    fn has_room(&mut self, room: usize, settings: &LeaseSettings, now: Instant) -> bool {
        let len = self.ledgers.len();
        if len >= self.sweep_at.min(room) && self.not_before.is_none_or(|it| now >= it) {
            self.ledgers.retain(|_, ledger| !ledger.is_idle(now));
            // Twice as many before the next sweep: the cost per new account stays constant.
            self.sweep_at = (2 * self.ledgers.len()).max(MIN_SWEEP);
            self.not_before = Some(now + settings.target);
        }
        self.ledgers.len() < room
    }
}
