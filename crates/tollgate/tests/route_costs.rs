//! Costs next to routes, as a user of the crate writes and reads them.

#![cfg(feature = "axum")]

use axum::{Router, body::Body, handler::Handler};
use http::{Method, Request, StatusCode};
use tollgate::costs::{
    CostError, CostMethodRouter, CostRouter, Price, RouteCosts,
    routing::{any, get, post},
};
use tower::ServiceExt;

async fn ok() -> &'static str {
    "ok"
}

fn unpriced(app: CostRouter) -> Vec<String> {
    match app.try_into_router() {
        Ok(_) => Vec::new(),
        Err(CostError::Unpriced { routes, .. }) => routes,
        Err(other) => panic!("{other}"),
    }
}

#[test]
fn the_table_prints_sorted_and_aligned() {
    let app = CostRouter::<()>::new()
        .route("/search", get(ok).cost(5).post(ok).cost(20).delete(ok))
        .nest(
            "/api",
            CostRouter::new()
                .route("/", get(ok).cost(0))
                .route("/items/{id}", get(ok).cost(2)),
        )
        .nest_service_at("/assets", Price::Exempt, ok.with_state(()))
        .nest_service("/files/", ok.with_state(()))
        .route("/health", any(ok).exempt());
    assert_eq!(
        app.costs().to_string(),
        "\
GET     /api             0
GET     /api/items/{id}  2
any     /assets/*        exempt
any     /files/*         default
any     /health          exempt
DELETE  /search          default
GET     /search          5
POST    /search          20
"
    );
}

#[test]
fn lines_can_be_asserted_on() {
    let app = CostRouter::<()>::new()
        .route("/items", get(ok).cost(5).post(ok))
        .nest_service_at("/files", 3, ok.with_state(()));
    let costs = app.costs();
    assert_eq!(costs.get(&Method::GET, "/items"), Some(Price::from(5)));
    assert_eq!(costs.get(&Method::HEAD, "/items"), Some(Price::from(5)));
    assert_eq!(costs.get(&Method::POST, "/items"), Some(Price::Default));
    assert_eq!(costs.get(&Method::PUT, "/items"), None);
    let lines: Vec<_> = costs.iter().map(|line| line.to_string()).collect();
    assert_eq!(lines, ["any /files/*", "GET /items", "POST /items"]);
    let files = costs.iter().next().expect("a line");
    assert!(files.is_under() && files.method().is_none());
    assert_eq!((files.path(), files.price()), ("/files", Price::from(3)));
}

#[test]
fn every_method_has_its_function() {
    let routes = any(ok)
        .cost(1)
        .connect(ok)
        .cost(2)
        .delete(ok)
        .cost(3)
        .get(ok)
        .cost(4)
        .head(ok)
        .cost(5)
        .options(ok)
        .cost(6)
        .patch(ok)
        .cost(7)
        .post(ok)
        .cost(8)
        .put(ok)
        .cost(9)
        .trace(ok)
        .cost(10);
    let app = CostRouter::<()>::new().route("/", routes);
    let costs = app.costs();
    let methods = [
        "PROPFIND", "CONNECT", "DELETE", "GET", "HEAD", "OPTIONS", "PATCH", "POST", "PUT", "TRACE",
    ];
    for (method, tokens) in methods.into_iter().zip(1..) {
        let method = Method::from_bytes(method.as_bytes()).expect("a method");
        assert_eq!(costs.get(&method, "/"), Some(Price::from(tokens)));
    }
}

#[tokio::test]
async fn the_finished_router_serves_as_before() {
    let app = CostRouter::<()>::new()
        .route("/a", get(ok).cost(5).merge(post(ok).cost(6)))
        .merge(Router::new().route("/plain", axum::routing::get(ok)))
        .nest_service("/n", ok.with_state(()))
        .into_router();
    for (method, path, status) in [
        (Method::GET, "/a", StatusCode::OK),
        (Method::POST, "/a", StatusCode::OK),
        (Method::PUT, "/a", StatusCode::METHOD_NOT_ALLOWED),
        (Method::GET, "/plain", StatusCode::OK),
        (Method::GET, "/n/x", StatusCode::OK),
        (Method::GET, "/nowhere", StatusCode::NOT_FOUND),
    ] {
        let request = Request::builder().method(method).uri(path);
        let request = request.body(Body::empty()).expect("a request");
        let response = app.clone().oneshot(request).await.expect("infallible");
        assert_eq!(response.status(), status, "{path}");
    }
}

#[test]
fn required_costs_name_every_route_without_one() {
    let app = || {
        CostRouter::<()>::new()
            .route("/priced", get(ok).cost(1).post(ok).exempt())
            .route("/a", get(ok).cost(1).post(ok))
            .route("/b", any(ok))
            .nest_service("/n", ok.with_state(()))
            .fallback(ok)
    };
    assert_eq!(unpriced(app()), [""; 0]);
    let error = app().require_costs().try_into_router();
    assert_eq!(
        error.expect_err("unpriced").to_string(),
        "costs are required, but nothing is said for: POST /a, any /b, any /n/*; add `.cost(n)` or \
         `.exempt()` to each, or a line to the table given to `with_costs`"
    );
    let costs = RouteCosts::new()
        .set_any("/a", 2)
        .set_any("/b", 2)
        .exempt_under("/n");
    assert_eq!(unpriced(app().with_costs(costs).require_costs()), [""; 0]);
}

#[test]
fn required_costs_hold_for_the_app_around() {
    let strict = || CostRouter::<()>::new().require_costs();
    let outer = || CostRouter::<()>::new().route("/a", get(ok));
    assert_eq!(unpriced(outer().merge(strict())), ["GET /a"]);
    assert_eq!(unpriced(outer().nest("/n", strict())), ["GET /a"]);
    assert_eq!(unpriced(strict().nest("/n", outer())), ["GET /n/a"]);
}

#[test]
fn required_costs_need_a_word_for_routes_that_cannot_be_listed() {
    let plain = || Router::<()>::new().route("/x", axum::routing::get(ok));
    let strict = || CostRouter::<()>::new().require_costs();
    assert_eq!(unpriced(strict().nest("/v1", plain())), ["any /v1/*"]);
    assert_eq!(unpriced(strict().merge(plain())), ["any /*"]);
    assert_eq!(unpriced(strict().merge(Router::new())), [""; 0]);
    let spoken_for = CostRouter::from(plain()).with_costs(RouteCosts::new().set_any("/x", 2));
    assert_eq!(unpriced(strict().nest("/v1", spoken_for)), [""; 0]);
}

#[test]
#[should_panic(expected = "costs are required, but nothing is said for: GET /a;")]
fn into_router_panics_where_costs_are_required() {
    let app = CostRouter::<()>::new().route("/a", get(ok));
    let _ = app.require_costs().into_router();
}

#[test]
#[should_panic(expected = "costs are required")]
fn split_panics_where_costs_are_required() {
    let app = CostRouter::<()>::new().route("/a", get(ok));
    let _ = app.require_costs().split();
}

#[test]
#[should_panic(expected = "The handler for `GET` already has a price")]
fn two_prices_for_one_handler_panic() {
    let _: CostMethodRouter = get(ok).cost(1).cost(1);
}

#[test]
#[should_panic(expected = "It must come right after the handler that it is for")]
fn a_price_for_no_handler_panics() {
    let _: CostMethodRouter = get(ok).merge(post(ok)).cost(1);
}

#[test]
#[should_panic(expected = "Overlapping costs. A price for `GET /a` already exists")]
fn a_price_by_hand_for_a_priced_handler_panics() {
    let _ = CostRouter::<()>::new()
        .route("/a", get(ok).cost(1))
        .with_costs(RouteCosts::new().set(Method::GET, "/a", 2));
}

#[test]
#[should_panic(expected = "Overlapping method route")]
fn two_handlers_for_one_route_panic_as_in_axum() {
    let _ = CostRouter::<()>::new()
        .route("/a", get(ok).cost(1))
        .merge(CostRouter::new().route("/a", get(ok).cost(2)));
}

#[test]
fn panics_point_at_the_line_that_is_wrong() {
    use std::{panic, sync::mpsc};

    let (sender, receiver) = mpsc::channel();
    let before = panic::take_hook();
    panic::set_hook(Box::new(move |info| {
        let location = info.location().expect("a location");
        // Other tests of this file panic as well.
        let _ = sender.send((location.file().to_owned(), location.line()));
    }));
    let wrong = line!() + 1;
    let panicked = panic::catch_unwind(|| get::<_, _, ()>(ok).cost(1).cost(2));
    panic::set_hook(before);
    assert!(panicked.is_err());
    let mut places = receiver.try_iter();
    assert!(places.any(|(file, line)| file.ends_with("route_costs.rs") && line == wrong));
}
