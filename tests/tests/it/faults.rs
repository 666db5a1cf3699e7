//! What the tests of outages share: a limiter of each policy on one Redis behind a proxy, and requests at a
//! steady pace whose decisions are counted.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use tokio::{
    task::JoinHandle,
    time::{Instant, MissedTickBehavior, interval, sleep, timeout},
};
use tollgate::{
    Cost, Decision, FailurePolicy, Limiter, Metrics, Quota, Quotas, Source, Store, Tenant, Verdict,
};
use tollgate_tests::{FaultProxy, RedisClient, RedisServer};

use crate::support::state;

/// Shared limits are back so soon after Redis is.
pub(crate) const BACK_WITHIN: Duration = Duration::from_secs(5);

/// Longer than Redis needs on a busy machine, so that what fails is what the test made fail.
pub(crate) const DEADLINE: Duration = Duration::from_millis(150);

/// What a busy machine may add to a deadline before we call it a hang.
pub(crate) const SCHEDULING: Duration = Duration::from_millis(1_500);

/// So many tokens, and next to no refill.
pub(crate) const CAPACITY: u64 = 100_000;

/// Local buckets are this many times smaller.
pub(crate) const REPLICAS: u32 = 1_000;

/// One limiter with a store and a tenant of its own.
#[derive(Clone)]
pub(crate) struct Replica {
    pub(crate) policy: &'static str,
    pub(crate) limiter: Limiter,
    pub(crate) metrics: Metrics,
    tenant: Tenant,
}

impl Replica {
    pub(crate) async fn start<S: RedisClient>(
        url: &str,
        policy: FailurePolicy,
        deadline: Duration,
    ) -> Self {
        let store = S::open(S::builder(url)).await.expect("a store");
        Self::over(store, policy, deadline)
    }

    pub(crate) fn over(store: impl Store, policy: FailurePolicy, deadline: Duration) -> Self {
        let name = policy.as_str();
        let metrics = Metrics::new();
        let quota = Quota::new(CAPACITY, 0.001).expect("a quota");
        let builder = Limiter::builder(store).quotas(Quotas::new(quota));
        let builder = builder.on_store_failure(policy).deadline(deadline);
        Self {
            policy: name,
            limiter: builder
                .observer(metrics.clone())
                .build()
                .expect("a limiter"),
            metrics,
            tenant: Tenant::new(name, "pro").expect("an id"),
        }
    }

    pub(crate) async fn check(&self) -> Decision {
        self.limiter.check(&self.tenant, Cost::ONE).await
    }

    /// Asks until Redis decides.
    pub(crate) async fn shared(&self) {
        let asking = async {
            while self.check().await.source != Source::Store {
                sleep(Duration::from_millis(10)).await;
            }
        };
        // Longer than allowed: by how much it was late is worth knowing.
        let decided = timeout(3 * BACK_WITHIN, asking).await;
        assert!(decided.is_ok(), "{}: not back at all", self.policy);
    }

    /// Checks that limits are shared again, and stay so.
    pub(crate) async fn is_back(&self, since: Instant) -> Duration {
        self.shared().await;
        let back = since.elapsed();
        let mut strays = 0;
        for _ in 0..20 {
            strays += u32::from(self.check().await.source != Source::Store);
            sleep(Duration::from_millis(5)).await;
        }
        assert!(
            strays <= 1,
            "{}: {strays} of 20 after recovery",
            self.policy
        );
        back
    }

    /// What was charged in Redis.
    pub(crate) fn charged(&self, server: &RedisServer) -> u64 {
        let key = format!("tg:{{tenant:{}}}:default", self.policy);
        let tokens =
            state(&mut server.connection(), &key).map_or(CAPACITY as f64, |(tokens, _)| tokens);
        (CAPACITY as f64 - tokens).round() as u64
    }

    /// The sum of the metrics with this name whose labels contain `label`.
    pub(crate) fn metric(&self, name: &str, label: &str) -> u64 {
        let text = self.metrics.render();
        let lines = text
            .lines()
            .filter(|line| line.split(['{', ' ']).next() == Some(name) && line.contains(label));
        let number = |line: &str| line.rsplit(' ').next()?.parse::<u64>().ok();
        lines.filter_map(number).sum()
    }

    pub(crate) fn errors(&self, kind: &str) -> u64 {
        self.metric("ratelimit_store_errors_total", &format!("kind=\"{kind}\""))
    }

    pub(crate) fn breaker(&self) -> u64 {
        self.metric("ratelimit_breaker_state", "")
    }
}

/// A replica of each policy.
pub(crate) async fn one_of_each<S: RedisClient>(url: &str) -> Vec<Replica> {
    let start = |policy| Replica::start::<S>(url, policy, DEADLINE);
    let (open, closed, local) = tokio::join!(
        start(FailurePolicy::Open),
        start(FailurePolicy::Closed),
        start(FailurePolicy::local(REPLICAS)),
    );
    vec![open, closed, local]
}

/// Requests to one replica at a steady pace.
pub(crate) struct Load {
    stop: Arc<AtomicBool>,
    task: JoinHandle<Tally>,
}

/// What became of them.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Tally {
    pub(crate) requests: u64,
    pub(crate) store_allowed: u64,
    pub(crate) store_denied: u64,
    pub(crate) fallback_allowed: u64,
    pub(crate) fallback_denied: u64,
    pub(crate) unavailable: u64,
    pub(crate) slowest: Duration,
}

impl Load {
    pub(crate) fn start(replica: &Replica, every: Duration) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let (replica, stopped) = (replica.clone(), stop.clone());
        let task = tokio::spawn(async move {
            let (mut tally, mut ticks) = (Tally::default(), interval(every));
            ticks.set_missed_tick_behavior(MissedTickBehavior::Skip);
            while !stopped.load(Ordering::SeqCst) {
                ticks.tick().await;
                let start = Instant::now();
                let decision = replica.check().await;
                tally.add(&decision, start.elapsed());
            }
            tally
        });
        Self { stop, task }
    }

    /// Ends it. Panics with a request that panicked.
    pub(crate) async fn stop(self) -> Tally {
        self.stop.store(true, Ordering::SeqCst);
        self.task.await.expect("no request panics")
    }
}

impl Tally {
    fn add(&mut self, decision: &Decision, took: Duration) {
        self.requests += 1;
        self.slowest = self.slowest.max(took);
        let counter = match (decision.source, decision.verdict) {
            (Source::Store, Verdict::Allowed) => &mut self.store_allowed,
            (Source::Store, _) => &mut self.store_denied,
            (_, Verdict::Allowed) => &mut self.fallback_allowed,
            (_, Verdict::Denied) => &mut self.fallback_denied,
            (_, Verdict::Unavailable) => &mut self.unavailable,
        };
        *counter += 1;
    }

    /// That each was decided as the policy says, in time.
    pub(crate) fn keeps_to(&self, policy: &str) {
        let told = format!("{policy}: {self:?}");
        assert_eq!(self.store_denied, 0, "{told}");
        assert!(self.slowest < DEADLINE + SCHEDULING, "{told}");
        match policy {
            "open" => assert_eq!(self.fallback_denied + self.unavailable, 0, "{told}"),
            "closed" => assert_eq!(self.fallback_denied + self.fallback_allowed, 0, "{told}"),
            _ => {
                assert_eq!(self.unavailable, 0, "{told}");
                let share = CAPACITY / u64::from(REPLICAS);
                assert!(self.fallback_allowed <= share + 1, "{told}");
            }
        }
    }
}

/// A fault under load: before, `begin`, `span` of it, `end`, after. Requests are decided by policy
/// throughout, nothing is charged twice, and limits are shared again in time.
pub(crate) async fn survives<S: RedisClient>(
    server: &mut RedisServer,
    proxy: &FaultProxy,
    span: Duration,
    begin: impl AsyncFnOnce(&mut RedisServer, &FaultProxy),
    end: impl AsyncFnOnce(&mut RedisServer, &FaultProxy),
) -> Vec<(Replica, Tally)> {
    let replicas = one_of_each::<S>(&proxy.url()).await;
    for replica in &replicas {
        replica.shared().await;
    }
    let every = Duration::from_millis(10);
    let loads: Vec<_> = replicas.iter().map(|it| Load::start(it, every)).collect();
    sleep(Duration::from_millis(200)).await;
    begin(server, proxy).await;
    sleep(span).await;
    end(server, proxy).await;
    let ended = Instant::now();
    for replica in &replicas {
        let back = replica.is_back(ended).await;
        assert!(
            back < BACK_WITHIN,
            "{}: back after {back:?}",
            replica.policy
        );
    }
    let mut tallies = Vec::new();
    for (replica, load) in replicas.into_iter().zip(loads) {
        let tally = load.stop().await;
        tally.keeps_to(replica.policy);
        assert!(tally.requests > 20, "{tally:?}");
        tallies.push((replica, tally));
    }
    tallies
}

/// That whatever was decided by Redis was charged, and nothing but that and what failed, once each.
pub(crate) fn none_charged_twice(server: &RedisServer, outcome: &[(Replica, Tally)]) {
    for (replica, _) in outcome {
        // Also those that were asked beside the load.
        let allowed = replica.metric("ratelimit_decisions_total", "outcome=\"allowed\"");
        let failed = replica.metric("ratelimit_store_errors_total", "");
        let charged = replica.charged(server);
        let told = format!(
            "{}: {charged} charged, {allowed} allowed, {failed} failed",
            replica.policy
        );
        assert!(charged >= allowed && charged <= allowed + failed, "{told}");
    }
}
