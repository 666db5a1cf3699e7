//! What is counted.

use std::sync::Arc;

use http::Request;
use prometheus::{IntCounter, IntCounterVec, Opts, Registry};
use tollgate::{
    FailurePolicy, LimitName, LimitRule, Limiter, MemoryStore, Metrics, Quota, Quotas,
    RateLimitLayer, Store,
};

use crate::support::{Body, Broken, HOURLY, request, send};

fn layer(store: impl Store, name: &str, metrics: &Metrics) -> RateLimitLayer {
    let name = LimitName::new(name).expect("a name");
    let quotas = Quotas::of(LimitRule::new(
        name,
        Quota::new(1, HOURLY).expect("a quota"),
    ));
    let quotas = quotas.tier("pro", Quota::new(4, HOURLY).expect("a quota"));
    let builder = Limiter::builder(store)
        .denial_cache(false)
        .quotas(quotas)
        .on_store_failure(FailurePolicy::Open);
    RateLimitLayer::new(
        builder
            .observer(metrics.clone())
            .build()
            .expect("a limiter"),
    )
}

fn assert_has(text: &str, line: &str) {
    assert!(
        text.lines().any(|there| there == line),
        "no {line} in\n{text}"
    );
}

#[tokio::test]
async fn each_request_is_counted_by_outcome_and_key_class() {
    let metrics = Metrics::new();
    let memory = layer(MemoryStore::new(), "default", &metrics);
    for _ in 0..10 {
        send(&memory, request()).await;
    }
    send(&memory, Request::new(Body::default())).await;
    for _ in 0..3 {
        send(&layer(Broken, "default", &metrics), request()).await;
    }
    let text = metrics.render();
    for line in [
        r#"ratelimit_decisions_total{key_class="pro",outcome="allowed"} 4"#,
        r#"ratelimit_decisions_total{key_class="pro",outcome="rejected"} 6"#,
        r#"ratelimit_decisions_total{key_class="pro",outcome="fallback_allowed"} 3"#,
        r#"ratelimit_decisions_total{key_class="pro",outcome="fallback_rejected"} 0"#,
        r#"ratelimit_decisions_total{key_class="default",outcome="allowed"} 0"#,
        r#"ratelimit_decisions_total{key_class="none",outcome="unidentified"} 1"#,
        r#"ratelimit_limit_rejections_total{key_class="pro",limit="default",mode="enforce"} 6"#,
        r#"ratelimit_store_errors_total{kind="io",policy="open"} 3"#,
        r#"ratelimit_store_errors_total{kind="timeout",policy="open"} 0"#,
        r#"ratelimit_store_latency_seconds_count{outcome="ok"} 10"#,
        r#"ratelimit_store_latency_seconds_count{outcome="error"} 3"#,
        r#"ratelimit_store_latency_seconds_bucket{outcome="ok",le="0.25"} 10"#,
    ] {
        assert_has(&text, line);
    }
    assert!(!text.contains(r#""42""#), "no tenant in a label:\n{text}");
}

#[tokio::test]
async fn the_breaker_and_the_number_of_replicas_are_shown() {
    let metrics = Metrics::new();
    let quotas = Quotas::new(Quota::new(100, HOURLY).expect("a quota"));
    let builder = Limiter::builder(Broken).quotas(quotas);
    let builder = builder.on_store_failure(FailurePolicy::local(7));
    let limiter = builder.observer(metrics.clone()).build();
    let layer = RateLimitLayer::new(limiter.expect("a limiter"));
    assert_has(&metrics.render(), "ratelimit_breaker_state 0");
    for _ in 0..20 {
        send(&layer, request()).await;
    }
    let text = metrics.render();
    assert_has(&text, "ratelimit_breaker_state 2");
    assert_has(&text, "ratelimit_replicas 7");
    // What an open breaker refuses is no failure of the store, which was not asked.
    assert_has(
        &text,
        r#"ratelimit_store_errors_total{kind="io",policy="local"} 5"#,
    );
    assert_has(
        &text,
        r#"ratelimit_store_latency_seconds_count{outcome="error"} 5"#,
    );
    let allowed = r#"ratelimit_decisions_total{key_class="default",outcome="fallback_allowed"} 14"#;
    assert_has(&text, allowed);
    let rejected =
        r#"ratelimit_decisions_total{key_class="default",outcome="fallback_rejected"} 6"#;
    assert_has(&text, rejected);
}

#[tokio::test]
async fn several_layers_on_one_registry_share_the_families() {
    let registry = Registry::new();
    let metrics = || Metrics::in_registry(&registry).expect("no panic and no error");
    let one = layer(MemoryStore::new(), "one", &metrics());
    let two = layer(MemoryStore::new(), "two", &metrics());
    for layer in [&one, &two] {
        for _ in 0..10 {
            send(layer, request()).await;
        }
    }
    drop(one);
    let three = layer(MemoryStore::new(), "three", &metrics());
    for _ in 0..10 {
        send(&three, request()).await;
    }
    let text = metrics().render();
    assert_has(
        &text,
        r#"ratelimit_decisions_total{key_class="pro",outcome="allowed"} 12"#,
    );
    for name in ["one", "two", "three"] {
        let line = format!(
            r#"ratelimit_limit_rejections_total{{key_class="pro",limit="{name}",mode="enforce"}} 6"#
        );
        assert_has(&text, &line);
    }
    assert_eq!(text.matches("# TYPE ratelimit_decisions_total").count(), 1);
    assert!(!text.contains("marker"));
}

#[tokio::test]
async fn registries_do_not_mix() {
    let (one, two) = (Metrics::new(), Metrics::new());
    send(&layer(MemoryStore::new(), "default", &one), request()).await;
    assert_has(
        &one.render(),
        r#"ratelimit_decisions_total{key_class="pro",outcome="allowed"} 1"#,
    );
    assert!(!two.render().contains("allowed"));
}

#[test]
fn a_foreign_metric_by_one_of_the_names_is_an_error_and_leaves_no_trace() {
    let registry = Registry::new();
    let theirs = IntCounter::new("ratelimit_store_errors_total", "Not ours").expect("a counter");
    registry.register(Box::new(theirs)).expect("the first");
    assert!(Metrics::in_registry(&registry).is_err());
    // The families before the clash are free again.
    let opts = Opts::new(
        "ratelimit_decisions_total",
        "Requests by what was decided of them",
    );
    let decisions = IntCounterVec::new(opts, &["outcome", "key_class"]).expect("a counter");
    assert!(registry.register(Box::new(decisions)).is_ok());
}

#[test]
fn observers_can_be_shared() {
    let metrics: Arc<dyn tollgate::Observer> = Arc::new(Metrics::new());
    let builder = Limiter::builder(MemoryStore::new())
        .quotas(Quotas::new(Quota::new(1, 1).expect("a quota")));
    assert!(
        builder
            .on_store_failure(FailurePolicy::Open)
            .observer(metrics)
            .build()
            .is_ok()
    );
}
