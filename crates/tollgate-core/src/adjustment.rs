//! Tokens that go into buckets, or out of them, apart from a check.

#![expect(
    clippy::disallowed_types,
    reason = "a deadline is kept here, and only read by those who have a runtime's clock"
)]

use std::{fmt, num::NonZeroU8, sync::Arc, time::Instant};

use crate::{BucketKey, Check, Decision, MAX_CHARGES, MAX_TOKENS, Quota, Source};

/// What to do with one bucket.
#[derive(Clone, Debug, PartialEq)]
pub struct Change {
    /// The bucket.
    pub key: BucketKey,
    /// Its quota.
    pub quota: Quota,
    /// Tokens to add, up to the capacity; or to take out, if negative. At most 10^12 either way.
    pub delta: i64,
    /// Taking out stops at this many tokens, which may be below zero: a debt, that refills as any other
    /// bucket does. Of no effect on adding. At most 10^12 either way.
    pub floor: i64,
}

/// Changes of up to 8 buckets under one hash tag, made at once. Clones are cheap.
#[derive(Clone, Debug)]
pub struct Adjustment {
    changes: Arc<[Change]>,
    shards: NonZeroU8,
    deadline: Option<Instant>,
}

impl Adjustment {
    /// An adjustment of these buckets.
    ///
    /// # Errors
    ///
    /// If there are no changes or more than 8, if two name the same bucket, if their keys have different
    /// hash tags, or if a number is out of range.
    pub fn new(changes: Vec<Change>) -> Result<Self, InvalidAdjustment> {
        let Some((first, rest)) = changes.split_first() else {
            return Err(InvalidAdjustment::NoChanges);
        };
        if changes.len() > MAX_CHARGES {
            return Err(InvalidAdjustment::TooManyChanges(changes.len()));
        }
        if rest.iter().any(|it| it.key.tag() != first.key.tag()) {
            return Err(InvalidAdjustment::DifferentTags);
        }
        let repeats =
            |(i, it): (usize, &Change)| changes[..i].iter().any(|other| other.key == it.key);
        if changes.iter().enumerate().any(repeats) {
            return Err(InvalidAdjustment::RepeatedBucket);
        }
        let too_large = |number: i64| number.unsigned_abs() > MAX_TOKENS;
        if changes
            .iter()
            .any(|it| too_large(it.delta) || too_large(it.floor))
        {
            return Err(InvalidAdjustment::TooManyTokens);
        }
        Ok(Self {
            changes: changes.into(),
            shards: NonZeroU8::MIN,
            deadline: None,
        })
    }

    /// Gives back what `count` of the requests that `decision` granted for `check` have taken. `None` if that
    /// is nothing.
    ///
    /// A limit in shadow that lacked tokens is left alone: how many of the granted it was charged for is not
    /// known. A decision of the quotas or of a failure policy has taken nothing from a store.
    #[must_use]
    pub fn give_back(check: &Check, decision: &Decision, count: u64) -> Option<Self> {
        if matches!(decision.source, Source::Quota | Source::Fallback) {
            return None;
        }
        let charged = check.charges().iter().zip(&decision.limits);
        let changes = charged.filter_map(|(charge, limit)| {
            if limit.shadow && limit.lacked_tokens() {
                return None;
            }
            let tokens = charge
                .cost
                .tokens()
                .saturating_mul(count.min(decision.granted));
            let delta = i64::try_from(tokens.min(MAX_TOKENS)).ok()?;
            (delta > 0).then(|| Change {
                key: charge.key.clone(),
                quota: charge.limit.quota,
                delta,
                floor: 0,
            })
        });
        let adjustment = Self::new(changes.collect()).ok()?;
        Some(adjustment.with_shards(check.shards()))
    }

    /// Says that a stage splits the buckets into so many parts, as [`Check::with_shards`] does.
    #[must_use]
    pub const fn with_shards(mut self, shards: NonZeroU8) -> Self {
        self.shards = shards;
        self
    }

    /// Wants an answer by `deadline`. A store that has none by then fails.
    #[must_use]
    pub const fn with_deadline(mut self, deadline: Instant) -> Self {
        self.deadline = Some(deadline);
        self
    }

    /// When an answer is of no use any more.
    #[must_use]
    pub const fn deadline(&self) -> Option<Instant> {
        self.deadline
    }

    /// Into how many parts the buckets may be split.
    #[must_use]
    pub const fn shards(&self) -> NonZeroU8 {
        self.shards
    }

    /// The changes, at least one.
    #[must_use]
    pub fn changes(&self) -> &[Change] {
        &self.changes
    }

    /// The hash tag that all keys share.
    #[must_use]
    pub fn tag(&self) -> &str {
        self.changes[0].key.tag()
    }
}

/// Changes that do not make an adjustment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum InvalidAdjustment {
    /// Nothing is changed.
    NoChanges,
    /// More than [`MAX_CHARGES`].
    TooManyChanges(usize),
    /// Two changes name the same bucket.
    RepeatedBucket,
    /// The keys would live in different slots of a cluster.
    DifferentTags,
    /// A delta or a floor of more than 10^12 tokens either way.
    TooManyTokens,
}

impl fmt::Display for InvalidAdjustment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoChanges => f.write_str("an adjustment needs at least one change"),
            Self::TooManyChanges(given) => {
                write!(
                    f,
                    "{given} changes in one adjustment; at most {MAX_CHARGES}"
                )
            }
            Self::RepeatedBucket => {
                f.write_str("two changes of one adjustment name the same bucket")
            }
            Self::DifferentTags => {
                f.write_str("the changes of one adjustment must share one hash tag")
            }
            Self::TooManyTokens => {
                f.write_str("an adjustment is of at most 10^12 tokens either way")
            }
        }
    }
}

impl std::error::Error for InvalidAdjustment {}

#[cfg(test)]
mod tests {
    use std::num::NonZeroU64;

    use super::*;
    use crate::{Charge, Cost, KeySpace, Limit, LimitName, Tenant, Verdict, bucket};

    fn change(tenant: &str, limit: &str, delta: i64, floor: i64) -> Change {
        let tenant = Tenant::new(tenant, "pro").expect("an id");
        let name = LimitName::new(limit).expect("a name");
        Change {
            key: KeySpace::default().bucket(&tenant, &name),
            quota: Quota::new(10, 1).expect("a quota"),
            delta,
            floor,
        }
    }

    fn charge(limit: &str, cost: u32) -> Charge {
        let Change { key, quota, .. } = change("a", limit, 0, 0);
        let name = LimitName::new(limit).expect("a name");
        Charge {
            key,
            limit: Limit { name, quota },
            cost: Cost::new(cost),
        }
    }

    /// Three requests against `charges`, the last `shadow` of which are in shadow, and what fresh buckets say.
    fn decided(charges: Vec<Charge>, shadow: usize) -> (Check, Decision) {
        let mut buckets = vec![None; charges.len()];
        let check = Check::new(charges).expect("a check");
        let check = check.with_count(NonZeroU64::new(3).expect("not 0"));
        let check = check.with_shadow(shadow).expect("at most all");
        let decision = bucket::decide(&check, &mut buckets, 0);
        (check, decision)
    }

    /// Name and delta of each change.
    fn deltas(adjustment: &Adjustment) -> Vec<(&str, i64)> {
        let changes = adjustment.changes().iter();
        let name = |key: &'_ str| key.rfind(':').map_or(0, |colon| colon + 1);
        changes
            .map(|it| (&it.key.as_str()[name(it.key.as_str())..], it.delta))
            .collect()
    }

    #[test]
    fn changes_share_a_tag_and_are_distinct_and_in_range() {
        let most = MAX_TOKENS.cast_signed();
        let fine = vec![change("a", "x", most, -most), change("a", "y", -most, most)];
        let fine = Adjustment::new(fine).expect("an adjustment");
        assert_eq!((fine.tag(), fine.changes().len()), ("tenant:a", 2));
        let refused = |changes| Adjustment::new(changes).expect_err("refused");
        assert_eq!(refused(vec![]), InvalidAdjustment::NoChanges);
        assert_eq!(
            refused(vec![change("a", "x", 1, 0), change("b", "x", 1, 0)]),
            InvalidAdjustment::DifferentTags
        );
        assert_eq!(
            refused(vec![
                change("a", "x", 1, 0),
                change("a", "y", 1, 0),
                change("a", "x", 2, 0)
            ]),
            InvalidAdjustment::RepeatedBucket
        );
        let many = |count| {
            (0..count)
                .map(|i| change("a", &format!("l{i}"), 1, 0))
                .collect()
        };
        assert!(Adjustment::new(many(8)).is_ok());
        assert_eq!(refused(many(9)), InvalidAdjustment::TooManyChanges(9));
        for (delta, floor) in [
            (most + 1, 0),
            (-most - 1, 0),
            (i64::MIN, 0),
            (-1, most + 1),
            (-1, -most - 1),
            (-1, i64::MIN),
        ] {
            assert_eq!(
                refused(vec![change("a", "x", delta, floor)]),
                InvalidAdjustment::TooManyTokens,
                "{delta} {floor}"
            );
        }
    }

    #[test]
    fn what_was_granted_is_given_back_to_each_bucket_it_came_from() {
        let (check, decision) = decided(vec![charge("x", 4), charge("free", 0), charge("y", 1)], 0);
        assert_eq!(decision.granted, 2);
        let given = |count| Adjustment::give_back(&check, &decision, count);
        assert_eq!(deltas(&given(1).expect("one")), [("x", 4), ("y", 1)]);
        assert_eq!(deltas(&given(2).expect("both")), [("x", 8), ("y", 2)]);
        // No more than was granted, whatever is asked for.
        let most = given(u64::MAX).expect("both");
        assert_eq!(deltas(&most), [("x", 8), ("y", 2)]);
        assert!(given(0).is_none());
    }

    #[test]
    fn nothing_is_given_back_of_what_was_not_taken() {
        let (check, denied) = decided(vec![charge("x", 11)], 0);
        assert_eq!(denied.verdict, Verdict::Denied);
        assert!(Adjustment::give_back(&check, &denied, 1).is_none());
        let (check, free) = decided(vec![charge("x", 0)], 0);
        assert!(Adjustment::give_back(&check, &free, 1).is_none());
        // By a failure policy: the bucket in the store has paid nothing.
        let blind = check_of_one().decide_blindly(Verdict::Allowed);
        assert_eq!(blind.granted, 1);
        assert!(Adjustment::give_back(&check_of_one(), &blind, 1).is_none());
    }

    fn check_of_one() -> Check {
        Check::single(charge("x", 1))
    }

    #[test]
    fn a_shadow_limit_gets_back_what_it_surely_paid() {
        let (check, decision) = decided(
            vec![charge("x", 1), charge("roomy", 2), charge("tight", 4)],
            2,
        );
        assert_eq!(decision.granted, 3);
        let given = Adjustment::give_back(&check, &decision, 3).expect("three");
        assert_eq!(deltas(&given), [("x", 3), ("roomy", 6)]);
    }
}
