//! One of many that check against the same Redis, without HTTP. Started by `bench-scale`.
//!
//! ```text
//! bench-replica URL MILLISECONDS
//! ```
//!
//! Waits for a line on stdin, and prints: checks, and how many of the one tenant that all share were admitted.

use std::{
    io::stdin,
    time::{Duration, Instant},
};

use tokio::task::JoinSet;
use tollgate::{Cost, FailurePolicy, Limiter, Quota, Quotas, RedisStore, Tenant};
use tollgate_benches::{BoxError, SHARED, SHARED_CAPACITY, SHARED_RATE};

const TENANTS: u32 = 1_000;
const IN_FLIGHT: u32 = 8;

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), BoxError> {
    let args: Vec<_> = std::env::args().collect();
    let [_, url, millis] = args.as_slice() else {
        return Err("bench-replica URL MILLISECONDS".into());
    };
    let length = Duration::from_millis(millis.parse()?);
    let quotas = Quotas::new(Quota::new(1_000_000_000, 1_000_000)?)
        .tenant(SHARED, Quota::new(SHARED_CAPACITY, SHARED_RATE)?);
    // With so many processes on few cores, a check may wait for its turn longer than by default.
    let store = RedisStore::builder(url).strict(true).connect().await?;
    let limiter = Limiter::builder(store)
        .quotas(quotas)
        .deadline(Duration::from_secs(5))
        .on_store_failure(FailurePolicy::Closed)
        .build()?;
    println!("ready");
    stdin().read_line(&mut String::new())?;
    let start = Instant::now();
    let mut tasks = JoinSet::new();
    for number in 0..IN_FLIGHT {
        let limiter = limiter.clone();
        tasks.spawn(async move {
            let (mut checks, mut admitted, mut turn) = (0_u64, 0_u64, number * 7_919);
            let shared = Tenant::new(SHARED, "bench").expect("an id");
            while start.elapsed() < length {
                turn = turn.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                let other = format!("t{}", (turn >> 8) % TENANTS);
                let other = Tenant::new(other, "bench").expect("an id");
                checks += u64::from(limiter.check(&other, Cost::ONE).await.is_allowed());
                if number == 0 {
                    admitted += u64::from(limiter.check(&shared, Cost::ONE).await.is_allowed());
                }
            }
            (checks, admitted)
        });
    }
    let done = tasks.join_all().await.into_iter();
    let (checks, admitted) = done.fold((0, 0), |sum, it| (sum.0 + it.0, sum.1 + it.1));
    println!("{checks} {admitted}");
    Ok(())
}
