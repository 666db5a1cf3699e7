//! What is granted, and what it takes.

#![expect(clippy::disallowed_types, reason = "a deadline is such an instant")]

use std::time::{Duration, Instant};

use super::{
    Harness,
    bench::{Bench, FROZEN, Verdict, all, count, ensure, quota, remaining, several, wait},
};
use crate::{Charge, ChargeState, Check, MAX_CHARGES, MAX_TOKENS, Wait};

pub(super) async fn missing_is_full<H: Harness>(bench: &Bench<'_, H>) -> Verdict {
    for (id, capacity, rate) in [
        ("a", 10, FROZEN),
        ("b", 1, "1/d"),
        ("c", MAX_TOKENS, "1000000/s"),
    ] {
        let charge = bench.charge(id, "default", quota(capacity, rate), 0);
        // Reading does not make it less so.
        for _ in 0..2 {
            let tokens = bench.tokens(&charge).await?;
            ensure!(tokens == capacity, "{tokens} of {capacity}");
        }
    }
    Ok(())
}

pub(super) async fn capacity_exactly<H: Harness>(bench: &Bench<'_, H>) -> Verdict {
    let one = bench.charge("one by one", "default", quota(7, FROZEN), 1);
    for left in (0..7).rev() {
        let decision = bench.ask(Check::single(one.clone())).await?;
        ensure!(
            decision.is_allowed() && remaining(&decision) == [left],
            "{left} should be left after this: {decision:?}"
        );
    }
    let denied = bench.ask(Check::single(one)).await?;
    ensure!(!denied.is_allowed(), "an eighth of 7 was admitted");
    // Also where the rate is no round number.
    for rate in ["1/h", "7/9h", "0.001/3s", "1/3d"] {
        for capacity in [1, 3, 10, 999] {
            let id = format!("{capacity} at {rate}");
            let charge = bench.charge(&id, "default", quota(capacity, rate), 1);
            let check = Check::single(charge).with_count(count(capacity + 1));
            let granted = bench.ask(check).await?.granted;
            ensure!(granted == capacity, "{granted} of {id}");
        }
    }
    Ok(())
}

pub(super) async fn free_only_reads<H: Harness>(bench: &Bench<'_, H>) -> Verdict {
    let charge = |cost| bench.charge("", "default", quota(5, FROZEN), cost);
    bench.take(&charge(3)).await?;
    for left in [2, 0] {
        for wanted in [1, 4] {
            let check = Check::single(charge(0)).with_count(count(wanted));
            let decision = bench.ask(check).await?;
            ensure!(
                decision.granted == wanted && remaining(&decision) == [left],
                "{wanted} requests of cost 0 at {left} tokens: {decision:?}"
            );
        }
        if left > 0 {
            bench.take(&charge(left)).await?;
        }
    }
    Ok(())
}

pub(super) async fn denial_costs_nothing<H: Harness>(bench: &Bench<'_, H>) -> Verdict {
    let charge = |cost| bench.charge("", "default", quota(10, FROZEN), cost);
    bench.take(&charge(8)).await?;
    for _ in 0..5 {
        let denied = bench.ask(Check::single(charge(3))).await?;
        ensure!(
            !denied.is_allowed() && remaining(&denied) == [2],
            "3 of 2 tokens: {denied:?}"
        );
        wait(&denied)?;
    }
    let left = bench.tokens(&charge(0)).await?;
    ensure!(left == 2, "{left} of 2 tokens are left after 5 denials");
    bench.take(&charge(2)).await
}

/// With the tight limit at each place.
pub(super) async fn all_or_none<H: Harness>(bench: &Bench<'_, H>) -> Verdict {
    for tight in 0..MAX_CHARGES {
        let charge = |i| {
            let capacity = if i == tight { 2 } else { 10 };
            bench.charge(
                &tight.to_string(),
                &format!("l{i}"),
                quota(capacity, FROZEN),
                2,
            )
        };
        let charges: Vec<Charge> = (0..MAX_CHARGES).map(charge).collect();
        let expected: Vec<u64> = (0..MAX_CHARGES)
            .map(|i| if i == tight { 0 } else { 8 })
            .collect();
        let allowed = bench.ask(several(charges.clone())).await?;
        ensure!(
            allowed.is_allowed() && remaining(&allowed) == expected,
            "all 8 have room for 2: {allowed:?}"
        );
        for _ in 0..3 {
            let denied = bench.ask(several(charges.clone())).await?;
            ensure!(
                !denied.is_allowed(),
                "limit {tight} of 8 has no room: {denied:?}"
            );
            let waits = denied.limits.iter().map(|it| it.wait != Wait::None);
            ensure!(
                waits.eq((0..MAX_CHARGES).map(|i| i == tight)),
                "only limit {tight} has to wait: {denied:?}"
            );
        }
        for (charge, expected) in charges.iter().zip(&expected) {
            let left = bench.tokens(charge).await?;
            ensure!(
                left == *expected,
                "{left} instead of {expected} are left of {} after denials by limit {tight} of 8",
                charge.limit.name
            );
        }
    }
    Ok(())
}

pub(super) async fn as_many_as_fit<H: Harness>(bench: &Bench<'_, H>) -> Verdict {
    let charge = |limit, capacity, cost| bench.charge("", limit, quota(capacity, FROZEN), cost);
    let both = || several(vec![charge("wide", 100, 1), charge("narrow", 10, 3)]);
    let some = bench.ask(both().with_count(count(5))).await?;
    ensure!(
        some.granted == 3 && remaining(&some) == [97, 1],
        "3 of 5 fit 10 tokens at 3 each: {some:?}"
    );
    ensure!(
        some.limits[0].wait == Wait::None,
        "the wide limit had room for all: {some:?}"
    );
    // For one more: two tokens, at one in an hour.
    let Wait::For(wait) = some.limits[1].wait else {
        return Err(format!("the narrow limit had no room for all: {some:?}"));
    };
    ensure!(
        (7_000..=7_201).contains(&wait.as_secs()),
        "one more fits in two hours: {some:?}"
    );
    let none = bench.ask(both().with_count(count(2))).await?;
    ensure!(
        none.granted == 0 && remaining(&none) == [97, 1],
        "none fits 1 token: {none:?}"
    );
    let all = Check::single(charge("wide", 100, 1)).with_count(count(97));
    let all = bench.ask(all).await?;
    ensure!(
        all.granted == 97 && remaining(&all) == [0] && all.limits[0].wait == Wait::None,
        "97 fit 97: {all:?}"
    );
    Ok(())
}

pub(super) async fn shadow<H: Harness>(bench: &Bench<'_, H>) -> Verdict {
    let charge = |limit, capacity| bench.charge("", limit, quota(capacity, FROZEN), 1);
    let check = |wanted| {
        let check = several(vec![charge("enforced", 10), charge("watched", 2)]);
        check
            .with_count(count(wanted))
            .with_shadow(1)
            .expect("one of two")
    };
    let allowed = bench.ask(check(5)).await?;
    ensure!(
        allowed.granted == 5 && remaining(&allowed) == [5, 0],
        "5 are granted, and the limit in shadow pays for 2: {allowed:?}"
    );
    ensure!(
        allowed.limits[0].wait == Wait::None && allowed.limits[1].wait != Wait::None,
        "only the limit in shadow lacked tokens: {allowed:?}"
    );
    let again = bench.ask(check(1)).await?;
    ensure!(
        again.granted == 1 && remaining(&again) == [4, 0],
        "an empty limit in shadow does not block: {again:?}"
    );
    let only = Check::single(bench.charge("only", "watched", quota(1, FROZEN), 3));
    let only = bench.ask(only.with_shadow(1).expect("one of one")).await?;
    ensure!(
        only.is_allowed() && remaining(&only) == [1],
        "a shadow alone allows, and what does not fit it is not paid: {only:?}"
    );
    // What the enforced limit denies, the one in shadow does not pay for.
    let charges = vec![
        bench.charge("denied", "enforced", quota(1, FROZEN), 2),
        bench.charge("denied", "watched", quota(9, FROZEN), 2),
    ];
    let denied = bench
        .ask(several(charges).with_shadow(1).expect("one of two"))
        .await?;
    ensure!(
        !denied.is_allowed() && remaining(&denied) == [1, 9],
        "2 never fit 1: {denied:?}"
    );
    Ok(())
}

pub(super) async fn never_fits<H: Harness>(bench: &Bench<'_, H>) -> Verdict {
    let small = |cost| bench.charge("", "small", quota(5, FROZEN), cost);
    let large = |cost| bench.charge("", "large", quota(50, FROZEN), cost);
    for _ in 0..2 {
        let denied = bench.ask(several(vec![small(6), large(6)])).await?;
        ensure!(
            !denied.is_allowed() && denied.limits[0].wait == Wait::Never,
            "6 never fit 5: {denied:?}"
        );
        ensure!(
            remaining(&denied) == [5, 50],
            "nothing is taken: {denied:?}"
        );
    }
    // The same for a bucket that exists.
    bench.take(&small(1)).await?;
    let denied = bench.ask(Check::single(small(6))).await?;
    ensure!(
        denied.limits[0].wait == Wait::Never && remaining(&denied) == [4],
        "6 never fit 5: {denied:?}"
    );
    let left = bench.tokens(&large(0)).await?;
    ensure!(left == 50, "{left} of 50 are left of the other limit");
    bench.take(&small(4)).await
}

pub(super) async fn side_by_side<H: Harness>(bench: &Bench<'_, H>) -> Verdict {
    const CAPACITY: u64 = 100;
    let own = |i: usize| bench.charge("", &format!("own{}", i % 4), quota(1_000, FROZEN), 1);
    let shared = bench.charge("", "shared", quota(CAPACITY, FROZEN), 1);
    // One bucket that all want, and next to it one of four others.
    let calls = (0..300).map(|i| bench.start(several(vec![shared.clone(), own(i)])));
    let mut granted = 0;
    for answer in all(calls.collect()).await {
        granted += answer.map_err(|error| error.to_string())?.granted;
    }
    ensure!(granted == CAPACITY, "{granted} of {CAPACITY} were admitted");
    let mut paid = 0;
    for i in 0..4 {
        paid += 1_000_u64.saturating_sub(bench.tokens(&own(i)).await?);
    }
    ensure!(
        paid == CAPACITY,
        "{paid} were paid from the other limits for {CAPACITY} requests"
    );
    Ok(())
}

/// A store that knows the answer at once may give it. One that fails had no business to charge.
pub(super) async fn after_the_deadline<H: Harness>(bench: &Bench<'_, H>) -> Verdict {
    let charge = bench.charge("", "default", quota(10, FROZEN), 1);
    let mut left = 10;
    for _ in 0..3 {
        let now = Instant::now();
        let past = now.checked_sub(Duration::from_millis(1)).unwrap_or(now);
        match bench
            .start(Check::single(charge.clone()).with_deadline(past))
            .await
        {
            Ok(decision) => left -= decision.granted.min(1),
            Err(error) => ensure!(
                error.charge() == ChargeState::NotCharged,
                "the failure leaves open whether it was charged: {error}"
            ),
        }
    }
    // What was sent all the same arrives within this time, or never.
    bench.sleep(Duration::from_millis(50)).await;
    let tokens = bench.tokens(&charge).await?;
    ensure!(tokens == left, "{tokens} tokens are left instead of {left}");
    Ok(())
}

pub(super) async fn changed_quota<H: Harness>(bench: &Bench<'_, H>) -> Verdict {
    let charge = |capacity, cost| bench.charge("", "default", quota(capacity, FROZEN), cost);
    bench.take(&charge(10, 4)).await?;
    for (capacity, expected) in [(10, 6), (100, 6), (6, 6), (4, 4), (1, 1), (10, 6)] {
        let tokens = bench.tokens(&charge(capacity, 0)).await?;
        ensure!(
            tokens == expected,
            "{tokens} instead of {expected} of 6 tokens under a capacity of {capacity}"
        );
    }
    // What is taken under the smaller quota is gone under the larger one.
    bench.take(&charge(4, 1)).await?;
    let tokens = bench.tokens(&charge(10, 0)).await?;
    ensure!(tokens == 3, "{tokens} instead of 3 are left after 1 of 4");

    let flip = |i: u32, cost| {
        let (capacity, rate) = if i.is_multiple_of(2) {
            (20, FROZEN)
        } else {
            (40, "2/h")
        };
        bench.charge("flipping", "default", quota(capacity, rate), cost)
    };
    let mut admitted = 0;
    for i in 0..60 {
        admitted += bench.ask(Check::single(flip(i, 1))).await?.granted;
    }
    ensure!(
        admitted == 20,
        "{admitted} of 20 were admitted while the capacity flipped between 20 and 40"
    );
    // The rate is that of the check, not that of the write.
    let slow = bench.charge("rate", "default", quota(1_000, FROZEN), 1_000);
    bench.take(&slow).await?;
    let fast = bench.charge("rate", "default", quota(1_000, "10000/s"), 1_000);
    bench.sleep(Duration::from_millis(120)).await;
    bench.take(&fast).await
}
