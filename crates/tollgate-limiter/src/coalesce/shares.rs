//! What each of several checks gets from the answer to one call.

use tollgate_core::{Decision, Verdict, Wait};

/// Splits the answer to a call that asked for so many `checks` of the same charges at once into the answers that
/// each of them would have had, asked one by one in this order at the same instant.
///
/// First come, first served. Each granted one is told the tokens left after its own charge, which still hold what
/// those behind it were charged; and only the others are told to wait, until one more fits after all that was
/// granted.
///
/// None of the charges may be in shadow: of how many of the granted such a charge was made, the answer does
/// not tell.
pub(super) fn shares(whole: &Decision, checks: usize) -> impl Iterator<Item = Decision> {
    let mut left = whole.granted;
    (0..checks).map(move |_| {
        let is_granted = left > 0;
        left = left.saturating_sub(1);
        share(whole, is_granted, left)
    })
}

/// The answer to one check, before others get `left`.
fn share(whole: &Decision, is_granted: bool, left: u64) -> Decision {
    let mut own = whole.clone();
    own.granted = u64::from(is_granted);
    own.verdict = if is_granted {
        Verdict::Allowed
    } else {
        Verdict::Denied
    };
    for limit in &mut own.limits {
        let taken_behind = limit.cost.tokens().saturating_mul(left);
        limit.remaining = limit
            .remaining
            .map(|remaining| remaining.saturating_add(taken_behind));
        if is_granted {
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
            checks in 1_usize..20,
        ) {
            let mut buckets: Vec<Option<Bucket>> = vec![None; limits.len()];
            if spent > 0 {
                let _ = bucket::decide(&check(&limits, spent), &mut buckets, 1_000);
            }
            let now = 1_000 + later;
            let whole = bucket::decide(&check(&limits, checks as u64), &mut buckets.clone(), now);
            for share in shares(&whole, checks) {
                let plain = bucket::decide(&check(&limits, 1), &mut buckets, now);
                prop_assert_eq!(share, plain);
            }
        }
    }
}
