//! Quotas that are split over regions.

use std::collections::BTreeSet;

use tollgate_core::InvalidQuota;

use super::Quotas;
use crate::{Allowance, Fault, LimitRule, Mode, Regions};

impl Quotas {
    /// The largest cost that anybody could pay to this limit: wherever a request arrives, or at a tenant's home.
    pub(super) fn largest_cost(&self, limit: &LimitRule) -> u64 {
        let Some(regions) = &self.regions else {
            return limit.largest_cost();
        };
        let homes: BTreeSet<_> = self
            .tenants
            .values()
            .filter_map(|it| it.home.as_deref())
            .collect();
        let homes = || homes.iter().filter(|_| !limit.scope.is_shared());
        let largest = |whole| {
            let cost = |at, home| regions.allowance(at, home, whole).largest_cost();
            let anywhere = regions.names().map(|at| cost(at, None)).min();
            let at_home = homes().map(|home| cost(*home, Some(*home))).max();
            anywhere.max(at_home)
        };
        limit.allowances().filter_map(largest).max().unwrap_or(0)
    }

    /// Words for where a largest cost holds.
    pub(super) const fn everywhere(&self) -> &'static str {
        if self.regions.is_some() {
            " in every region"
        } else {
            ""
        }
    }

    /// Regions that do not add up, and quotas of which a region would have less than a token. In all regions, so
    /// that the same quotas are refused or accepted in each.
    pub(super) fn check_split(&self, faults: &mut Vec<Fault>) {
        let mut tenants: Vec<_> = self.tenants.iter().collect();
        tenants.sort_by_key(|(id, _)| *id);
        let homes = || {
            tenants
                .iter()
                .filter_map(|(id, it)| Some((id, it.home.as_deref()?)))
        };
        let Some(regions) = &self.regions else {
            let problem = "there are no regions; list them with their shares in `regions`";
            let stray = homes().map(|(id, _)| Fault::new(["tenants", id, "home"], problem));
            faults.extend(stray);
            return;
        };
        let known = faults.len();
        regions.check(faults);
        for (id, home) in homes().filter(|(_, home)| !regions.contains(home)) {
            faults.push(Fault::new(["tenants", id, "home"], regions.unknown(home)));
        }
        if faults.len() > known {
            return;
        }
        for limit in self.limits.iter().filter(|limit| limit.mode != Mode::Off) {
            let name = limit.name.as_str();
            let mut add = |path: &[&str], home, whole| {
                faults.extend(
                    too_small(regions, home, whole).map(|problem| Fault::new(path, problem)),
                );
            };
            add(&["limits", name, "quota"], None, &limit.allowance);
            let mut tiers: Vec<_> = limit.tiers.iter().collect();
            tiers.sort_by_key(|(tier, _)| *tier);
            for (tier, whole) in tiers {
                add(&["tiers", tier, name], None, whole);
            }
            for (id, account) in &tenants {
                let home = account.home.as_deref();
                if let Some(whole) = account.limits.get(&limit.name) {
                    add(&["tenants", id, "limits", name], home, whole);
                } else if home.is_some() && !limit.scope.is_shared() {
                    let tier = account.tier.as_deref();
                    let whole = tier.and_then(|tier| limit.tiers.get(tier));
                    add(
                        &["tenants", id, "home"],
                        home,
                        whole.unwrap_or(&limit.allowance),
                    );
                }
            }
        }
    }
}

/// What is wrong with the part of a quota in one of the regions.
fn too_small(regions: &Regions, home: Option<&str>, whole: &Allowance) -> Option<String> {
    let Allowance::Limited(quota) = whole else {
        return None;
    };
    let mut parts = regions
        .names()
        .map(|at| (at, regions.part(at, home, quota)));
    let (at, invalid) = parts.find_map(|(at, part)| Some((at, part.err()?)))?;
    let problem = match invalid {
        InvalidQuota::Capacity(_) => format!(
            "is less than one token of {}; a capacity of {} would do, or a larger share",
            quota.capacity(),
            regions.least_capacity(at, home)
        ),
        invalid => format!("is no quota: {invalid}"),
    };
    Some(format!("the part of the region `{at}` {problem}"))
}
