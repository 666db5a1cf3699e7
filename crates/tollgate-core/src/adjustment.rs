//! Tokens that go into buckets, or out of them, apart from a check.

#![expect(
    clippy::disallowed_types,
    reason = "a deadline is kept here, and only read by those who have a runtime's clock"
)]

use std::{fmt, num::NonZeroU8, sync::Arc, time::Instant};

use crate::{BucketKey, Check, Decision, MAX_CHARGES, MAX_TOKENS, Quota};

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
    /// known.
    #[must_use]
    pub fn give_back(check: &Check, decision: &Decision, count: u64) -> Option<Self> {
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
