//! What the scripts of the buckets are called with.

use tollgate_core::{Adjustment, Check, Quota};

/// For `token_bucket.lua`: the hash, the keys, `capacity rate cost` for each key, then `count` and `shadow` as far as they are not the
/// defaults.
pub(crate) fn of_check(sha: &str, check: &Check) -> Vec<String> {
    let keys = check.charges().len();
    let mut args = Vec::with_capacity(4 * keys + 4);
    args.extend([sha.to_owned(), keys.to_string()]);
    push_keys(&mut args, check);
    push_arguments(&mut args, check);
    args
}

/// For `gather.lua`: the hash, all keys, then for each check how many keys and arguments it has, and those.
pub(crate) fn of_checks<'a>(
    sha: &str,
    checks: impl Iterator<Item = &'a Check> + Clone,
) -> Vec<String> {
    let keys = checks
        .clone()
        .map(|check| check.charges().len())
        .sum::<usize>();
    let mut args = Vec::with_capacity(8 * keys + 2);
    args.extend([sha.to_owned(), keys.to_string()]);
    for check in checks.clone() {
        push_keys(&mut args, check);
    }
    for check in checks {
        args.push(check.charges().len().to_string());
        let length = args.len();
        args.push(String::new());
        push_arguments(&mut args, check);
        args[length] = (args.len() - length - 1).to_string();
    }
    args
}

fn push_keys(args: &mut Vec<String>, check: &Check) {
    args.extend(check.charges().iter().map(|charge| charge.key.to_string()));
}

fn push_arguments(args: &mut Vec<String>, check: &Check) {
    for charge in check.charges() {
        args.extend(of_quota(&charge.limit.quota));
        args.push(charge.cost.tokens().to_string());
    }
    if check.count() != 1 || check.shadow() != 0 {
        args.push(check.count().to_string());
    }
    if check.shadow() != 0 {
        args.push(check.shadow().to_string());
    }
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
