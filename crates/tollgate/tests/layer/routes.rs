//! Costs of routes, charged: the look-up itself is tested beside it.

use axum::{Router, middleware, response::Response};
use http::{Method, Request};
use tollgate::{
    Cost, CostRouter, FailurePolicy, Limiter, MissingIdentity, Price, RateLimitLayer, RouteCosts,
    costs::{
        CostError,
        routing::{get, post},
    },
};
use tower::ServiceExt;

use crate::{
    log::Log,
    support::{self, HOURLY, has, header, tenant},
};

fn limiter(capacity: u64) -> Limiter {
    support::limiter(capacity, HOURLY).0
}

fn layer(capacity: u64) -> RateLimitLayer {
    RateLimitLayer::new(limiter(capacity))
}

/// Authentication that takes everybody for tenant 42.
async fn authenticate(mut request: axum::extract::Request, next: middleware::Next) -> Response {
    request.extensions_mut().insert(tenant("42"));
    next.run(request).await
}

fn finish(app: CostRouter) -> Router {
    app.layer(middleware::from_fn(authenticate)).into_router()
}

async fn ask(app: &Router, method: Method, path: &str) -> Response {
    let request = Request::builder()
        .method(method)
        .uri(path)
        .body(axum::body::Body::empty());
    app.clone()
        .oneshot(request.expect("a request"))
        .await
        .expect("infallible")
}

async fn remaining(app: &Router, method: Method, path: &str) -> String {
    header(&ask(app, method, path).await, "x-ratelimit-remaining").to_owned()
}

/// `/items/{id}` for 5 tokens.
fn items() -> CostRouter {
    CostRouter::new().route("/items/{id}", get(|| async {}).cost(5))
}

/// 10 tokens serve two of these, whatever the ids.
async fn assert_serves_two_of_three(app: &Router, paths: [&str; 3]) {
    let (log, _guard) = Log::capture();
    for (path, status, left) in [
        (paths[0], 200, "5"),
        (paths[1], 200, "0"),
        (paths[2], 429, "0"),
    ] {
        let response = ask(app, Method::GET, path).await;
        assert_eq!(
            (
                response.status().as_u16(),
                header(&response, "x-ratelimit-remaining")
            ),
            (status, left),
            "{path}"
        );
    }
    assert!(
        log.text().contains("/items/{id}\""),
        "the trace names the route: {}",
        log.text()
    );
}

const NESTED: [&str; 3] = ["/api/items/1", "/api/items/2", "/api/items/3"];
const MERGED: [&str; 3] = ["/items/1", "/items/2", "/items/3"];

#[tokio::test]
async fn the_route_of_a_nested_router_is_charged_wherever_the_layer_is() {
    let outer = CostRouter::new().nest("/api", items()).layer(layer(10));
    assert_serves_two_of_three(&finish(outer), NESTED).await;
    let outer = CostRouter::new()
        .nest("/api", items())
        .route_layer(layer(10));
    assert_serves_two_of_three(&finish(outer), NESTED).await;
    let inner = CostRouter::new().nest("/api", items().layer(layer(10)));
    assert_serves_two_of_three(&finish(inner), NESTED).await;
    let merged = CostRouter::new().merge(items()).layer(layer(10));
    assert_serves_two_of_three(&finish(merged), MERGED).await;
    let late = Router::new().nest("/api", finish(items().layer(layer(10))));
    assert_serves_two_of_three(&late, NESTED).await;
    let service = Router::new().nest_service("/api", finish(items().layer(layer(10))));
    assert_serves_two_of_three(&service, NESTED).await;
}

#[tokio::test]
async fn a_layer_that_cannot_know_the_route_warns() {
    let (log, _guard) = Log::capture();
    let hidden = CostRouter::new()
        .nest_service("/api", items().into_router())
        .layer(layer(10));
    let hidden = finish(hidden);
    for left in ["9", "8"] {
        assert_eq!(remaining(&hidden, Method::GET, "/api/items/1").await, left);
    }
    assert_eq!(log.count("WARN"), 1, "{}", log.text());
    assert!(
        log.text()
            .contains("outside of the router that holds the costs"),
        "{}",
        log.text()
    );
}

#[tokio::test]
async fn a_priced_router_behind_a_fallback_warns() {
    let (log, _guard) = Log::capture();
    let app = CostRouter::new()
        .route("/x", get(|| async {}))
        .fallback_service(items().into_router())
        .layer(layer(10));
    assert_eq!(remaining(&finish(app), Method::GET, "/items/1").await, "9");
    assert!(
        log.text()
            .contains("outside of the router that holds the costs"),
        "{}",
        log.text()
    );
}

#[tokio::test]
async fn a_policy_that_never_decides_is_warned_of() {
    let (log, _guard) = Log::capture();
    let limiter = limiter(100);
    let inner = RateLimitLayer::new(limiter.clone()).on_store_failure(FailurePolicy::Closed);
    let app = finish(items().layer(inner).layer(RateLimitLayer::new(limiter)));
    for _ in 0..2 {
        ask(&app, Method::GET, "/items/1").await;
    }
    assert_eq!(log.count("failure policy of its own"), 1, "{}", log.text());
}

#[tokio::test]
async fn two_limiters_of_one_name_on_one_request_warn() {
    let (log, _guard) = Log::capture();
    let app = finish(items().layer(layer(10)).layer(layer(20)));
    for _ in 0..2 {
        ask(&app, Method::GET, "/items/1").await;
    }
    assert_eq!(log.count("under the same name"), 1, "{}", log.text());
}

#[tokio::test]
async fn a_limiter_without_a_table_warns_once_unless_that_is_what_was_asked_for() {
    let plain = |layer: RateLimitLayer| {
        let app = Router::new().route("/ok", axum::routing::get(|| async {}));
        app.layer(layer).layer(middleware::from_fn(authenticate))
    };
    let (log, _guard) = Log::capture();
    let app = plain(layer(10));
    for _ in 0..3 {
        ask(&app, Method::GET, "/ok").await;
    }
    assert_eq!(log.count("knows no costs of routes"), 1, "{}", log.text());

    let (log, _guard) = Log::capture();
    let app = plain(layer(10).with_default_cost(3).expect("it fits"));
    assert_eq!(remaining(&app, Method::GET, "/ok").await, "7");
    assert_eq!(log.count("WARN"), 0, "{}", log.text());

    // Into the router first, and the layer around it: the table is inside of the limiter.
    let (log, _guard) = Log::capture();
    let inverted = items()
        .into_router()
        .layer(layer(10))
        .layer(middleware::from_fn(authenticate));
    assert_eq!(remaining(&inverted, Method::GET, "/items/1").await, "9");
    assert!(log.count("WARN") >= 1, "{}", log.text());
}

#[tokio::test]
async fn a_missing_identity_is_warned_of_once() {
    let (log, _guard) = Log::capture();
    let app = items().layer(layer(10)).into_router();
    for _ in 0..3 {
        assert_eq!(ask(&app, Method::GET, "/items/1").await.status(), 401);
    }
    assert_eq!(log.count("no verified identity"), 1, "{}", log.text());

    let (log, _guard) = Log::capture();
    let anonymous = layer(10).on_missing_identity(MissingIdentity::Anonymous);
    let app = items().layer(anonymous).into_router();
    for _ in 0..3 {
        assert_eq!(ask(&app, Method::GET, "/items/1").await.status(), 401);
    }
    assert_eq!(
        log.count("into_make_service_with_connect_info"),
        1,
        "{}",
        log.text()
    );
    assert_eq!(
        log.count("no verified identity"),
        0,
        "one clear word: {}",
        log.text()
    );
}

#[tokio::test]
async fn each_method_has_its_price_and_exempt_routes_need_no_identity() {
    let app = CostRouter::new()
        .route(
            "/search",
            get(|| async {}).cost(5).post(|| async {}).cost(20),
        )
        .route("/free", get(|| async {}).cost(0))
        .route("/health", get(|| async {}).exempt())
        .route("/plain", get(|| async {}))
        .layer(layer(100));
    let open = app.clone().into_router();
    let app = finish(app);
    assert_eq!(remaining(&app, Method::GET, "/search").await, "95");
    assert_eq!(remaining(&app, Method::HEAD, "/search").await, "90");
    assert_eq!(remaining(&app, Method::POST, "/search").await, "70");
    assert_eq!(remaining(&app, Method::GET, "/free").await, "70");
    assert_eq!(remaining(&app, Method::GET, "/plain").await, "69");
    assert_eq!(remaining(&app, Method::GET, "/missing").await, "68");
    let wrong_method = ask(&app, Method::PUT, "/search").await;
    assert_eq!(
        (
            wrong_method.status().as_u16(),
            header(&wrong_method, "x-ratelimit-remaining")
        ),
        (405, "67")
    );

    let health = ask(&open, Method::GET, "/health").await;
    assert_eq!(health.status(), 200);
    assert!(!has(&health, "ratelimit"));
    assert_eq!(ask(&open, Method::GET, "/free").await.status(), 401);
}

#[tokio::test]
async fn unknown_paths_and_methods_can_have_a_price_of_their_own() {
    let app = finish(items().layer(layer(100).with_unmatched_cost(7).expect("it fits")));
    assert_eq!(remaining(&app, Method::GET, "/missing").await, "93");
    assert_eq!(remaining(&app, Method::PUT, "/items/1").await, "86");
    assert_eq!(remaining(&app, Method::GET, "/items/1").await, "81");
    let app = finish(items().layer(layer(100).with_unmatched_cost(Price::Exempt).expect("free")));
    let missing = ask(&app, Method::GET, "/missing").await;
    assert!(missing.status() == 404 && !has(&missing, "ratelimit"));
}

#[tokio::test]
async fn a_cost_set_by_outer_middleware_comes_first() {
    let dynamic = |mut request: axum::extract::Request, next: middleware::Next| async {
        request.extensions_mut().insert(Cost::new(8));
        next.run(request).await
    };
    let app = finish(items().layer(layer(10)).layer(middleware::from_fn(dynamic)));
    assert_eq!(remaining(&app, Method::GET, "/items/1").await, "2");
}

#[test]
fn a_cost_that_no_tier_can_hold_fails_the_build() {
    let app: CostRouter = CostRouter::new()
        .route("/export", post(|| async {}).cost(11))
        .layer(layer(10));
    let error = app.try_into_router().expect_err("refused");
    assert!(matches!(error, CostError::AboveCapacity { .. }));
    assert!(
        error
            .to_string()
            .contains("POST /export (11 of at most 10)"),
        "{error}"
    );

    let error = layer(10).with_default_cost(11).expect_err("refused");
    assert!(
        error.to_string().contains("the default (11 of at most 10)"),
        "{error}"
    );
    assert!(layer(10).with_unmatched_cost(11).is_err());

    let table = RouteCosts::new().set(Method::POST, "/export", 11);
    let error = layer(10).with_costs(table).expect_err("refused");
    assert!(
        error
            .to_string()
            .contains("POST /export (11 of at most 10)"),
        "{error}"
    );
}

#[tokio::test]
async fn a_table_given_to_the_layer_serves_those_without_the_wrapper() {
    let table = RouteCosts::new().set(Method::GET, "/items/{id}", 5);
    let app = Router::new()
        .route("/items/{id}", axum::routing::get(|| async {}))
        .layer(layer(10).with_costs(table).expect("costs that fit"))
        .layer(middleware::from_fn(authenticate));
    assert_serves_two_of_three(&app, MERGED).await;
}
