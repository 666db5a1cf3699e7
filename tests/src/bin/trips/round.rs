//! One variant under one traffic for about a second.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use fastrand::Rng;
use tokio::{
    task::{JoinSet, yield_now},
    time::{Instant, sleep_until},
};
use tollgate::{Cost, Limiter, RedisStore, Tenant, Verdict};

use crate::{
    BoxError,
    server::Server,
    traffic::{Amount, Traffic},
    variant::{Variant, tenant},
};

/// What one round has shown.
#[derive(Clone, Copy)]
pub(crate) struct Sample {
    pub(crate) requests: f64,
    pub(crate) rejected: f64,
    /// Calls of Redis, those that give leases back included.
    pub(crate) calls: f64,
    /// Processor time of Redis, in microseconds.
    pub(crate) cpu: f64,
    pub(crate) seconds: f64,
    /// The median of a request, in microseconds.
    pub(crate) latency: f64,
}

impl Sample {
    pub(crate) fn calls_per_request(&self) -> f64 {
        self.calls / self.requests
    }

    pub(crate) fn cpu_per_request(&self) -> f64 {
        self.cpu / self.requests
    }

    pub(crate) fn requests_per_second(&self) -> f64 {
        self.requests / self.seconds
    }
}

#[derive(Default)]
struct Tally {
    requests: u64,
    /// By tenant.
    admitted: Vec<u64>,
    latencies: Vec<Duration>,
}

/// Fails if a bound was exceeded, or a request failed.
pub(crate) async fn round(
    server: &mut Server,
    store: &RedisStore,
    traffic: &Traffic,
    variant: &Variant,
    length: Duration,
) -> Result<Sample, BoxError> {
    let ids: Vec<_> = (0..traffic.tenants).map(|_| fresh_id()).collect();
    let tenants: Result<Arc<[Tenant]>, _> = ids.iter().map(|id| tenant(id)).collect();
    let tenants = tenants?;
    let limiter = variant.limiter(store.clone(), traffic.quota, &ids, ())?;

    let drained_at = Instant::now();
    if traffic.drained {
        for tenant in &*tenants {
            drain(&limiter, tenant, traffic.quota.capacity()).await?;
        }
    }
    let before = server.usage()?;
    let start = Instant::now();
    let tally = load(&limiter, &tenants, traffic, start + length).await?;
    let end = Instant::now();
    limiter.shutdown().await;
    let after = server.usage()?;
    server.clear()?;

    // Nothing was leased at the start.
    let span = end - if traffic.drained { drained_at } else { start };
    for admitted in &tally.admitted {
        let spent_before = if traffic.drained {
            traffic.quota.capacity()
        } else {
            0
        };
        let bound = bound(traffic, span);
        if as_f64(admitted + spent_before) > bound {
            return Err(format!(
                "{} under {}: {admitted} admitted, and {spent_before} before, of at most {bound}",
                variant.name, traffic.name
            )
            .into());
        }
    }
    let admitted: u64 = tally.admitted.iter().sum();
    let requests = as_f64(tally.requests);
    let mut latencies = tally.latencies;
    latencies.sort_unstable();
    Ok(Sample {
        requests,
        rejected: requests - as_f64(admitted),
        calls: as_f64(after.calls - before.calls),
        cpu: after.cpu - before.cpu,
        seconds: (end - start).as_secs_f64(),
        latency: latencies[latencies.len() / 2].as_secs_f64() * 1e6,
    })
}

/// An id that no tenant had before.
pub(crate) fn fresh_id() -> String {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    format!("t{}", NEXT.fetch_add(1, Ordering::Relaxed))
}

async fn drain(limiter: &Limiter, tenant: &Tenant, capacity: u64) -> Result<(), BoxError> {
    // At once does not fit a split bucket.
    for _ in 0..capacity {
        if limiter.check(tenant, Cost::ONE).await.verdict != Verdict::Allowed {
            return Err("a full bucket has less than its capacity".into());
        }
    }
    Ok(())
}

/// `capacity + rate × T`, and a millisecond more, since a bucket tells time in whole ones.
fn bound(traffic: &Traffic, span: Duration) -> f64 {
    let rate = traffic.quota.rate().per_second();
    as_f64(traffic.quota.capacity()) + rate * (span.as_secs_f64() + 0.001)
}

async fn load(
    limiter: &Limiter,
    tenants: &Arc<[Tenant]>,
    traffic: &Traffic,
    until: Instant,
) -> Result<Tally, BoxError> {
    let asked = Arc::new(AtomicU64::new(0));
    let start = Instant::now();
    let mut clients = JoinSet::new();
    for client in 0..traffic.clients {
        let (limiter, tenants, asked) = (limiter.clone(), tenants.clone(), asked.clone());
        let (draw, amount) = (traffic.draw(), traffic.amount);
        let mut due = traffic.every.map(|every| {
            let own = u32::try_from(client).expect("few clients");
            let all = u32::try_from(traffic.clients).expect("few clients");
            (start + every * own / all, every)
        });
        clients.spawn(async move {
            // The same choices for each variant.
            let mut rng = Rng::with_seed(client);
            let mut tally = Tally {
                admitted: vec![0; tenants.len()],
                ..Tally::default()
            };
            loop {
                if let Some((at, every)) = &mut due {
                    sleep_until(*at).await;
                    *at += *every;
                }
                let is_over = match amount {
                    Amount::Time => Instant::now() >= until,
                    Amount::Requests(most) => asked.fetch_add(1, Ordering::Relaxed) >= most,
                };
                if is_over {
                    return Ok(tally);
                }
                let tenant = draw(&mut rng);
                let sent = Instant::now();
                let decision = limiter.check(&tenants[tenant], Cost::ONE).await;
                tally.latencies.push(sent.elapsed());
                tally.requests += 1;
                match decision.verdict {
                    Verdict::Allowed => tally.admitted[tenant] += 1,
                    Verdict::Denied => {}
                    Verdict::Unavailable => return Err("a check failed"),
                }
                // An answer from memory does not wait for anything, and each request would be another task.
                yield_now().await;
            }
        });
    }
    let mut sum = Tally {
        admitted: vec![0; tenants.len()],
        ..Tally::default()
    };
    while let Some(tally) = clients.join_next().await {
        let tally = tally??;
        sum.requests += tally.requests;
        sum.latencies.extend(tally.latencies);
        for (sum, admitted) in sum.admitted.iter_mut().zip(tally.admitted) {
            *sum += admitted;
        }
    }
    Ok(sum)
}

#[expect(clippy::cast_precision_loss, reason = "far below 2^53")]
pub(crate) fn as_f64(count: u64) -> f64 {
    count as f64
}
