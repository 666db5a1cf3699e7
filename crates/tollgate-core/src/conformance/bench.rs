//! What the rules are written with.

use std::{
    future::poll_fn,
    hash::{BuildHasher, RandomState},
    num::NonZeroU64,
    task::Poll,
    time::Duration,
};

use crate::{
    Adjustment, BucketKey, Change, Charge, Check, CheckFuture, Cost, Decision, KeySpace, Limit,
    LimitName, Quota, StoreError, Tenant, Wait, conformance::Harness,
};

/// What a rule has found out.
pub(super) type Verdict = Result<(), String>;

/// Fails the rule unless this holds.
macro_rules! ensure {
    ($holds:expr, $($found:tt)+) => {{
        let holds: bool = $holds;
        if !holds {
            return Err(format!($($found)+));
        }
    }};
}
pub(super) use ensure;

/// So slow that a rule that takes a minute sees no refill, and a capacity of 1 000 fills within ten years.
pub(super) const FROZEN: &str = "1/h";

/// By so much a server's clock may differ from ours when both are read at once: each is read in whole
/// milliseconds.
pub(super) const BLUR: Duration = Duration::from_millis(3);

/// A place to try one rule at, with tenants of its own.
pub(super) struct Bench<'a, H> {
    harness: &'a H,
    keys: KeySpace,
    name: String,
}

/// An answer, and when it was made: between two readings of the clock.
pub(super) struct Timed<T> {
    pub(super) answer: T,
    pub(super) asked: Duration,
    pub(super) answered: Duration,
}

impl<T> Timed<T> {
    /// The time from the earlier answer to this one: at least, and at most.
    pub(super) fn since<U>(&self, earlier: &Timed<U>) -> (Duration, Duration) {
        let least = self.asked.saturating_sub(earlier.answered + BLUR);
        let most = self.answered.saturating_sub(earlier.asked) + BLUR;
        (least, most)
    }
}

/// A name that no other run has.
pub(super) fn draw() -> String {
    // Seeded at random, each time.
    format!("{:016x}", RandomState::new().hash_one(0))
}

impl<'a, H: Harness> Bench<'a, H> {
    pub(super) fn new(harness: &'a H, run: &str, rule: &str) -> Self {
        Self {
            harness,
            keys: harness.keys(),
            name: format!("conformance-{run}-{rule}"),
        }
    }

    pub(super) const fn keys(&self) -> &KeySpace {
        &self.keys
    }

    /// A tenant of this rule.
    pub(super) fn tenant(&self, id: &str) -> Tenant {
        Tenant::new(format!("{}{id}", self.name), "conformance").expect("not empty")
    }

    /// The bucket of `limit` for a tenant of this rule.
    pub(super) fn key(&self, id: &str, limit: &str) -> BucketKey {
        self.keys.bucket(&self.tenant(id), &name(limit))
    }

    /// A charge of `cost` against the limit `limit` of a tenant of this rule.
    pub(super) fn charge(&self, id: &str, limit: &str, quota: Quota, cost: u64) -> Charge {
        charge(self.key(id, limit), limit, quota, cost)
    }

    pub(super) async fn sleep(&self, time: Duration) {
        self.harness.sleep(time).await;
    }

    pub(super) fn start(&self, check: Check) -> CheckFuture {
        self.harness.store().check(check)
    }

    /// A decision, with a state for each charge.
    pub(super) async fn ask(&self, check: Check) -> Result<Decision, String> {
        let charges = check.charges().len();
        let decision = self.start(check).await.map_err(|error| error.to_string())?;
        let known = decision.limits.iter().filter_map(|it| it.remaining).count();
        ensure!(
            decision.limits.len() == charges && known == charges,
            "{known} states for {charges} charges in {decision:?}"
        );
        ensure!(
            decision.is_allowed() == (decision.granted > 0),
            "verdict and number of the granted differ in {decision:?}"
        );
        Ok(decision)
    }

    pub(super) async fn timed(&self, check: Check) -> Result<Timed<Decision>, String> {
        let asked = self.harness.now();
        let answer = self.ask(check).await?;
        let answered = self.harness.now();
        Ok(Timed {
            answer,
            asked,
            answered,
        })
    }

    /// The tokens of a bucket, without taking any.
    pub(super) async fn tokens(&self, charge: &Charge) -> Result<u64, String> {
        let free = Charge {
            cost: Cost::FREE,
            ..charge.clone()
        };
        let decision = self.ask(Check::single(free)).await?;
        ensure!(decision.is_allowed(), "a cost of 0 was denied");
        Ok(remaining(&decision)[0])
    }

    /// Takes the charge's cost, which has to fit.
    pub(super) async fn take(&self, charge: &Charge) -> Result<(), String> {
        let decision = self.ask(Check::single(charge.clone())).await?;
        ensure!(
            decision.is_allowed(),
            "{} of {} were denied: {decision:?}",
            charge.cost.tokens(),
            charge.limit.quota
        );
        Ok(())
    }

    pub(super) async fn change(&self, changes: Vec<Change>) -> Result<Vec<i64>, String> {
        let number = changes.len();
        let adjustment = Adjustment::new(changes).expect("an adjustment");
        let tokens = self
            .adjust(adjustment)
            .await
            .map_err(|error| error.to_string())?;
        ensure!(
            tokens.len() == number,
            "{number} buckets were adjusted, and the answer is {tokens:?}"
        );
        Ok(tokens)
    }

    pub(super) async fn adjust(&self, adjustment: Adjustment) -> Result<Vec<i64>, StoreError> {
        self.harness.store().adjust(adjustment).await
    }
}

pub(super) fn quota(capacity: u64, rate: &str) -> Quota {
    Quota::new(capacity, rate).expect("a quota")
}

pub(super) fn name(limit: &str) -> LimitName {
    LimitName::new(limit).expect("a name for a limit")
}

pub(super) fn charge(key: BucketKey, limit: &str, quota: Quota, cost: u64) -> Charge {
    Charge {
        key,
        limit: Limit {
            name: name(limit),
            quota,
        },
        cost: Cost::try_from(cost).expect("a cost"),
    }
}

/// The change of a charge's bucket.
pub(super) fn change(charge: &Charge, delta: i64, floor: i64) -> Change {
    Change {
        key: charge.key.clone(),
        quota: charge.limit.quota,
        delta,
        floor,
    }
}

pub(super) fn several(charges: Vec<Charge>) -> Check {
    Check::new(charges).expect("a check")
}

pub(super) fn count(count: u64) -> NonZeroU64 {
    NonZeroU64::new(count).expect("not 0")
}

pub(super) fn remaining(decision: &Decision) -> Vec<u64> {
    let limits = decision.limits.iter();
    limits.map(|it| it.remaining.unwrap_or(u64::MAX)).collect()
}

/// The first limit's wait. A limit that had room has none.
pub(super) fn wait(decision: &Decision) -> Result<Duration, String> {
    match decision.limits[0].wait {
        Wait::For(wait) => Ok(wait),
        other => Err(format!("the wait is {other:?} in {decision:?}")),
    }
}

/// Polls all of them together.
pub(super) async fn all(calls: Vec<CheckFuture>) -> Vec<Result<Decision, StoreError>> {
    let mut calls: Vec<_> = calls.into_iter().map(|call| (call, None)).collect();
    poll_fn(|cx| {
        let mut pending = false;
        for (call, answer) in calls.iter_mut().filter(|(_, answer)| answer.is_none()) {
            match std::pin::Pin::new(call).poll(cx) {
                Poll::Ready(ready) => *answer = Some(ready),
                Poll::Pending => pending = true,
            }
        }
        if pending {
            Poll::Pending
        } else {
            Poll::Ready(())
        }
    })
    .await;
    calls.into_iter().filter_map(|(_, answer)| answer).collect()
}
