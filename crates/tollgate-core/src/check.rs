//! What is asked of a store.

#![expect(
    clippy::disallowed_types,
    reason = "a deadline is kept here, and only read by those who have a runtime's clock"
)]

use std::{
    fmt,
    num::{NonZeroU8, NonZeroU64},
    sync::Arc,
    time::Instant,
};

use smallvec::{SmallVec, smallvec};

use crate::{BucketKey, Cost, Decision, Limit, LimitDecision, Source, Verdict, Wait};

/// The most buckets that one check may name.
pub const MAX_CHARGES: usize = 8;

/// Tokens that a request takes from one bucket.
#[derive(Clone, Debug)]
pub struct Charge {
    /// The bucket.
    pub key: BucketKey,
    /// Its name and quota.
    pub limit: Limit,
    /// The tokens that one request takes.
    pub cost: Cost,
}

/// One request's charges: up to 8 buckets under one hash tag, decided all or none. Clones are cheap.
#[derive(Clone, Debug)]
pub struct Check {
    terms: Arc<Terms>,
    count: NonZeroU64,
    deadline: Option<Instant>,
}

/// What is the same for all requests of this kind.
#[derive(Clone, Debug)]
struct Terms {
    /// Mostly one, and then here: each place in memory that a check has to look at counts where there are many
    /// tenants.
    charges: SmallVec<[Charge; 1]>,
    shadow: usize,
    leased: bool,
    shards: NonZeroU8,
    key_class: Option<Arc<str>>,
}

impl Check {
    /// A check of one request against all of `charges`.
    ///
    /// # Errors
    ///
    /// If there are no charges or more than 8, if two name the same bucket, or if their keys have
    /// different hash tags.
    pub fn new(charges: Vec<Charge>) -> Result<Self, InvalidCheck> {
        let Some((first, rest)) = charges.split_first() else {
            return Err(InvalidCheck::NoCharges);
        };
        if charges.len() > MAX_CHARGES {
            return Err(InvalidCheck::TooManyCharges(charges.len()));
        }
        if rest
            .iter()
            .any(|charge| charge.key.tag() != first.key.tag())
        {
            return Err(InvalidCheck::DifferentTags);
        }
        let repeats = |(i, charge): (usize, &Charge)| {
            charges[..i].iter().any(|other| other.key == charge.key)
        };
        if charges.iter().enumerate().any(repeats) {
            return Err(InvalidCheck::RepeatedBucket);
        }
        Ok(Self::of(charges.into()))
    }

    /// A check of one request against one bucket.
    #[must_use]
    pub fn single(charge: Charge) -> Self {
        Self::of(smallvec![charge])
    }

    fn of(charges: SmallVec<[Charge; 1]>) -> Self {
        Self {
            terms: Arc::new(Terms {
                charges,
                shadow: 0,
                leased: false,
                shards: NonZeroU8::MIN,
                key_class: None,
            }),
            count: NonZeroU64::MIN,
            deadline: None,
        }
    }

    fn with(mut self, change: impl FnOnce(&mut Terms)) -> Self {
        change(Arc::make_mut(&mut self.terms));
        self
    }

    /// Asks for up to `count` requests of these costs at once.
    #[must_use]
    pub const fn with_count(mut self, count: NonZeroU64) -> Self {
        self.count = count;
        self
    }

    /// Makes the last `shadow` charges ones that never block.
    ///
    /// # Errors
    ///
    /// If there are fewer charges than that.
    pub fn with_shadow(self, shadow: usize) -> Result<Self, InvalidCheck> {
        if shadow > self.charges().len() {
            return Err(InvalidCheck::TooManyShadows);
        }
        Ok(self.with(|terms| terms.shadow = shadow))
    }

    /// Lets a stage claim tokens for more requests like this one ahead of time, and spend them from memory.
    #[must_use]
    pub fn with_lease(self, leased: bool) -> Self {
        self.with(|terms| terms.leased = leased)
    }

    /// Lets a stage split the buckets into so many parts under hash tags of their own.
    #[must_use]
    pub fn with_shards(self, shards: NonZeroU8) -> Self {
        self.with(|terms| terms.shards = shards)
    }

    /// Says which kind of tenant pays, for metrics of what stages do on the way.
    #[must_use]
    pub fn with_key_class(self, label: Arc<str>) -> Self {
        self.with(|terms| terms.key_class = Some(label))
    }

    /// Wants an answer by `deadline`, through all stages and stores. A store that has none by then fails.
    #[must_use]
    pub const fn with_deadline(mut self, deadline: Instant) -> Self {
        self.deadline = Some(deadline);
        self
    }

    /// Wants an answer however late.
    #[must_use]
    pub const fn without_deadline(mut self) -> Self {
        self.deadline = None;
        self
    }

    /// When an answer is of no use any more.
    #[must_use]
    pub const fn deadline(&self) -> Option<Instant> {
        self.deadline
    }

    /// The charges, enforcing ones first.
    #[must_use]
    pub fn charges(&self) -> &[Charge] {
        &self.terms.charges
    }

    /// How many requests are wanted.
    #[must_use]
    pub const fn count(&self) -> u64 {
        self.count.get()
    }

    /// How many of the last charges never block.
    #[must_use]
    pub fn shadow(&self) -> usize {
        self.terms.shadow
    }

    /// Whether tokens may be claimed ahead of time.
    #[must_use]
    pub fn is_leased(&self) -> bool {
        self.terms.leased
    }

    /// Into how many parts the buckets may be split.
    #[must_use]
    pub fn shards(&self) -> NonZeroU8 {
        self.terms.shards
    }

    /// The metric label of the tenant's kind; empty if nobody has said.
    #[must_use]
    pub fn key_class(&self) -> &str {
        self.terms.key_class.as_deref().unwrap_or_default()
    }

    /// The hash tag that all keys share.
    #[must_use]
    pub fn tag(&self) -> &str {
        self.terms.charges[0].key.tag()
    }

    /// The decision that grants `granted` of the wanted requests. `states` gives remaining tokens and wait
    /// of each charge, in order; what it leaves out is unknown.
    #[must_use]
    pub fn decide(
        &self,
        granted: u64,
        source: Source,
        states: impl IntoIterator<Item = (u64, Wait)>,
    ) -> Decision {
        let verdict = if granted > 0 {
            Verdict::Allowed
        } else {
            Verdict::Denied
        };
        self.conclude(verdict, granted, source, states)
    }

    /// The same check with other quotas: what `change` makes of each limit and its key.
    #[must_use]
    pub fn map_charges(&self, change: impl FnMut(&Charge) -> Charge) -> Self {
        let charges = self.charges().iter().map(change).collect();
        self.clone().with(|terms| terms.charges = charges)
    }

    /// The part of this check whose charges are `wanted`. `None` if there are none.
    #[must_use]
    pub fn filter(&self, mut wanted: impl FnMut(&Charge) -> bool) -> Option<Self> {
        let enforcing = self.charges().len() - self.shadow();
        let mut shadow = 0;
        let mut charges = Vec::with_capacity(self.charges().len());
        for (i, charge) in self.charges().iter().enumerate() {
            if wanted(charge) {
                shadow += usize::from(i >= enforcing);
                charges.push(charge.clone());
            }
        }
        (!charges.is_empty()).then(|| {
            self.clone().with(|terms| {
                terms.charges = charges.into();
                terms.shadow = shadow;
            })
        })
    }

    /// The decision of a policy that had no answer from the store and has no numbers of its own.
    #[must_use]
    pub fn decide_blindly(&self, verdict: Verdict) -> Decision {
        let granted = if verdict == Verdict::Allowed {
            self.count()
        } else {
            0
        };
        self.conclude(verdict, granted, Source::Fallback, [])
    }

    fn conclude(
        &self,
        verdict: Verdict,
        granted: u64,
        source: Source,
        states: impl IntoIterator<Item = (u64, Wait)>,
    ) -> Decision {
        let enforcing = self.charges().len() - self.shadow();
        let mut states = states.into_iter();
        let limits = self.charges().iter().enumerate().map(|(i, charge)| {
            let (remaining, wait) = states
                .next()
                .map_or((None, Wait::None), |(r, wait)| (Some(r), wait));
            LimitDecision {
                name: charge.limit.name.clone(),
                quota: Some(charge.limit.quota),
                cost: charge.cost,
                remaining,
                wait,
                shadow: i >= enforcing,
            }
        });
        Decision {
            verdict,
            granted,
            source,
            limits: limits.collect(),
        }
    }
}

/// Charges that do not make a check.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum InvalidCheck {
    /// Nothing is charged.
    NoCharges,
    /// More than [`MAX_CHARGES`].
    TooManyCharges(usize),
    /// Two charges name the same bucket.
    RepeatedBucket,
    /// The keys would live in different slots of a cluster.
    DifferentTags,
    /// More shadow charges than charges.
    TooManyShadows,
}

impl fmt::Display for InvalidCheck {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoCharges => f.write_str("a check needs at least one charge"),
            Self::TooManyCharges(given) => {
                write!(f, "{given} charges in one check; at most {MAX_CHARGES}")
            }
            Self::RepeatedBucket => f.write_str("two charges of one check name the same bucket"),
            Self::DifferentTags => f.write_str("the charges of one check must share one hash tag"),
            Self::TooManyShadows => f.write_str("more shadow charges than charges"),
        }
    }
}

impl std::error::Error for InvalidCheck {}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{KeySpace, LimitName, Quota, Tenant};

    fn charge(tenant: &str, limit: &str) -> Charge {
        let tenant = Tenant::new(tenant, "pro").expect("an id");
        let name = LimitName::new(limit).expect("a name");
        let key = KeySpace::default().bucket(&tenant, &name);
        Charge {
            key,
            limit: Limit {
                name,
                quota: Quota::new(1, 1).expect("a quota"),
            },
            cost: Cost::ONE,
        }
    }

    #[test]
    fn charges_share_a_tag_and_are_distinct() {
        assert!(Check::new(vec![charge("a", "x"), charge("a", "y")]).is_ok());
        let refused = |charges| Check::new(charges).expect_err("refused");
        assert_eq!(refused(vec![]), InvalidCheck::NoCharges);
        assert_eq!(
            refused(vec![charge("a", "x"), charge("b", "x")]),
            InvalidCheck::DifferentTags
        );
        assert_eq!(
            refused(vec![charge("a", "x"), charge("a", "y"), charge("a", "x")]),
            InvalidCheck::RepeatedBucket
        );
        let nine = (0..9).map(|i| charge("a", &format!("l{i}"))).collect();
        assert_eq!(refused(nine), InvalidCheck::TooManyCharges(9));
        let shadowed = Check::single(charge("a", "x")).with_shadow(2);
        assert_eq!(shadowed.expect_err("refused"), InvalidCheck::TooManyShadows);
    }
}
