//! What `token_bucket.lua` is called with.

use tollgate_core::Check;

/// The hash, the keys, `capacity rate cost` for each key, then `count` and `shadow` as far as they are not the
/// defaults.
pub(crate) fn of_check(sha: &str, check: &Check) -> Vec<String> {
    let charges = check.charges();
    let mut args = Vec::with_capacity(4 * charges.len() + 4);
    args.extend([sha.to_owned(), charges.len().to_string()]);
    args.extend(charges.iter().map(|charge| charge.key.to_string()));
    for charge in charges {
        let quota = &charge.limit.quota;
        args.push(quota.capacity().to_string());
        // The shortest decimal that reads back as the same double, never with an exponent.
        args.push(quota.rate().per_second().to_string());
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
