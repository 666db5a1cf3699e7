//! Which stages stand before the store.

use std::{num::NonZeroU8, time::Duration};

use tollgate::{
    FailurePolicy, LeaseSettings, LimitName, LimitRule, Limiter, Observer, Quota, Quotas,
    RedisStore, Tenant,
};

use crate::BoxError;

/// So long that a busy machine does not turn into an outage.
const DEADLINE: Duration = Duration::from_secs(5);

/// Some stages, on or off.
#[derive(Clone, Copy)]
pub(crate) struct Variant {
    pub(crate) name: &'static str,
    denial_cache: bool,
    coalescing: bool,
    leases: Option<LeaseSettings>,
    shards: NonZeroU8,
}

impl Variant {
    pub(crate) const fn plain() -> Self {
        Self {
            name: "plain",
            denial_cache: false,
            coalescing: false,
            leases: None,
            shards: NonZeroU8::MIN,
        }
    }

    pub(crate) const fn denial_cache() -> Self {
        Self {
            name: "denial cache",
            denial_cache: true,
            ..Self::plain()
        }
    }

    pub(crate) const fn coalescing() -> Self {
        Self {
            name: "coalescing",
            coalescing: true,
            ..Self::plain()
        }
    }

    pub(crate) const fn defaults() -> Self {
        Self {
            name: "both (default)",
            denial_cache: true,
            coalescing: true,
            ..Self::plain()
        }
    }

    pub(crate) const fn shards() -> Self {
        Self {
            name: "4 shards",
            shards: NonZeroU8::new(4).expect("not 0"),
            ..Self::plain()
        }
    }

    pub(crate) const fn shards_and_defaults() -> Self {
        Self {
            name: "4 shards and both",
            shards: Self::shards().shards,
            ..Self::defaults()
        }
    }

    pub(crate) const fn leases(name: &'static str, settings: LeaseSettings) -> Self {
        Self {
            name,
            leases: Some(settings),
            ..Self::plain()
        }
    }

    pub(crate) const fn leases_and_defaults(name: &'static str, settings: LeaseSettings) -> Self {
        Self {
            name,
            leases: Some(settings),
            ..Self::defaults()
        }
    }

    /// All that are compared, with leases of 50 requests.
    pub(crate) fn all() -> [Self; 8] {
        let mut fifty = LeaseSettings::default();
        fifty.largest_batch = 50;
        [
            Self::plain(),
            Self::denial_cache(),
            Self::coalescing(),
            Self::defaults(),
            Self::leases("leases of 50", fifty),
            Self::leases_and_defaults("leases of 50 and both", fifty),
            Self::shards(),
            Self::shards_and_defaults(),
        ]
    }

    /// A limiter that gives each of these tenants `quota`.
    pub(crate) fn limiter(
        &self,
        store: RedisStore,
        quota: Quota,
        tenants: &[String],
        observer: impl Observer,
    ) -> Result<Limiter, BoxError> {
        let mut rule = LimitRule::new(LimitName::default(), quota);
        if self.leases.is_some() {
            rule = rule.leased();
        }
        let mut quotas = Quotas::of(rule);
        if self.shards > NonZeroU8::MIN {
            for tenant in tenants {
                quotas = quotas.shards_of(tenant.as_str(), self.shards);
            }
        }
        let limiter = Limiter::builder(store)
            .quotas(quotas)
            .denial_cache(self.denial_cache)
            .coalescing(self.coalescing)
            .leases(self.leases.unwrap_or_default())
            .deadline(DEADLINE)
            .observer(observer)
            // So that what Redis did not answer is never taken for admitted.
            .on_store_failure(FailurePolicy::Closed)
            .build()?;
        Ok(limiter)
    }
}

pub(crate) fn tenant(id: &str) -> Result<Tenant, BoxError> {
    Ok(Tenant::new(id, "bench")?)
}
