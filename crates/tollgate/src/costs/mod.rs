//! What a request costs, written next to the route.
//!
//! ```
//! # #[cfg(feature = "axum")] {
//! use tollgate::{RateLimitLayer, costs::{CostRouter, routing::{get, post}}};
//!
//! # use tollgate::{FailurePolicy, Limiter, MemoryStore, Quotas};
//! # let quotas = Quotas::new("100/s".parse::<tollgate::Quota>()?);
//! # let limiter = Limiter::builder(MemoryStore::new()).quotas(quotas).on_store_failure(FailurePolicy::Open).build()?;
//! # async fn search() {}
//! # async fn index() {}
//! # async fn export() {}
//! # async fn health() {}
//! let app = CostRouter::new()
//!     .route("/search", get(search).cost(5).post(index).cost(20))
//!     .route("/export/{id}", post(export).cost(10))
//!     .route("/health", get(health).exempt())
//!     .layer(RateLimitLayer::new(limiter));
//!
//! assert_eq!(
//!     app.costs().to_string(),
//!     "POST  /export/{id}  10\n\
//!      GET   /health       exempt\n\
//!      GET   /search       5\n\
//!      POST  /search       20\n",
//! );
//! let app: axum::Router = app.into_router();
//! # }
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # Rules
//!
//! 1. **Order.** Routes and fallbacks come first, then `.layer(RateLimitLayer::new(limiter))`, then the
//!    layers that run before it, such as authentication, and last `.into_router()`, which hands the costs to
//!    the limiter. A route that is added after `.layer` does not pass the limiter. `.into_router().layer(…)`
//!    puts the limiter outside, where it finds no costs; it then warns, once.
//! 2. **Look-up.** A `Cost` in the request's extensions, set by a layer outside of the limiter, comes before
//!    all that is said here. Then the first of these that is known gives the price:
//!    1. if the route ends in a wildcard, as those of gRPC services do (`/pkg.Service/{*rest}`): a price for
//!       the whole path of the request;
//!    2. the route, as the router has matched it, and the method;
//!    3. for `HEAD`, what holds for `GET`, whose handler answers it;
//!    4. the route and any method;
//!    5. if no route was matched, as in a service without a router: the path of the request, in place of the
//!       route;
//!    6. if the table does not know the route: the nested service, or the line for everything under a path,
//!       that covers the path of the request. Of several, it is the one that the router would take;
//!    7. the limiter's default.
//! 3. **Nothing said** means the default cost, which is 1 unless the limiter says otherwise. This is so for a
//!    handler next to one that has a price, too. `CostRouter::require_costs` makes it an error.
//! 4. **Cost 0 is not an exemption.** It needs an identity, reads the bucket and is answered with its state.
//!    An exempt request is not checked at all.
//! 5. **404 and 405.** A path without a route, and a method that the path's routes do not serve, have no
//!    price. The limiter decides, by default for its default cost. A 405 is only told from a route without a
//!    price if all methods of the path are known: not for plain routers, nor after `CostRouter::split`.
//! 6. **Nesting.** `nest` and `merge` take the costs of the inner router along, whether a limiter is layered
//!    onto the inner router or the outer one. A router that was finished by `into_router` keeps its costs to
//!    itself: only limiters inside of it see them, wherever it is nested later. The same holds for a router
//!    given to `nest_service`.
//! 7. **Layers on single routes are inside.** `get(handler).layer(Extension(cost))` sets its extension after
//!    the limiter has run, and has no effect on it.
//! 8. **Two prices for one route** panic, as two handlers do.
//! 9. **A cost that can never fit** the limiter's largest bucket is an error of `into_router`. It is found for
//!    the routes that stand before the `.layer` with the limiter, by whichever router it is called on.
//! 10. **Paths are compared as they are sent**, byte by byte, where no route was matched and under wildcards:
//!     `/%62ig` is not `/big`. So a service that decodes or resolves paths itself, as a proxy does, can be
//!     reached by spellings that have no line of their own; give the prefix or the wildcard the higher price,
//!     and single paths the lower. A path with `.` or `..` in it is never exempt by a prefix.

mod entry;
mod error;
#[cfg(feature = "axum")]
mod handover;
#[cfg(feature = "axum")]
mod method_router;
mod prefix;
mod price;
mod resolve;
#[cfg(feature = "axum")]
mod router;
#[cfg(feature = "axum")]
#[cfg_attr(docsrs, doc(cfg(feature = "axum")))]
pub mod routing;
mod table;
pub(crate) mod wiring;

#[cfg(test)]
mod tests;

pub use self::{
    error::{CostError, TooCostly},
    price::{Price, RouteCost},
    table::RouteCosts,
};
#[cfg(feature = "axum")]
#[cfg_attr(docsrs, doc(cfg(feature = "axum")))]
pub use self::{method_router::CostMethodRouter, router::CostRouter};

// Used by the layer.
pub(crate) use self::resolve::{Resolved, resolve};
