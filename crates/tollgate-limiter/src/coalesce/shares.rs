//! What each of several checks gets from the answer to one call.

use tollgate_core::{Decision, Verdict, Wait};

/// Splits the answer to a call that asked for several checks of the same charges at once into the answers that
/// each of them would have had, asked one by one in this order at the same instant.
///
/// First come, first served: each takes as many of the granted as it wants, while they last. It is told the
/// tokens left after its own charge, which still hold what those behind it were charged; and it is told to wait
/// only if it did not get all it wanted, and then until one more fits after all that was granted.
///
/// None of the charges may be in shadow: of how many of the granted such a charge was made, the answer does
/// not tell.
pub(super) fn shares(
    whole: &Decision,
    counts: impl Iterator<Item = u64>,
) -> impl Iterator<Item = Decision> {
    let mut left = whole.granted;
    counts.map(move |count| {
        let granted = count.min(left);
        left -= granted;
        share(whole, granted, left, granted == count)
    })
}

/// The answer to one that gets `granted`, before others get `left`.
fn share(whole: &Decision, granted: u64, left: u64, is_served: bool) -> Decision {
    let mut own = whole.clone();
    own.granted = granted;
    own.verdict = if granted > 0 {
        Verdict::Allowed
    } else {
        Verdict::Denied
    };
    for limit in &mut own.limits {
        let taken_behind = limit.cost.tokens().saturating_mul(left);
        limit.remaining = limit
            .remaining
            .map(|remaining| remaining.saturating_add(taken_behind));
        if is_served {
            limit.wait = Wait::None;
        }
    }
    own
}

#[cfg(test)]
mod tests {
    use std::num::NonZeroU64;

    use proptest::{collection::vec, prelude::*};
    use tollgate_core::{
        Bucket, Charge, Check, Cost, KeySpace, Limit, LimitName, Quota, Tenant, bucket,
    };

    use super::*;

    fn check(limits: &[(u64, f64, u64)], count: u64) -> Check {
        let charges = limits
            .iter()
            .enumerate()
            .map(|(i, &(capacity, rate, cost))| {
                let name = LimitName::new(&format!("l{i}")).expect("a name");
                let tenant = Tenant::new("42", "pro").expect("an id");
                Charge {
                    key: KeySpace::default().bucket(&tenant, &name),
                    limit: Limit {
                        name,
                        quota: Quota::new(capacity, rate).expect("a quota"),
                    },
                    cost: Cost::try_from(cost).expect("a cost"),
                }
            });
        let check = Check::new(charges.collect()).expect("a check");
        check.with_count(NonZeroU64::new(count).expect("from 1"))
    }

    proptest! {
        #[test]
        fn shares_are_what_each_would_have_got_alone(
            limits in vec((1_u64..60, 0.01_f64..50.0, 0_u64..12), 1..4),
            spent in 0_u64..60,
            later in 0_u64..2_000,
            counts in vec(prop_oneof![4 => Just(1_u64), 1 => 1_u64..20], 1..20),
        ) {
            let mut buckets: Vec<Option<Bucket>> = vec![None; limits.len()];
            if spent > 0 {
                let _ = bucket::decide(check(&limits, spent), &mut buckets, 1_000);
            }
            let now = 1_000 + later;
            let all = counts.iter().sum();
            let whole = bucket::decide(check(&limits, all), &mut buckets.clone(), now);
            for (count, share) in counts.iter().zip(shares(&whole, counts.iter().copied())) {
                let plain = bucket::decide(check(&limits, *count), &mut buckets, now);
                prop_assert_eq!(share, plain);
            }
        }
    }
}
