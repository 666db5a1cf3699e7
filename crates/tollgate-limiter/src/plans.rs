//! Plans, kept from one request of a tenant to the next.

use std::{
    hash::{Hash, Hasher},
    ops::Deref,
    sync::{Arc, Weak},
};

use foldhash::quality::RandomState;
use quick_cache::{Equivalent, UnitWeighter, sync::Cache};
use tollgate_core::Tenant;
use tollgate_quota::{Account, Quotas};

use crate::plan::{Plan, Takes};

/// So many are expected at first: a limiter of few tenants shall not pay for many.
const EXPECTED: usize = 1_024;

/// Plans of the tenants that were seen last, each for as long as the quotas and the account are those that it
/// was made from: a request of a tenant in use makes no keys, and allocates nothing for its plan.
pub(crate) struct Plans {
    kept: Cache<Key, Arc<KeptPlan>, UnitWeighter, RandomState>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Key {
    tenant: Tenant,
    takes: Takes,
}

/// A [`Key`] to look for.
struct Wanted<'a> {
    tenant: &'a Tenant,
    takes: &'a Takes,
}

/// A plan, and what it was made from. That is not kept alive, and as long as it is known here, nothing else is
/// at its address.
#[derive(Debug)]
pub(crate) struct KeptPlan {
    quotas: Weak<Quotas>,
    account: Option<Weak<Account>>,
    plan: Plan,
}

impl Plans {
    /// Keeps at most `max` plans, of about 500 bytes each for one limit.
    pub(crate) fn new(max: usize) -> Self {
        let (weighter, hasher) = (UnitWeighter, RandomState::default());
        Self {
            kept: Cache::with(
                max.min(EXPECTED),
                max as u64,
                weighter,
                hasher,
                Default::default(),
            ),
        }
    }

    /// The plan of `tenant` for a request that takes so much, made by `make` unless it is here.
    pub(crate) fn get(
        &self,
        quotas: &Arc<Quotas>,
        tenant: &Tenant,
        account: Option<&Arc<Account>>,
        takes: Takes,
        make: impl FnOnce(&Takes) -> Plan,
    ) -> Arc<KeptPlan> {
        let wanted = Wanted {
            tenant,
            takes: &takes,
        };
        if let Some(kept) = self.kept.get(&wanted)
            && kept.is_of(quotas, account)
        {
            return kept;
        }
        let kept = Arc::new(KeptPlan {
            quotas: Arc::downgrade(quotas),
            account: account.map(Arc::downgrade),
            plan: make(&takes),
        });
        let tenant = tenant.clone();
        self.kept.insert(Key { tenant, takes }, kept.clone());
        kept
    }
}

impl KeptPlan {
    fn is_of(&self, quotas: &Arc<Quotas>, account: Option<&Arc<Account>>) -> bool {
        let ours = self.account.as_ref().map(Weak::as_ptr);
        self.quotas.as_ptr() == Arc::as_ptr(quotas) && ours == account.map(Arc::as_ptr)
    }
}

// === impl KeptPlan ===

impl Deref for KeptPlan {
    type Target = Plan;

    fn deref(&self) -> &Plan {
        &self.plan
    }
}

// === impl Key ===

impl Hash for Key {
    fn hash<H: Hasher>(&self, state: &mut H) {
        let Self { tenant, takes } = self;
        Wanted { tenant, takes }.hash(state);
    }
}

// === impl Wanted ===

impl Hash for Wanted<'_> {
    fn hash<H: Hasher>(&self, state: &mut H) {
        // Whatever there may be many of.
        state.write(self.tenant.id().as_bytes());
        self.tenant.members().hash(state);
        self.takes.hash(state);
    }
}

impl Equivalent<Key> for Wanted<'_> {
    fn equivalent(&self, key: &Key) -> bool {
        *self.tenant == key.tenant && *self.takes == key.takes
    }
}

#[cfg(test)]
mod tests;
