//! Handlers of one path, each with its price.

use std::{convert::Infallible, fmt};

use axum::{
    extract::Request,
    handler::Handler,
    response::IntoResponse,
    routing::{MethodFilter, MethodRouter, Route},
};
use http::Method;
use tower_layer::Layer;
use tower_service::Service;

use super::{
    Price,
    entry::{Entry, PathCosts},
    wiring,
};

/// An [`axum::routing::MethodRouter`] that remembers what each method costs.
///
/// The functions in [`routing`](super::routing) make one. [`cost`](Self::cost) and [`exempt`](Self::exempt)
/// are about the handler added just before:
///
/// ```
/// use tollgate::costs::{CostRouter, routing::get};
///
/// let app = CostRouter::<()>::new()
///     .route("/items", get(async || "all").cost(5).post(async || "new").cost(20));
/// assert_eq!(app.costs().to_string(), "GET   /items  5\nPOST  /items  20\n");
/// ```
///
/// A plain [`MethodRouter`] becomes one by [`From`]. Its methods cannot be told, so its price is one for any
/// method, and no request counts as a method that is not allowed.
#[must_use]
pub struct CostMethodRouter<S = (), E = Infallible> {
    router: MethodRouter<S, E>,
    costs: PathCosts,
    /// What the next `cost` or `exempt` is about.
    last: Vec<Option<Method>>,
}

/// The methods that a filter can hold.
const METHODS: [(MethodFilter, Method); 9] = [
    (MethodFilter::CONNECT, Method::CONNECT),
    (MethodFilter::DELETE, Method::DELETE),
    (MethodFilter::GET, Method::GET),
    (MethodFilter::HEAD, Method::HEAD),
    (MethodFilter::OPTIONS, Method::OPTIONS),
    (MethodFilter::PATCH, Method::PATCH),
    (MethodFilter::POST, Method::POST),
    (MethodFilter::PUT, Method::PUT),
    (MethodFilter::TRACE, Method::TRACE),
];

macro_rules! chained {
    ($($name:ident $method:ident,)*) => {$(
        #[doc = concat!("Adds a handler for `", stringify!($method), "`, as [`MethodRouter::", stringify!($name), "`] does.")]
        #[track_caller]
        pub fn $name<H, T>(self, handler: H) -> Self
        where
            H: Handler<T, S>,
            T: 'static,
            S: Send + Sync + 'static,
        {
            self.on(MethodFilter::$method, handler)
        }
    )*};
}

impl<S> CostMethodRouter<S, Infallible>
where
    S: Clone,
{
    chained! {
        connect CONNECT,
        delete DELETE,
        get GET,
        head HEAD,
        options OPTIONS,
        patch PATCH,
        post POST,
        put PUT,
        trace TRACE,
    }

    /// Adds a handler for the methods of `filter`, as [`MethodRouter::on`] does.
    #[track_caller]
    pub fn on<H, T>(mut self, filter: MethodFilter, handler: H) -> Self
    where
        H: Handler<T, S>,
        T: 'static,
        S: Send + Sync + 'static,
    {
        self.router = self.router.on(filter, handler);
        let methods = METHODS.into_iter();
        let chosen = methods.filter(|(one, _)| filter.or(*one) == filter);
        self.declare(chosen.map(|(_, method)| Some(method)).collect())
    }

    /// Adds a handler for all methods without one, as [`MethodRouter::fallback`] does.
    #[track_caller]
    pub fn fallback<H, T>(mut self, handler: H) -> Self
    where
        H: Handler<T, S>,
        T: 'static,
        S: Send + Sync + 'static,
    {
        self.router = self.router.fallback(handler);
        self.declare(vec![None])
    }
}

impl<S, E> CostMethodRouter<S, E>
where
    S: Clone,
{
    /// The handler added just before costs `tokens` per request. With 0, a request still needs an identity,
    /// and reads the bucket.
    ///
    /// # Panics
    ///
    /// If there is no such handler, or it has a price already.
    #[track_caller]
    pub fn cost(self, tokens: u32) -> Self {
        self.price(tokens.into())
    }

    /// Requests to the handler added just before are not checked at all.
    ///
    /// # Panics
    ///
    /// If there is no such handler, or it has a price already.
    #[track_caller]
    pub fn exempt(self) -> Self {
        self.price(Price::Exempt)
    }

    /// Provides the state, as [`MethodRouter::with_state`] does.
    pub fn with_state<S2>(self, state: S) -> CostMethodRouter<S2, E> {
        CostMethodRouter {
            router: self.router.with_state(state),
            costs: self.costs,
            last: self.last,
        }
    }

    /// Joins two, as [`MethodRouter::merge`] does.
    ///
    /// # Panics
    ///
    /// If both have a handler for one method.
    #[track_caller]
    pub fn merge(mut self, other: impl Into<Self>) -> Self {
        let other = other.into();
        self.router = self.router.merge(other.router);
        self.costs
            .absorb(other.costs)
            .expect("the router has refused two handlers for one method");
        self.last = Vec::new();
        self
    }

    /// Applies a layer to all handlers so far, as [`MethodRouter::layer`] does. It runs inside of the layers
    /// of the router.
    pub fn layer<L, NewError>(mut self, layer: L) -> CostMethodRouter<S, NewError>
    where
        L: Layer<Route<E>> + Clone + Send + Sync + 'static,
        L::Service: Service<Request> + Clone + Send + Sync + 'static,
        <L::Service as Service<Request>>::Response: IntoResponse + 'static,
        <L::Service as Service<Request>>::Error: Into<NewError> + 'static,
        <L::Service as Service<Request>>::Future: Send + 'static,
        E: 'static,
        S: 'static,
        NewError: 'static,
    {
        // Axum layers a handler only once it has its state. The empty router here has nothing to wait for.
        let capacity = wiring::collect(|| {
            let _ = MethodRouter::<(), E>::new().layer::<L, NewError>(layer.clone());
        });
        if let Some(capacity) = capacity {
            let entries = self.costs.entries.iter_mut();
            entries.for_each(|(_, entry)| entry.bind(capacity));
        }
        CostMethodRouter {
            router: self.router.layer(layer),
            costs: self.costs,
            last: self.last,
        }
    }

    pub(super) fn into_parts(self) -> (MethodRouter<S, E>, PathCosts) {
        (self.router, self.costs)
    }

    pub(super) fn empty() -> Self {
        Self {
            router: MethodRouter::new(),
            costs: PathCosts {
                entries: Vec::new(),
                listed: true,
            },
            last: Vec::new(),
        }
    }

    /// Notes handlers that have just been added.
    fn declare(mut self, methods: Vec<Option<Method>>) -> Self {
        for method in &methods {
            // A second fallback replaces the first, with its price.
            self.costs.entries.retain(|(known, _)| known != method);
            let entry = (method.clone(), Entry::default());
            self.costs.entries.push(entry);
        }
        self.last = methods;
        self
    }

    #[track_caller]
    fn price(mut self, price: Price) -> Self {
        assert!(
            !self.last.is_empty(),
            "Invalid cost. It must come right after the handler that it is for"
        );
        for method in &self.last {
            let entry = self.costs.get_mut(method.as_ref());
            let entry = entry.expect("a handler has an entry");
            if entry.price != Price::Default {
                let method = method.as_ref().map_or("any", Method::as_str);
                panic!("Overlapping costs. The handler for `{method}` already has a price");
            }
            entry.price = price;
        }
        self
    }
}

// === impl CostMethodRouter ===

impl<S, E> From<MethodRouter<S, E>> for CostMethodRouter<S, E> {
    fn from(router: MethodRouter<S, E>) -> Self {
        Self {
            router,
            costs: PathCosts {
                entries: vec![(None, Entry::default())],
                listed: false,
            },
            last: vec![None],
        }
    }
}

impl<S, E> Clone for CostMethodRouter<S, E> {
    fn clone(&self) -> Self {
        Self {
            router: self.router.clone(),
            costs: self.costs.clone(),
            last: self.last.clone(),
        }
    }
}

impl<S, E> fmt::Debug for CostMethodRouter<S, E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CostMethodRouter")
            .field("router", &self.router)
            .field("costs", &self.costs)
            .finish_non_exhaustive()
    }
}
