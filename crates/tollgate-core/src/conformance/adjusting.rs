//! What is given back, or taken after the fact.

#![expect(clippy::disallowed_types, reason = "a deadline is such an instant")]

use std::time::{Duration, Instant};

use super::{
    Harness,
    bench::{Bench, FROZEN, Verdict, change, ensure, quota, remaining, wait},
};
use crate::{Adjustment, Charge, ChargeState, Check, MAX_CHARGES};

pub(super) async fn give_back<H: Harness>(bench: &Bench<'_, H>) -> Verdict {
    let charge = |cost| bench.charge("", "default", quota(10, FROZEN), cost);
    bench.take(&charge(8)).await?;
    for (delta, expected) in [(3, 5), (0, 5), (100, 10), (1, 10)] {
        let tokens = bench.change(vec![change(&charge(0), delta, 0)]).await?;
        ensure!(
            tokens == [expected],
            "{tokens:?} instead of {expected} after {delta} were given back"
        );
    }
    bench.take(&charge(10)).await?;
    let missing = bench.charge("missing", "default", quota(10, FROZEN), 0);
    let tokens = bench.change(vec![change(&missing, 5, 0)]).await?;
    ensure!(
        tokens == [10],
        "{tokens:?} in a full bucket of 10 that was given 5"
    );
    Ok(())
}

pub(super) async fn take_out<H: Harness>(bench: &Bench<'_, H>) -> Verdict {
    let charge = bench.charge("", "default", quota(10, FROZEN), 1);
    for (delta, floor, expected) in [
        (-4, 0, 6),
        (-100, 2, 2),
        // Below its floor already: it keeps what it has.
        (-100, 5, 2),
        (-2, 0, 0),
        (-100, 0, 0),
        (-3, -7, -3),
        (-100, -7, -7),
        (-1, 0, -7),
        (4, 0, -3),
        (5, 0, 2),
    ] {
        let tokens = bench.change(vec![change(&charge, delta, floor)]).await?;
        ensure!(
            tokens == [expected],
            "{tokens:?} instead of {expected} after {delta} down to {floor}"
        );
        let seen = bench.tokens(&charge).await?;
        let expected = u64::try_from(expected).unwrap_or(0);
        ensure!(
            seen == expected,
            "a check sees {seen} tokens instead of {expected}"
        );
    }
    Ok(())
}

pub(super) async fn debt<H: Harness>(bench: &Bench<'_, H>) -> Verdict {
    let quota = quota(10, "50/s");
    let charge = bench.charge("", "default", quota, 1);
    let tokens = bench.change(vec![change(&charge, -20, -10)]).await?;
    ensure!(tokens == [-10], "{tokens:?} instead of a debt of 10");
    // 220 ms to pay it off, and for one more.
    let denied = bench.timed(Check::single(charge.clone())).await?;
    if denied.answer.is_allowed() {
        // The machine stalled for longer than that.
        return Ok(());
    }
    ensure!(
        remaining(&denied.answer) == [0],
        "no tokens are fewer than none: {:?}",
        denied.answer
    );
    let wait = wait(&denied.answer)?;
    bench.sleep(wait).await;
    let allowed = bench.timed(Check::single(charge)).await?;
    ensure!(
        allowed.answer.is_allowed(),
        "denied after the stated wait of {wait:?}: {:?}",
        allowed.answer
    );
    Ok(())
}

pub(super) async fn several<H: Harness>(bench: &Bench<'_, H>) -> Verdict {
    let charge = |i: usize| bench.charge("", &format!("l{i}"), quota(10, FROZEN), 5);
    let charges: Vec<Charge> = (0..MAX_CHARGES).map(charge).collect();
    let check = Check::new(charges.clone()).expect("a check");
    let allowed = bench.ask(check).await?;
    ensure!(allowed.is_allowed(), "5 of 10 were denied: {allowed:?}");
    let deltas = [3, -3, 0, 9, -9, 1, -1, 5];
    let expected = [8, 2, 5, 10, -2, 6, 4, 10];
    let changes = charges.iter().zip(deltas);
    let changes = changes.map(|(charge, delta)| change(charge, delta, -2));
    let tokens = bench.change(changes.collect()).await?;
    ensure!(tokens == expected, "{tokens:?} instead of {expected:?}");
    for (charge, expected) in charges.iter().zip(expected) {
        let left = bench.tokens(charge).await?;
        ensure!(
            left == u64::try_from(expected).unwrap_or(0),
            "{left} instead of {expected} in {}",
            charge.limit.name
        );
    }
    Ok(())
}

pub(super) async fn after_the_deadline<H: Harness>(bench: &Bench<'_, H>) -> Verdict {
    let charge = bench.charge("", "default", quota(10, FROZEN), 0);
    let now = Instant::now();
    let past = now.checked_sub(Duration::from_millis(1)).unwrap_or(now);
    let adjustment = Adjustment::new(vec![change(&charge, -4, 0)]).expect("an adjustment");
    let left = match bench.adjust(adjustment.with_deadline(past)).await {
        Ok(_) => 6,
        Err(error) => {
            ensure!(
                error.charge() == ChargeState::NotCharged,
                "the failure leaves open whether anything changed: {error}"
            );
            10
        }
    };
    // What was sent all the same arrives within this time, or never.
    bench.sleep(Duration::from_millis(50)).await;
    let tokens = bench.tokens(&charge).await?;
    ensure!(tokens == left, "{tokens} tokens are left instead of {left}");
    Ok(())
}
