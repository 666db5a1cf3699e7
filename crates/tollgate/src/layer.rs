//! The layer.

use std::{fmt, sync::Arc};

use tollgate_core::Cost;
use tollgate_limiter::{FailurePolicy, Limiter};
use tower_layer::Layer;

use crate::{
    ClientAddress, Headers, Identify, MissingIdentity, ProblemJson, RateLimit, Reset,
    costs::{CostError, Price, RouteCosts, TooCostly, wiring},
    settings::Settings,
};

/// Puts a [`Limiter`] in front of a service: one check per request, before its body is read and before the
/// service is called.
///
/// The check begins when the layer's service is called, not when its future is first polled. The service behind
/// finds what was decided in the request's extensions, as [`Charged`](crate::Charged); layers further outside find
/// the [`Decision`](crate::Decision) on a refused request in the response's.
///
/// See the [crate docs](crate) for an example and the rules.
#[derive(Clone)]
#[must_use]
pub struct RateLimitLayer<R = ProblemJson> {
    settings: Arc<Settings>,
    rejection: R,
}

impl RateLimitLayer {
    /// A layer that charges through `limiter`.
    pub fn new(limiter: Limiter) -> Self {
        Self {
            settings: Arc::new(Settings::new(limiter)),
            rejection: ProblemJson,
        }
    }
}

impl<R> RateLimitLayer<R> {
    /// How a request's tenant is found among its extensions, for services that keep a claim type of their
    /// own there. By default, the [`Tenant`](crate::Tenant) that is there.
    pub fn with_identity(self, identify: impl Identify) -> Self {
        self.with(|settings| settings.identify = Arc::new(identify))
    }

    /// What a request without an identity gets, by default a `401`.
    pub fn on_missing_identity(self, missing: MissingIdentity) -> Self {
        self.with(|settings| settings.missing_identity = missing)
    }

    /// How the address of a caller is found that is limited by it ([`MissingIdentity::Anonymous`]), and how
    /// much of it counts. By default the connection's, and IPv6 by a /64.
    pub fn with_client_address(self, address: ClientAddress) -> Self {
        self.with(|settings| settings.client_address = address)
    }

    /// Gives the layer its own table of costs; a table that a `CostRouter` hands over is then not looked at.
    ///
    /// # Errors
    ///
    /// If a cost exceeds the capacity of every quota, so that the route could never be served.
    pub fn with_costs(self, costs: RouteCosts) -> Result<Self, CostError> {
        costs.check_capacity(self.settings.limiter.largest_capacity())?;
        Ok(self.with(|settings| settings.costs = Some(Arc::new(costs))))
    }

    /// What a request costs whose route says nothing else, by default 1.
    ///
    /// # Errors
    ///
    /// If the cost exceeds the capacity of every quota.
    pub fn with_default_cost(self, cost: impl Into<Cost>) -> Result<Self, CostError> {
        let cost = cost.into();
        self.check_capacity("the default", cost)?;
        Ok(self.with(|settings| settings.default_cost = Some(cost)))
    }

    /// What a request costs that no route takes (`404`), or whose route does not take its method (`405`).
    /// By default as much as a route that says nothing. It takes a table of costs to tell these from others.
    ///
    /// # Errors
    ///
    /// If the cost exceeds the capacity of every quota.
    pub fn with_unmatched_cost(self, price: impl Into<Price>) -> Result<Self, CostError> {
        let price = price.into();
        if let Price::Cost(cost) = price {
            self.check_capacity("unknown paths and methods", cost)?;
        }
        Ok(self.with(|settings| settings.unmatched = price))
    }

    /// What these requests get when the store gives no answer, if that is to be another policy than the
    /// limiter's: for routes that must be protected, or served, whatever happens to the others.
    ///
    /// Layer each group of routes once and merge the groups: a limiter charges in its outermost layer, and
    /// the policy of that one counts.
    pub fn on_store_failure(self, policy: FailurePolicy) -> Self {
        self.with(|settings| settings.on_store_failure = Some(policy))
    }

    /// Charges CORS preflights like any request. By default they go on to the service unchecked: browsers
    /// send them without credentials, so they have no identity either. A CORS layer outside of this one
    /// answers them itself.
    pub fn charge_preflights(self) -> Self {
        self.with(|settings| settings.charge_preflights = true)
    }

    /// Which families of headers responses carry, by default both.
    pub fn with_headers(self, headers: Headers) -> Self {
        self.with(|settings| settings.headers = headers)
    }

    /// What `X-RateLimit-Reset` counts, by default the seconds until the bucket is full.
    pub fn with_reset(self, reset: Reset) -> Self {
        self.with(|settings| settings.reset = reset)
    }

    /// Makes the responses to refused requests: see [`Rejection`](crate::Rejection).
    pub fn with_rejection<T>(self, rejection: T) -> RateLimitLayer<T> {
        RateLimitLayer {
            settings: self.settings,
            rejection,
        }
    }

    fn check_capacity(&self, route: &str, cost: Cost) -> Result<(), CostError> {
        let capacity = self.settings.limiter.largest_capacity();
        if cost.tokens() <= capacity {
            return Ok(());
        }
        let route = route.to_owned();
        let routes = vec![TooCostly {
            route,
            cost,
            capacity,
        }];
        Err(CostError::AboveCapacity { routes })
    }

    fn with(mut self, change: impl FnOnce(&mut Settings)) -> Self {
        change(Arc::make_mut(&mut self.settings));
        self
    }
}

// === impl RateLimitLayer ===

impl<S, R: Clone> Layer<S> for RateLimitLayer<R> {
    type Service = RateLimit<S, R>;

    fn layer(&self, inner: S) -> Self::Service {
        wiring::announce(self.settings.limiter.largest_capacity());
        RateLimit::new(inner, self.settings.clone(), self.rejection.clone())
    }
}

impl<R> fmt::Debug for RateLimitLayer<R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RateLimitLayer")
            .field("settings", &self.settings)
            .finish_non_exhaustive()
    }
}
