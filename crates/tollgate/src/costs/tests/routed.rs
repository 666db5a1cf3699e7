//! What a limiter on a router sees of each kind of request.

use axum::{
    Extension, Router,
    handler::Handler,
    routing::{MethodFilter, get_service},
};
use http::{Method, StatusCode};
use tollgate_core::Cost;
use tower::{Layer, ServiceExt};

use super::probe::{Probe, ok, price, send};
use crate::costs::{
    CostMethodRouter, CostRouter, Price, Resolved, RouteCosts,
    routing::{any, get, on, post},
};

const NO_TABLE: Resolved = Resolved::NoTable;

#[tokio::test]
async fn each_method_has_its_own_price() {
    let probe = Probe::default();
    let app = CostRouter::new()
        .route("/search", get(ok).cost(5).post(ok).cost(20).delete(ok))
        .route("/users/{id}", get(ok).cost(2).put(ok).exempt())
        .route(
            "/both",
            on(MethodFilter::GET.or(MethodFilter::POST), ok).cost(3),
        )
        .layer(probe.clone())
        .into_router();
    let seen = probe.ask(&app, Method::GET, "/users/7?x=1").await;
    assert_eq!(seen.route.as_deref(), Some("/users/{id}"));
    assert_eq!(seen.resolved, price(2));
    for (method, path, resolved) in [
        (Method::GET, "/search", price(5)),
        (Method::POST, "/search", price(20)),
        (Method::DELETE, "/search", Resolved::Unpriced),
        (Method::PUT, "/users/7", Resolved::Exempt),
        (Method::GET, "/both", price(3)),
        (Method::POST, "/both", price(3)),
    ] {
        assert_eq!(probe.resolved(&app, method, path).await, resolved, "{path}");
    }
}

#[tokio::test]
async fn head_costs_what_get_costs_unless_it_has_a_handler() {
    let probe = Probe::default();
    let app = CostRouter::new()
        .route("/a", get(ok).cost(5))
        .route("/b", get(ok).cost(5).head(ok).cost(1))
        .route("/c", get(ok).cost(5).head(ok))
        .route("/d", post(ok).cost(5))
        .layer(probe.clone())
        .into_router();
    assert_eq!(send(&app, Method::HEAD, "/a").await, StatusCode::OK);
    probe.take();
    for (path, resolved) in [
        ("/a", price(5)),
        ("/b", price(1)),
        ("/c", Resolved::Unpriced),
        ("/d", Resolved::MethodNotAllowed),
    ] {
        assert_eq!(probe.resolved(&app, Method::HEAD, path).await, resolved);
    }
}

#[tokio::test]
async fn a_price_for_any_method_leaves_handlers_that_say_nothing_alone() {
    let probe = Probe::default();
    let app = CostRouter::new()
        .route("/a", any(ok).cost(4).post(ok).cost(9).put(ok))
        .route("/b", get(ok).cost(4).fallback(ok).exempt())
        .route("/c", any(ok))
        .layer(probe.clone())
        .into_router();
    for (method, path, resolved) in [
        (Method::GET, "/a", price(4)),
        (Method::POST, "/a", price(9)),
        (Method::PUT, "/a", Resolved::Unpriced),
        (Method::GET, "/b", price(4)),
        (Method::DELETE, "/b", Resolved::Exempt),
        (Method::GET, "/c", Resolved::Unpriced),
    ] {
        assert_eq!(probe.resolved(&app, method, path).await, resolved, "{path}");
    }
}

#[tokio::test]
async fn a_wrong_method_is_known_also_to_a_route_layer() {
    for outermost in [true, false] {
        let probe = Probe::default();
        let app = CostRouter::new().route("/foo", get(ok).cost(5));
        let app = if outermost {
            app.layer(probe.clone())
        } else {
            app.route_layer(probe.clone())
        };
        let app = app.into_router();
        let seen = probe.ask(&app, Method::POST, "/foo").await;
        assert_eq!(seen.route.as_deref(), Some("/foo"));
        assert_eq!(seen.resolved, Resolved::MethodNotAllowed);
        assert_eq!(
            send(&app, Method::POST, "/foo").await,
            StatusCode::METHOD_NOT_ALLOWED
        );
    }
}

#[tokio::test]
async fn a_method_router_s_own_route_layer_does_not_see_a_wrong_method() {
    let probe = Probe::default();
    let app = CostRouter::new()
        .route("/foo", axum::routing::get(ok).route_layer(probe.clone()))
        .into_router();
    let _ = send(&app, Method::POST, "/foo").await;
    assert_eq!(probe.take(), []);
}

#[tokio::test]
async fn a_layer_on_one_route_sees_the_table() {
    let probe = Probe::default();
    let app = CostRouter::new()
        .route("/foo", get(ok).cost(5).layer(probe.clone()))
        .into_router();
    assert_eq!(probe.resolved(&app, Method::GET, "/foo").await, price(5));
}

#[tokio::test]
async fn unknown_paths_are_unmatched_with_any_fallback() {
    let probe = Probe::default();
    let routes = || CostRouter::<()>::new().route("/foo", get(ok).cost(5));
    let teapot = async || StatusCode::IM_A_TEAPOT;
    for (app, status) in [
        (routes(), StatusCode::NOT_FOUND),
        (routes().fallback(teapot), StatusCode::IM_A_TEAPOT),
        (
            routes().fallback_service(teapot.with_state(())),
            StatusCode::IM_A_TEAPOT,
        ),
        (
            routes().fallback(teapot).reset_fallback(),
            StatusCode::NOT_FOUND,
        ),
    ] {
        let app = app.layer(probe.clone()).into_router();
        let seen = probe.ask(&app, Method::GET, "/nowhere").await;
        assert_eq!(seen.route, None);
        assert_eq!(seen.resolved, Resolved::Unmatched);
        assert_eq!(send(&app, Method::GET, "/nowhere").await, status);
        probe.take();
    }
}

#[tokio::test]
async fn a_route_layer_does_not_run_for_unknown_paths() {
    let probe = Probe::default();
    let app = CostRouter::new()
        .route("/foo", get(ok).cost(5))
        .route_layer(probe.clone())
        .into_router();
    let _ = send(&app, Method::GET, "/nowhere").await;
    assert_eq!(probe.take(), []);
}

#[tokio::test]
async fn what_comes_after_the_layer_is_not_limited() {
    let probe = Probe::default();
    let teapot = async || StatusCode::IM_A_TEAPOT;
    let app = CostRouter::new()
        .route("/before", get(ok).cost(5))
        .layer(probe.clone())
        .route("/after", get(ok).cost(5))
        .fallback(ok)
        .method_not_allowed_fallback(teapot)
        .into_router();
    for path in ["/after", "/nowhere"] {
        assert_eq!(send(&app, Method::GET, path).await, StatusCode::OK);
    }
    // The fallback takes the place of the layered default.
    assert_eq!(
        send(&app, Method::POST, "/before").await,
        StatusCode::IM_A_TEAPOT
    );
    assert_eq!(probe.take(), []);
    assert_eq!(probe.resolved(&app, Method::GET, "/before").await, price(5));
}

#[tokio::test]
async fn a_layered_fallback_for_wrong_methods_is_limited() {
    let probe = Probe::default();
    let app = CostRouter::new()
        .route("/foo", get(ok).cost(5))
        .method_not_allowed_fallback(ok)
        .layer(probe.clone())
        .into_router();
    assert_eq!(
        probe.resolved(&app, Method::POST, "/foo").await,
        Resolved::MethodNotAllowed
    );
}

#[tokio::test]
async fn a_layer_around_the_router_sees_no_route_and_no_table() {
    let probe = Probe::default();
    let app = CostRouter::new()
        .route("/foo", get(ok).cost(5))
        .into_router();
    let around = probe.layer(app);
    let request = http::Request::new(axum::body::Body::empty());
    let _ = around.oneshot(request).await;
    let seen = probe.take().remove(0);
    assert_eq!(seen.route, None);
    assert_eq!(seen.resolved, Resolved::NoTable);
}

#[tokio::test]
async fn a_layer_after_into_router_finds_no_table_on_a_route() {
    let probe = Probe::default();
    let app = CostRouter::new()
        .route("/foo", get(ok).cost(5))
        .into_router()
        .layer(probe.clone());
    assert_eq!(probe.resolved(&app, Method::GET, "/foo").await, NO_TABLE);
}

#[tokio::test]
async fn extensions_of_single_routes_come_too_late() {
    let probe = Probe::default();
    let late = get(ok).cost(5).layer(Extension(Cost::new(99)));
    let app = CostRouter::new()
        .route("/foo", late)
        .layer(probe.clone())
        .into_router();
    assert_eq!(probe.resolved(&app, Method::GET, "/foo").await, price(5));
}

#[tokio::test]
async fn a_plain_method_router_has_one_price_and_hides_its_methods() {
    let probe = Probe::default();
    let plain = CostMethodRouter::from(axum::routing::get(ok));
    let app = CostRouter::new()
        .route("/a", plain.cost(3))
        .route("/b", get_service(ok.with_state(())))
        .layer(probe.clone())
        .into_router();
    assert_eq!(probe.resolved(&app, Method::GET, "/a").await, price(3));
    assert_eq!(probe.resolved(&app, Method::POST, "/a").await, price(3));
    let unknown = probe.resolved(&app, Method::POST, "/b").await;
    assert_eq!(unknown, Resolved::Unpriced);
}

#[tokio::test]
async fn methods_of_a_grpc_service_are_told_apart_by_their_whole_path() {
    // As tonic adds a service to its router.
    let grpc: Router = Router::new().route_service("/pkg.Search/{*rest}", ok.with_state(()));
    let costs = RouteCosts::new()
        .set_any("/pkg.Search/Query", 5)
        .exempt(Method::POST, "/pkg.Search/Ping");
    let probe = Probe::default();
    let app = CostRouter::new()
        .route("/rest", get(ok).cost(2))
        .merge(CostRouter::from(grpc).with_costs(costs))
        .layer(probe.clone())
        .into_router();
    let seen = probe.ask(&app, Method::POST, "/pkg.Search/Query").await;
    assert_eq!(seen.route.as_deref(), Some("/pkg.Search/{*rest}"));
    assert_eq!(seen.resolved, price(5));
    for (path, resolved) in [
        ("/pkg.Search/Ping", Resolved::Exempt),
        ("/pkg.Search/Other", Resolved::Unpriced),
        ("/pkg.Other/Query", Resolved::Unmatched),
    ] {
        let found = probe.resolved(&app, Method::POST, path).await;
        assert_eq!(found, resolved, "{path}");
    }
    // The merged router may serve this, for all that is known.
    let unknown = probe.resolved(&app, Method::PUT, "/rest").await;
    assert_eq!(unknown, Resolved::Unpriced);
}

#[tokio::test]
async fn a_method_of_a_grpc_service_comes_before_the_price_of_the_service() {
    let probe = Probe::default();
    let app = CostRouter::new()
        .route_service_at("/pkg.Search/{*rest}", 3, ok.with_state(()))
        .with_costs(RouteCosts::new().set_any("/pkg.Search/Query", 5))
        .layer(probe.clone())
        .into_router();
    let asked = async |path| probe.resolved(&app, Method::POST, path).await;
    assert_eq!(asked("/pkg.Search/Query").await, price(5));
    assert_eq!(asked("/pkg.Search/Other").await, price(3));
}

#[tokio::test]
async fn a_table_by_hand_fills_in_what_handlers_do_not_say() {
    let costs = RouteCosts::new().set_any("/a", 7).set(Method::PUT, "/b", 8);
    let probe = Probe::default();
    let handlers = || get(ok).cost(2).post(ok);
    for app in [
        CostRouter::<()>::new()
            .route("/a", handlers())
            .route("/b", handlers().put(ok))
            .with_costs(costs.clone()),
        CostRouter::new()
            .with_costs(costs)
            .route("/a", handlers())
            .route("/b", handlers().put(ok)),
    ] {
        let app = app.layer(probe.clone()).into_router();
        for (method, path, resolved) in [
            (Method::GET, "/a", price(2)),
            (Method::POST, "/a", price(7)),
            (Method::PUT, "/b", price(8)),
            (Method::POST, "/b", Resolved::Unpriced),
        ] {
            assert_eq!(probe.resolved(&app, method, path).await, resolved, "{path}");
        }
    }
}

#[tokio::test]
async fn a_split_router_is_priced_by_a_layer_with_its_table() {
    let (router, costs) = CostRouter::new()
        .route("/users/{id}", get(ok).cost(5))
        .split();
    let probe = Probe::with_costs(costs);
    let app = router.route("/more", axum::routing::get(ok));
    let app = app.layer(probe.clone());
    let asked = async |method, path| probe.resolved(&app, method, path).await;
    assert_eq!(asked(Method::GET, "/users/7").await, price(5));
    assert_eq!(asked(Method::GET, "/more").await, Resolved::Unpriced);
    assert_eq!(asked(Method::PUT, "/users/7").await, Resolved::Unpriced);
    assert_eq!(asked(Method::GET, "/nowhere").await, Resolved::Unmatched);
}

#[tokio::test]
async fn state_may_come_before_or_after_the_layer() {
    use axum::extract::State;

    let handler = async |State(text): State<String>| text;
    let probe = Probe::default();
    let routes = || CostRouter::<String>::new().route("/a", get(handler).cost(5));
    let before: CostRouter = routes().with_state("s".to_owned()).layer(probe.clone());
    let after = routes().layer(probe.clone()).with_state("s".to_owned());
    for app in [before, after] {
        let app = app.into_router();
        assert_eq!(probe.resolved(&app, Method::GET, "/a").await, price(5));
    }
}

#[tokio::test]
async fn a_pattern_of_axum_s_own_fallback_is_no_route() {
    // Axum keeps its fallbacks as routes in versions to come, and shows their patterns.
    let pattern = "/{*__private__axum_fallback}";
    let probe = Probe::default();
    let app = CostRouter::new()
        .route(pattern, any(ok).cost(5))
        .layer(probe.clone())
        .into_router();
    let seen = probe.ask(&app, Method::GET, "/nowhere").await;
    assert_eq!(seen.route.as_deref(), Some(pattern));
    assert_eq!(seen.resolved, Resolved::Unmatched);
}

#[test]
fn prices_convert_from_what_is_at_hand() {
    assert_eq!(Price::from(Cost::new(5)), Price::from(5));
    assert_eq!(Price::default().to_string(), "default");
}

/// Whatever comes behind a router's last layer has its table, too, if it is not all that the router serves.
#[tokio::test]
async fn what_is_added_after_a_layer_sees_the_table_too() {
    use tower::layer::util::Identity;

    let probe = Probe::default();
    let probed = |path: &str| {
        let router = axum::Router::new().route(path, axum::routing::get(ok));
        router.layer(probe.clone())
    };
    let service = || probe.layer(ok.with_state(()));
    let layered = || CostRouter::<()>::new().route("/a", get(ok).cost(5));
    let layered = || layered().layer(Identity::new());
    let table = |path: &str| RouteCosts::new().set_any(path, 7);
    let apps = [
        layered().route("/b", get(ok).layer(probe.clone()).cost(7)),
        layered().route_service_at("/b", 7, service()),
        layered().nest("/b", CostRouter::from(probed("/")).with_costs(table("/"))),
        layered().nest_service_at("/b", 7, service()),
        layered().merge(CostRouter::from(probed("/b")).with_costs(table("/b"))),
        layered()
            .with_costs(table("/b"))
            .fallback_service(service()),
        layered()
            .with_costs(table("/b"))
            .fallback(ok.layer(probe.clone())),
        CostRouter::new()
            .route("/b", get(ok).cost(7))
            .layer(Identity::new())
            .route_layer(probe.clone()),
        CostRouter::new()
            .route("/b", post(ok))
            .layer(Identity::new())
            .with_costs(table("/b"))
            .method_not_allowed_fallback(ok.layer(probe.clone())),
    ];
    for (i, app) in apps.into_iter().enumerate() {
        let app = app.into_router();
        assert_eq!(
            probe.resolved(&app, Method::GET, "/b").await,
            price(7),
            "{i}"
        );
    }
}

#[tokio::test]
async fn copies_of_a_router_have_tables_of_their_own() {
    let probe = Probe::default();
    let router = CostRouter::<()>::new().layer(probe.clone());
    let copy = router
        .clone()
        .with_costs(RouteCosts::new().set_any("/x", 7));
    let router = router.with_costs(RouteCosts::new().set_any("/x", 5));
    let (router, copy) = (router.into_router(), copy.into_router());
    assert_eq!(probe.resolved(&router, Method::GET, "/x").await, price(5));
    assert_eq!(probe.resolved(&copy, Method::GET, "/x").await, price(7));
}
