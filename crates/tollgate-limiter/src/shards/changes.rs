//! One adjustment, spread over the shards.

use std::{num::NonZeroU8, sync::Arc};

use tollgate_core::{Adjustment, Change, ChargeState, MAX_TOKENS, Store, StoreError};

use super::parts;

/// An adjustment, and from which shard on it is spread.
pub(super) struct Changes {
    whole: Adjustment,
    start: u8,
}

impl Changes {
    pub(super) const fn new(whole: Adjustment, start: u8) -> Self {
        Self { whole, start }
    }

    /// Changes one shard after the other, and tells the tokens in all. Those of shards that were left alone
    /// are taken to be as full as the others.
    pub(super) async fn carry_out(self, store: Arc<dyn Store>) -> Result<Vec<i64>, StoreError> {
        let mut sums = vec![Sum::default(); self.whole.changes().len()];
        let mut changed = false;
        for index in 0..self.whole.shards().get() {
            let (places, changes): (Vec<_>, Vec<_>) = self.part(index).unzip();
            if changes.is_empty() {
                continue;
            }
            let writes = changes.iter().any(|change| change.delta != 0);
            let capacities: Vec<_> = changes.iter().map(|it| it.quota.capacity()).collect();
            let mut part = Adjustment::new(changes).expect("parts are in range as the whole is");
            if let Some(deadline) = self.whole.deadline() {
                part = part.with_deadline(deadline);
            }
            let tokens = match store.adjust(part).await {
                Ok(tokens) => tokens,
                Err(error) if changed => {
                    let kind = error.kind();
                    return Err(StoreError::new(kind, ChargeState::Unknown, error));
                }
                Err(error) => return Err(error),
            };
            changed |= writes;
            for ((place, tokens), capacity) in places.into_iter().zip(tokens).zip(capacities) {
                sums[place].tokens += tokens;
                sums[place].asked += capacity;
            }
        }
        let sums = self.whole.changes().iter().zip(sums);
        Ok(sums.map(|(change, sum)| sum.of_all(change)).collect())
    }

    /// What is to be done in shard `index`, each with its place in the whole.
    fn part(&self, index: u8) -> impl Iterator<Item = (usize, Change)> {
        let changes = self.whole.changes().iter().enumerate();
        changes.filter_map(move |(place, change)| {
            let parts = parts(&change.quota, self.whole.shards());
            let quota = change.quota.part(index, parts)?;
            let rank = rank(index, self.start, parts);
            let fills = u64::try_from(change.delta) == Ok(MAX_TOKENS);
            let delta = if fills {
                change.delta
            } else {
                share(change.delta, rank, parts)
            };
            // Nothing to do here, unless the change is there to look.
            (delta != 0 || change.delta == 0).then(|| {
                let part = Change {
                    key: change.key.shard(index),
                    quota,
                    delta,
                    floor: share(change.floor, rank, parts),
                };
                (place, part)
            })
        })
    }
}

/// Where `index` stands if one counts from `start` on and round.
fn rank(index: u8, start: u8, parts: NonZeroU8) -> u16 {
    let parts = u16::from(parts.get());
    (u16::from(index) + parts - u16::from(start) % parts) % parts
}

/// An even share of `tokens`, such that the shares of all ranks add up.
fn share(tokens: i64, rank: u16, parts: NonZeroU8) -> i64 {
    let parts = i64::from(parts.get());
    tokens.div_euclid(parts) + i64::from(i64::from(rank) < tokens.rem_euclid(parts))
}

#[derive(Clone, Default)]
struct Sum {
    tokens: i64,
    /// The capacity of the shards that were asked.
    asked: u64,
}

impl Sum {
    fn of_all(&self, change: &Change) -> i64 {
        let unasked = change.quota.capacity().saturating_sub(self.asked);
        let others =
            (i128::from(self.tokens) * i128::from(unasked)).div_euclid(self.asked.max(1).into());
        self.tokens
            .saturating_add(i64::try_from(others).unwrap_or(i64::MAX))
    }
}
