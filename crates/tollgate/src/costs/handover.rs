//! How the table gets from a router to the layer inside of it.

use std::{
    fmt,
    sync::{
        Arc, OnceLock,
        atomic::{AtomicBool, Ordering},
    },
    task::{Context, Poll},
};

use axum::extract::NestedPath;
use http::{Method, Request, uri::PathAndQuery};
use tower_layer::Layer;
use tower_service::Service;

use crate::charged::is_charged_by_default;

use super::{
    RouteCosts,
    resolve::{Resolved, matched_path, resolve_in, strip_nested},
};

/// A router's table in the extensions of a request, with what is needed to read it further inside: there,
/// Axum has taken off the paths of nested routers from the URI, but not from the matched path.
#[derive(Clone)]
pub(crate) struct CostTable {
    costs: Arc<RouteCosts>,
    /// Where the router is nested that hands the table over; nothing of what is nested in it.
    nested: Option<NestedPath>,
    path: Option<PathAndQuery>,
}

// === impl CostTable ===

impl CostTable {
    pub(super) fn resolve(&self, method: &Method, route: Option<&str>) -> Resolved {
        let route = match &self.nested {
            Some(nested) => route.map(|route| strip_nested(route, nested.as_str())),
            None => route,
        };
        let path = self.path.as_ref().map_or("", PathAndQuery::path);
        resolve_in(&self.costs, method, route, path)
    }
}

impl fmt::Debug for CostTable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("CostTable").field(&self.costs).finish()
    }
}

/// A layer, and in front of its service a place from which a router's table is handed to the layers inside, if it
/// turns out to be the outermost one.
///
/// A layer for the table alone would do as well, but what stands between the layers of a router (boxes, and a clone
/// of all that is further inside) costs a request more than the table.
#[derive(Clone, Debug)]
pub(super) struct HandOver<L> {
    layer: L,
    place: Place,
}

/// The service of [`HandOver`].
#[derive(Clone, Debug)]
pub(super) struct HandedOver<S> {
    inner: S,
    place: Place,
}

/// Where a table may be put, once, and stays for all copies of a router.
#[derive(Clone, Debug, Default)]
pub(super) struct Place(Arc<OnceLock<Option<Handed>>>);

#[derive(Debug)]
struct Handed {
    costs: Arc<RouteCosts>,
    warned: AtomicBool,
}

// === impl Place ===

impl Place {
    /// Has `costs` handed over from here. Returns whether that could be: not after [`close`](Self::close).
    pub(super) fn put(&self, costs: &Arc<RouteCosts>) -> bool {
        let costs = Arc::clone(costs);
        let warned = AtomicBool::new(false);
        self.0.set(Some(Handed { costs, warned })).is_ok()
    }

    /// Has nothing handed over from here, ever.
    pub(super) fn close(&self) {
        let _ = self.0.set(None);
    }
}

// === impl HandOver ===

impl<L> HandOver<L> {
    pub(super) const fn new(layer: L, place: Place) -> Self {
        Self { layer, place }
    }
}

impl<S, L: Layer<S>> Layer<S> for HandOver<L> {
    type Service = HandedOver<L::Service>;

    fn layer(&self, inner: S) -> Self::Service {
        HandedOver {
            inner: self.layer.layer(inner),
            place: self.place.clone(),
        }
    }
}

// === impl Handed ===

impl Handed {
    fn hand_over<B>(&self, request: &mut Request<B>) {
        let table = CostTable {
            costs: Arc::clone(&self.costs),
            nested: request.extensions().get().cloned(),
            path: request.uri().path_and_query().cloned(),
        };
        if is_charged_by_default(request.extensions()) {
            self.warn_if_too_late(&table, request);
        }
        request.extensions_mut().insert(table);
    }

    fn warn_if_too_late<B>(&self, table: &CostTable, request: &Request<B>) {
        let route = matched_path(request);
        let found = table.resolve(request.method(), route);
        let priced = matches!(found, Resolved::Price(_) | Resolved::Exempt);
        if priced && !self.warned.swap(true, Ordering::Relaxed) {
            tracing::warn!(
                method = %request.method(),
                route,
                "a rate limiter outside of the router that holds the costs has charged its default; put \
                 `.layer(RateLimitLayer)` before `.into_router()`, and nest a CostRouter as it is"
            );
        }
    }
}

// === impl HandedOver ===

impl<S, B> Service<Request<B>> for HandedOver<S>
where
    S: Service<Request<B>>,
{
    type Response = S::Response;
    type Error = S::Error;
    type Future = S::Future;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, mut request: Request<B>) -> Self::Future {
        if let Some(Some(handed)) = self.place.0.get() {
            handed.hand_over(&mut request);
        }
        self.inner.call(request)
    }
}
