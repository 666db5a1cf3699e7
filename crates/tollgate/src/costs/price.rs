//! What is said about one route.

use std::fmt;

use http::Method;
use tollgate_core::Cost;

/// What a route says about its cost.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Price {
    /// Each request takes so many tokens. [`Cost::FREE`] still asks for an identity and reads the bucket.
    Cost(Cost),
    /// The request passes without a check, and needs no identity.
    Exempt,
    /// Nothing is said: the limiter's default cost.
    #[default]
    Default,
}

// === impl Price ===

impl From<Cost> for Price {
    fn from(cost: Cost) -> Self {
        Self::Cost(cost)
    }
}

impl From<u32> for Price {
    fn from(tokens: u32) -> Self {
        Self::Cost(Cost::new(tokens))
    }
}

impl fmt::Display for Price {
    /// `10`, `exempt` or `default`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Cost(cost) => cost.tokens().fmt(f),
            Self::Exempt => f.pad("exempt"),
            Self::Default => f.pad("default"),
        }
    }
}

/// A line of a table of [`RouteCosts`](super::RouteCosts): a route and its price.
///
/// As text it is the route alone: `GET /items/{id}`, `any /health`, or `any /assets/*` for all that lies
/// under a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RouteCost<'a> {
    pub(super) path: &'a str,
    pub(super) under: bool,
    pub(super) method: Option<&'a Method>,
    pub(super) price: Price,
}

impl<'a> RouteCost<'a> {
    /// The path as the route wrote it: `/items/{id}`.
    #[must_use]
    pub const fn path(&self) -> &'a str {
        self.path
    }

    /// Whether the price also holds for every path under [`path`](Self::path), as for a nested service.
    #[must_use]
    pub const fn is_under(&self) -> bool {
        self.under
    }

    /// The method, or `None` for any.
    #[must_use]
    pub const fn method(&self) -> Option<&'a Method> {
        self.method
    }

    /// What the route says about its cost.
    #[must_use]
    pub const fn price(&self) -> Price {
        self.price
    }

    pub(super) fn method_name(&self) -> &'a str {
        self.method.map_or("any", Method::as_str)
    }

    pub(super) fn path_name(&self) -> String {
        if self.under {
            format!("{}/*", self.path.trim_end_matches('/'))
        } else {
            self.path.to_owned()
        }
    }
}

// === impl RouteCost ===

impl fmt::Display for RouteCost<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.method_name(), self.path_name())
    }
}
