//! The embedded store.

use std::{
    collections::HashMap,
    fmt,
    sync::{Mutex, PoisonError},
};

use foldhash::quality::RandomState;

use crate::{
    AdjustFuture, Adjustment, Bucket, BucketKey, ChargeState, Check, CheckFuture, Clock, Cost,
    Decision, ErrorKind, MAX_CHARGES, MonotonicClock, Quota, Store, StoreError, bucket,
};

/// Enough that threads on as many cores as a server has seldom meet.
const SHARDS: usize = 64;

/// Below this many buckets, a shard is not worth sweeping.
const MIN_SWEEP: usize = 64;

/// Buckets in this process's memory: the embedded store, exact within one process.
///
/// 1. A full bucket is forgotten; one that is not full never is, whatever else happens.
/// 2. At most [`max_buckets`](Self::with_max_buckets) buckets are kept, by default a million, of about 150
///    bytes each. When they are all in use, a check that needs a new one fails with [`ErrorKind::Oom`], and
///    the limiter's failure policy answers it.
/// 3. All state is lost with the process, and other replicas do not see it. Use it for tests, for a single
///    replica, and to start without Redis.
///
/// A check never waits and never blocks for longer than it takes to sweep the full buckets out of one of 64
/// parts of the store.
pub struct MemoryStore<C = MonotonicClock> {
    clock: C,
    shards: Box<[Mutex<Shard>]>,
    /// How many buckets one shard may keep.
    room: usize,
}

struct Shard {
    buckets: HashMap<BucketKey, Bucket, RandomState>,
    /// The number of buckets at which the full ones are looked for next.
    sweep_at: usize,
    /// No kept bucket is full before this time, so sweeping earlier is in vain.
    nothing_full_before: u64,
}

impl MemoryStore {
    /// An empty store.
    #[must_use]
    pub fn new() -> Self {
        Self::with_clock(MonotonicClock::default())
    }
}

impl<C: Clock> MemoryStore<C> {
    /// An empty store that takes the time from `clock`.
    #[must_use]
    pub fn with_clock(clock: C) -> Self {
        let shard = || {
            Mutex::new(Shard {
                buckets: HashMap::default(),
                sweep_at: MIN_SWEEP,
                nothing_full_before: 0,
            })
        };
        let shards = std::iter::repeat_with(shard).take(SHARDS).collect();
        Self {
            clock,
            shards,
            room: 1_000_000 / SHARDS,
        }
    }

    /// Keeps at most about `max` buckets, split evenly over the 64 parts of the store and at least 8 in
    /// each, so that any check fits.
    #[must_use]
    pub fn with_max_buckets(mut self, max: usize) -> Self {
        self.room = max.div_ceil(SHARDS).max(MAX_CHARGES);
        self
    }

    /// How many buckets are kept now, full ones that were not looked at since included.
    #[must_use]
    pub fn len(&self) -> usize {
        self.shards
            .iter()
            .map(|shard| lock(shard).buckets.len())
            .sum()
    }

    /// Whether no bucket is kept.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Decides `check`, and charges what it grants.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Oom`] if the check needs a new bucket and the store is full.
    pub fn decide(&self, check: &Check) -> Result<Decision, StoreError> {
        // All keys of a check share the tag, so one lock makes it atomic.
        let mut shard = lock(&self.shards[shard_of(&check.charges()[0].key)]);
        let now = self.clock.now();
        let charges = check.charges();
        let mut buckets = [None; MAX_CHARGES];
        let mut wanted = 0;
        for (bucket, charge) in buckets.iter_mut().zip(charges) {
            *bucket = shard.buckets.get(&charge.key).copied();
            wanted += usize::from(bucket.is_none() && charge.cost > Cost::FREE);
        }
        shard.make_room(wanted, self.room, now)?;

        let before = buckets;
        let decision = bucket::decide(check, &mut buckets[..charges.len()], now);
        for (i, charge) in charges.iter().enumerate() {
            shard.put(&charge.key, before[i], buckets[i]);
        }
        Ok(decision)
    }

    /// Whether a bucket is kept under this key. One that is not may be full.
    #[must_use]
    pub fn holds(&self, key: &BucketKey) -> bool {
        lock(&self.shards[shard_of(key)]).buckets.contains_key(key)
    }

    /// Carries out an adjustment, and tells how many tokens each bucket has then, rounded down.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Oom`] if that needs a new bucket and the store is full; then nothing was changed.
    pub fn change(&self, adjustment: &Adjustment) -> Result<Vec<i64>, StoreError> {
        let mut shard = lock(&self.shards[shard_of(&adjustment.changes()[0].key)]);
        let now = self.clock.now();
        let mut tokens = Vec::with_capacity(adjustment.changes().len());
        let mut changed = Vec::with_capacity(adjustment.changes().len());
        for change in adjustment.changes() {
            let before = shard.buckets.get(&change.key).copied();
            let mut after = before;
            let (delta, floor) = (change.delta, change.floor);
            tokens.push(bucket::adjust(&mut after, &change.quota, delta, floor, now));
            changed.push((change.key.clone(), before, after));
        }
        let is_new = |(_, before, after): &&(_, Option<Bucket>, Option<Bucket>)| {
            before.is_none() && after.is_some()
        };
        shard.make_room(changed.iter().filter(is_new).count(), self.room, now)?;
        for (key, before, after) in changed {
            shard.put(&key, before, after);
        }
        Ok(tokens)
    }

    /// Takes tokens out of a bucket of this quota until at most `tokens` are left, and none if it has fewer.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Oom`] if that needs a new bucket and the store is full.
    pub fn lower(&self, key: &BucketKey, quota: &Quota, tokens: f64) -> Result<(), StoreError> {
        let mut shard = lock(&self.shards[shard_of(key)]);
        let now = self.clock.now();
        let before = shard.buckets.get(key).copied();
        let mut after = before;
        bucket::lower(&mut after, quota, tokens, now);
        if before.is_none() && after.is_some() {
            shard.make_room(1, self.room, now)?;
        }
        shard.put(key, before, after);
        Ok(())
    }
}

#[expect(
    clippy::cast_possible_truncation,
    reason = "any bits of the hash will do"
)]
fn shard_of(key: &BucketKey) -> usize {
    key.tag_hash() as usize % SHARDS
}

impl Shard {
    /// Keeps what has changed.
    fn put(&mut self, key: &BucketKey, before: Option<Bucket>, after: Option<Bucket>) {
        if let Some(after) = after.filter(|_| after != before) {
            match self.buckets.get_mut(key) {
                Some(bucket) => *bucket = after,
                None => {
                    self.buckets.insert(key.clone(), after);
                }
            }
            self.nothing_full_before = self.nothing_full_before.min(after.expires_at);
        }
    }

    /// Makes sure that `wanted` buckets can be added, by forgetting the full ones if need be.
    fn make_room(&mut self, wanted: usize, room: usize, now: u64) -> Result<(), StoreError> {
        let len = self.buckets.len() + wanted;
        if wanted == 0 || len <= self.sweep_at.min(room) {
            return Ok(());
        }
        if now > self.nothing_full_before {
            self.buckets.retain(|_, bucket| !bucket.is_expired(now));
            self.nothing_full_before = self
                .buckets
                .values()
                .map(|bucket| bucket.expires_at)
                .min()
                .unwrap_or(u64::MAX);
        }
        // Twice as many before the next sweep: the cost per new bucket stays constant.
        self.sweep_at = (2 * self.buckets.len()).max(MIN_SWEEP);
        if self.buckets.len() + wanted <= room {
            return Ok(());
        }
        let full = "the in-memory store is full of buckets in use; raise `max_buckets`";
        Err(StoreError::new(
            ErrorKind::Oom,
            ChargeState::NotCharged,
            full,
        ))
    }
}

fn lock(shard: &Mutex<Shard>) -> std::sync::MutexGuard<'_, Shard> {
    // A panic cannot leave a shard half written: each bucket is replaced whole.
    shard.lock().unwrap_or_else(PoisonError::into_inner)
}

// === impl MemoryStore ===

impl Default for MemoryStore {
    fn default() -> Self {
        Self::new()
    }
}

impl<C: Clock> Store for MemoryStore<C> {
    fn check(&self, check: Check) -> CheckFuture {
        CheckFuture::ready(self.decide(&check))
    }

    fn adjust(&self, adjustment: Adjustment) -> AdjustFuture {
        AdjustFuture::ready(self.change(&adjustment))
    }

    fn is_local(&self) -> bool {
        true
    }
}

impl<C> fmt::Debug for MemoryStore<C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MemoryStore")
            .field("max_buckets", &(self.room * SHARDS))
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Change, Charge, KeySpace, Limit, LimitName, ManualClock, Tenant};

    fn check(tenant: &str, capacity: u64, rate: &str, cost: u32) -> Check {
        let tenant = Tenant::new(tenant, "pro").expect("an id");
        let limit = Limit {
            name: LimitName::default(),
            quota: Quota::new(capacity, rate).expect("a quota"),
        };
        let key = KeySpace::default().bucket(&tenant, &limit.name);
        Check::single(Charge {
            key,
            limit,
            cost: Cost::new(cost),
        })
    }

    fn allows(store: &MemoryStore<ManualClock>, check: &Check) -> bool {
        store.decide(check).expect("an answer").is_allowed()
    }

    #[test]
    fn a_full_bucket_is_forgotten_and_a_drained_one_is_not() {
        let clock = ManualClock::default();
        let store = MemoryStore::with_clock(clock.clone()).with_max_buckets(SHARDS * 100);
        assert!(allows(&store, &check("slow", 1, "1/d", 1)));
        for round in 0..100 {
            for i in 0..100 {
                assert!(allows(
                    &store,
                    &check(&format!("{round}/{i}"), 10, "1/s", 1)
                ));
            }
            clock.advance(1_001);
        }
        assert!(store.len() < 7_000, "{} of 10 001 kept", store.len());
        assert!(!allows(&store, &check("slow", 1, "1/d", 1)));
    }

    #[test]
    fn a_flood_of_drained_tenants_makes_nobody_forgotten() {
        let clock = ManualClock::default();
        let store = MemoryStore::with_clock(clock.clone()).with_max_buckets(1_000);
        let mut refused = 0;
        for i in 0..10_000 {
            match store.decide(&check(&i.to_string(), 1, "1/d", 1)) {
                Ok(decision) => assert!(decision.is_allowed()),
                Err(error) => {
                    assert_eq!(
                        (error.kind(), error.charge()),
                        (ErrorKind::Oom, ChargeState::NotCharged)
                    );
                    refused += 1;
                }
            }
        }
        assert!(
            store.len() <= 1_024 && refused >= 8_976,
            "{} kept, {refused} refused",
            store.len()
        );
        // The first ones came in while there was room, and are still drained.
        assert!(!allows(&store, &check("0", 1, "1/d", 1)));
        // Reading needs no room.
        assert!(allows(&store, &check("never seen", 1, "1/d", 0)));
        // A day later all are full again, and there is room.
        clock.advance(86_400_001);
        assert!(allows(&store, &check("newcomer", 1, "1/d", 1)));
    }

    fn change(tenant: &str, limit: &str, delta: i64, floor: i64) -> Change {
        let tenant = Tenant::new(tenant, "pro").expect("an id");
        let name = LimitName::new(limit).expect("a name");
        Change {
            key: KeySpace::default().bucket(&tenant, &name),
            quota: Quota::new(10, "1/s").expect("a quota"),
            delta,
            floor,
        }
    }

    fn adjust(
        store: &MemoryStore<ManualClock>,
        changes: Vec<Change>,
    ) -> Result<Vec<i64>, StoreError> {
        store.change(&Adjustment::new(changes).expect("an adjustment"))
    }

    #[test]
    fn an_adjustment_changes_the_buckets_of_the_checks() {
        let clock = ManualClock::default();
        let store = MemoryStore::with_clock(clock.clone());
        let one = |delta, floor| {
            adjust(&store, vec![change("a", "default", delta, floor)]).expect("room")
        };
        assert_eq!(one(5, 0), [10]);
        assert!(store.is_empty(), "a full bucket is not kept");
        assert!(allows(&store, &check("a", 10, "1/s", 8)));
        assert_eq!(one(3, 0), [5]);
        assert!(!allows(&store, &check("a", 10, "1/s", 6)));
        assert_eq!(one(-9, -4), [-4]);
        clock.advance(4_999);
        assert!(!allows(&store, &check("a", 10, "1/s", 1)));
        clock.advance(1);
        assert!(allows(&store, &check("a", 10, "1/s", 1)));
        let several = vec![change("a", "x", -12, -2), change("a", "default", 2, 0)];
        assert_eq!(adjust(&store, several).expect("room"), [-2, 2]);
    }

    #[test]
    fn an_adjustment_without_room_changes_no_bucket() {
        let store = MemoryStore::with_clock(ManualClock::default()).with_max_buckets(0);
        // All of one tag, and so in one part of the store, which has room for eight.
        for i in 0..7 {
            let kept = adjust(&store, vec![change("a", &format!("l{i}"), -1, 0)]);
            assert_eq!(kept.expect("room"), [9]);
        }
        let several = vec![
            change("a", "l0", -1, 0),
            change("a", "new1", -1, 0),
            change("a", "new2", -1, 0),
        ];
        let error = adjust(&store, several).expect_err("room for one only");
        assert_eq!(
            (error.kind(), error.charge()),
            (ErrorKind::Oom, ChargeState::NotCharged)
        );
        let read = vec![change("a", "l0", 0, 0), change("a", "new1", 0, 0)];
        assert_eq!(adjust(&store, read).expect("nothing is new"), [9, 10]);
        // What is given back to a full bucket needs no room.
        let full = vec![change("a", "new1", 1, 0), change("a", "new2", 1, 0)];
        assert_eq!(adjust(&store, full).expect("nothing is new"), [10, 10]);
        assert_eq!(store.len(), 7);
    }

    #[test]
    fn many_threads_share_exactly_one_capacity() {
        let store = MemoryStore::with_clock(ManualClock::default());
        let admitted: usize = std::thread::scope(|scope| {
            let hammer = || {
                (0..1_000)
                    .filter(|_| allows(&store, &check("one", 1_500, "1/s", 1)))
                    .count()
            };
            let threads: Vec<_> = (0..8).map(|_| scope.spawn(hammer)).collect();
            threads
                .into_iter()
                .map(|thread| thread.join().expect("no panic"))
                .sum()
        });
        assert_eq!(admitted, 1_500);
    }
}
