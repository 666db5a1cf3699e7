//! Why an app with costs cannot be built.

use std::{error::Error, fmt};

use tollgate_core::Cost;

/// What is wrong with the costs of an app.
///
/// Each variant lists every route that it concerns, so that one build tells all of them.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum CostError {
    /// Costs are required, and these routes say nothing.
    #[non_exhaustive]
    Unpriced {
        /// The routes, as `GET /items`; routes that cannot be listed as `any /v1/*`.
        routes: Vec<String>,
    },
    /// These routes cost more than the largest bucket of a limiter around them holds, so that none of their
    /// requests could ever pass.
    #[non_exhaustive]
    AboveCapacity {
        /// The routes, each with its cost and the capacity.
        routes: Vec<TooCostly>,
    },
}

/// A route whose cost no bucket can hold.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct TooCostly {
    /// The route, as `POST /export`.
    pub route: String,
    /// What a request costs.
    pub cost: Cost,
    /// The largest capacity that the limiter has for any tier.
    pub capacity: u64,
}

// === impl CostError ===

impl fmt::Display for CostError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unpriced { routes } => write!(
                f,
                "costs are required, but nothing is said for: {}; add `.cost(n)` or `.exempt()` to each, \
                 or a line to the table given to `with_costs`",
                routes.join(", "),
            ),
            Self::AboveCapacity { routes } => {
                f.write_str("no bucket can ever hold the cost of: ")?;
                for (i, route) in routes.iter().enumerate() {
                    let comma = if i == 0 { "" } else { ", " };
                    write!(f, "{comma}{route}")?;
                }
                f.write_str("; lower the cost, or raise the capacity of a tier")
            }
        }
    }
}

impl Error for CostError {}

// === impl TooCostly ===

impl fmt::Display for TooCostly {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let tokens = self.cost.tokens();
        write!(f, "{} ({tokens} of at most {})", self.route, self.capacity)
    }
}
