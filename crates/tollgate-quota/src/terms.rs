//! What holds for one tenant.

use std::{
    num::NonZeroU8,
    sync::{Arc, LazyLock},
};

use tollgate_core::Tenant;

use crate::{Account, Allowance, DEFAULT_CLASS, LimitRule, Quotas, Regions};

/// What holds for one tenant, by all that is configured: see the table at [`Quotas`].
#[derive(Clone, Copy, Debug)]
pub struct Terms<'a> {
    quotas: &'a Quotas,
    tier: &'a str,
    /// The most weighty first.
    accounts: [Option<&'a Account>; 2],
    /// The region where they hold, where there are several.
    region: Option<&'a str>,
}

impl<'a> Terms<'a> {
    pub(crate) fn new(
        quotas: &'a Quotas,
        tenant: &'a Tenant,
        accounts: [Option<&'a Account>; 2],
    ) -> Self {
        let own = accounts
            .into_iter()
            .flatten()
            .find_map(|it| it.tier.as_deref());
        Self {
            quotas,
            tier: own.unwrap_or(tenant.key_class()),
            accounts,
            region: quotas.regions().map(Regions::own),
        }
    }

    /// What holds in another region.
    pub(crate) const fn seen_from(self, region: &'a str) -> Self {
        Self {
            region: Some(region),
            ..self
        }
    }

    /// What `limit` lets the tenant spend; in this region, where there are several.
    #[must_use]
    pub fn allowance(&self, limit: &LimitRule) -> Allowance {
        let mut overrides = self.accounts.iter().flatten();
        let own = overrides.find_map(|it| it.limits.get(&limit.name));
        // A limit that all share is not any tenant's to change.
        let own = own.filter(|_| !limit.scope.is_shared());
        let whole = own.or_else(|| limit.tiers.get(self.tier));
        let whole = whole.unwrap_or(&limit.allowance);
        match (self.quotas.regions(), self.region) {
            (Some(regions), Some(at)) => {
                let home = self.home().filter(|_| !limit.scope.is_shared());
                regions.allowance(at, home, whole)
            }
            _ => *whole,
        }
    }

    fn home(&self) -> Option<&'a str> {
        let mut all = self.accounts.into_iter().flatten();
        all.find_map(|it| it.home.as_deref())
    }

    /// Over how many parts the tenant's buckets are spread: as many as its account says, or fewer if one of its
    /// limits has no room in a part for what its most costly route takes. The same for all its requests.
    #[must_use]
    pub fn shards(&self) -> NonZeroU8 {
        let wanted = self.wanted_shards();
        let own = self.quotas.limits().iter().filter(|limit| limit.is_own());
        own.fold(wanted, |shards, limit| match self.allowance(limit) {
            Allowance::Limited(quota) if shards > NonZeroU8::MIN => {
                quota.parts(shards, limit.largest_own_cost())
            }
            _ => shards,
        })
    }

    /// As many as its account says.
    pub(crate) fn wanted_shards(&self) -> NonZeroU8 {
        let mut all = self.accounts.iter().flatten();
        all.find_map(|it| it.shards).unwrap_or(NonZeroU8::MIN)
    }

    /// The label of the tier for metrics: its name if it is configured, else [`DEFAULT_CLASS`]. So the set of
    /// label values is the configured one, whatever is in the tokens that callers bring.
    #[must_use]
    pub fn label(&self) -> Arc<str> {
        static DEFAULT: LazyLock<Arc<str>> = LazyLock::new(|| DEFAULT_CLASS.into());
        self.quotas.tiers.get(self.tier).unwrap_or(&DEFAULT).clone()
    }
}
