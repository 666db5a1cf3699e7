//! An Axum router that remembers costs.

use std::{convert::Infallible, fmt, sync::Arc};

use axum::{Router, extract::Request, handler::Handler, response::IntoResponse, routing::Route};
use tower_layer::{Identity, Layer};
use tower_service::Service;

use super::{
    CostError, CostMethodRouter, Price, RouteCosts,
    entry::{Entry, PathCosts},
    handover::{HandOver, Place},
    prefix::Prefix,
    wiring,
};

/// An [`axum::Router`] that remembers what its routes cost.
///
/// It is built as Axum's own is, and its methods do what those of the same names do. A plain router or
/// method router may be given wherever one with costs may.
///
/// The limiter's `.layer` comes after the routes, and [`into_router`](Self::into_router) after it: see the
/// [module](super).
///
/// # Panics
///
/// All methods panic where Axum's do, and if a route is given two prices.
#[must_use]
pub struct CostRouter<S = ()> {
    router: Router<S>,
    costs: RouteCosts,
    required: bool,
    /// Where routes came in that cannot be listed, and that no table speaks for.
    unlisted: Vec<String>,
    /// Where the table can be handed over: in front of the last layer, if all that the router serves lies behind it.
    outermost: Option<Place>,
}

impl<S> CostRouter<S>
where
    S: Clone + Send + Sync + 'static,
{
    /// A router without routes.
    pub fn new() -> Self {
        Self::from(Router::new())
    }

    /// Refuses to build the app as long as a route has neither a cost nor an exemption.
    ///
    /// This holds for the whole app that the router becomes a part of. A plain [`Router`] cannot be asked for
    /// its routes, so one that is merged or nested must first be turned into a router with costs and be
    /// spoken for by [`with_costs`](Self::with_costs).
    pub fn require_costs(mut self) -> Self {
        self.required = true;
        self
    }

    /// Adds a table written by hand, for routes that cannot say their cost themselves: those of a plain
    /// [`Router`], or the methods of a gRPC service.
    ///
    /// A price for any method of a path also goes to those of its handlers that say nothing. Limiters that are
    /// layered on later are compared with these costs too.
    #[track_caller]
    pub fn with_costs(mut self, costs: RouteCosts) -> Self {
        self.costs.absorb(costs, str::to_owned);
        self.unlisted.clear();
        self
    }

    /// Adds a route, as [`Router::route`] does.
    #[track_caller]
    pub fn route(mut self, path: &str, method_router: impl Into<CostMethodRouter<S>>) -> Self {
        let (method_router, costs) = method_router.into().into_parts();
        self.router = self.router.route(path, method_router);
        self.outermost = None;
        self.costs.absorb_path(path, costs);
        self
    }

    /// Adds a service, as [`Router::route_service`] does.
    #[track_caller]
    pub fn route_service<T>(self, path: &str, service: T) -> Self
    where
        T: Service<Request, Error = Infallible> + Clone + Send + Sync + 'static,
        T::Response: IntoResponse,
        T::Future: Send + 'static,
    {
        self.route_service_at(path, Price::Default, service)
    }

    /// Adds a service with a price for all its requests: `5`, a `Cost` or [`Price::Exempt`].
    #[track_caller]
    pub fn route_service_at<T>(mut self, path: &str, price: impl Into<Price>, service: T) -> Self
    where
        T: Service<Request, Error = Infallible> + Clone + Send + Sync + 'static,
        T::Response: IntoResponse,
        T::Future: Send + 'static,
    {
        self.router = self.router.route_service(path, service);
        self.outermost = None;
        let costs = PathCosts {
            entries: vec![(None, Entry::said(price.into()))],
            listed: false,
        };
        self.costs.absorb_path(path, costs);
        self
    }

    /// Nests another router at `path`, as [`Router::nest`] does.
    #[track_caller]
    pub fn nest(mut self, path: &str, router: impl Into<Self>) -> Self {
        let inner = router.into();
        self.router = self.router.nest(path, inner.router);
        self.outermost = None;
        self.costs
            .absorb(inner.costs, |inner| nested_path(path, inner));
        self.required |= inner.required;
        let places = inner.unlisted.iter();
        self.unlisted
            .extend(places.map(|place| nested_path(path, place)));
        self
    }

    /// Nests a service at `path`, as [`Router::nest_service`] does.
    #[track_caller]
    pub fn nest_service<T>(self, path: &str, service: T) -> Self
    where
        T: Service<Request, Error = Infallible> + Clone + Send + Sync + 'static,
        T::Response: IntoResponse,
        T::Future: Send + 'static,
    {
        self.nest_service_at(path, Price::Default, service)
    }

    /// Nests a service with a price for all its requests: `5`, a `Cost` or [`Price::Exempt`].
    #[track_caller]
    pub fn nest_service_at<T>(mut self, path: &str, price: impl Into<Price>, service: T) -> Self
    where
        T: Service<Request, Error = Infallible> + Clone + Send + Sync + 'static,
        T::Response: IntoResponse,
        T::Future: Send + 'static,
    {
        self.router = self.router.nest_service(path, service);
        self.outermost = None;
        self.costs
            .absorb_prefix(Prefix::new(path), Entry::said(price.into()));
        self
    }

    /// Joins two routers, as [`Router::merge`] does.
    #[track_caller]
    pub fn merge(mut self, other: impl Into<Self>) -> Self {
        let other = other.into();
        self.router = self.router.merge(other.router);
        self.outermost = None;
        self.costs.absorb(other.costs, str::to_owned);
        self.required |= other.required;
        self.unlisted.extend(other.unlisted);
        self
    }

    /// Applies a layer to all routes and fallbacks so far, as [`Router::layer`] does.
    ///
    /// If it is or has a limiter, each of these routes must fit its largest capacity.
    pub fn layer<L>(mut self, layer: L) -> Self
    where
        L: Layer<Route> + Clone + Send + Sync + 'static,
        L::Service: Service<Request> + Clone + Send + Sync + 'static,
        <L::Service as Service<Request>>::Response: IntoResponse + 'static,
        <L::Service as Service<Request>>::Error: Into<Infallible> + 'static,
        <L::Service as Service<Request>>::Future: Send + 'static,
    {
        self.bind(&layer);
        let place = Place::default();
        self.router = self.router.layer(HandOver::new(layer, place.clone()));
        self.outermost = Some(place);
        self
    }

    /// Applies a layer to all routes so far, as [`Router::route_layer`] does. Requests to unknown paths do not
    /// pass through it.
    #[track_caller]
    pub fn route_layer<L>(mut self, layer: L) -> Self
    where
        L: Layer<Route> + Clone + Send + Sync + 'static,
        L::Service: Service<Request> + Clone + Send + Sync + 'static,
        <L::Service as Service<Request>>::Response: IntoResponse + 'static,
        <L::Service as Service<Request>>::Error: Into<Infallible> + 'static,
        <L::Service as Service<Request>>::Future: Send + 'static,
    {
        self.bind(&layer);
        self.router = self.router.route_layer(layer);
        self.outermost = None;
        self
    }

    /// Notes the capacity of the limiters in a layer.
    ///
    /// Axum applies a layer at once only to what needs no state, which a router may have nothing of. So the
    /// layer is tried on an empty router, of which Axum always layers the fallback.
    fn bind<L>(&mut self, layer: &L)
    where
        L: Layer<Route> + Clone + Send + Sync + 'static,
        L::Service: Service<Request> + Clone + Send + Sync + 'static,
        <L::Service as Service<Request>>::Response: IntoResponse + 'static,
        <L::Service as Service<Request>>::Error: Into<Infallible> + 'static,
        <L::Service as Service<Request>>::Future: Send + 'static,
    {
        let capacity = wiring::collect(|| {
            let _ = Router::<()>::new().layer(layer.clone());
        });
        if let Some(capacity) = capacity {
            self.costs.bind(capacity);
        }
    }

    /// Adds a handler for unknown paths, as [`Router::fallback`] does.
    #[track_caller]
    pub fn fallback<H, T>(mut self, handler: H) -> Self
    where
        H: Handler<T, S>,
        T: 'static,
    {
        self.router = self.router.fallback(handler);
        self.outermost = None;
        self
    }

    /// Adds a service for unknown paths, as [`Router::fallback_service`] does.
    pub fn fallback_service<T>(mut self, service: T) -> Self
    where
        T: Service<Request, Error = Infallible> + Clone + Send + Sync + 'static,
        T::Response: IntoResponse,
        T::Future: Send + 'static,
    {
        self.router = self.router.fallback_service(service);
        self.outermost = None;
        self
    }

    /// Removes the fallback, as [`Router::reset_fallback`] does.
    pub fn reset_fallback(mut self) -> Self {
        self.router = self.router.reset_fallback();
        self.outermost = None;
        self
    }

    /// Adds a handler for methods that the routes so far do not know, as
    /// [`Router::method_not_allowed_fallback`] does.
    ///
    /// It belongs before `.layer`: after it, it takes the place of the layered default, and such requests
    /// reach it without passing the limiter.
    pub fn method_not_allowed_fallback<H, T>(mut self, handler: H) -> Self
    where
        H: Handler<T, S>,
        T: 'static,
    {
        self.router = self.router.method_not_allowed_fallback(handler);
        self.outermost = None;
        self
    }

    /// Provides the state, as [`Router::with_state`] does.
    pub fn with_state<S2>(self, state: S) -> CostRouter<S2> {
        CostRouter {
            router: self.router.with_state(state),
            costs: self.costs,
            required: self.required,
            unlisted: self.unlisted,
            outermost: self.outermost,
        }
    }

    /// What the routes so far cost. Print it to see the table, or compare with it in a test.
    pub const fn costs(&self) -> &RouteCosts {
        &self.costs
    }

    /// The finished router, which hands its costs to the limiters that were layered onto it.
    ///
    /// # Panics
    ///
    /// Where [`try_into_router`](Self::try_into_router) gives an error.
    #[track_caller]
    pub fn into_router(self) -> Router<S> {
        match self.try_into_router() {
            Ok(router) => router,
            Err(error) => panic!("{error}"),
        }
    }

    /// The finished router, which hands its costs to the limiters that were layered onto it.
    ///
    /// # Errors
    ///
    /// If a route costs more than the largest capacity of a limiter around it, or if costs are
    /// [required](Self::require_costs) and a route has none.
    pub fn try_into_router(self) -> Result<Router<S>, CostError> {
        self.check()?;
        let costs = Arc::new(self.costs);
        if self.outermost.is_some_and(|place| place.put(&costs)) {
            return Ok(self.router);
        }
        let place = Place::default();
        place.put(&costs);
        Ok(self.router.layer(HandOver::new(Identity::new(), place)))
    }

    /// The plain router and the table, to give to `RateLimitLayer::with_costs`.
    ///
    /// Since routes may be added to the router afterwards, a method that the table does not know then counts
    /// as a route without a price, not as one that is not allowed.
    ///
    /// # Panics
    ///
    /// Where [`try_into_router`](Self::try_into_router) gives an error.
    #[track_caller]
    pub fn split(mut self) -> (Router<S>, RouteCosts) {
        if let Err(error) = self.check() {
            panic!("{error}");
        }
        self.costs.leave_open();
        (self.router, self.costs)
    }

    fn check(&self) -> Result<(), CostError> {
        self.costs.check_bounds()?;
        if !self.required {
            return Ok(());
        }
        let mut routes = self.costs.unpriced();
        let unlisted = self.unlisted.iter();
        routes.extend(unlisted.map(|place| format!("any {}/*", place.trim_end_matches('/'))));
        if routes.is_empty() {
            Ok(())
        } else {
            Err(CostError::Unpriced { routes })
        }
    }
}

/// The path of a nested route, as Axum joins it: a route `/` is the bare prefix.
fn nested_path(prefix: &str, path: &str) -> String {
    let below = match path {
        _ if prefix.ends_with('/') => path.trim_start_matches('/'),
        "/" => "",
        path => path,
    };
    [prefix, below].concat()
}

// === impl CostRouter ===

impl<S> From<Router<S>> for CostRouter<S>
where
    S: Clone + Send + Sync + 'static,
{
    /// Axum does not tell the routes of a router: price them with [`with_costs`](CostRouter::with_costs).
    fn from(router: Router<S>) -> Self {
        let mut costs = RouteCosts::new();
        let mut unlisted = Vec::new();
        if router.has_routes() {
            costs.leave_open();
            unlisted.push("/".to_owned());
        }
        Self {
            router,
            costs,
            required: false,
            unlisted,
            outermost: None,
        }
    }
}

impl<S> Default for CostRouter<S>
where
    S: Clone + Send + Sync + 'static,
{
    fn default() -> Self {
        Self::new()
    }
}

impl<S> Clone for CostRouter<S> {
    fn clone(&self) -> Self {
        // Both have the layers in common, and each will have a table of its own.
        if let Some(place) = &self.outermost {
            place.close();
        }
        Self {
            router: self.router.clone(),
            costs: self.costs.clone(),
            required: self.required,
            unlisted: self.unlisted.clone(),
            outermost: None,
        }
    }
}

impl<S> fmt::Debug for CostRouter<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CostRouter")
            .field("router", &self.router)
            .field("costs", &self.costs)
            .field("required", &self.required)
            .field("unlisted", &self.unlisted)
            .finish()
    }
}
