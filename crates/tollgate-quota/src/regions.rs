//! One service in several regions, each with a store of its own.

use std::{collections::BTreeMap, ops::Range, sync::Arc};

use tollgate_core::{InvalidQuota, Quota};

use crate::{Allowance, Fault};

/// Shares are counted in whole numbers of this part, so that their sums are exact: 10^-9.
const WHOLE: u64 = 1_000_000_000;

/// The regions of a service, and which of them this process is in. Every quota is split over them, so that each
/// region decides by a store of its own, without asking another.
///
/// A tenant can have a home instead ([`Quotas::home_of`](crate::Quotas::home_of)): there it has its whole
/// quotas, but for what other regions keep for visitors ([`away`](Self::away)).
///
/// Over all regions together, `capacity + rate × T` holds for a quota as it does in one: capacities are split in
/// whole tokens, and the parts never hold more than the whole.
///
/// ```
/// use tollgate_core::Quota;
/// use tollgate_quota::{Quotas, Regions};
///
/// let regions = Regions::new("us").region("eu", 0.4).region("us", 0.6);
/// let quotas = Quotas::new(Quota::new(100, "10/s")?).in_regions(regions).home_of("acme", "eu");
/// # quotas.check()?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, PartialEq)]
#[must_use]
pub struct Regions {
    own: Arc<str>,
    shares: BTreeMap<Arc<str>, Shares>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Shares {
    share: f64,
    away: f64,
}

impl Regions {
    /// This process is in the region `own`, which is one of those that [`region`](Self::region) names.
    pub fn new(own: impl Into<Arc<str>>) -> Self {
        Self {
            own: own.into(),
            shares: BTreeMap::new(),
        }
    }

    /// A region, and its share of every quota whose tenant has no home: above 0, at most 1, of which nine decimals
    /// count. All shares together are at most 1. A second call for a region replaces the first.
    pub fn region(mut self, name: impl Into<Arc<str>>, share: f64) -> Self {
        self.shares.entry(name.into()).or_default().share = share;
        self
    }

    /// What a tenant whose home is another region may spend in this one, as a share of its quotas, which its home
    /// has less: from 0, below 1. By default 0: it is denied everything there.
    pub fn away(mut self, name: impl Into<Arc<str>>, share: f64) -> Self {
        self.shares.entry(name.into()).or_default().away = share;
        self
    }

    /// The region that this process is in.
    #[must_use]
    pub fn own(&self) -> &str {
        &self.own
    }

    /// All regions.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.shares.keys().map(|name| &**name)
    }

    /// What a tenant may spend in the region `at`.
    pub(crate) fn allowance(&self, at: &str, home: Option<&str>, whole: &Allowance) -> Allowance {
        let Allowance::Limited(quota) = whole else {
            return *whole;
        };
        let part = match self.part(at, home, quota) {
            // Only a source says such a quota: what is written is checked. It is to work everywhere all the same.
            Err(InvalidQuota::Capacity(_)) => {
                let rate = quota.rate().per_second() * size(&self.slice(at, home));
                Quota::new(1, rate).ok()
            }
            part => part.ok().flatten(),
        };
        part.map_or(Allowance::Blocked, Allowance::Limited)
    }

    /// The part of a quota that the region `at` has; `None` if it keeps nothing for the tenant.
    ///
    /// An error if the part makes no quota: less than one token, or ten years to fill.
    pub(crate) fn part(
        &self,
        at: &str,
        home: Option<&str>,
        quota: &Quota,
    ) -> Result<Option<Quota>, InvalidQuota> {
        let slice = self.slice(at, home);
        if slice.is_empty() {
            return Ok(None);
        }
        // The parts end where the next ones start, so nothing is counted twice and no remainder gets lost.
        let tokens_to = |end| u128::from(quota.capacity()) * u128::from(end) / u128::from(WHOLE);
        let capacity = tokens_to(slice.end) - tokens_to(slice.start);
        let capacity = u64::try_from(capacity).expect("a part of a capacity");
        let rate = quota.rate().per_second() * size(&slice);
        Quota::new(capacity, rate).map(Some)
    }

    /// A capacity from which on the region `at` has a token of it. 0 if it never has.
    pub(crate) fn least_capacity(&self, at: &str, home: Option<&str>) -> u64 {
        let slice = self.slice(at, home);
        if slice.is_empty() {
            0
        } else {
            WHOLE.div_ceil(slice.end - slice.start)
        }
    }

    /// From where to where the region `at` has the quotas of a tenant: of [`WHOLE`].
    fn slice(&self, at: &str, home: Option<&str>) -> Range<u64> {
        // A home that is none of the regions, as a source may say, would leave the tenant nothing anywhere.
        let home = home.filter(|home| self.shares.contains_key(*home));
        let mut end = 0;
        for (name, shares) in &self.shares {
            let share = match home {
                Some(home) if home == &**name => continue,
                Some(_) => shares.away,
                None => shares.share,
            };
            let start = end;
            end += parts(share);
            if at == &**name {
                return start..end;
            }
        }
        match home {
            Some(home) if home == at => end.min(WHOLE)..WHOLE,
            _ => 0..0,
        }
    }

    /// What is wrong with the regions themselves.
    pub(crate) fn check(&self, faults: &mut Vec<Fault>) {
        let known = faults.len();
        if !self.shares.contains_key(&self.own) {
            faults.push(Fault::new(["region"], self.unknown(&self.own)));
        }
        for (name, Shares { share, away }) in &self.shares {
            let mut fault = |field: &str, problem: String| {
                faults.push(Fault::new(["regions", name, field], problem));
            };
            if name.is_empty() {
                fault("", "a region has a name".to_owned());
            }
            if !(*share > 0.0 && *share <= 1.0 && parts(*share) > 0) {
                fault(
                    "share",
                    format!("{share} is not a share of quotas, a number above 0 and at most 1"),
                );
            }
            if !(0.0..1.0).contains(away) {
                let problem =
                    format!("{away} is not a share of quotas, a number from 0 and below 1");
                fault("away", problem);
            }
        }
        if faults.len() > known {
            return;
        }
        let sum = self.sum(|_, shares| shares.share);
        if sum > WHOLE {
            let problem = format!(
                "the shares add up to {}, and there is no more than 1 to give away: lower some",
                size(&(0..sum))
            );
            faults.push(Fault::new(["regions"], problem));
        }
        for home in self.shares.keys() {
            let sum = self.sum(|name, shares| if name == &**home { 0.0 } else { shares.away });
            if sum >= WHOLE {
                let problem = format!(
                    "what is kept `away` from the home `{home}` adds up to {}, and leaves nothing there: lower it",
                    size(&(0..sum))
                );
                faults.push(Fault::new(["regions"], problem));
                return;
            }
        }
    }

    /// What is allowed, and hardly meant.
    pub(crate) fn warning(&self) -> Option<Fault> {
        let sum = self.sum(|_, shares| shares.share);
        // As many decimals as count leave thirds room.
        (sum + self.shares.len() as u64 <= WHOLE).then(|| {
            let problem = format!(
                "the shares add up to {}: nobody has the rest of each quota",
                size(&(0..sum))
            );
            Fault::new(["regions"], problem)
        })
    }

    /// Says that `name` is none of the regions.
    pub(crate) fn unknown(&self, name: &str) -> String {
        let known: Vec<_> = self.names().map(|it| format!("`{it}`")).collect();
        format!(
            "there is no region `{name}`; there are {}",
            known.join(", ")
        )
    }

    pub(crate) fn contains(&self, name: &str) -> bool {
        self.shares.contains_key(name)
    }

    fn sum(&self, share: impl Fn(&str, &Shares) -> f64) -> u64 {
        let shares = self.shares.iter();
        shares
            .map(|(name, shares)| parts(share(name, shares)))
            .sum()
    }
}

/// A share in parts of [`WHOLE`]; further decimals are cut, so that shares such as thirds never add up to more.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_precision_loss,
    clippy::cast_sign_loss,
    reason = "from 0 to 1, and further decimals do not count"
)]
fn parts(share: f64) -> u64 {
    // A thousandth makes up for what the nearest binary number may be below the decimal one.
    (share.clamp(0.0, 1.0) * WHOLE as f64 + 1e-3) as u64
}

#[expect(clippy::cast_precision_loss, reason = "far below 2^53")]
fn size(slice: &Range<u64>) -> f64 {
    (slice.end - slice.start) as f64 / WHOLE as f64
}

#[cfg(test)]
mod tests {
    use proptest::{collection::vec, prelude::*};

    use super::*;

    fn quota(capacity: u64, rate: f64) -> Quota {
        Quota::new(capacity, rate).expect("a quota")
    }

    fn regions(shares: &[(f64, f64)]) -> Regions {
        let names = ["ap", "eu", "sa", "us", "za"];
        let all = names.iter().zip(shares);
        all.fold(Regions::new("eu"), |regions, (name, (share, away))| {
            regions.region(*name, *share).away(*name, *away)
        })
    }

    fn capacities(regions: &Regions, home: Option<&str>, quota: &Quota) -> Vec<u64> {
        let part = |at| regions.part(at, home, quota);
        let capacity = |at| part(at).ok().flatten().map_or(0, |it| it.capacity());
        regions.names().map(capacity).collect()
    }

    #[test]
    fn decimal_shares_give_what_one_expects() {
        let two = regions(&[(0.57, 0.0), (0.43, 0.0)]);
        assert_eq!(capacities(&two, None, &quota(100, 1.0)), [57, 43]);
        let four = regions(&[(0.25, 0.0); 4]);
        assert_eq!(capacities(&four, None, &quota(10, 1.0)), [2, 3, 2, 3]);
        let third = 1.0 / 3.0;
        let thirds = regions(&[(third, 0.0); 3]);
        assert_eq!(capacities(&thirds, None, &quota(9, 1.0)), [2, 3, 3]);
        assert_eq!(thirds.warning(), None);
        let part = two.part("eu", None, &quota(100, 10.0));
        assert_eq!(part, Quota::new(43, 4.3).map(Some));
    }

    #[test]
    fn a_tenant_at_home_has_what_visitors_leave() {
        let none = regions(&[(0.5, 0.0), (0.5, 0.0)]);
        assert_eq!(capacities(&none, Some("eu"), &quota(7, 1.0)), [0, 7]);
        assert_eq!(none.part("ap", Some("eu"), &quota(7, 1.0)), Ok(None));
        let some = regions(&[(0.5, 0.1), (0.3, 0.05), (0.2, 0.02)]);
        assert_eq!(capacities(&some, Some("eu"), &quota(100, 1.0)), [10, 88, 2]);
        assert_eq!(capacities(&some, Some("sa"), &quota(100, 1.0)), [10, 5, 85]);
        // As if it had none.
        assert_eq!(
            capacities(&some, Some("mars"), &quota(100, 1.0)),
            [50, 30, 20]
        );
    }

    #[test]
    fn a_quota_of_a_source_that_is_too_small_still_works_everywhere() {
        let two = regions(&[(0.4, 0.0), (0.6, 0.0)]);
        let tiny = Allowance::Limited(quota(1, 1.0));
        let one = |rate| Allowance::Limited(quota(1, rate));
        assert_eq!(two.allowance("ap", None, &tiny), one(0.4));
        assert_eq!(two.allowance("eu", None, &tiny), one(0.6));
        assert_eq!(two.allowance("ap", Some("eu"), &tiny), Allowance::Blocked);
        for word in [Allowance::Blocked, Allowance::Unlimited] {
            assert_eq!(two.allowance("ap", Some("eu"), &word), word);
        }
    }

    /// Shares from 0 on that add up to 1, or to less.
    fn shares() -> impl Strategy<Value = Vec<f64>> {
        let decimals = prop::sample::select(vec![1.0, 10.0, 100.0, 1e5, 1e9, f64::INFINITY]);
        (vec(0.0..1.0, 1..=5), 0.2..1.0, any::<bool>(), decimals).prop_map(
            |(weights, part, all, decimals)| {
                let sum: f64 = weights.iter().sum::<f64>() / if all { 1.0 } else { part };
                let cut = |share: f64| match decimals.is_finite() {
                    true => (share * decimals).floor() / decimals,
                    false => share,
                };
                weights.iter().map(|it| cut(it / sum.max(1e-9))).collect()
            },
        )
    }

    proptest! {
        /// The bound of one quota over all regions: their parts never hold or refill more than the whole.
        #[test]
        fn all_regions_together_have_no_more_than_the_whole(
            shares in shares(),
            away in shares(),
            capacity in prop_oneof![1_u64..30, 1_u64..=1_000_000_000_000],
            rate in prop_oneof![1e-3..10.0, 1e3..1e6],
            home in prop::option::of(0_usize..5),
        ) {
            let away = away.into_iter().chain(std::iter::repeat(0.0));
            let shares: Vec<_> = shares.into_iter().zip(away).collect();
            let regions = regions(&shares);
            let Ok(whole) = Quota::new(capacity, rate) else { return Ok(()) };
            let home = home.and_then(|i| regions.names().nth(i));
            let parts: Vec<_> = regions.names().map(|at| regions.part(at, home, &whole)).collect();
            let parts: Vec<_> = parts.into_iter().filter_map(|it| it.ok().flatten()).collect();
            let capacities: u64 = parts.iter().map(Quota::capacity).sum();
            let rates: f64 = parts.iter().map(|it| it.rate().per_second()).sum();
            prop_assert!(capacities <= capacity, "{capacities} of {capacity}");
            prop_assert!(rates <= rate * (1.0 + 1e-12), "{rates} of {rate}");
            // Nobody lacks a whole token of its share.
            let small = |capacity| u32::try_from(capacity).map(f64::from).ok();
            let Some(capacity) = small(capacity).filter(|_| home.is_none()) else { return Ok(()) };
            for (at, (share, _)) in regions.names().zip(&shares) {
                if let Ok(Some(part)) = regions.part(at, None, &whole) {
                    let part = small(part.capacity()).expect("less than the whole");
                    prop_assert!((part - capacity * share).abs() < 1.0 + capacity * 5e-9);
                }
            }
        }

        #[test]
        fn the_least_capacity_gives_a_token(shares in shares()) {
            let all: Vec<_> = shares.iter().map(|share| (*share, 0.0)).collect();
            let regions = regions(&all);
            for at in regions.names() {
                let least = regions.least_capacity(at, None);
                if least > 0 {
                    prop_assert!(regions.part(at, None, &quota(least, 1e4)).is_ok_and(|it| it.is_some()));
                }
            }
        }
    }
}
