//! Checks and adjustments in few words.

use tollgate_core::{Change, Charge, Check, Cost, KeySpace, Limit, LimitName, Quota, Tenant};

/// A quota of `capacity` tokens, refilled at a rate such as `"50/s"`.
///
/// # Panics
///
/// If there is no such quota.
#[must_use]
pub fn quota(capacity: u64, rate: &str) -> Quota {
    Quota::new(capacity, rate).expect("a quota")
}

/// A charge of `cost` for `tenant` under the limit `limit`.
///
/// # Panics
///
/// If a name or the cost is not valid.
#[must_use]
pub fn charge(tenant: &str, limit: &str, quota: Quota, cost: u64) -> Charge {
    let name = LimitName::new(limit).expect("a name for a limit");
    let tenant = Tenant::new(tenant, "pro").expect("an id");
    Charge {
        key: KeySpace::default().bucket(&tenant, &name),
        limit: Limit { name, quota },
        cost: Cost::try_from(cost).expect("a cost"),
    }
}

/// A check of one request against the default limit of `tenant`.
#[must_use]
pub fn check(tenant: &str, quota: Quota, cost: u64) -> Check {
    Check::single(charge(tenant, "default", quota, cost))
}

/// A change of the bucket of `tenant` under the limit `limit`.
///
/// # Panics
///
/// If a name is not valid.
#[must_use]
pub fn change(tenant: &str, limit: &str, quota: Quota, delta: i64, floor: i64) -> Change {
    Change {
        key: charge(tenant, limit, quota, 0).key,
        quota,
        delta,
        floor,
    }
}
