//! The circuit breaker before a real Redis.

use std::time::Duration;

use axum::{
    Router,
    body::Body,
    http::{Request, Uri},
    routing::get,
};
use tokio::{
    task::JoinSet,
    time::{Instant, sleep, timeout},
};
use tollgate::{
    BreakerSettings, Cost, FailurePolicy, Limiter, Metrics, Quota, Quotas, RateLimitLayer,
    RedisStore, Source, Tenant,
};
use tollgate_tests::{Fault, FaultProxy, RedisServer};
use tower::ServiceExt;

use crate::faults::Replica;

const CLOSED: u64 = 0;
const OPEN: u64 = 2;

/// From the end of the fault until the breaker is closed.
const BACK_WITHIN: Duration = Duration::from_secs(2);

struct Bench {
    server: RedisServer,
    proxy: FaultProxy,
    router: Router,
    metrics: Metrics,
}

/// The case of a probe that never reports back: a long deadline, 5 failures, a cool-down of a second.
async fn bench() -> Bench {
    let server = RedisServer::start();
    let proxy = FaultProxy::start(server.port());
    let metrics = Metrics::new();
    let store = RedisStore::connect(&proxy.url()).await.expect("a store");
    let mut breaker = BreakerSettings::default();
    breaker.cool_down = Duration::from_secs(1);
    let quota = Quota::new(1_000, "1/h").expect("a quota");
    let limiter = Limiter::builder(store)
        .quotas(Quotas::new(quota))
        .on_store_failure(FailurePolicy::Closed)
        .deadline(Duration::from_millis(500))
        .breaker(breaker)
        // Each check is to be a call of its own.
        .coalescing(false)
        .observer(metrics.clone());
    let layer = RateLimitLayer::new(limiter.build().expect("a limiter"))
        .with_default_cost(1)
        .expect("it fits")
        .with_identity(|_: &axum::http::Extensions| Tenant::new("42", "pro").ok());
    let boom = || async {
        assert_eq!(1 + 1, 3, "expected by the test");
        ""
    };
    let router = Router::new()
        .route("/", get(|| async { "ok" }))
        .route("/panics", get(boom))
        .layer(layer);
    Bench {
        server,
        proxy,
        router,
        metrics,
    }
}

impl Bench {
    async fn send(&self, path: &'static str) -> u16 {
        let request = Request::get(Uri::from_static(path)).body(Body::empty());
        let answer = self.router.clone().oneshot(request.expect("a request"));
        answer.await.expect("infallible").status().as_u16()
    }

    fn state(&self) -> u64 {
        let text = self.metrics.render();
        let line = text
            .lines()
            .find(|line| line.starts_with("ratelimit_breaker_state "));
        let number = line.and_then(|line| line.rsplit(' ').next());
        number.and_then(|it| it.parse().ok()).expect("the gauge")
    }

    /// 5 requests at once that nobody answers, and the cool-down at its longest.
    async fn opens_and_cools_down(&self) {
        self.proxy.set(Fault::BlackHole);
        let five = [(); 5].map(|()| self.send("/"));
        let [a, b, c, d, e] = five;
        let statuses = tokio::join!(a, b, c, d, e);
        assert_eq!(statuses, (503, 503, 503, 503, 503));
        assert_eq!(self.state(), OPEN);
        sleep(Duration::from_millis(1_250)).await;
    }

    /// One request per 100 ms, until the breaker is closed.
    async fn is_back_in_time(&self, since: Instant) {
        while self.state() != CLOSED {
            let elapsed = since.elapsed();
            assert!(elapsed < BACK_WITHIN, "{}", self.metrics.render());
            self.send("/").await;
            sleep(Duration::from_millis(100)).await;
        }
        assert_eq!(self.send("/").await, 200);
    }
}

#[tokio::test]
async fn a_probe_that_its_client_leaves_wedges_nothing() {
    let bench = bench().await;
    assert_eq!(bench.send("/").await, 200);
    bench.opens_and_cools_down().await;
    let left = timeout(Duration::from_millis(10), bench.send("/")).await;
    // The silent connection may have been given up by now; then the probe fails at once.
    assert!(left.is_err() || left == Ok(503), "{left:?}");
    bench.proxy.set(Fault::None);
    bench.is_back_in_time(Instant::now()).await;
}

#[tokio::test]
async fn a_probe_that_meets_an_empty_script_cache_closes_it() {
    let bench = bench().await;
    assert_eq!(bench.send("/").await, 200);
    bench.opens_and_cools_down().await;
    redis::cmd("SCRIPT")
        .arg("FLUSH")
        .query::<()>(&mut bench.server.connection())
        .expect("SCRIPT FLUSH");
    bench.proxy.set(Fault::None);
    bench.is_back_in_time(Instant::now()).await;
}

#[tokio::test]
async fn a_probe_whose_handler_panics_closes_it() {
    let bench = bench().await;
    assert_eq!(bench.send("/").await, 200);
    bench.opens_and_cools_down().await;
    bench.proxy.set(Fault::None);
    let since = Instant::now();
    while bench.state() != CLOSED {
        assert!(since.elapsed() < BACK_WITHIN, "{}", bench.metrics.render());
        // Those that are refused do not reach the handler, the probe does.
        let router = bench.router.clone();
        let request = Request::get("/panics").body(Body::empty());
        let _ = tokio::spawn(router.oneshot(request.expect("a request"))).await;
        sleep(Duration::from_millis(100)).await;
    }
    assert_eq!(bench.send("/").await, 200);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_500_checks_at_half_open_one_reaches_redis() {
    let server = RedisServer::start();
    let proxy = FaultProxy::start(server.port());
    // Long, so that all 500 come while the probe is under way, on a busy machine too.
    let deadline = Duration::from_millis(400);
    let replica = Replica::start::<RedisStore>(&proxy.url(), FailurePolicy::Open, deadline).await;
    replica.shared().await;
    proxy.set(Fault::LoseReplies);
    while replica.breaker() != OPEN {
        replica.check().await;
    }
    // The connection that lost replies is replaced; what is to be counted is a probe on a good one. Replies
    // are slow.
    proxy.set(Fault::DelayReplies(deadline / 2));
    sleep(Duration::from_millis(2_500)).await;
    assert_eq!(replica.breaker(), OPEN, "nobody asked");
    let before = proxy.commands("EVALSHA");
    let mut checks = JoinSet::new();
    for i in 0..500 {
        // Of one tenant each, or they would gather behind the probe and share the next call.
        let tenant = Tenant::new(i.to_string(), "pro").expect("an id");
        let limiter = replica.limiter.clone();
        checks.spawn(async move { limiter.check(&tenant, Cost::ONE).await.source });
    }
    let sources = checks.join_all().await;
    let shared = sources
        .iter()
        .filter(|&&source| source == Source::Store)
        .count();
    assert_eq!(
        proxy.commands("EVALSHA") - before,
        1,
        "{shared} of 500 shared"
    );
    assert_eq!((shared, replica.breaker()), (1, CLOSED));
}
