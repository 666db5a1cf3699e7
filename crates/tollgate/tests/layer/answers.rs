//! What a client gets: statuses, headers and bodies.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use http::{Method, Request, Response, StatusCode, Version};
use http_body_util::BodyExt;
use serde_json::{Value, json};
use sfv::{BareItem, List, ListEntry, Parser};
use tollgate::{
    Cost, EXPOSED_HEADERS, EmptyBody, FailurePolicy, Headers, LimitName, Limiter, ManualClock,
    MemoryStore, Quota, Quotas, RateLimitLayer, Reason, Refusal, Reset,
};
use tower::{Layer, ServiceBuilder, ServiceExt};

use crate::support::{Body, Broken, Counting, HOURLY, has, header, limiter, named, request, send};

/// `[(name, [(key, number)])]` of a structured-field list.
fn list(value: &str) -> Vec<(String, Vec<(String, i64)>)> {
    let list: List = Parser::new(value).parse().expect("a structured-field list");
    let item = |entry| match entry {
        ListEntry::Item(item) => item,
        ListEntry::InnerList(_) => panic!("an inner list"),
    };
    list.into_iter()
        .map(item)
        .map(|item| {
            let BareItem::String(name) = item.bare_item else {
                panic!("not a string")
            };
            let number = |value| match value {
                BareItem::Integer(number) => i64::from(number),
                other => panic!("not an integer: {other:?}"),
            };
            let params = item
                .params
                .into_iter()
                .map(|(key, value)| (key.as_str().to_owned(), number(value)));
            (name.as_str().to_owned(), params.collect())
        })
        .collect()
}

fn params(pairs: &[(&str, i64)]) -> Vec<(String, i64)> {
    pairs
        .iter()
        .map(|&(key, value)| (key.to_owned(), value))
        .collect()
}

async fn problem(response: Response<Body>) -> Value {
    assert_eq!(
        header(&response, "content-type"),
        "application/problem+json"
    );
    let body = response
        .into_body()
        .collect()
        .await
        .expect("infallible")
        .to_bytes();
    serde_json::from_slice(&body).expect("JSON")
}

#[tokio::test]
async fn every_answer_says_where_the_client_stands() {
    let (limiter, clock) = limiter(100, 10.0);
    let layer = RateLimitLayer::new(limiter);
    let mut costly = request();
    costly.extensions_mut().insert(Cost::new(40));
    let response = send(&layer, costly).await;
    assert_eq!(header(&response, "x-ratelimit-limit"), "100");
    assert_eq!(header(&response, "x-ratelimit-remaining"), "60");
    assert_eq!(header(&response, "x-ratelimit-reset"), "4");
    assert_eq!(
        header(&response, "ratelimit-policy"),
        r#""default";q=100;w=10"#
    );
    assert_eq!(header(&response, "ratelimit"), r#""default";r=60;t=6"#);
    assert!(!has(&response, "retry-after"));

    let mut costly = request();
    costly.extensions_mut().insert(Cost::new(75));
    let response = send(&layer, costly).await;
    assert_eq!(response.status(), StatusCode::TOO_MANY_REQUESTS);
    assert_eq!(header(&response, "retry-after"), "2");
    assert_eq!(header(&response, "cache-control"), "no-store");
    assert_eq!(header(&response, "x-ratelimit-remaining"), "60");
    assert_eq!(header(&response, "ratelimit"), r#""default";r=60;t=2"#);
    assert_eq!(
        problem(response).await,
        json!({
            "type": "https://iana.org/assignments/http-problem-types#quota-exceeded",
            "title": "Quota Exceeded",
            "status": 429,
            "detail": "This request costs 75, and the limit default has 60 left. Retry after 2 s.",
            "violated-policies": ["default"],
        })
    );

    clock.advance(10_000);
    let mut free = request();
    free.extensions_mut().insert(Cost::FREE);
    let response = send(&layer, free).await;
    assert_eq!(header(&response, "x-ratelimit-remaining"), "100");
    assert_eq!(header(&response, "x-ratelimit-reset"), "0");
}

#[tokio::test]
async fn header_values_are_never_negative_and_parse_as_structured_fields() {
    let layer = RateLimitLayer::new(limiter(2, HOURLY).0);
    for (remaining, allowed) in [(1, true), (0, true), (0, false), (0, false), (0, false)] {
        let response = send(&layer, request()).await;
        assert_eq!(response.status() == StatusCode::OK, allowed);
        assert_eq!(
            header(&response, "x-ratelimit-remaining"),
            remaining.to_string()
        );
        assert_eq!(
            header(&response, "x-ratelimit-reset"),
            (3600 * (2 - remaining)).to_string()
        );
        assert_eq!(has(&response, "retry-after"), !allowed);
        assert_eq!(has(&response, "cache-control"), !allowed);
        let policy = list(header(&response, "ratelimit-policy"));
        assert_eq!(
            policy,
            [("default".to_owned(), params(&[("q", 2), ("w", 7200)]))]
        );
        let state = list(header(&response, "ratelimit"));
        assert_eq!(
            state,
            [(
                "default".to_owned(),
                params(&[("r", remaining), ("t", 3600)])
            )]
        );
    }
}

#[test]
fn names_that_would_need_escaping_are_refused() {
    for name in ["quo\"te", "résumé", "", "Upper"] {
        let error = LimitName::new(name).expect_err("refused");
        assert!(
            error.to_string().contains("not a name for a limit"),
            "{error}"
        );
    }
}

#[tokio::test]
async fn a_wait_below_a_second_is_told_as_one() {
    let (limiter, clock) = limiter(1, 5.0);
    let layer = RateLimitLayer::new(limiter);
    assert_eq!(send(&layer, request()).await.status(), StatusCode::OK);
    let denied = send(&layer, request()).await;
    assert_eq!(header(&denied, "retry-after"), "1");
    assert_eq!(header(&denied, "ratelimit"), r#""default";r=0;t=1"#);
    clock.advance(100);
    assert_eq!(
        send(&layer, request()).await.status(),
        StatusCode::TOO_MANY_REQUESTS
    );
    clock.advance(900);
    assert_eq!(send(&layer, request()).await.status(), StatusCode::OK);
}

#[tokio::test]
async fn a_lone_client_that_waits_retry_after_is_always_admitted() {
    for tenth in 3..=500 {
        let (limiter, clock) = limiter(1, f64::from(tenth) / 10.0);
        let layer = RateLimitLayer::new(limiter);
        send(&layer, request()).await;
        let denied = send(&layer, request()).await;
        let wait: u64 = header(&denied, "retry-after")
            .parse()
            .expect("whole seconds");
        assert!(wait >= 1);
        clock.advance(wait * 1000);
        assert_eq!(
            send(&layer, request()).await.status(),
            StatusCode::OK,
            "rate {tenth}/10"
        );
    }
    // One token per 1.5 s: rounded up to 2.
    let layer = RateLimitLayer::new(limiter(1, 1.0 / 1.5).0);
    send(&layer, request()).await;
    assert_eq!(header(&send(&layer, request()).await, "retry-after"), "2");
}

#[tokio::test]
async fn a_cost_that_can_never_fit_gives_no_retry_after_and_says_so() {
    let (limiter, _) = limiter(10, 1.0);
    let layer = RateLimitLayer::new(limiter);
    let mut costly = request();
    costly.extensions_mut().insert(Cost::new(11));
    let response = send(&layer, costly).await;
    assert_eq!(response.status(), StatusCode::TOO_MANY_REQUESTS);
    assert!(!has(&response, "retry-after"));
    assert_eq!(header(&response, "ratelimit"), r#""default";r=10"#);
    let problem = problem(response).await;
    let detail = problem["detail"].as_str().expect("a detail");
    assert!(
        detail.contains("more than the limit default can ever hold (10)"),
        "{detail}"
    );
    assert_eq!(
        header(&send(&layer, request()).await, "x-ratelimit-remaining"),
        "9",
        "nothing was taken"
    );
}

#[tokio::test]
async fn a_store_failure_that_is_closed_is_no_quota_denial() {
    let layer = RateLimitLayer::new(named("default", Broken, 10, 1.0));
    let response = send(&layer, request()).await;
    assert_eq!(response.status(), StatusCode::SERVICE_UNAVAILABLE);
    assert_eq!(header(&response, "retry-after"), "1");
    assert_eq!(header(&response, "cache-control"), "no-store");
    assert_eq!(
        header(&response, "ratelimit-policy"),
        r#""default";q=10;w=10"#
    );
    assert!(!has(&response, "ratelimit") && !has(&response, "x-ratelimit-remaining"));
    let problem = problem(response).await;
    assert_eq!(
        problem["type"],
        "https://iana.org/assignments/http-problem-types#temporary-reduced-capacity"
    );
    assert_eq!(
        (&problem["status"], &problem["violated-policies"]),
        (&json!(503), &json!(["default"]))
    );
}

#[tokio::test]
async fn a_store_failure_that_is_open_lets_through_and_claims_nothing() {
    let builder = Limiter::builder(Broken).quotas(Quotas::new(Quota::new(10, 1).expect("a quota")));
    let limiter = builder
        .on_store_failure(FailurePolicy::Open)
        .build()
        .expect("a limiter");
    let response = send(&RateLimitLayer::new(limiter), request()).await;
    assert_eq!(response.status(), StatusCode::OK);
    assert_eq!(
        header(&response, "ratelimit-policy"),
        r#""default";q=10;w=10"#
    );
    assert!(!has(&response, "ratelimit") && !has(&response, "x-ratelimit-limit"));
}

#[tokio::test]
async fn under_the_local_policy_the_local_numbers_are_shown() {
    let quotas = Quotas::new(Quota::new(100, HOURLY).expect("a quota"));
    let builder = Limiter::builder(Broken).quotas(quotas);
    let limiter = builder
        .on_store_failure(FailurePolicy::local(25))
        .build()
        .expect("a limiter");
    let layer = RateLimitLayer::new(limiter);
    for remaining in [3, 2, 1, 0] {
        let response = send(&layer, request()).await;
        assert_eq!(response.status(), StatusCode::OK);
        assert_eq!(header(&response, "x-ratelimit-limit"), "4");
        assert_eq!(
            header(&response, "x-ratelimit-remaining"),
            remaining.to_string()
        );
    }
    let denied = send(&layer, request()).await;
    assert_eq!(denied.status(), StatusCode::TOO_MANY_REQUESTS);
    assert_eq!(header(&denied, "retry-after"), (25 * 3600).to_string());
    assert_eq!(
        header(&denied, "ratelimit-policy"),
        r#""default";q=4;w=360000"#
    );
}

#[tokio::test]
async fn a_group_of_routes_can_have_a_policy_of_its_own() {
    let builder = Limiter::builder(Broken).quotas(Quotas::new(Quota::new(10, 1).expect("a quota")));
    let limiter = builder
        .on_store_failure(FailurePolicy::Open)
        .build()
        .expect("a limiter");
    let payments = RateLimitLayer::new(limiter.clone()).on_store_failure(FailurePolicy::Closed);
    assert_eq!(send(&payments, request()).await.status(), 503);
    assert_eq!(
        send(&RateLimitLayer::new(limiter), request())
            .await
            .status(),
        200
    );
}

#[tokio::test]
async fn stacked_limiters_show_the_tightest() {
    let outer = RateLimitLayer::new(named(
        "outer",
        MemoryStore::with_clock(ManualClock::default()),
        100,
        HOURLY,
    ));
    let inner = RateLimitLayer::new(named(
        "inner",
        MemoryStore::with_clock(ManualClock::default()),
        1,
        HOURLY,
    ));
    let handler = Counting::default();
    let both = ServiceBuilder::new()
        .layer(outer)
        .layer(inner)
        .service(handler.clone());

    let response = both.clone().oneshot(request()).await.expect("infallible");
    assert_eq!(response.status(), StatusCode::OK);
    let seen = handler.last();
    let charged = seen.get::<tollgate::Charged>().expect("it was charged");
    let name = |charged: &tollgate::Charged| charged.decision().limits[0].name.clone();
    assert_eq!(name(charged).as_str(), "inner");
    let outer = charged.outer().expect("two limiters");
    assert_eq!(name(outer).as_str(), "outer");
    assert!(outer.outer().is_none());
    assert_eq!(
        (
            header(&response, "x-ratelimit-limit"),
            header(&response, "x-ratelimit-remaining")
        ),
        ("1", "0")
    );

    let response = both.oneshot(request()).await.expect("infallible");
    assert_eq!(response.status(), StatusCode::TOO_MANY_REQUESTS);
    assert_eq!(
        (
            header(&response, "x-ratelimit-limit"),
            header(&response, "x-ratelimit-remaining")
        ),
        ("1", "0")
    );
    assert_eq!(header(&response, "retry-after"), "3600");
    assert_eq!(header(&response, "x-ratelimit-reset"), "3600");
    let names: Vec<_> = list(header(&response, "ratelimit"))
        .into_iter()
        .map(|(name, _)| name)
        .collect();
    assert_eq!(names, ["inner", "outer"]);
    assert_eq!(list(header(&response, "ratelimit-policy")).len(), 2);
    let shown = response
        .extensions()
        .get::<tollgate::Decision>()
        .expect("a decision");
    assert_eq!(shown.limits[0].name.as_str(), "inner");
}

#[tokio::test]
async fn headers_of_a_service_behind_are_joined_not_lost() {
    let upstream = tower::service_fn(|_: Request<Body>| async {
        let mut response = Response::new(Body::default());
        for (name, value) in [
            ("ratelimit", r#""upstream";r=1;t=9"#),
            ("x-ratelimit-limit", "1000"),
            ("x-ratelimit-remaining", "1"),
            ("x-ratelimit-reset", "9"),
        ] {
            response
                .headers_mut()
                .insert(name, value.parse().expect("a value"));
        }
        Ok::<_, std::convert::Infallible>(response)
    });
    let layer = RateLimitLayer::new(limiter(10, HOURLY).0);
    let response = layer
        .layer(upstream)
        .oneshot(request())
        .await
        .expect("infallible");
    assert_eq!(
        header(&response, "ratelimit"),
        r#""upstream";r=1;t=9, "default";r=9;t=32400"#
    );
    assert_eq!(header(&response, "x-ratelimit-limit"), "1000");
}

#[tokio::test]
async fn header_families_can_be_chosen() {
    let layer = RateLimitLayer::new(limiter(1, HOURLY).0);
    for (headers, ietf, legacy) in [
        (Headers::Both, true, true),
        (Headers::Ietf, true, false),
        (Headers::Legacy, false, true),
        (Headers::RetryAfterOnly, false, false),
    ] {
        let response = send(&layer.clone().with_headers(headers), request()).await;
        assert_eq!(
            (
                has(&response, "ratelimit"),
                has(&response, "ratelimit-policy")
            ),
            (ietf, ietf),
            "{headers:?}"
        );
        assert_eq!(has(&response, "x-ratelimit-limit"), legacy, "{headers:?}");
        assert_eq!(
            has(&response, "retry-after"),
            response.status() != StatusCode::OK
        );
    }
}

#[tokio::test]
async fn reset_can_be_a_time_stamp() {
    let now = || {
        SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .expect("after 1970")
            .as_secs()
    };
    let layer = RateLimitLayer::new(limiter(1, HOURLY).0).with_reset(Reset::Epoch);
    for _ in 0..2 {
        let before = now();
        let response = send(&layer, request()).await;
        let reset: u64 = header(&response, "x-ratelimit-reset")
            .parse()
            .expect("seconds");
        assert!((before + 3600..=now() + 3601).contains(&reset), "{reset}");
    }
}

#[tokio::test]
async fn the_body_of_a_refusal_is_the_users_to_choose() {
    let layer = RateLimitLayer::new(limiter(1, HOURLY).0);
    send(&layer, request()).await;

    let teapot = layer.clone().with_rejection(|refusal: &Refusal| {
        assert_eq!(refusal.reason, Reason::QuotaExceeded);
        let mut response = Response::new(Body::from(format!("wait {:?}", refusal.retry_after())));
        *response.status_mut() = StatusCode::IM_A_TEAPOT;
        response
    });
    let response = send(&teapot, request()).await;
    assert_eq!(response.status(), StatusCode::IM_A_TEAPOT);
    assert_eq!(
        header(&response, "retry-after"),
        "3600",
        "the headers come all the same"
    );
    assert_eq!(header(&response, "ratelimit"), r#""default";r=0;t=3600"#);
    let body = response
        .into_body()
        .collect()
        .await
        .expect("infallible")
        .to_bytes();
    assert_eq!(body, "wait Some(3600)");

    let response = send(&layer.with_rejection(EmptyBody::default()), request()).await;
    assert_eq!(response.status(), StatusCode::TOO_MANY_REQUESTS);
    assert!(
        response
            .into_body()
            .collect()
            .await
            .expect("infallible")
            .to_bytes()
            .is_empty()
    );
}

#[tokio::test]
async fn preflights_are_free_and_other_options_are_not() {
    let layer = RateLimitLayer::new(limiter(2, HOURLY).0);
    let preflight = || {
        let builder = Request::builder()
            .method(Method::OPTIONS)
            .header("origin", "https://shop.example");
        builder
            .header("access-control-request-method", "GET")
            .body(Body::default())
            .expect("a request")
    };
    for _ in 0..10 {
        assert_eq!(
            send(&layer, preflight()).await.status(),
            StatusCode::OK,
            "no identity, no charge"
        );
    }
    let mut options = request();
    *options.method_mut() = Method::OPTIONS;
    assert_eq!(
        header(&send(&layer, options).await, "x-ratelimit-remaining"),
        "1"
    );

    let charging = layer.charge_preflights();
    assert_eq!(
        send(&charging, preflight()).await.status(),
        StatusCode::UNAUTHORIZED
    );
}

#[tokio::test]
async fn the_exposed_headers_are_the_ones_sent() {
    let layer = RateLimitLayer::new(limiter(1, HOURLY).0);
    send(&layer, request()).await;
    let denied = send(&layer, request()).await;
    for name in EXPOSED_HEADERS {
        assert!(denied.headers().contains_key(&name), "{name}");
    }
    let ours = denied
        .headers()
        .keys()
        .filter(|name| name.as_str().contains("ratelimit"));
    assert_eq!(ours.count(), EXPOSED_HEADERS.len() - 1);
}

#[tokio::test]
async fn only_an_unread_body_over_http_1_closes_the_connection() {
    let layer = RateLimitLayer::new(limiter(1, HOURLY).0);
    send(&layer, request()).await;
    for (version, body, closes) in [
        (Version::HTTP_11, "unread", true),
        (Version::HTTP_10, "unread", true),
        (Version::HTTP_11, "", false),
        (Version::HTTP_2, "unread", false),
    ] {
        let mut request = request().map(|_| Body::from(body));
        *request.version_mut() = version;
        let response = send(&layer, request).await;
        assert_eq!(has(&response, "connection"), closes, "{version:?} {body:?}");
    }
}

#[tokio::test]
async fn windows_of_fast_and_slow_quotas_are_whole_seconds() {
    for (capacity, rate, policy) in [
        (5, 50.0, r#""default";q=5;w=1"#),
        (1000, 1000.0 / 60.0, r#""default";q=1000;w=60"#),
        (1, 1.0 / 86_400.0, r#""default";q=1;w=86400"#),
        (7, 7.0 / 3.0, r#""default";q=7;w=3"#),
    ] {
        let response = send(&RateLimitLayer::new(limiter(capacity, rate).0), request()).await;
        assert_eq!(header(&response, "ratelimit-policy"), policy);
    }
    let (limiter, clock) = limiter(1, 1.0 / 86_400.0);
    let layer = RateLimitLayer::new(limiter);
    send(&layer, request()).await;
    clock.advance(u64::try_from(Duration::from_secs(3600).as_millis()).expect("small"));
    assert_eq!(
        header(&send(&layer, request()).await, "retry-after"),
        "82800"
    );
}
