//! Looking up the price of a request.

use http::{Method, Request};
use tollgate_core::Cost;

use super::{Price, RouteCosts};

/// What a request costs, and how that is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Resolved {
    /// The route names its cost.
    Price(Cost),
    /// The route asks for no check.
    Exempt,
    /// There is a route, and nothing is said about its cost.
    Unpriced,
    /// There is a route for the path, and none for this method of it. Said only if all methods are known.
    MethodNotAllowed,
    /// There is a table, and no route for the path.
    Unmatched,
    /// There is no table to look in.
    NoTable,
}

/// A request as a table sees it: the table's paths start where its router does.
struct Asked<'a> {
    method: &'a Method,
    /// The pattern that the router has matched.
    route: Option<&'a str>,
    path: &'a str,
}

/// Finds the price of `request` in `table`, the one that the layer was given, or else in the one that the
/// router around the layer has handed over.
pub(crate) fn resolve<B>(table: Option<&RouteCosts>, request: &Request<B>) -> Resolved {
    let method = request.method();
    let route = matched_path(request);
    if let Some(costs) = table {
        let asked = Asked {
            method,
            route: own_route(costs, route, request),
            path: request.uri().path(),
        };
        return asked.look_up(costs);
    }
    #[cfg(feature = "axum")]
    if let Some(handed) = request.extensions().get::<super::handover::CostTable>() {
        return handed.resolve(method, route);
    }
    Resolved::NoTable
}

/// Finds the price of a request in the table of the router that routes it.
#[cfg(feature = "axum")]
pub(super) fn resolve_in(
    costs: &RouteCosts,
    method: &Method,
    route: Option<&str>,
    path: &str,
) -> Resolved {
    let asked = Asked {
        method,
        route,
        path,
    };
    asked.look_up(costs)
}

// === impl Asked ===

impl Asked<'_> {
    fn look_up(&self, costs: &RouteCosts) -> Resolved {
        let Some(route) = self.route else {
            return self
                .at(costs, self.path)
                .or_else(|| self.under(costs))
                .unwrap_or(Resolved::Unmatched);
        };
        // A route such as `/pkg.Service/{*rest}` stands for many methods of a gRPC service, which the table
        // tells apart by their whole paths.
        let whole = is_wildcard(route)
            .then(|| self.at(costs, self.path))
            .flatten()
            .filter(|whole| matches!(whole, Resolved::Price(_) | Resolved::Exempt));
        whole
            .or_else(|| self.at(costs, route))
            .or_else(|| self.under(costs))
            .unwrap_or(Resolved::Unpriced)
    }

    fn at(&self, costs: &RouteCosts, path: &str) -> Option<Resolved> {
        let found = costs.at(path)?;
        Some(match found.price(self.method) {
            Some(price) => price.into(),
            None if costs.lists(found) => Resolved::MethodNotAllowed,
            None => Resolved::Unpriced,
        })
    }

    fn under(&self, costs: &RouteCosts) -> Option<Resolved> {
        let price = costs.under(self.path)?;
        // A service that resolves dots serves something else than what lies under the exempt path.
        let escapes = price == Price::Exempt && has_dot_segment(self.path);
        (!escapes).then(|| price.into())
    }
}

// === impl Resolved ===

impl From<Price> for Resolved {
    fn from(price: Price) -> Self {
        match price {
            Price::Cost(cost) => Self::Price(cost),
            Price::Exempt => Self::Exempt,
            Price::Default => Self::Unpriced,
        }
    }
}

/// Whether a segment is `.` or `..`, however it is written ([RFC 3986, section 5.2.4]).
///
/// [RFC 3986, section 5.2.4]: https://www.rfc-editor.org/rfc/rfc3986#section-5.2.4
fn has_dot_segment(path: &str) -> bool {
    path.split('/').any(|segment| {
        let plain = segment.replace("%2e", ".").replace("%2E", ".");
        matches!(&*plain, "." | "..")
    })
}

fn is_wildcard(route: &str) -> bool {
    route
        .rsplit('/')
        .next()
        .is_some_and(|last| last.starts_with("{*"))
}

/// The pattern that Axum has matched, unless it is one of those by which Axum runs its own fallbacks.
#[cfg(feature = "axum")]
pub(super) fn matched_path<B>(request: &Request<B>) -> Option<&str> {
    let matched = request.extensions().get::<axum::extract::MatchedPath>()?;
    let is_own = |path: &str| path.ends_with('}') && path.contains("__private__axum_");
    Some(matched.as_str()).filter(|path| !is_own(path))
}

#[cfg(not(feature = "axum"))]
fn matched_path<B>(_: &Request<B>) -> Option<&str> {
    None
}

/// The route in the words of a table that the layer was given: its paths start where the layer's router
/// does, so what this router is nested at comes off, unless only the full path is in the table.
#[cfg(feature = "axum")]
fn own_route<'a, B>(
    costs: &RouteCosts,
    route: Option<&'a str>,
    request: &'a Request<B>,
) -> Option<&'a str> {
    let nested = request.extensions().get::<axum::extract::NestedPath>();
    let Some(nested) = nested else { return route };
    let own = strip_nested(route?, nested.as_str());
    if costs.at(own).is_some() {
        Some(own)
    } else {
        route
    }
}

#[cfg(not(feature = "axum"))]
fn own_route<'a, B>(_: &RouteCosts, route: Option<&'a str>, _: &Request<B>) -> Option<&'a str> {
    route
}

/// Takes the path at which a router is nested off a matched path.
///
/// Axum joins `/v1` and `/` to `/v1`, and a nested service answers to `/v1`, `/v1/` and `/v1//` alike where
/// its own route is `/`.
#[cfg(feature = "axum")]
pub(super) fn strip_nested<'a>(route: &'a str, nested: &str) -> &'a str {
    match route.strip_prefix(nested.trim_end_matches('/')) {
        Some("" | "/" | "//") => "/",
        Some(own) if own.starts_with('/') => own,
        Some(_) | None => route,
    }
}
