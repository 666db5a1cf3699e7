//! What a fleet of replicas admits beyond the plain bound in the worst span, and what it saves for that.
//!
//! Leases exceed the plain bound when a bucket refills while they are out, and everything is spent at once
//! then. So that is what happens here: steady traffic, so that each replica holds tokens; a pause, in which the
//! bucket refills; and a burst of more than there is.

use std::{
    sync::{
        Arc,
        atomic::{AtomicI64, Ordering::SeqCst},
    },
    time::Duration,
};

use tokio::{
    task::{JoinSet, yield_now},
    time::{Instant, sleep, sleep_until},
};
use tollgate::{Cost, LeaseSettings, Limiter, Observer, Quota, Tenant, Verdict};

use crate::{
    BoxError,
    round::{as_f64, fresh_id},
    server::Server,
    variant::{Variant, tenant},
};

const REPLICAS: usize = 4;
/// Of each replica, one every 5 ms: four fifths of the rate in all.
const STEADY: u32 = 240;
const EVERY: Duration = Duration::from_millis(5);
/// Shorter than a lease lives.
const PAUSE: Duration = Duration::from_millis(400);
/// Of each replica: more than its part of the capacity and of all leases.
const BURST: u32 = 480;
const AT_A_TIME: u32 = 16;

pub(crate) const CAPACITY: u64 = 1_000;
pub(crate) const RATE: u32 = 1_000;

/// A point of the plot.
pub(crate) struct Point {
    pub(crate) label: String,
    /// The share of requests that cost no call of Redis: the median.
    pub(crate) saved: f64,
    /// Tokens beyond the plain bound in the worst span: the most of all rounds.
    pub(crate) excess: f64,
}

/// An admitted request.
#[derive(Clone, Copy)]
struct Admitted {
    sent: Instant,
    answered: Instant,
}

/// The tokens that all replicas have leased.
#[derive(Default)]
struct Leased {
    now: AtomicI64,
    most: AtomicI64,
}

impl Observer for Leased {
    fn leased(&self, _: &str, tokens: i64) {
        let now = self.now.fetch_add(tokens, SeqCst) + tokens;
        self.most.fetch_max(now, SeqCst);
    }
}

#[derive(Default)]
struct Seen {
    requests: u64,
    admitted: Vec<Admitted>,
}

/// What the plot compares.
pub(crate) fn settings() -> Vec<(String, Variant)> {
    let exact = [
        Variant::plain(),
        Variant::denial_cache(),
        Variant::coalescing(),
        Variant::defaults(),
        Variant::shards_and_defaults(),
    ];
    let mut settings: Vec<_> = exact.map(|it| (it.name.to_owned(), it)).into();
    let lease = |label: &str, target: u64, share: f64| {
        let mut settings = LeaseSettings::default();
        settings.target = Duration::from_millis(target);
        settings.share = share;
        (label.to_owned(), settings)
    };
    let leases = [
        lease("leases, target 25 ms", 25, 0.1),
        lease("leases, target 50 ms", 50, 0.1),
        lease("leases, target 100 ms", 100, 0.1),
        lease("leases, target 500 ms, share 0.02", 500, 0.02),
        lease("leases, target 500 ms, share 0.05", 500, 0.05),
        lease("leases, target 500 ms, share 0.1 (default)", 500, 0.1),
        lease("leases, target 1 s, share 0.5", 1_000, 0.5),
    ];
    for (label, lease) in leases {
        settings.push((label, Variant::leases("leases", lease)));
    }
    let (_, default) = lease("", 500, 0.1);
    settings.push((
        "default leases and both".to_owned(),
        Variant::leases_and_defaults("leases and both", default),
    ));
    settings
}

/// The share of calls saved, and the excess, of one run. Fails if that is more than was ever leased.
pub(crate) async fn run(server: &mut Server, variant: &Variant) -> Result<(f64, f64), BoxError> {
    let quota = Quota::new(CAPACITY, f64::from(RATE))?;
    let id = fresh_id();
    let tenant = tenant(&id)?;
    let leased = Arc::new(Leased::default());
    let mut replicas = Vec::new();
    for _ in 0..REPLICAS {
        let store = server.store().await?;
        replicas.push(variant.limiter(store, quota, std::slice::from_ref(&id), leased.clone())?);
    }
    let before = server.usage()?;
    let mut seen = Seen::default();
    gather(&mut seen, replicas.iter().map(|it| steady(it, &tenant))).await?;
    sleep(PAUSE).await;
    let clients = replicas
        .iter()
        .flat_map(|it| (0..AT_A_TIME).map(|_| burst(it, &tenant)));
    gather(&mut seen, clients).await?;
    for replica in &replicas {
        replica.shutdown().await;
    }
    let calls = server.usage()?.calls - before.calls;
    server.clear()?;
    let saved = 1.0 - as_f64(calls) / as_f64(seen.requests);
    let excess = excess(&seen.admitted);
    let bound = as_f64(leased.most.load(SeqCst).unsigned_abs());
    // Whatever was out at the start of the worst span.
    if excess > bound + 1e-6 {
        let name = variant.name;
        return Err(format!("{name}: {excess} tokens too many, and {bound} leased").into());
    }
    Ok((saved, excess))
}

async fn gather<F>(seen: &mut Seen, clients: impl Iterator<Item = F>) -> Result<(), BoxError>
where
    F: Future<Output = Result<Seen, &'static str>> + Send + 'static,
{
    let mut clients: JoinSet<_> = clients.collect();
    while let Some(one) = clients.join_next().await {
        let one = one??;
        seen.requests += one.requests;
        seen.admitted.extend(one.admitted);
    }
    Ok(())
}

fn steady(
    limiter: &Limiter,
    tenant: &Tenant,
) -> impl Future<Output = Result<Seen, &'static str>> + Send + use<> {
    let (limiter, tenant) = (limiter.clone(), tenant.clone());
    async move {
        let start = Instant::now();
        let mut seen = Seen::default();
        for i in 0..STEADY {
            sleep_until(start + EVERY * i).await;
            seen.ask(&limiter, &tenant).await?;
        }
        Ok(seen)
    }
}

fn burst(
    limiter: &Limiter,
    tenant: &Tenant,
) -> impl Future<Output = Result<Seen, &'static str>> + Send + use<> {
    let (limiter, tenant) = (limiter.clone(), tenant.clone());
    async move {
        let mut seen = Seen::default();
        for _ in 0..BURST / AT_A_TIME {
            seen.ask(&limiter, &tenant).await?;
            yield_now().await;
        }
        Ok(seen)
    }
}

impl Seen {
    async fn ask(&mut self, limiter: &Limiter, tenant: &Tenant) -> Result<(), &'static str> {
        let sent = Instant::now();
        let decision = limiter.check(tenant, Cost::ONE).await;
        let answered = Instant::now();
        self.requests += 1;
        match decision.verdict {
            Verdict::Allowed => self.admitted.push(Admitted { sent, answered }),
            Verdict::Denied => {}
            Verdict::Unavailable => return Err("a check failed"),
        }
        Ok(())
    }
}

/// Tokens beyond `capacity + rate × T` in the worst span, 0 if there are none. A request counts for a span only
/// if it was sent and answered within: so no request that waited for its answer is taken for a later one.
fn excess(admitted: &[Admitted]) -> f64 {
    let mut by_answer = admitted.to_vec();
    by_answer.sort_unstable_by_key(|it| it.answered);
    let capacity = as_f64(CAPACITY);
    let mut worst = 0_f64;
    for start in admitted.iter().map(|it| it.sent) {
        let within = by_answer.iter().filter(|it| it.sent >= start);
        for (count, last) in (1..).zip(within) {
            // A bucket tells time in whole milliseconds.
            let span = (last.answered - start).as_secs_f64() + 0.001;
            worst = worst.max(as_f64(count) - capacity - f64::from(RATE) * span);
        }
    }
    worst
}
