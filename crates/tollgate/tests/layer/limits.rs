//! Requests with several limits, and what their clients see.

use http::{Request, StatusCode};
use http_body_util::BodyExt;
use serde_json::{Value, json};
use tollgate::{
    Allowance, Cost, FailurePolicy, LimitName, LimitRule, Limiter, ManualClock, MemoryStore, Quota,
    Quotas, RateLimitLayer, RoutePrice, Scope,
};

use tower::{Layer, ServiceExt};

use crate::support::{Body, HOURLY, has, header, request, send, tenant};

fn rule(name: &str, capacity: u64) -> LimitRule {
    let name = LimitName::new(name).expect("a name");
    LimitRule::new(name, Quota::new(capacity, HOURLY).expect("a quota"))
}

fn layer(quotas: Quotas) -> RateLimitLayer {
    let store = MemoryStore::with_clock(ManualClock::default());
    let builder = Limiter::builder(store).quotas(quotas).denial_cache(false);
    let builder = builder.on_store_failure(FailurePolicy::Closed);
    RateLimitLayer::new(builder.build().expect("a limiter"))
}

fn costing(cost: u32) -> Request<Body> {
    let mut request = request();
    request.extensions_mut().insert(Cost::new(cost));
    request
}

fn asking_for(path: &str) -> Request<Body> {
    let mut request = request();
    *request.uri_mut() = path.parse().expect("a path");
    request
}

async fn problem(response: http::Response<Body>) -> Value {
    let body = response.into_body().collect().await.expect("infallible");
    serde_json::from_slice(&body.to_bytes()).expect("JSON")
}

#[tokio::test]
async fn all_limits_are_listed_in_order_and_the_tightest_is_shown_alone() {
    let quotas = Quotas::of(rule("default", 10))
        .limit(rule("new", 1).shadow())
        .limit(rule("daily", 8).cost(Cost::new(2)))
        .limit(rule("search", 30).scope(Scope::Global))
        .limit(rule("elsewhere", 9).on_route("/reports".parse().expect("a pattern")));
    let layer = layer(quotas);
    let response = send(&layer, request()).await;
    assert_eq!(response.status(), StatusCode::OK);
    let policy = r#""default";q=10;w=36000, "daily";q=8;w=28800, "search";q=30;w=108000"#;
    assert_eq!(header(&response, "ratelimit-policy"), policy);
    assert_eq!(
        header(&response, "ratelimit"),
        r#""default";r=9;t=32400, "daily";r=6;t=21600, "search";r=29;t=104400"#
    );
    // Six of eight are less than nine of ten.
    assert_eq!(header(&response, "x-ratelimit-limit"), "8");
    assert_eq!(header(&response, "x-ratelimit-remaining"), "6");
    assert_eq!(header(&response, "x-ratelimit-reset"), "7200");

    let response = send(&layer, asking_for("/reports")).await;
    assert_eq!(
        header(&response, "ratelimit-policy"),
        r#""default";q=10;w=36000, "daily";q=8;w=28800, "elsewhere";q=9;w=32400, "search";q=30;w=108000"#
    );
}

#[tokio::test]
async fn all_violated_limits_are_named_and_the_longest_wait_counts() {
    let quotas = Quotas::of(rule("first", 4))
        .limit(rule("roomy", 100))
        .limit(rule("watched", 3).shadow())
        .limit(rule("second", 2))
        .limit(rule("search", 9).scope(Scope::Global));
    let layer = layer(quotas.clone());
    assert_eq!(send(&layer, costing(2)).await.status(), StatusCode::OK);
    let mut denied = costing(3);
    denied.extensions_mut().insert(tenant("43"));
    // Above the second limit's capacity: waiting does not help.
    let response = send(&layer, denied).await;
    assert!(!has(&response, "retry-after"));
    assert_eq!(header(&response, "x-ratelimit-limit"), "2");
    assert_eq!(
        problem(response).await["violated-policies"],
        json!(["second"])
    );

    assert_eq!(
        send(&layer, costing(2)).await.status(),
        StatusCode::TOO_MANY_REQUESTS
    );
    let layer = self::layer(quotas.limit(rule("third", 3)));
    assert_eq!(send(&layer, costing(2)).await.status(), StatusCode::OK);
    let response = send(&layer, costing(2)).await;
    assert_eq!(response.status(), StatusCode::TOO_MANY_REQUESTS);
    // The second has 0 left and lacks two, the third has 1 and lacks one.
    assert_eq!(header(&response, "retry-after"), "7200");
    assert_eq!(header(&response, "x-ratelimit-limit"), "2");
    assert_eq!(
        header(&response, "ratelimit"),
        r#""first";r=2;t=7200, "roomy";r=98;t=352800, "second";r=0;t=7200, "third";r=1;t=3600"#
    );
    // The shared one was not asked; it is there all the same.
    let policy = header(&response, "ratelimit-policy");
    assert!(policy.ends_with(r#", "search";q=9;w=32400"#), "{policy}");
    let problem = problem(response).await;
    assert_eq!(problem["violated-policies"], json!(["second", "third"]));
    assert_eq!(
        problem["detail"],
        "This request costs 2, and the limit second has 0 left. Retry after 7200 s."
    );
}

#[tokio::test]
async fn a_denial_by_a_shared_limit_names_it_and_costs_the_tenant_nothing() {
    let quotas = Quotas::of(rule("default", 10)).limit(rule("search", 1).scope(Scope::Global));
    let layer = layer(quotas);
    assert_eq!(send(&layer, request()).await.status(), StatusCode::OK);
    for _ in 0..2 {
        let response = send(&layer, request()).await;
        assert_eq!(response.status(), StatusCode::TOO_MANY_REQUESTS);
        assert_eq!(header(&response, "retry-after"), "3600");
        assert_eq!(header(&response, "x-ratelimit-limit"), "1");
        assert_eq!(header(&response, "x-ratelimit-remaining"), "0");
        assert_eq!(
            header(&response, "ratelimit"),
            r#""default";r=9;t=32400, "search";r=0;t=3600"#
        );
        let problem = problem(response).await;
        assert_eq!(problem["violated-policies"], json!(["search"]));
    }
}

#[tokio::test]
async fn who_is_blocked_is_told_that_waiting_does_not_help() {
    let quotas = Quotas::of(rule("default", 10).tenant("42", Allowance::Blocked));
    let layer = layer(quotas.limit(rule("daily", 5)));
    for cost in [0, 1] {
        let response = send(&layer, costing(cost)).await;
        assert_eq!(response.status(), StatusCode::TOO_MANY_REQUESTS);
        assert!(!has(&response, "retry-after") && !has(&response, "x-ratelimit-reset"));
        assert_eq!(
            header(&response, "ratelimit-policy"),
            r#""default";q=0, "daily";q=5;w=18000"#
        );
        assert_eq!(header(&response, "ratelimit"), r#""default";r=0"#);
        assert_eq!(header(&response, "x-ratelimit-limit"), "0");
        assert_eq!(header(&response, "x-ratelimit-remaining"), "0");
        let problem = problem(response).await;
        assert_eq!(problem["violated-policies"], json!(["default"]));
    }
    let mut other = request();
    other.extensions_mut().insert(tenant("43"));
    assert_eq!(send(&layer, other).await.status(), StatusCode::OK);
}

#[tokio::test]
async fn who_is_unlimited_sees_nothing_of_that_limit() {
    let default = || rule("default", 1).tenant("42", Allowance::Unlimited);
    let with_daily = layer(Quotas::of(default()).limit(rule("daily", 5)));
    let alone = layer(Quotas::of(default()));
    for left in [4, 3] {
        let response = send(&with_daily, request()).await;
        assert_eq!(
            header(&response, "ratelimit-policy"),
            r#""daily";q=5;w=18000"#
        );
        assert_eq!(header(&response, "x-ratelimit-remaining"), left.to_string());

        let response = send(&alone, request()).await;
        assert_eq!(response.status(), StatusCode::OK);
        for name in ["ratelimit", "ratelimit-policy", "x-ratelimit-limit"] {
            assert!(!has(&response, name), "{name}");
        }
    }
}

#[tokio::test]
async fn configured_prices_go_before_all_but_the_requests_own_cost() {
    let pattern = |text: &str| text.parse().expect("a pattern");
    let quotas = Quotas::of(rule("default", 100))
        .limit(rule("requests", 50).cost(Cost::ONE))
        .price(pattern("/health"), RoutePrice::Exempt)
        .price(pattern("/free"), RoutePrice::Cost(Cost::FREE))
        .price(pattern("/export/{*rest}"), RoutePrice::Cost(Cost::new(20)));
    let layer = layer(quotas)
        .with_default_cost(3)
        .expect("below the capacity");
    let response = send(&layer, asking_for("/health")).await;
    assert!(
        !has(&response, "ratelimit-policy"),
        "it is not checked at all"
    );
    let mut stated = asking_for("/export/7");
    stated.extensions_mut().insert(Cost::new(5));
    for (request, left) in [
        (asking_for("/"), [97, 49]),
        (asking_for("/free"), [97, 48]),
        (asking_for("/export/7"), [77, 47]),
        (stated, [72, 46]),
    ] {
        let response = send(&layer, request).await;
        let [default, requests] = left;
        let state = header(&response, "ratelimit");
        assert!(
            state.starts_with(&format!(r#""default";r={default};"#))
                && state.contains(&format!(r#""requests";r={requests};"#)),
            "{state}"
        );
    }
}

#[cfg(feature = "prometheus")]
#[tokio::test]
async fn limits_in_shadow_are_counted_apart() {
    let metrics = tollgate::Metrics::new();
    let quotas = Quotas::of(rule("default", 3))
        .limit(rule("new", 1).shadow())
        .limit(rule("banned", 9).tenant("42", Allowance::Blocked).shadow())
        .limit(rule("search", 4).scope(Scope::Global));
    let builder =
        Limiter::builder(MemoryStore::with_clock(ManualClock::default())).denial_cache(false);
    let builder = builder.quotas(quotas).observer(metrics.clone());
    let limiter = builder.on_store_failure(FailurePolicy::Closed).build();
    let layer = RateLimitLayer::new(limiter.expect("a limiter"));
    for _ in 0..5 {
        send(&layer, request()).await;
    }
    for _ in 0..3 {
        let mut other = request();
        other.extensions_mut().insert(tenant("43"));
        send(&layer, other).await;
    }
    let text = metrics.render();
    for (limit, mode, count) in [
        ("default", "enforce", 2),
        // Twice of the first tenant before it was denied, as often afterwards, and twice of the second.
        ("new", "shadow", 6),
        ("banned", "shadow", 5),
        ("search", "enforce", 2),
    ] {
        let line = format!(
            r#"ratelimit_limit_rejections_total{{key_class="default",limit="{limit}",mode="{mode}"}} {count}"#
        );
        assert!(
            text.lines().any(|there| there == line),
            "no {line} in\n{text}"
        );
    }
    for (outcome, count) in [("allowed", 4), ("rejected", 4)] {
        let line = format!(
            r#"ratelimit_decisions_total{{key_class="default",outcome="{outcome}"}} {count}"#
        );
        assert!(
            text.lines().any(|there| there == line),
            "no {line} in\n{text}"
        );
    }
    // One that only watches never shows as one that denies.
    assert!(!text.contains(r#"limit="new",mode="enforce"} 6"#));
}

#[tokio::test]
async fn a_client_cannot_write_itself_out_of_a_limit_or_into_an_exemption() {
    let reports = rule("reports", 1).on_route("/reports/export".parse().expect("a pattern"));
    let quotas = Quotas::new(Quota::new(100, HOURLY).expect("a quota")).limit(reports);
    let quotas = quotas.price("/healthz".parse().expect("a pattern"), RoutePrice::Exempt);
    let layer = layer(quotas);
    let ok = || async { "ok" };
    let files = axum::Router::new()
        .route("/{*path}", axum::routing::get(ok))
        .layer(layer.clone());
    let plain = layer.layer(tower::service_fn(|_: Request<axum::body::Body>| async {
        Ok::<_, std::convert::Infallible>(http::Response::new(axum::body::Body::empty()))
    }));
    let app = axum::Router::new()
        .route("/reports/{name}", axum::routing::get(ok).layer(layer))
        .nest("/files", files)
        .nest_service("/api", plain);
    let get = async |path: &str| {
        let mut request = Request::get(path)
            .body(axum::body::Body::empty())
            .expect("a request");
        request.extensions_mut().insert(tenant("42"));
        let response = app.clone().oneshot(request).await.expect("infallible");
        (
            response.status(),
            response.headers().contains_key("ratelimit"),
        )
    };
    assert_eq!(get("/reports/export").await, (StatusCode::OK, true));
    for same in ["/reports/export", "/reports/%65xport", "/reports/ex%70ort"] {
        assert_eq!(
            get(same).await,
            (StatusCode::TOO_MANY_REQUESTS, true),
            "{same}"
        );
    }
    for charged in ["/files/healthz", "/api/healthz"] {
        assert_eq!(get(charged).await, (StatusCode::OK, true), "{charged}");
    }
}
