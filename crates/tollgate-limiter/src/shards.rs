//! The stage above the breaker: a tenant too hot for one slot of a cluster, split over several.

mod changes;
mod tally;
#[cfg(test)]
mod tests;

use std::{
    fmt,
    num::{NonZeroU8, NonZeroU64},
    sync::Arc,
};

use tollgate_core::{
    AdjustFuture, Adjustment, Charge, Check, CheckFuture, KeySpace, Limit, Quota, Source, Store,
};

use self::{changes::Changes, tally::Tally};
use crate::{DenialCache, Observer, SavedBy};

/// Splits the buckets of a check with [`shards`](Check::shards) above 1 over so many hash tags, which a cluster
/// keeps in different slots.
///
/// 1. Shard i has part i of every bucket, under the tag `{tenant:42/i}`: a share of the rate and of the
///    capacity, with no token lost (11 tokens over 4 shards: 3, 3, 3 and 2). All charges of a check go to the
///    same shard, all or none as ever.
/// 2. A check asks one shard, any; what that one does not grant, it asks of the next. So it is denied only
///    after every shard has refused, and a request alone costs one call until a shard runs dry. They are
///    asked one after the other, so none is charged in vain. What is [remembered](Self::with_denial_cache) of
///    dry shards spares asking them again, so a denial is known after a few checks even where asking all takes
///    longer than a deadline.
/// 3. Over any span of T seconds, at most `capacity + rate × T` tokens are spent from the parts of a bucket
///    together, and the whole capacity is there for whoever asks. While the number of shards changes, or
///    processes disagree on it, that holds for each number in use: a change gives a tenant at most one more
///    capacity.
/// 4. How many parts a bucket has depends on the number of shards and on its quota alone, so all who use it
///    agree: a quota that [cannot be split](Quota::parts) so far has fewer, the first ones. A check of several
///    limits uses the shards where all of them have a part, and cannot reach what a larger one has elsewhere.
///    So choose the number such that every limit of the tenant can be split.
/// 5. A request must fit one shard: a cost above a shard's capacity is denied there and, when it is above
///    those of all, [for ever](tollgate_core::Wait::Never). Where the costs are known, [`Quota::parts`] tells
///    how many shards can serve the largest. Tokens in different shards do not add up for one request, so a
///    cost above 1 can be denied while as many tokens remain in all.
/// 6. The decision shows the whole quota. What remains of it is exact when all shards were asked, as for
///    every denial: the sum of what each has left, rounded down. When some were not, they are taken to have
///    been as full as those that were before this check. The waits of a denial are those of the shard which has
///    room for all limits soonest; with several limits, a check of one of them alone may fit another earlier.
/// 7. A limit in shadow never blocks: it is judged by the shards that served the request, and where its quota
///    has no part, against a token of its own.
/// 8. If a shard fails after others have granted, what they granted stands. Nobody knows what that shard has,
///    so the decision's waits are then a millisecond at most. If none has granted, the failure is the answer.
/// 9. An adjustment is spread evenly over the parts, from one that is drawn anew each time. What is given to
///    a part that is full is lost; the sum is never more than was given. Taking out stops at an even share of
///    the floor in each part. Adding 10^12 tokens, the most there can be, fills every part.
///
/// Checks and adjustments of 1 shard pass as they are.
pub struct Shards<S> {
    store: Arc<S>,
    /// Where the parts of split buckets are asked for.
    parts: Arc<dyn Store>,
    observer: Arc<dyn Observer>,
}

impl<S: Store> Shards<S> {
    /// Splits what goes to `store`.
    pub fn new(store: S) -> Self {
        let store = Arc::new(store);
        Self {
            parts: store.clone(),
            store,
            observer: Arc::new(()),
        }
    }

    /// Remembers which shards are dry, and tells `observer` of each check that no shard had to be asked for.
    ///
    /// Without it, each request of a drained tenant that nobody further out knows to be denied asks every
    /// shard; and where so many trips take longer than the deadline, it is never denied at all, but left to
    /// the failure policy.
    #[must_use]
    pub fn with_denial_cache(self, observer: Arc<dyn Observer>) -> Self {
        let parts = DenialCache::new(self.store.clone(), Arc::new(()));
        Self {
            parts: Arc::new(parts),
            observer,
            ..self
        }
    }
}

// === impl Shards ===

impl<S: Store> Store for Shards<S> {
    /// # Errors
    ///
    /// Those of the store, if no shard has granted anything. Shards that refused before were not charged, so
    /// what the error says of the charge holds for the whole check.
    ///
    /// # Cancel safety
    ///
    /// A future that is dropped before it is ready may or may not have charged the check, in any shard.
    fn check(&self, check: Check) -> CheckFuture {
        if check.shards() == NonZeroU8::MIN {
            return self.store.check(check);
        }
        let (store, observer) = (self.parts.clone(), self.observer.clone());
        let shards = usable(&check);
        let start = fastrand::u8(..shards.get());
        CheckFuture::new(async move {
            let mut tally = Tally::default();
            for index in order(start, shards) {
                let Some(wanted) = NonZeroU64::new(check.count().saturating_sub(tally.granted()))
                else {
                    break;
                };
                match store.check(part_of(&check, index, wanted)).await {
                    Ok(decision) => tally.add(decision),
                    Err(error) if tally.granted() == 0 => return Err(error),
                    Err(error) => {
                        tracing::debug!(%error, shard = index, "a shard failed after others have granted");
                        tally.cut_short();
                        break;
                    }
                }
            }
            let decision = tally.conclude(&check);
            if decision.source == Source::DenialCache {
                observer.call_saved(SavedBy::DenialCache);
            }
            Ok(decision)
        })
    }

    /// # Errors
    ///
    /// The first one of the store; then the remaining shards are left as they are.
    ///
    /// # Cancel safety
    ///
    /// A future that is dropped before it is ready may or may not have changed any of the shards.
    fn adjust(&self, adjustment: Adjustment) -> AdjustFuture {
        if adjustment.shards() == NonZeroU8::MIN {
            return self.store.adjust(adjustment);
        }
        let store = self.parts.clone();
        let changes = Changes::new(adjustment, fastrand::u8(..));
        AdjustFuture::new(changes.carry_out(store))
    }

    fn node(&self, tag: &str) -> usize {
        self.store.node(tag)
    }

    fn keys(&self) -> KeySpace {
        self.store.keys()
    }
}

impl<S: fmt::Debug> fmt::Debug for Shards<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Shards")
            .field("store", &self.store)
            .finish()
    }
}

/// Into how many parts a bucket of this quota is split.
fn parts(quota: &Quota, shards: NonZeroU8) -> NonZeroU8 {
    quota.parts(shards, 1)
}

/// How many of the first shards have a part of everything that can deny the check.
fn usable(check: &Check) -> NonZeroU8 {
    let enforcing = check.charges().len() - check.shadow();
    check.charges()[..enforcing]
        .iter()
        .map(|charge| parts(&charge.limit.quota, check.shards()))
        .min()
        .unwrap_or(check.shards())
}

/// Every shard once, from `start` on.
fn order(start: u8, shards: NonZeroU8) -> impl Iterator<Item = u8> {
    (start..shards.get()).chain(0..start)
}

/// What is asked of one shard.
fn part_of(check: &Check, index: u8, wanted: NonZeroU64) -> Check {
    let shards = check.shards();
    let split = |charge: &Charge| {
        let quota = charge.limit.quota;
        let part = quota.part(index, parts(&quota, shards));
        Charge {
            key: charge.key.shard(index),
            limit: Limit {
                name: charge.limit.name.clone(),
                // Only a limit in shadow is asked for where it has no part.
                quota: part.unwrap_or_else(|| quota.share(shards.get().into(), 1)),
            },
            cost: charge.cost,
        }
    };
    check
        .map_charges(split)
        .with_count(wanted)
        .with_shards(NonZeroU8::MIN)
}
