//! What the scripts of the buckets are called with.

use tollgate_core::{Adjustment, Charge, Check, Quota};

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

/// For `gather.lua`: the hash, all keys, then for each run of checks that [differ in their keys
/// only](differ_in_keys_only) how many they are, how many keys and arguments each has, and those.
pub(crate) fn of_checks<'a>(
    sha: &str,
    checks: impl Iterator<Item = &'a Check> + Clone,
) -> Vec<String> {
    let keys = checks.clone().map(|check| check.charges().len());
    let keys = keys.sum::<usize>();
    let mut args = Vec::with_capacity(keys + 8);
    args.extend([sha.to_owned(), keys.to_string()]);
    for check in checks.clone() {
        push_keys(&mut args, check);
    }
    let mut rest = checks.peekable();
    while let Some(first) = rest.next() {
        let mut run = 1;
        while rest.next_if(|it| differ_in_keys_only(it, first)).is_some() {
            run += 1;
        }
        args.extend([run.to_string(), first.charges().len().to_string()]);
        let length = args.len();
        args.push(String::new());
        push_arguments(&mut args, first);
        args[length] = (args.len() - length - 1).to_string();
    }
    args
}

/// Whether two checks are called with the same arguments.
pub(crate) fn differ_in_keys_only(a: &Check, b: &Check) -> bool {
    let same = |(a, b): (&Charge, &Charge)| a.limit.quota == b.limit.quota && a.cost == b.cost;
    a.charges().len() == b.charges().len()
        && a.count() == b.count()
        && a.shadow() == b.shadow()
        && a.charges().iter().zip(b.charges()).all(same)
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
