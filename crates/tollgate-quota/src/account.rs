//! What is configured for one tenant.

use std::{collections::HashMap, num::NonZeroU8, sync::Arc};

use tollgate_core::LimitName;

use crate::Allowance;

/// What is configured for one tenant beyond its tier: overrides, the tier itself, its home, and shards.
///
/// What it leaves out, something less specific decides.
#[derive(Clone, Debug, Default, PartialEq)]
#[non_exhaustive]
pub struct Account {
    /// The tier, instead of the key class that the tenant's identity brings.
    pub tier: Option<Arc<str>>,
    /// The region where it has its whole quotas, where there are several.
    pub home: Option<Arc<str>>,
    /// What single limits let this tenant spend, whatever its tier says.
    pub limits: HashMap<LimitName, Allowance>,
    /// Over how many parts its buckets are spread, for a tenant too hot for one slot of a cluster.
    pub shards: Option<NonZeroU8>,
    /// What its source needs to tell whether it has changed, such as an entity tag.
    pub version: Option<Arc<str>>,
}

impl Account {
    /// Adds what `other` says and this does not.
    pub fn fill_from(&mut self, other: &Self) {
        self.tier = self.tier.take().or_else(|| other.tier.clone());
        self.home = self.home.take().or_else(|| other.home.clone());
        self.shards = self.shards.or(other.shards);
        for (limit, allowance) in &other.limits {
            self.limits.entry(limit.clone()).or_insert(*allowance);
        }
    }
}
