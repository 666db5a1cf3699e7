//! A stage that remembers denials: while a wait is known, nobody asks the store.

use std::{fmt, num::NonZeroU8, sync::Arc, time::Duration};

use quick_cache::sync::{Cache, EntryAction, EntryResult};
use tokio::time::Instant;
use tollgate_core::{
    AdjustFuture, Adjustment, BucketKey, Charge, Check, CheckFuture, Cost, Decision, KeySpace,
    LimitDecision, Quota, Source, Store, Wait, bucket,
};

use crate::{Observer, SavedBy};

/// Nothing is taken for known longer than this after it was asked for.
const LONGEST: Duration = Duration::from_secs(1);

/// So many buckets are remembered unless something else is said.
const MAX_ENTRIES: usize = 100_000;

/// Remembers which buckets deny which costs, and answers from that without asking the store.
///
/// A bucket that denied a cost with a wait cannot admit that cost or a larger one before the wait has passed,
/// whoever else spends from it. So a tenant who has run dry costs the store about one call per second, however
/// many requests it sends.
///
/// 1. For each bucket, the smallest cost known to be denied is remembered, from any answer of the store that
///    tells a wait: denials, and grants of fewer requests than were wanted. Errors, answers of a policy and
///    limits in shadow are not.
/// 2. It counts from when the store was *asked*, for the wait less a margin, and for at most one second. The
///    margin is a millisecond, because the store counts in whole ones, and on top the time that it takes to
///    refill [`SLACK`](bucket::SLACK), rounded up to whole milliseconds, because the store forgives so much.
/// 3. A check is denied if it charges a bucket, enforcing, with a cost that is known to be denied. A cost of
///    0 and a limit in shadow never are the reason.
/// 4. What was learnt under another quota, or another number of shards, is void.
/// 5. An adjustment that adds tokens voids what is known of its buckets, from when it is sent. A check that
///    was sent before the adjustment was answered teaches nothing about them.
///
/// 6. Of buckets that are split in shards, a check teaches something only if it charges a single enforcing one:
///    else each shard may have refused for want of another limit's tokens.
///
/// **Bound.** It never allows anything, and what it denies the store would have denied at that moment, apart
/// from tokens that come early:
///
/// * the bucket is reset, deleted or evicted, the store fails over, or its clock steps;
/// * another process gives tokens back, or this one does twice at the same time;
/// * the bucket is also charged by a larger quota elsewhere, or was last charged by a former quota, by which it
///   is full and forgotten sooner.
///
/// These are seen at the latest one second after the store was asked.
///
/// A decision from here has [`Source::DenialCache`]. For the limits that are known to deny, it tells the whole
/// wait that is left, rounded up to milliseconds and never shorter than the store would say of a bucket that
/// nobody else spends from; and as `remaining` what the store said last, without the refill since. Of the other
/// limits it knows nothing: their `remaining` is `None`, and what they would have said, such as the rejections
/// of a limit in shadow, is not counted.
///
/// **Memory.** About 250 bytes for each of at most 100 000 buckets, see
/// [`with_max_entries`](Self::with_max_entries). Those that are denied again and again stay when there are too
/// many. For a bucket that is not known a check takes one look, which allocates nothing.
pub struct DenialCache<S> {
    store: S,
    denials: Arc<Denials>,
    observer: Arc<dyn Observer>,
}

impl<S: Store> DenialCache<S> {
    /// Remembers the denials of `store`, and tells `observer` of each call that this saves.
    pub fn new(store: S, observer: Arc<dyn Observer>) -> Self {
        Self {
            store,
            denials: Arc::new(Denials::new(MAX_ENTRIES)),
            observer,
        }
    }

    /// Remembers at most about `max` buckets. What it knew is forgotten.
    #[must_use]
    pub fn with_max_entries(mut self, max: usize) -> Self {
        self.denials = Arc::new(Denials::new(max));
        self
    }
}

impl<S> DenialCache<S> {
    /// The denial of `check`, if it is known without asking the store. It counts as a saved call.
    #[must_use]
    pub fn known(&self, check: &Check) -> Option<Decision> {
        self.known_at(check, Instant::now())
    }

    fn known_at(&self, check: &Check, now: Instant) -> Option<Decision> {
        let decision = self.denials.answer(check, now)?;
        self.observer.call_saved(SavedBy::DenialCache);
        Some(decision)
    }
}

// === impl DenialCache ===

impl<S: Store> Store for DenialCache<S> {
    fn check(&self, check: Check) -> CheckFuture {
        let now = Instant::now();
        if let Some(decision) = self.known_at(&check, now) {
            return CheckFuture::ready(Ok(decision));
        }
        let (denials, asked) = (self.denials.clone(), check.clone());
        self.store.check(check).inspect(move |answer| {
            if let Ok(decision) = answer {
                denials.learn(&asked, decision, now);
            }
        })
    }

    fn adjust(&self, adjustment: Adjustment) -> AdjustFuture {
        // It may happen at any time until it is answered, and if it never is, nobody knows when.
        self.denials.void(&adjustment, Instant::now() + LONGEST);
        let (denials, sent) = (self.denials.clone(), adjustment.clone());
        self.store.adjust(adjustment).inspect(move |answer| {
            if answer.is_ok() {
                denials.void(&sent, Instant::now());
            }
        })
    }

    fn node(&self, tag: &str) -> usize {
        self.store.node(tag)
    }

    fn keys(&self) -> KeySpace {
        self.store.keys()
    }
}

impl<S: fmt::Debug> fmt::Debug for DenialCache<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DenialCache")
            .field("store", &self.store)
            .field("max_entries", &self.denials.known.capacity())
            .finish_non_exhaustive()
    }
}

/// What all calls share.
///
/// Of caches that bound their memory and keep what is used often, `moka` has every look-up, also one in vain,
/// write to a queue that is worked off now and then by whoever comes along; `quick_cache` takes a read lock of
/// one of many parts.
struct Denials {
    known: Cache<BucketKey, Known>,
}

/// What is known of a bucket.
#[derive(Clone, Copy)]
enum Known {
    Denial(Denial),
    /// It got tokens, at the latest at this time.
    Refill(Instant),
}

// === impl Denials ===

impl Denials {
    fn new(max: usize) -> Self {
        Self {
            known: Cache::new(max),
        }
    }

    /// The denial of `check`, if it is known.
    fn answer(&self, check: &Check, now: Instant) -> Option<Decision> {
        let enforcing = &check.charges()[..check.charges().len() - check.shadow()];
        let shards = check.shards();
        let find = |charge| self.find(charge, shards, now);
        // Of most buckets nothing is known: no decision is made up for them in vain.
        let (first, denial) =
            (enforcing.iter().enumerate()).find_map(|(i, charge)| Some((i, find(charge)?)))?;
        let mut found = Some(denial);
        let mut decision = check.decide(0, Source::DenialCache, []);
        for (limit, charge) in decision.limits.iter_mut().zip(enforcing).skip(first) {
            if let Some(denial) = found.take().or_else(|| find(charge)) {
                limit.remaining = Some(denial.remaining);
                limit.wait = denial.wait(charge.cost, now);
                // Only a look that has denied something makes a bucket worth keeping.
                let _ = self.known.get(&charge.key);
            }
        }
        Some(decision)
    }

    /// What is known to deny `charge` at `now`.
    fn find(&self, charge: &Charge, shards: NonZeroU8, now: Instant) -> Option<Denial> {
        let Known::Denial(denial) = self.known.peek(&charge.key)? else {
            return None;
        };
        if !denial.holds_for(&charge.limit.quota, shards) {
            // The check may charge the bucket by its own quota: what was known is wrong by then.
            self.known.remove(&charge.key);
            return None;
        }
        (charge.cost >= denial.cost && now < denial.until).then_some(denial)
    }

    /// Remembers what the store said to a check that was sent at `sent`.
    fn learn(&self, check: &Check, decision: &Decision, sent: Instant) {
        let enforcing = check.charges().len() - check.shadow();
        // One part of a split bucket may have lacked what another has, and the other way round in the next part.
        let mixed = check.shards() > NonZeroU8::MIN && enforcing > 1;
        if decision.source != Source::Store || mixed {
            return;
        }
        for (charge, limit) in check.charges().iter().zip(&decision.limits) {
            if limit.lacked_tokens() && !limit.shadow {
                let answered = Instant::now();
                let denial = Denial::new(charge, limit, check.shards(), sent, answered);
                if let Some(denial) = denial {
                    self.put(&charge.key, Known::Denial(denial), |known| {
                        known.is_superseded_by(&denial, sent, answered)
                    });
                }
            }
        }
    }

    /// Forgets what is known of buckets that get tokens, and takes no denial from before `settled`.
    fn void(&self, adjustment: &Adjustment, settled: Instant) {
        for change in adjustment.changes() {
            if change.delta > 0 {
                self.put(&change.key, Known::Refill(settled), |_| true);
            }
        }
    }

    /// Keeps `new` if nothing is known, or if it `supersedes` what is.
    fn put(&self, key: &BucketKey, new: Known, supersedes: impl FnOnce(&Known) -> bool) {
        let entry = self.known.entry(key, None, |_, known| {
            if supersedes(known) {
                *known = new;
            }
            EntryAction::Retain(())
        });
        if let EntryResult::Vacant(guard) = entry {
            // An error says that another thread has written meanwhile, which is as good.
            let _ = guard.insert(new);
        }
    }
}

// === impl Known ===

impl Known {
    fn is_superseded_by(&self, new: &Denial, sent: Instant, now: Instant) -> bool {
        match self {
            // The store may have denied it before it got the tokens.
            Self::Refill(settled) => sent > *settled,
            Self::Denial(old) => {
                let says_more =
                    old.cost < new.cost || old.cost == new.cost && old.until >= new.until;
                !(old.holds_for(&new.quota, new.shards) && now < old.until && says_more)
            }
        }
    }
}

/// A bucket's denial.
#[derive(Clone, Copy)]
struct Denial {
    quota: Quota,
    shards: NonZeroU8,
    /// This cost and larger ones are denied...
    cost: Cost,
    /// ... before this time.
    until: Instant,
    /// When this cost fits for sure, if nobody else takes the tokens. `None` if never.
    fits_at: Option<Instant>,
    /// Tokens left when it was denied, rounded down.
    remaining: u64,
}

// === impl Denial ===

impl Denial {
    /// What `limit` says of the bucket of `charge`, in the answer of `answered` to a call of `sent`. `None` if
    /// that is of no use any more.
    fn new(
        charge: &Charge,
        limit: &LimitDecision,
        shards: NonZeroU8,
        sent: Instant,
        answered: Instant,
    ) -> Option<Self> {
        let wait = match limit.wait {
            Wait::None => return None,
            Wait::For(wait) => Some(wait),
            Wait::Never => None,
        };
        let quota = charge.limit.quota;
        // The store decided after it was asked, so this is early enough; and before its answer was there.
        let known_for = wait.map_or(LONGEST, |wait| {
            let margin = Duration::from_millis(1) + refill_time(bucket::SLACK, &quota, shards);
            wait.saturating_sub(margin).min(LONGEST)
        });
        let until = sent + known_for;
        (until > answered).then_some(Self {
            quota,
            shards,
            cost: charge.cost,
            until,
            fits_at: wait.and_then(|wait| answered.checked_add(wait)),
            remaining: limit.remaining?,
        })
    }

    fn holds_for(&self, quota: &Quota, shards: NonZeroU8) -> bool {
        self.quota == *quota && self.shards == shards
    }

    /// How long a request of `cost` has to wait from `now` on, at least the denied cost.
    fn wait(&self, cost: Cost, now: Instant) -> Wait {
        match self.fits_at {
            Some(fits_at) if cost.tokens() <= self.quota.capacity() => {
                #[expect(clippy::cast_precision_loss, reason = "at most 10^12")]
                let more = (cost.tokens() - self.cost.tokens()) as f64;
                let more = refill_time(more, &self.quota, self.shards);
                Wait::For(whole_millis(fits_at - now) + more)
            }
            _ => Wait::Never,
        }
    }
}

/// How long a bucket, or the one of a single shard, takes to get `tokens`, rounded up to whole milliseconds.
fn refill_time(tokens: f64, quota: &Quota, shards: NonZeroU8) -> Duration {
    let rate = quota.rate().per_second() / f64::from(shards.get());
    // Nobody's bucket takes longer than ten years, times 255 shards.
    whole_millis(Duration::from_secs_f64(tokens / rate))
}

/// Rounds up.
fn whole_millis(span: Duration) -> Duration {
    let millis = span.subsec_nanos().div_ceil(1_000_000);
    Duration::from_secs(span.as_secs()) + Duration::from_millis(millis.into())
}

#[cfg(test)]
mod tests;
