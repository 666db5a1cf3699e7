//! What a check costs while the circuit breaker is open, for each policy, beside a store in memory.
//!
//! ```text
//! cargo bench -p tollgate-tests --bench open_breaker
//! ```
//!
//! Prints medians over interleaved rounds.

use std::time::Duration;

use tokio::time::Instant;
use tollgate::{
    BreakerSettings, Cost, ErrorKind, FailurePolicy, Limiter, MemoryStore, Quota, Quotas, Store,
    StoreError, Tenant,
};
use tollgate_core::{AdjustFuture, Adjustment, ChargeState, Check, CheckFuture};

const ROUNDS: usize = 11;
const CHECKS: u32 = 20_000;

/// A store that is gone.
struct Gone;

impl Store for Gone {
    fn check(&self, _: Check) -> CheckFuture {
        let error = StoreError::new(ErrorKind::Io, ChargeState::NotCharged, "gone");
        CheckFuture::ready(Err(error))
    }

    fn adjust(&self, _: Adjustment) -> AdjustFuture {
        unreachable!("nothing is given back here")
    }
}

#[tokio::main(flavor = "current_thread")]
async fn main() {
    let variants = [
        (
            "memory store",
            limiter(MemoryStore::new(), FailurePolicy::Open),
        ),
        ("open", limiter(Gone, FailurePolicy::Open)),
        ("closed", limiter(Gone, FailurePolicy::Closed)),
        ("local", limiter(Gone, FailurePolicy::local(4))),
    ];
    let mut rounds = vec![Vec::new(); variants.len()];
    for _ in 0..ROUNDS {
        for ((_, limiter), times) in variants.iter().zip(&mut rounds) {
            times.push(round(limiter).await);
        }
    }
    println!("time of one check, median of {ROUNDS} rounds of {CHECKS} (least to most):");
    for ((name, _), mut times) in variants.into_iter().zip(rounds) {
        times.sort();
        let [least, median, most] = [0, ROUNDS / 2, ROUNDS - 1].map(|i| times[i]);
        println!("{name:<14}{median:>10.1?}  ({least:.1?} to {most:.1?})");
    }
}

fn limiter(store: impl Store, policy: FailurePolicy) -> Limiter {
    let mut breaker = BreakerSettings::default();
    // Once open, it stays open.
    breaker.cool_down = Duration::from_secs(3_600);
    let quotas = Quotas::new(Quota::new(1_000_000, "1000000/s").expect("a quota"));
    let builder = Limiter::builder(store).quotas(quotas).breaker(breaker);
    builder.on_store_failure(policy).build().expect("a limiter")
}

async fn round(limiter: &Limiter) -> Duration {
    let tenant = Tenant::new("42", "pro").expect("an id");
    let start = Instant::now();
    for _ in 0..CHECKS {
        std::hint::black_box(limiter.check(&tenant, Cost::ONE).await);
    }
    start.elapsed() / CHECKS
}
