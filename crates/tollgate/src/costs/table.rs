//! The table from routes to prices.

use std::{collections::HashMap, fmt};

use foldhash::quality::RandomState;
use http::Method;

use super::{
    CostError, Price, RouteCost,
    entry::{Entry, PathCosts, PricedTwice},
    error::TooCostly,
    prefix::Prefix,
};

/// A table from routes, each a path pattern and a method, to prices.
///
/// A `CostRouter` (feature `axum`) fills one by itself. Write one by hand for a service without such a
/// router, or for routes that came as a plain `axum::Router`:
///
/// ```
/// use http::Method;
/// use tollgate::costs::{Price, RouteCosts};
///
/// let costs = RouteCosts::new()
///     .set(Method::POST, "/reports", 20)
///     .set_any("/pkg.Search/Query", 5)
///     .exempt_any("/health")
///     .exempt_under("/assets");
///
/// assert_eq!(costs.get(&Method::POST, "/reports"), Some(Price::from(20)));
/// assert_eq!(
///     costs.to_string(),
///     "any   /assets/*          exempt\n\
///      any   /health            exempt\n\
///      any   /pkg.Search/Query  5\n\
///      POST  /reports           20\n",
/// );
/// ```
///
/// With Axum, paths are written as the routes write them, `/items/{id}`; elsewhere a path stands for itself.
/// The [module](super) tells how a request is looked up.
///
/// # Panics
///
/// The methods that add a line panic if the line is there already, or if the path does not start with `/` or
/// has a segment of the old form `:id` or `*rest`: such a line would have no effect, in silence.
#[derive(Clone, Debug, Default)]
#[must_use]
pub struct RouteCosts {
    paths: HashMap<Box<str>, PathCosts, RandomState>,
    /// In the order in which the router tries them.
    prefixes: Vec<(Prefix, Entry)>,
    /// There may be routes, even for the paths in the table, that it does not know.
    open: bool,
}

impl RouteCosts {
    /// A table without lines.
    pub fn new() -> Self {
        Self::default()
    }

    /// Requests with `method` to `path` cost `tokens`.
    #[track_caller]
    pub fn set(self, method: Method, path: &str, tokens: u32) -> Self {
        self.line(Some(method), path, tokens.into())
    }

    /// Requests to `path` cost `tokens`, with any method that has no line of its own.
    #[track_caller]
    pub fn set_any(self, path: &str, tokens: u32) -> Self {
        self.line(None, path, tokens.into())
    }

    /// Requests to `path` and everything under it cost `tokens`, unless the table knows their route.
    #[track_caller]
    pub fn set_under(self, path: &str, tokens: u32) -> Self {
        self.line_under(path, tokens.into())
    }

    /// Requests with `method` to `path` are not checked at all.
    #[track_caller]
    pub fn exempt(self, method: Method, path: &str) -> Self {
        self.line(Some(method), path, Price::Exempt)
    }

    /// Requests to `path` are not checked at all, with any method that has no line of its own.
    #[track_caller]
    pub fn exempt_any(self, path: &str) -> Self {
        self.line(None, path, Price::Exempt)
    }

    /// Requests to `path` and everything under it are not checked at all, unless the table knows their route.
    #[track_caller]
    pub fn exempt_under(self, path: &str) -> Self {
        self.line_under(path, Price::Exempt)
    }

    /// The price of `method` on the route `path`, `None` if the table does not know it.
    ///
    /// `HEAD` has the price of `GET`, and any method that of the line for any, unless they have their own.
    #[must_use]
    pub fn get(&self, method: &Method, path: &str) -> Option<Price> {
        self.paths.get(path)?.price(method)
    }

    /// All lines, by path and then by method.
    pub fn iter(&self) -> impl Iterator<Item = RouteCost<'_>> {
        self.rows().into_iter().map(|(row, _)| row)
    }

    #[track_caller]
    fn line(mut self, method: Option<Method>, path: &str, price: Price) -> Self {
        check_path(path);
        self.absorb_path(path, PathCosts::by_hand(method, price));
        self
    }

    #[track_caller]
    fn line_under(mut self, path: &str, price: Price) -> Self {
        check_path(path);
        self.absorb_prefix(Prefix::new(path), Entry::by_hand(price));
        self
    }

    fn rows(&self) -> Vec<(RouteCost<'_>, Entry)> {
        let row = |path, under, method, entry: &Entry| {
            let price = entry.price;
            let row = RouteCost {
                path,
                under,
                method,
                price,
            };
            (row, *entry)
        };
        let mut rows: Vec<_> = self
            .paths
            .iter()
            .flat_map(|(path, costs)| {
                let entries = costs.entries.iter();
                entries.map(|(method, entry)| row(&**path, false, method.as_ref(), entry))
            })
            .collect();
        let prefixes = self.prefixes.iter();
        rows.extend(prefixes.map(|(prefix, entry)| row(prefix.as_str(), true, None, entry)));
        rows.sort_by_key(|(row, _)| (row.path, row.under, row.method_name()));
        rows
    }
}

// What only a router needs.
#[cfg(feature = "axum")]
impl RouteCosts {
    /// Adds another table, with `place` making its paths those of this one.
    #[track_caller]
    pub(super) fn absorb(&mut self, other: Self, place: impl Fn(&str) -> String) {
        for (path, costs) in other.paths {
            self.absorb_path(&place(&path), costs);
        }
        for (prefix, entry) in other.prefixes {
            self.absorb_prefix(Prefix::new(&place(prefix.as_str())), entry);
        }
        self.open |= other.open;
    }

    /// Notes that there may be routes which the table does not know.
    pub(super) fn leave_open(&mut self) {
        self.open = true;
    }

    /// Notes a limiter around all routes so far.
    pub(super) fn bind(&mut self, capacity: u64) {
        let paths = self.paths.values_mut();
        let entries = paths.flat_map(|costs| costs.entries.iter_mut().map(|(_, entry)| entry));
        let under = self.prefixes.iter_mut().map(|(_, entry)| entry);
        entries.chain(under).for_each(|entry| entry.bind(capacity));
    }

    /// The routes that say nothing about their cost.
    pub(super) fn unpriced(&self) -> Vec<String> {
        let rows = self.rows().into_iter();
        rows.filter(|(row, _)| row.price == Price::Default)
            .map(|(row, _)| row.to_string())
            .collect()
    }

    /// Refuses costs that one of the limiters known to be around their route could never grant.
    pub(super) fn check_bounds(&self) -> Result<(), CostError> {
        self.check(|entry| entry.bound)
    }
}

// What the router and the look-up need.
impl RouteCosts {
    #[track_caller]
    pub(super) fn absorb_path(&mut self, path: &str, costs: PathCosts) {
        let own = self.paths.entry(path.into()).or_default();
        if let Err(PricedTwice(method)) = own.absorb(costs) {
            let method = method.as_ref().map_or("any", Method::as_str);
            panic!("Overlapping costs. A price for `{method} {path}` already exists");
        }
    }

    #[track_caller]
    pub(super) fn absorb_prefix(&mut self, prefix: Prefix, entry: Entry) {
        let mut prefixes = self.prefixes.iter_mut();
        if let Some((_, own)) = prefixes.find(|(own, _)| *own == prefix) {
            let path = prefix.as_str();
            assert!(
                own.absorb(entry),
                "Overlapping costs. A price for everything under `{path}` already exists"
            );
            return;
        }
        let at = self
            .prefixes
            .partition_point(|(own, _)| !prefix.goes_before(own));
        self.prefixes.insert(at, (prefix, entry));
    }

    pub(super) fn at(&self, path: &str) -> Option<&PathCosts> {
        self.paths.get(path)
    }

    /// The price of the nested service or hand-written line that covers `path`.
    pub(super) fn under(&self, path: &str) -> Option<Price> {
        let found = self.prefixes.iter().find(|(prefix, _)| prefix.covers(path));
        found.map(|(_, entry)| entry.price)
    }

    /// Whether all methods of the routes at a path are known.
    pub(super) fn lists(&self, path: &PathCosts) -> bool {
        path.listed && !self.open
    }

    /// Refuses costs above `largest`, the largest capacity that a limiter has for any tier.
    pub(crate) fn check_capacity(&self, largest: u64) -> Result<(), CostError> {
        self.check(|_| Some(largest))
    }

    fn check(&self, capacity: impl Fn(&Entry) -> Option<u64>) -> Result<(), CostError> {
        let too_costly = |(row, entry): (RouteCost<'_>, Entry)| {
            let (Price::Cost(cost), Some(capacity)) = (row.price, capacity(&entry)) else {
                return None;
            };
            (cost.tokens() > capacity).then(|| TooCostly {
                route: row.to_string(),
                cost,
                capacity,
            })
        };
        let routes: Vec<_> = self.rows().into_iter().filter_map(too_costly).collect();
        if routes.is_empty() {
            Ok(())
        } else {
            Err(CostError::AboveCapacity { routes })
        }
    }
}

// === impl RouteCosts ===

impl fmt::Display for RouteCosts {
    /// One line for each route: method, path, and `10`, `exempt` or `default`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let rows: Vec<_> = self.iter().map(|row| (row, row.path_name())).collect();
        let method_width = rows.iter().map(|(row, _)| row.method_name().len()).max();
        let path_width = rows.iter().map(|(_, path)| path.chars().count()).max();
        let (methods, paths) = (method_width.unwrap_or(0), path_width.unwrap_or(0));
        for (row, path) in rows {
            let (method, price) = (row.method_name(), row.price);
            writeln!(f, "{method:methods$}  {path:paths$}  {price}")?;
        }
        Ok(())
    }
}

/// A path that no request could ever match would be a price without effect.
#[track_caller]
fn check_path(path: &str) {
    assert!(
        path.starts_with('/'),
        "Invalid path {path:?} for a cost. Paths must start with a `/`"
    );
    let old = path.split('/').find(|part| part.starts_with([':', '*']));
    if let Some(part) = old {
        panic!(
            "Invalid path {path:?} for a cost. Instead of `{part}` write `{{name}}` for a segment and \
             `{{*name}}` for the rest of a path, as the route does"
        );
    }
}
