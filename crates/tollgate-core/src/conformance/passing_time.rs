//! What time brings.

use std::time::Duration;

use super::{
    Harness,
    bench::{BLUR, Bench, Timed, Verdict, count, ensure, quota, remaining, wait},
};
use crate::{Charge, Check, Cost, Decision, Quota, Wait};

/// Tokens refilled in `time`, not rounded.
fn refilled(quota: &Quota, time: Duration) -> f64 {
    quota.rate().per_second() * time.as_secs_f64()
}

/// Exact: no rule uses more than some thousands.
#[expect(clippy::cast_precision_loss, reason = "some thousands at most")]
fn number(tokens: u64) -> f64 {
    tokens as f64
}

async fn read<H: Harness>(
    bench: &Bench<'_, H>,
    charge: &Charge,
) -> Result<Timed<Decision>, String> {
    let free = Charge {
        cost: Cost::FREE,
        ..charge.clone()
    };
    bench.timed(Check::single(free)).await
}

pub(super) async fn refill<H: Harness>(bench: &Bench<'_, H>) -> Verdict {
    for (rate, pause) in [("500/s", 60), ("30/s", 150), ("7/0.1s", 40), ("2000/s", 25)] {
        let quota = quota(5_000, rate);
        let charge = bench.charge(rate, "default", quota, 4_000);
        bench.take(&charge).await?;
        let first = read(bench, &charge).await?;
        for _ in 0..3 {
            bench.sleep(Duration::from_millis(pause)).await;
            let later = read(bench, &charge).await?;
            let (least, most) = later.since(&first);
            let before = number(remaining(&first.answer)[0]);
            let tokens = number(remaining(&later.answer)[0]);
            let fewest = (before + refilled(&quota, least)).floor().min(5_000.0);
            let highest = (before + 1.0 + refilled(&quota, most)).min(5_000.0);
            ensure!(
                (fewest..=highest).contains(&tokens),
                "{tokens} instead of {fewest} to {highest} tokens, from {before} after {least:?} to {most:?} at {rate}"
            );
        }
    }
    Ok(())
}

pub(super) async fn refill_ends<H: Harness>(bench: &Bench<'_, H>) -> Verdict {
    let charge = |cost| bench.charge("", "default", quota(3, "200/s"), cost);
    for _ in 0..3 {
        bench.take(&charge(3)).await?;
        // Three times as long as it takes.
        bench.sleep(Duration::from_millis(45)).await;
        let tokens = bench.tokens(&charge(0)).await?;
        ensure!(
            tokens == 3,
            "{tokens} of 3 after three times the time to fill"
        );
    }
    // Much longer than any time to fill adds nothing, either.
    bench.sleep(Duration::from_millis(150)).await;
    let check = Check::single(charge(1)).with_count(count(100));
    let granted = bench.ask(check).await?.granted;
    ensure!(granted == 3, "{granted} at once from a capacity of 3");
    Ok(())
}

pub(super) async fn stated_wait<H: Harness>(bench: &Bench<'_, H>) -> Verdict {
    for (capacity, rate, cost) in [
        (2, "20/s", 1),
        (10, "70/s", 7),
        (3, "9/s", 1),
        (1, "300/s", 1),
    ] {
        let id = format!("{cost} of {capacity} at {rate}");
        let quota = quota(capacity, rate);
        let charge = bench.charge(&id, "default", quota, cost);
        for _ in 0..3 {
            // Until it is denied, which a machine that stalls may put off.
            let denied = loop {
                let decision = bench.ask(Check::single(charge.clone())).await?;
                if !decision.is_allowed() {
                    break decision;
                }
                ensure!(
                    decision.limits[0].wait == Wait::None,
                    "a wait after what was allowed: {decision:?}"
                );
            };
            let wait = wait(&denied)?;
            let longest = Duration::from_secs_f64(quota.seconds_for(cost)) + BLUR;
            ensure!(
                wait <= longest,
                "{id} tokens take at most {longest:?}, and the wait is {wait:?}"
            );
            bench.sleep(wait).await;
            let decision = bench.ask(Check::single(charge.clone())).await?;
            ensure!(
                decision.is_allowed(),
                "{id} was denied after the stated wait of {wait:?}: {decision:?}"
            );
        }
    }
    Ok(())
}

pub(super) async fn polling<H: Harness>(bench: &Bench<'_, H>) -> Verdict {
    // Four tokens take 160 ms, so that each poll finds a fraction of one more.
    let charge = bench.charge("", "default", quota(4, "25/s"), 4);
    let full = Duration::from_millis(160);
    let emptied = bench.timed(Check::single(charge.clone())).await?;
    ensure!(
        emptied.answer.is_allowed(),
        "a full bucket denied its capacity"
    );
    loop {
        bench.sleep(Duration::from_millis(5)).await;
        let poll = bench.timed(Check::single(charge.clone())).await?;
        let (least, most) = poll.since(&emptied);
        if poll.answer.is_allowed() {
            ensure!(
                most >= full,
                "allowed after {most:?} at most, instead of {full:?}"
            );
            return Ok(());
        }
        ensure!(
            least < full,
            "denied after at least {least:?}, while it takes {full:?} to fill: {:?}",
            poll.answer
        );
    }
}

pub(super) async fn long_run<H: Harness>(bench: &Bench<'_, H>) -> Verdict {
    let quota = quota(5, "150/s");
    let charge = bench.charge("", "default", quota, 1);
    let first = bench.timed(Check::single(charge.clone())).await?;
    let mut spent = first.answer.granted;
    for i in 0..60 {
        // Steps that are no multiple of the time for a token.
        bench.sleep(Duration::from_millis(1 + i % 7)).await;
        let check = Check::single(charge.clone()).with_count(count(1 + i % 3));
        let poll = bench.timed(check).await?;
        spent += poll.answer.granted;
        let (_, most) = poll.since(&first);
        let bound = 5.0 + refilled(&quota, most);
        ensure!(
            number(spent) <= bound,
            "{spent} were spent within {most:?}, which allows {bound:.1}"
        );
    }
    Ok(())
}
