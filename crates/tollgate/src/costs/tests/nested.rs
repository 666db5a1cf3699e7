//! Routers in routers: the table's keys are the patterns that Axum reports, wherever the limiter stands.

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
};

use axum::{Router, handler::Handler};
use http::Method;
use tracing::{
    Event, Metadata, Subscriber,
    span::{Attributes, Id, Record},
};

use super::probe::{Probe, example, ok, price, send};
use crate::costs::{CostRouter, Price, Resolved, RouteCosts, routing::get};

const PREFIXES: [&str; 6] = ["/a", "/a/", "/{p}", "/{p}/", "/a/b", "/a/{p}/b/"];
const INNER: [&str; 6] = ["/", "/x", "/x/", "/{id}/y", "/files/{*rest}", "/x/deep"];

/// Routes with the prices 10, 11, 12, ...
fn inner() -> CostRouter {
    let routes = INNER.iter().zip(10..);
    routes.fold(CostRouter::new(), |router, (path, tokens)| {
        router.route(path, get(ok).cost(tokens))
    })
}

/// Every line of the table is the pattern that Axum reports, and has the price that is found.
async fn assert_keys_are_patterns(app: &CostRouter, probe: &Probe, layered: CostRouter) {
    let layered = layered.into_router();
    for row in app.costs().iter() {
        let seen = probe.ask(&layered, Method::GET, &example(row.path())).await;
        assert_eq!(seen.route.as_deref(), Some(row.path()));
        assert_eq!(seen.resolved, Resolved::from(row.price()), "{row}");
        assert!(matches!(seen.resolved, Resolved::Price(_)));
    }
}

#[tokio::test]
async fn nested_keys_are_the_patterns_that_axum_reports() {
    for prefix in PREFIXES {
        let probe = Probe::default();
        let app = CostRouter::new().nest(prefix, inner());
        assert_eq!(app.costs().iter().count(), INNER.len());
        // On the outer router.
        assert_keys_are_patterns(&app, &probe, app.clone().layer(probe.clone())).await;
        assert_keys_are_patterns(&app, &probe, app.clone().route_layer(probe.clone())).await;
        // On the inner router, where the URI has lost the prefix and the pattern has not.
        let layered = CostRouter::new().nest(prefix, inner().layer(probe.clone()));
        assert_keys_are_patterns(&app, &probe, layered).await;
    }
}

#[tokio::test]
async fn deeply_nested_keys_are_the_patterns_that_axum_reports() {
    for outer in PREFIXES {
        for middle in ["/m", "/m/", "/{q}"] {
            let probe = Probe::default();
            let app = CostRouter::new().nest(outer, CostRouter::new().nest(middle, inner()));
            assert_keys_are_patterns(&app, &probe, app.clone().layer(probe.clone())).await;
            let layered = inner().layer(probe.clone());
            let layered = CostRouter::new().nest(outer, CostRouter::new().nest(middle, layered));
            assert_keys_are_patterns(&app, &probe, layered).await;
        }
    }
}

#[tokio::test]
async fn a_finished_router_keeps_its_prices_wherever_it_is_nested() {
    for prefix in PREFIXES {
        let probe = Probe::default();
        let finished = || inner().layer(probe.clone()).into_router();
        let nested = Router::new().nest(prefix, finished());
        let service: Router = Router::new().nest_service(prefix, finished());
        // Also below another table, which does not know its routes.
        let below = CostRouter::new().nest(prefix, finished()).into_router();
        let deeper = Router::new().nest("/v1", Router::new().nest("/v2/", nested.clone()));
        for (app, base) in [(nested, ""), (service, ""), (below, ""), (deeper, "/v1/v2")] {
            for (path, tokens) in INNER.iter().zip(10..) {
                let prefix = prefix.trim_end_matches('/');
                let mut url = format!("{base}{}", example(&format!("{prefix}{path}")));
                let known = probe_status(&app, &url).await;
                if !known {
                    // A nested `/` is the bare prefix.
                    url.pop();
                }
                probe.take();
                let found = probe.resolved(&app, Method::GET, &url).await;
                assert_eq!(found, price(tokens), "{prefix} {url}");
            }
        }
    }
}

async fn probe_status(app: &Router, url: &str) -> bool {
    send(app, Method::GET, url).await.is_success()
}

#[tokio::test]
async fn a_nested_service_s_root_answers_at_the_bare_prefix_too() {
    let probe = Probe::default();
    let app: Router = Router::new().nest_service("/a", inner().layer(probe.clone()).into_router());
    for url in ["/a", "/a/"] {
        assert_eq!(probe.resolved(&app, Method::GET, url).await, price(10));
    }
}

#[tokio::test]
async fn a_finished_router_tells_wrong_methods_and_unknown_paths_by_itself() {
    let probe = Probe::default();
    let finished = CostRouter::<()>::new()
        .route("/x", get(ok).cost(5))
        .fallback(ok)
        .layer(probe.clone())
        .into_router();
    let app = Router::new().nest("/v1", finished);
    let asked = async |method, path| probe.resolved(&app, method, path).await;
    assert_eq!(
        asked(Method::POST, "/v1/x").await,
        Resolved::MethodNotAllowed
    );
    assert_eq!(asked(Method::GET, "/v1/y").await, Resolved::Unmatched);
}

#[tokio::test]
async fn each_limiter_sees_the_table_of_its_own_router() {
    let (outside, inside) = (Probe::default(), Probe::default());
    let finished = CostRouter::<()>::new()
        .route("/x", get(ok).cost(5))
        .layer(inside.clone())
        .into_router();
    let app = CostRouter::new()
        .route("/v1/y", get(ok).cost(7))
        .nest("/v1", finished)
        .layer(outside.clone())
        .into_router();
    let _ = send(&app, Method::GET, "/v1/x").await;
    assert_eq!(inside.take()[0].resolved, price(5));
    assert_eq!(outside.take()[0].resolved, Resolved::Unpriced);
    assert_eq!(outside.resolved(&app, Method::GET, "/v1/y").await, price(7));
    assert_eq!(inside.take(), []);
}

#[tokio::test]
async fn grpc_paths_are_found_below_a_late_nest() {
    let probe = Probe::default();
    let finished = CostRouter::<()>::new()
        .route_service("/pkg.Search/{*rest}", ok.with_state(()))
        .with_costs(RouteCosts::new().set_any("/pkg.Search/Query", 5))
        .layer(probe.clone())
        .into_router();
    let app = Router::new().nest("/grpc", finished);
    let url = "/grpc/pkg.Search/Query";
    assert_eq!(probe.resolved(&app, Method::POST, url).await, price(5));
}

#[tokio::test]
async fn a_nested_service_has_one_price_for_all_below() {
    let service = Router::new().route("/{b}", axum::routing::get(ok));
    for (prefix, urls) in [
        ("/foo", &["/foo", "/foo/", "/foo/x", "/foo/x/y"][..]),
        ("/foo/", &["/foo/", "/foo/x", "/foo/x/y"]),
        ("/{a}", &["/foo", "/foo/", "/foo/x"]),
    ] {
        let probe = Probe::default();
        let app = CostRouter::<()>::new()
            .nest_service_at(prefix, 5, service.clone())
            .layer(probe.clone())
            .into_router();
        for url in urls {
            let seen = probe.ask(&app, Method::GET, url).await;
            assert_eq!(seen.resolved, price(5), "{url}");
            // Axum has a pattern for the prefix alone, and none for what is below.
            let bare = url.trim_end_matches('/') == "/foo";
            assert_eq!(seen.route.is_some(), bare, "{url}");
        }
        let beside = if prefix == "/foo/" {
            "/foo"
        } else {
            "/foobar/../x/"
        };
        if prefix != "/{a}" {
            let seen = probe.resolved(&app, Method::GET, beside).await;
            assert_eq!(seen, Resolved::Unmatched);
        }
    }
}

#[tokio::test]
async fn nested_services_keep_their_price_in_nested_routers() {
    for (prefix, url) in [
        ("/v1", "/v1/files/x"),
        ("/v1/", "/v1/files"),
        ("/{p}", "/q/files/"),
    ] {
        let probe = Probe::default();
        let inner = || {
            CostRouter::<()>::new()
                .nest_service_at("/files", Price::Exempt, ok.with_state(()))
                .nest_service("/other", ok.with_state(()))
        };
        let outer = CostRouter::new().nest(prefix, inner()).layer(probe.clone());
        let on_inner = CostRouter::new().nest(prefix, inner().layer(probe.clone()));
        for app in [outer, on_inner] {
            let app = app.into_router();
            let found = probe.resolved(&app, Method::GET, url).await;
            assert_eq!(found, Resolved::Exempt, "{url}");
            let other = url.replace("files", "other");
            let found = probe.resolved(&app, Method::GET, &other).await;
            assert_eq!(found, Resolved::Unpriced, "{other}");
        }
    }
}

#[tokio::test]
async fn a_route_beside_a_nested_service_does_not_take_its_price() {
    let probe = Probe::default();
    let app = CostRouter::new()
        .nest_service_at("/files", Price::Exempt, ok.with_state(()))
        .route("/files/upload", get(ok))
        .layer(probe.clone())
        .into_router();
    let found = probe.resolved(&app, Method::GET, "/files/upload").await;
    assert_eq!(found, Resolved::Unpriced);
}

#[tokio::test]
async fn a_plain_router_is_priced_by_a_table_and_by_prefix() {
    let plain = Router::<()>::new()
        .route("/x", axum::routing::get(ok))
        .route("/y/{id}", axum::routing::get(ok));
    let costs = RouteCosts::new()
        .set(Method::GET, "/y/{id}", 8)
        .set_under("/", 3);
    let probe = Probe::default();
    let app = CostRouter::new()
        .nest("/v1", CostRouter::from(plain).with_costs(costs))
        .layer(probe.clone())
        .into_router();
    assert_eq!(probe.resolved(&app, Method::GET, "/v1/x").await, price(3));
    assert_eq!(probe.resolved(&app, Method::GET, "/v1/y/1").await, price(8));
}

#[tokio::test]
async fn a_layer_s_own_table_is_read_from_where_its_router_starts() {
    let probe = Probe::with_costs(RouteCosts::new().set_any("/x", 5).set_any("/v1/y", 6));
    let routes = ["/x", "/y"].into_iter();
    let inner = routes.fold(Router::new(), |router, path| {
        router.route(path, axum::routing::get(ok))
    });
    let app = Router::<()>::new().nest("/v1", inner.layer(probe.clone()));
    assert_eq!(probe.resolved(&app, Method::GET, "/v1/x").await, price(5));
    // Or, if it only has the full path, from the top.
    assert_eq!(probe.resolved(&app, Method::GET, "/v1/y").await, price(6));
}

// === The same inner router, mounted in three ways, limited in three places ===

fn items() -> CostRouter {
    CostRouter::new().route("/items/{id}", get(ok).cost(5))
}

#[tokio::test]
async fn a_limiter_anywhere_finds_the_price_of_a_nested_or_merged_route() {
    type Mount = fn(CostRouter) -> CostRouter;
    let nest: Mount = |inner| CostRouter::new().nest("/api", inner);
    let merge: Mount = |inner| CostRouter::new().merge(inner);
    for (mount, base) in [(nest, "/api"), (merge, "")] {
        let probe = Probe::default();
        for app in [
            mount(items()).layer(probe.clone()),
            mount(items()).route_layer(probe.clone()),
            mount(items().layer(probe.clone())),
            mount(items().route_layer(probe.clone())),
        ] {
            let app = app.into_router();
            for id in 1..=3 {
                let url = format!("{base}/items/{id}");
                let seen = probe.ask(&app, Method::GET, &url).await;
                assert_eq!(seen.route, Some(format!("{base}/items/{{id}}")));
                assert_eq!(seen.resolved, price(5));
            }
        }
    }
}

#[tokio::test]
async fn a_limiter_outside_of_a_nested_service_is_told_once() {
    let probe = Probe::default();
    let around = CostRouter::new()
        .nest_service("/api", items().into_router())
        .layer(probe.clone())
        .into_router();
    let after = CostRouter::new()
        .nest("/api", items())
        .into_router()
        .layer(probe.clone());
    let plain = Router::new()
        .nest_service("/api", items().into_router())
        .layer(probe.clone());
    for app in [around, after, plain] {
        let (warnings, _guard) = Warnings::count();
        for _ in 0..3 {
            let _ = send(&app, Method::GET, "/api/items/1").await;
        }
        assert!(!probe.take().iter().any(|seen| seen.resolved == price(5)));
        assert_eq!(warnings.load(Ordering::Relaxed), 1);
    }
}

#[tokio::test]
async fn a_limiter_inside_of_a_nested_service_finds_its_price_without_a_warning() {
    let (warnings, _guard) = Warnings::count();
    let probe = Probe::default();
    let app: Router =
        Router::new().nest_service("/api", items().layer(probe.clone()).into_router());
    let url = "/api/items/1";
    assert_eq!(probe.resolved(&app, Method::GET, url).await, price(5));
    assert_eq!(warnings.load(Ordering::Relaxed), 0);
}

#[tokio::test]
async fn nobody_is_warned_of_a_table_that_has_no_price_either() {
    let (warnings, _guard) = Warnings::count();
    let probe = Probe::default();
    let app = CostRouter::<()>::new()
        .route("/x", get(ok))
        .into_router()
        .layer(probe.clone());
    let _ = send(&app, Method::GET, "/x").await;
    assert_eq!(probe.take().len(), 1);
    assert_eq!(warnings.load(Ordering::Relaxed), 0);
}

/// Counts the events of this thread.
struct Warnings(Arc<AtomicUsize>);

impl Warnings {
    fn count() -> (Arc<AtomicUsize>, tracing::subscriber::DefaultGuard) {
        let counter = Arc::new(AtomicUsize::new(0));
        let guard = tracing::subscriber::set_default(Self(Arc::clone(&counter)));
        (counter, guard)
    }
}

impl Subscriber for Warnings {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.target().starts_with("tollgate")
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn event(&self, _: &Event<'_>) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }

    fn enter(&self, _: &Id) {}

    fn exit(&self, _: &Id) {}
}
