//! What the scripts of the buckets are called with.

use tollgate_core::{Adjustment, Check, Quota};

/// For `token_bucket.lua`: the hash, the keys, `capacity rate cost` for each key, then `count` and `shadow` as far as they are not the
/// defaults.
pub(crate) fn of_check(sha: &str, check: &Check) -> Vec<String> {
    let charges = check.charges();
    let mut args = Vec::with_capacity(4 * charges.len() + 4);
    args.extend([sha.to_owned(), charges.len().to_string()]);
    args.extend(charges.iter().map(|charge| charge.key.to_string()));
    for charge in charges {
        args.extend(of_quota(&charge.limit.quota));
        args.push(charge.cost.tokens().to_string());
    }
    if check.count() != 1 || check.shadow() != 0 {
        args.push(check.count().to_string());
    }
    if check.shadow() != 0 {
        args.push(check.shadow().to_string());
    }
    args
}

/// For `adjust.lua`: the hash, the keys, then `capacity rate delta floor` for each key.
pub(crate) fn of_adjustment(sha: &str, adjustment: &Adjustment) -> Vec<String> {
    let changes = adjustment.changes();
    let mut args = Vec::with_capacity(5 * changes.len() + 2);
    args.extend([sha.to_owned(), changes.len().to_string()]);
    args.extend(changes.iter().map(|change| change.key.to_string()));
    for change in changes {
        args.extend(of_quota(&change.quota));
        args.extend([change.delta.to_string(), change.floor.to_string()]);
    }
    args
}

fn of_quota(quota: &Quota) -> [String; 2] {
    [
        quota.capacity().to_string(),
        // The shortest decimal that reads back as the same double, never with an exponent.
        quota.rate().per_second().to_string(),
    ]
}
