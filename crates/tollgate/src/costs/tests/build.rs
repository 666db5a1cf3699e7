//! Costs above a limiter's capacity are found while the app is built.

use axum::{Router, handler::Handler};
use tower::ServiceBuilder;

use super::probe::{Probe, ok};
use crate::costs::{CostError, CostRouter, Price, RouteCosts, routing::get};

/// The routes that are refused, as `route cost capacity`.
fn refused(app: CostRouter) -> Vec<String> {
    match app.try_into_router() {
        Ok(_) => Vec::new(),
        Err(CostError::AboveCapacity { routes }) => routes
            .into_iter()
            .map(|it| format!("{} {} {}", it.route, it.cost.tokens(), it.capacity))
            .collect(),
        Err(other) => panic!("{other}"),
    }
}

fn limiter(capacity: u64) -> Probe {
    Probe::with_capacity(capacity)
}

#[test]
fn a_cost_above_the_capacity_is_refused() {
    let app = CostRouter::new()
        .route("/a", get(ok).cost(10).post(ok).cost(11))
        .route_service_at("/s", 12, ok.with_state(()))
        .nest_service_at("/n", 13, ok.with_state(()))
        .route("/free", get(ok).exempt())
        .layer(limiter(10));
    assert_eq!(
        refused(app),
        ["POST /a 11 10", "any /n/* 13 10", "any /s 12 10"]
    );
}

#[test]
fn a_limiter_deep_in_a_stack_is_found() {
    let stack = ServiceBuilder::new()
        .layer(tower::layer::util::Identity::new())
        .layer(limiter(10))
        .concurrency_limit(5);
    let app = CostRouter::new().route("/a", get(ok).cost(11)).layer(stack);
    assert_eq!(refused(app), ["GET /a 11 10"]);
}

#[test]
fn a_limiter_is_found_where_all_handlers_wait_for_their_state() {
    use axum::extract::State;

    let handler = async |State(_): State<String>| ();
    let app = CostRouter::new()
        .route("/a", get(handler).cost(11))
        .fallback(handler)
        .method_not_allowed_fallback(handler)
        .layer(limiter(10));
    assert_eq!(
        refused(app.clone().with_state(String::new())),
        ["GET /a 11 10"]
    );
    assert!(app.try_into_router().is_err());
}

/// Why the layer is tried on an empty router instead of listening to the real one.
#[test]
fn axum_layers_an_empty_router_at_once_and_waiting_handlers_later() {
    let announced = |router: Router<String>| {
        crate::costs::wiring::collect(|| {
            let _ = router.layer(limiter(10));
        })
    };
    assert_eq!(announced(Router::new()), Some(10));
    let handler = async |_: axum::extract::State<String>| ();
    let waiting = Router::new()
        .route("/a", axum::routing::get(handler))
        .fallback(handler)
        .method_not_allowed_fallback(handler);
    assert_eq!(announced(waiting), None);
}

#[test]
fn only_routes_before_the_layer_are_compared() {
    let app = CostRouter::new()
        .route("/before", get(ok).cost(11))
        .layer(limiter(10))
        .route("/after", get(ok).cost(12))
        .with_state(());
    assert_eq!(refused(app), ["GET /before 11 10"]);
}

#[test]
fn a_request_must_fit_every_limiter_that_it_passes() {
    let app = CostRouter::new()
        .route("/a", get(ok).cost(11))
        .layer(limiter(100))
        .route_layer(limiter(10))
        .layer(limiter(50));
    assert_eq!(refused(app), ["GET /a 11 10"]);
}

#[test]
fn nested_and_merged_routes_keep_their_own_limiters() {
    let small = || {
        CostRouter::new()
            .route("/small", get(ok).cost(50))
            .layer(limiter(10))
    };
    let app = CostRouter::new()
        .route("/large", get(ok).cost(50))
        .nest("/n", small())
        .merge(small())
        .layer(limiter(100));
    assert_eq!(refused(app), ["GET /n/small 50 10", "GET /small 50 10"]);
}

#[test]
fn a_limiter_on_one_handler_is_compared_with_that_one() {
    let app = CostRouter::new().route("/a", get(ok).cost(11).layer(limiter(10)).post(ok).cost(12));
    assert_eq!(refused(app), ["GET /a 11 10"]);
}

#[test]
fn a_price_that_comes_later_is_compared_too() {
    let app = CostRouter::new()
        .route("/a", get(ok))
        .layer(limiter(10))
        .with_costs(RouteCosts::new().set_any("/a", 11));
    assert_eq!(refused(app), ["GET /a 11 10"]);
}

#[test]
fn layers_that_are_no_limiters_bind_nothing() {
    let app = CostRouter::new()
        .route("/a", get(ok).cost(u32::MAX))
        .nest_service_at("/b", Price::from(u32::MAX), ok.with_state(()))
        .layer(Probe::default());
    assert_eq!(refused(app), [""; 0]);
}
