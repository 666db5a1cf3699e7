//! What the scripts are called with.

use std::fmt::{Display, Write};

use fred::bytes::Bytes;
use tollgate_core::{Adjustment, Charge, Check, Quota};

/// Room for an argument that is not a key.
const NUMBER: usize = 12;

/// Words to a server, one after the other in one buffer: a string for each would take more time than all that is
/// done with it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Arguments {
    text: String,
    /// Where each ends.
    ends: Vec<usize>,
}

impl Arguments {
    /// The hash of a script, and room for so many words of so many bytes in all.
    pub(crate) fn of_script(sha: &str, words: usize, bytes: usize) -> Self {
        let mut args = Self {
            text: String::with_capacity(sha.len() + bytes),
            ends: Vec::with_capacity(1 + words),
        };
        args.push(sha);
        args
    }

    pub(crate) fn push(&mut self, word: &str) {
        self.text.push_str(word);
        self.ends.push(self.text.len());
    }

    pub(crate) fn push_number(&mut self, number: impl Display) {
        write!(self.text, "{number}").expect("a string takes all");
        self.ends.push(self.text.len());
    }

    #[cfg(any(test, feature = "redis-rs"))]
    pub(crate) fn iter(&self) -> impl Iterator<Item = &str> {
        self.ranges().map(|(start, end)| &self.text[start..end])
    }

    /// Parts of one buffer, none of them copied.
    pub(crate) fn into_bytes(self) -> impl Iterator<Item = Bytes> {
        let ranges: Vec<_> = self.ranges().collect();
        let text = Bytes::from(self.text);
        ranges
            .into_iter()
            .map(move |(start, end)| text.slice(start..end))
    }

    fn ranges(&self) -> impl Iterator<Item = (usize, usize)> {
        let starts = std::iter::once(0).chain(self.ends.iter().copied());
        starts.zip(self.ends.iter().copied())
    }
}

/// For `token_bucket.lua`: the hash, the keys, `capacity rate cost` for each key, then `count` and `shadow` as far as they are not the
/// defaults.
pub(crate) fn of_check(sha: &str, check: &Check) -> Arguments {
    let keys = check.charges().len();
    let words = 1 + keys + rest_len(check);
    let mut args = Arguments::of_script(
        sha,
        words,
        key_bytes(check) + NUMBER * (1 + rest_len(check)),
    );
    args.push_number(keys);
    push_keys(&mut args, check);
    push_rest(&mut args, check);
    args
}

/// For `gather.lua`: the hash, all keys, then for each run of checks that [differ in their keys
/// only](differ_in_keys_only) how many they are, how many keys and arguments each has, and those.
pub(crate) fn of_checks<'a>(
    sha: &str,
    checks: impl Iterator<Item = &'a Check> + Clone,
) -> Arguments {
    let (mut keys, mut bytes) = (0, 0);
    for check in checks.clone() {
        keys += check.charges().len();
        bytes += key_bytes(check);
    }
    // As a rule there is one run.
    let numbers = 16;
    let mut args = Arguments::of_script(sha, 1 + keys + numbers, bytes + NUMBER * numbers);
    args.push_number(keys);
    for check in checks.clone() {
        push_keys(&mut args, check);
    }
    let mut rest = checks.peekable();
    while let Some(first) = rest.next() {
        let mut run = 1;
        while rest.next_if(|it| differ_in_keys_only(it, first)).is_some() {
            run += 1;
        }
        args.push_number(run);
        args.push_number(first.charges().len());
        args.push_number(rest_len(first));
        push_rest(&mut args, first);
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

fn key_bytes(check: &Check) -> usize {
    let keys = check.charges().iter();
    keys.map(|charge| charge.key.as_str().len()).sum()
}

fn push_keys(args: &mut Arguments, check: &Check) {
    for charge in check.charges() {
        args.push(charge.key.as_str());
    }
}

/// How many arguments a check has beside its keys.
fn rest_len(check: &Check) -> usize {
    let has_shadow = check.shadow() != 0;
    let has_count = check.count() != 1 || has_shadow;
    3 * check.charges().len() + usize::from(has_count) + usize::from(has_shadow)
}

fn push_rest(args: &mut Arguments, check: &Check) {
    for charge in check.charges() {
        push_quota(args, &charge.limit.quota);
        args.push_number(charge.cost.tokens());
    }
    if check.count() != 1 || check.shadow() != 0 {
        args.push_number(check.count());
    }
    if check.shadow() != 0 {
        args.push_number(check.shadow());
    }
}

/// For `adjust.lua`: the hash, the keys, then `capacity rate delta floor` for each key.
pub(crate) fn of_adjustment(sha: &str, adjustment: &Adjustment) -> Arguments {
    let changes = adjustment.changes();
    let words = 1 + 5 * changes.len();
    let mut args = Arguments::of_script(sha, words, NUMBER * words);
    args.push_number(changes.len());
    for change in changes {
        args.push(change.key.as_str());
    }
    for change in changes {
        push_quota(&mut args, &change.quota);
        args.push_number(change.delta);
        args.push_number(change.floor);
    }
    args
}

fn push_quota(args: &mut Arguments, quota: &Quota) {
    args.push_number(quota.capacity());
    // The shortest decimal that reads back as the same double, never with an exponent.
    args.push_number(quota.rate().per_second());
}

#[cfg(test)]
mod tests {
    use std::num::NonZeroU64;

    use tollgate_core::{Cost, KeySpace, Limit, LimitName, Tenant};

    use super::*;

    fn check(tenant: &str, limits: &[&str]) -> Check {
        let tenant = Tenant::new(tenant, "pro").expect("an id");
        let charge = |name: &&str| {
            let name = LimitName::new(name).expect("a name");
            let quota = Quota::new(10, 0.5).expect("a quota");
            let key = KeySpace::default().bucket(&tenant, &name);
            Charge {
                key,
                limit: Limit { name, quota },
                cost: Cost::new(2),
            }
        };
        Check::new(limits.iter().map(charge).collect()).expect("a check")
    }

    fn words(args: &Arguments) -> Vec<String> {
        let words: Vec<_> = args.iter().map(str::to_owned).collect();
        let bytes = args.clone().into_bytes();
        assert_eq!(
            bytes.collect::<Vec<_>>(),
            words.iter().map(String::as_bytes).collect::<Vec<_>>()
        );
        words
    }

    #[test]
    fn a_check_names_its_keys_and_what_they_are_charged() {
        let args = of_check("f00", &check("42", &["a"]));
        let plain = ["f00", "1", "tg:{tenant:42}:a", "10", "0.5", "2"];
        assert_eq!(words(&args), plain);

        let count = NonZeroU64::new(3).expect("not 0");
        let counted = check("42", &["a"]).with_count(count);
        let args = of_check("f00", &counted);
        assert_eq!(words(&args)[6..], ["3"]);

        let shadowed = check("42", &["a", "b"]).with_shadow(1).expect("one of two");
        let args = of_check("f00", &shadowed);
        assert_eq!(
            words(&args)[4..],
            ["10", "0.5", "2", "10", "0.5", "2", "1", "1"]
        );
    }

    #[test]
    fn what_a_run_of_checks_has_in_common_is_named_once() {
        let shadowed = check("3", &["a"]).with_shadow(1).expect("one of one");
        let checks = [check("1", &["a"]), check("2", &["a"]), shadowed];
        let args = of_checks("f00", checks.iter());
        let keys = [
            "f00",
            "3",
            "tg:{tenant:1}:a",
            "tg:{tenant:2}:a",
            "tg:{tenant:3}:a",
        ];
        let first = ["2", "1", "3", "10", "0.5", "2"];
        let second = ["1", "1", "5", "10", "0.5", "2", "1", "1"];
        assert_eq!(words(&args), [&keys[..], &first, &second].concat());
    }
}
