//! Quotas of single tenants that change while limiters run: a real Redis, a real Postgres, a control plane.

use std::{collections::HashSet, path::Path, time::Duration};

use serde_json::json;
use tokio::{
    task::JoinSet,
    time::{Instant, sleep, timeout},
};
use tollgate::{
    Cost, Decision, FailurePolicy, LimitName, LimitRule, Limiter, Metrics, QuotaBook, Quotas,
    Source, Tenant, Verdict,
};
use tollgate_quota::{CacheSettings, HttpSource, PostgresSource};
use tollgate_tests::{PostgresServer, RedisServer, free_port, quota};
use wiremock::{Mock, MockServer, ResponseTemplate, matchers::method};

use crate::support::{metric, store, until};

/// Nothing takes so long, on a busy machine either.
const LONG: Duration = Duration::from_secs(20);

/// So slow that nothing refills while a test runs.
const SLOW: &str = "1/h";

/// Accounts that nobody asks for again, unless the source says that they have changed.
fn told() -> CacheSettings {
    let mut settings = CacheSettings::default();
    settings.ttl = Duration::from_secs(3_600);
    settings.unknown_ttl = settings.ttl;
    settings.patience = LONG;
    settings
}

/// Accounts that are asked for again and again.
fn asked() -> CacheSettings {
    let mut settings = told();
    settings.ttl = Duration::from_millis(200);
    settings.unknown_ttl = settings.ttl;
    settings
}

fn postgres() -> PostgresServer {
    let server = PostgresServer::start();
    let schema = "../crates/tollgate-quota/migrations/0001_tollgate.sql";
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(schema);
    server.run_file(&path).expect("the schema applies");
    server
}

/// A limiter as one replica has it.
struct Replica {
    limiter: Limiter,
    metrics: Metrics,
}

impl Replica {
    async fn start(redis: &RedisServer, book: impl Into<QuotaBook>) -> Self {
        let metrics = Metrics::new();
        let builder = Limiter::builder(store(redis).await)
            .quotas(book)
            .on_store_failure(FailurePolicy::Closed)
            // Every decision is to be the store's, on a busy machine too.
            .deadline(2 * LONG)
            .observer(metrics.clone());
        let limiter = builder.build().expect("a limiter");
        Self { limiter, metrics }
    }

    /// One that asks Postgres.
    async fn asking(
        redis: &RedisServer,
        postgres: &PostgresServer,
        cache: CacheSettings,
        channel: &str,
    ) -> Self {
        let source = PostgresSource::builder(&postgres.url())
            .timeout(LONG)
            .channel(channel)
            .connect();
        let book = QuotaBook::new(Quotas::new(quota(10, SLOW)));
        let book = book.source(source.await.expect("a source")).cache(cache);
        Self::start(redis, book).await
    }

    async fn check(&self, tenant: &str) -> Decision {
        self.limiter.check(&acme(tenant), Cost::ONE).await
    }

    /// The capacity that the tenant has here; nothing if no bucket bounds it.
    async fn capacity(&self, tenant: &str) -> Option<u64> {
        let free = self.limiter.check(&acme(tenant), Cost::FREE).await;
        free.limits.first().map(|limit| limit.capacity())
    }

    fn metric(&self, name: &str) -> f64 {
        metric(&self.metrics, name)
    }
}

fn acme(id: &str) -> Tenant {
    Tenant::new(id, "pro").expect("an id")
}

fn give(server: &PostgresServer, tenant: &str, capacity: &str, rate: &str, word: &str) {
    let sql = format!(
        "INSERT INTO tollgate_overrides VALUES ('{tenant}', 'default', {capacity}, {rate}, {word})
         ON CONFLICT (tenant, limit_name) DO UPDATE
         SET capacity = EXCLUDED.capacity, rate = EXCLUDED.rate, word = EXCLUDED.word"
    );
    server.run(&sql).expect("a row");
}

#[tokio::test(flavor = "multi_thread")]
async fn both_replicas_hear_of_an_override_by_notification() {
    let (redis, postgres) = (RedisServer::start(), postgres());
    let start = || Replica::asking(&redis, &postgres, told(), "tollgate_quotas");
    let replicas = [start().await, start().await];
    for replica in &replicas {
        assert_eq!(replica.capacity("acme").await, Some(10));
    }
    give(&postgres, "acme", "500", "1", "NULL");
    for replica in &replicas {
        until(async || replica.capacity("acme").await == Some(500)).await;
        // Once for the first request, and once for the change.
        let loads = r#"ratelimit_quota_loads_total{outcome="ok",source="postgres"}"#;
        assert_eq!(replica.metric(loads), 2.0);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn without_notifications_a_change_is_seen_when_the_account_is_asked_for_again() {
    let (redis, postgres) = (RedisServer::start(), postgres());
    let quick = Replica::asking(&redis, &postgres, asked(), "nobody_notifies").await;
    let slow = Replica::asking(&redis, &postgres, told(), "nobody_notifies").await;
    for (tenant, capacity) in [("acme", "20"), ("unknown", "10")] {
        if tenant == "acme" {
            give(&postgres, tenant, capacity, "0.001", "NULL");
        }
        for replica in [&quick, &slow] {
            let expected = capacity.parse().expect("a number");
            assert_eq!(replica.capacity(tenant).await, Some(expected));
        }
        give(&postgres, tenant, "30", "0.001", "NULL");
        until(async || quick.capacity(tenant).await == Some(30)).await;
        assert_ne!(slow.capacity(tenant).await, Some(30), "nobody told it");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn who_was_denied_is_admitted_as_soon_as_the_raised_quota_is_there() {
    let (redis, postgres) = (RedisServer::start(), postgres());
    give(&postgres, "acme", "2", "0.001", "NULL");
    let start = || Replica::asking(&redis, &postgres, told(), "tollgate_quotas");
    let replicas = [start().await, start().await];
    assert!(replicas[0].check("acme").await.is_allowed());
    assert!(replicas[1].check("acme").await.is_allowed());
    for replica in &replicas {
        assert!(!replica.check("acme").await.is_allowed());
        assert_eq!(replica.check("acme").await.source, Source::DenialCache);
    }
    // The wait is a quarter of an hour. A larger burst alone fills nothing; the rate does.
    give(&postgres, "acme", "1000", "1000000", "NULL");
    for replica in &replicas {
        let started = Instant::now();
        loop {
            let decision = replica.check("acme").await;
            let limit = &decision.limits[0];
            // The first that is decided by the new quota is admitted.
            assert_eq!(
                decision.is_allowed(),
                limit.capacity() == 1_000,
                "{limit:?}"
            );
            if decision.is_allowed() {
                break;
            }
            assert!(started.elapsed() < LONG, "the change never came");
            sleep(Duration::from_millis(1)).await;
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lowered_quota_voids_what_is_leased() {
    let (redis, postgres) = (RedisServer::start(), postgres());
    let rule = LimitRule::new(LimitName::default(), quota(1_000, SLOW)).leased();
    let start = async || {
        let source = PostgresSource::builder(&postgres.url()).timeout(LONG);
        let book = QuotaBook::new(Quotas::of(rule.clone()).with_tier("pro"));
        let book = book.source(source.connect().await.expect("a source"));
        Replica::start(&redis, book.cache(told())).await
    };
    let replicas = [start().await, start().await];
    let leased = |replica: &Replica| replica.metric(r#"ratelimit_leased_tokens{key_class="pro"}"#);
    let mut admitted = 0;
    for replica in &replicas {
        until(async || {
            admitted += replica.check("acme").await.granted;
            leased(replica) >= 3.0
        })
        .await;
    }
    give(&postgres, "acme", "5", "0.001", "NULL");
    let mut lowered = 0;
    for replica in &replicas {
        until(async || {
            let decision = replica.check("acme").await;
            let is_new = decision.limits[0].capacity() == 5;
            assert!(!is_new || decision.source != Source::Lease);
            *(if is_new { &mut lowered } else { &mut admitted }) += decision.granted;
            is_new
        })
        .await;
        for _ in 0..20 {
            let decision = replica.check("acme").await;
            assert_eq!(decision.limits[0].capacity(), 5);
            lowered += decision.granted;
        }
        until(async || leased(replica) == 0.0).await;
    }
    // What each replica gives back may come after the bucket was cut, and is cut at the next request.
    assert!((5..=15).contains(&lowered), "{lowered}");
    assert!(admitted + lowered <= 1_000, "{admitted} and {lowered}");
}

#[tokio::test(flavor = "multi_thread")]
async fn blocked_and_unlimited_arrive_live_and_go_again() {
    let (redis, postgres) = (RedisServer::start(), postgres());
    let replica = Replica::asking(&redis, &postgres, told(), "tollgate_quotas").await;
    let shown = async || {
        let decision = replica.check("acme").await;
        (decision.verdict, decision.source)
    };
    for _ in 0..10 {
        assert!(replica.check("acme").await.is_allowed());
    }
    assert_eq!(replica.check("acme").await.verdict, Verdict::Denied);
    give(&postgres, "acme", "NULL", "NULL", "'unlimited'");
    until(async || shown().await == (Verdict::Allowed, Source::Quota)).await;
    give(&postgres, "acme", "NULL", "NULL", "'blocked'");
    until(async || shown().await == (Verdict::Denied, Source::Quota)).await;
    // Without the row it goes on from where its bucket was.
    postgres
        .run("DELETE FROM tollgate_overrides")
        .expect("deleted");
    until(async || shown().await == (Verdict::Denied, Source::Store)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_source_that_is_down_at_first_sight_leaves_tenants_to_their_tier() {
    let redis = RedisServer::start();
    let nowhere = PostgresServer::url_on(free_port());
    let source = PostgresSource::connect(&nowhere).await.expect("a source");
    let quotas = Quotas::new(quota(10, SLOW)).tier("pro", quota(40, SLOW));
    let replica = Replica::start(&redis, QuotaBook::new(quotas).source(source)).await;
    assert_eq!(replica.capacity("acme").await, Some(40));
    assert_eq!(replica.metric("ratelimit_quota_unknown_total"), 1.0);
    let failed = r#"ratelimit_quota_loads_total{outcome="error",source="postgres"}"#;
    until(async || replica.metric(failed) >= 1.0).await;
    assert!(replica.check("acme").await.is_allowed());
    assert_eq!(replica.metric("ratelimit_quota_unknown_total"), 2.0);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_source_said_before_it_went_down_counts_on() {
    let (redis, mut postgres) = (RedisServer::start(), postgres());
    give(&postgres, "acme", "500", "1", "NULL");
    let replica = Replica::asking(&redis, &postgres, asked(), "tollgate_quotas").await;
    assert_eq!(replica.capacity("acme").await, Some(500));
    let stale = || replica.metric("ratelimit_quota_stale_seconds");
    assert_eq!(stale(), 0.0);
    postgres.kill();
    let mut ages = vec![0.0];
    until(async || {
        assert_eq!(replica.capacity("acme").await, Some(500));
        let age = stale();
        assert!(age >= ages[ages.len() - 1], "{age} after {ages:?}");
        if age > ages[ages.len() - 1] {
            ages.push(age);
        }
        ages.len() > 3
    })
    .await;
    assert_eq!(replica.metric("ratelimit_quota_unknown_total"), 0.0);
    postgres.restart();
    give(&postgres, "acme", "600", "1", "NULL");
    until(async || replica.capacity("acme").await == Some(600)).await;
    until(async || stale() == 0.0).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn ten_thousand_requests_at_once_for_a_hundred_tenants_make_a_hundred_loads() {
    let redis = RedisServer::start();
    let plane = MockServer::start().await;
    let account = json!({"limits": {"default": {"capacity": 37, "rate": SLOW}}});
    // So slow that all requests are there before the first answer.
    let answer = ResponseTemplate::new(200).set_body_json(account);
    let answer = answer.set_delay(Duration::from_millis(500));
    Mock::given(method("GET"))
        .respond_with(answer)
        .mount(&plane)
        .await;
    let source = HttpSource::builder(plane.uri()).timeout(LONG).build();
    let book = QuotaBook::new(Quotas::new(quota(10, SLOW)));
    let book = book.source(source.expect("a source")).cache(told());
    let replica = Replica::start(&redis, book).await;

    let mut requests = JoinSet::new();
    for i in 0..10_000 {
        let (limiter, tenant) = (replica.limiter.clone(), acme(&format!("t{}", i % 100)));
        requests.spawn(async move { limiter.check(&tenant, Cost::ONE).await });
    }
    let decisions = timeout(4 * LONG, requests.join_all()).await;
    let decisions = decisions.expect("all are decided");
    let granted: u64 = decisions.iter().map(|it| it.granted).sum();
    assert_eq!(granted, 100 * 37);
    for decision in decisions {
        assert_eq!(decision.limits[0].capacity(), 37);
    }

    let loads = plane.received_requests().await.expect("they are kept");
    let tenants: HashSet<_> = loads.iter().map(|it| it.url.path()).collect();
    assert_eq!((loads.len(), tenants.len()), (100, 100));
    assert_eq!(replica.metric("ratelimit_quota_unknown_total"), 0.0);
}
