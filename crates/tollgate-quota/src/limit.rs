//! One limit as it is configured.

use std::{collections::HashMap, sync::Arc};

use sha2::{Digest, Sha256};
use tollgate_core::{Cost, LimitName, Tenant};

use crate::{Allowance, Route, RoutePattern};

/// Whose bucket a limit charges.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub enum Scope {
    /// One for each tenant.
    #[default]
    Tenant,
    /// One for each member of a tenant, of this kind, such as `user`. A request whose tenant names no such
    /// member is not charged.
    Member(Arc<str>),
    /// One for everybody.
    Global,
    /// One for everybody, next to other limits of the same downstream service.
    Dependency(Arc<str>),
}

impl Scope {
    /// Whether the bucket is not the tenant's own.
    #[must_use]
    pub const fn is_shared(&self) -> bool {
        matches!(self, Self::Global | Self::Dependency(_))
    }
}

/// Whether a limit has a say.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Mode {
    /// It denies.
    #[default]
    Enforce,
    /// It is charged and counted, and never denies.
    Shadow,
    /// It is not even looked at.
    Off,
}

/// What a request gets when the store gives no answer, from the most lenient to the strictest.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum FailureMode {
    /// It is let through.
    Open,
    /// It is limited in this process, to the replica's share.
    Local,
    /// It is refused.
    Closed,
}

/// One limit: its name and scope, what it lets whom spend, which requests it covers, and whether it denies.
///
/// ```
/// use tollgate_core::{LimitName, Quota};
/// use tollgate_quota::{LimitRule, Quotas};
///
/// let reports = LimitRule::new(LimitName::new("reports")?, Quota::new(10, "10/m")?)
///     .on_route("/reports/{*rest}".parse()?)
///     .tier("pro", Quota::new(100, "100/m")?)
///     .shadow();
/// let quotas = Quotas::new(Quota::new(20, "2/s")?).limit(reports);
/// # quotas.check()?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, PartialEq)]
#[must_use]
pub struct LimitRule {
    pub(crate) name: LimitName,
    pub(crate) scope: Scope,
    pub(crate) allowance: Allowance,
    pub(crate) tiers: HashMap<Arc<str>, Allowance>,
    pub(crate) tenants: HashMap<Arc<str>, Allowance>,
    pub(crate) routes: Vec<RoutePattern>,
    pub(crate) cost: Option<Cost>,
    pub(crate) costs: Vec<(RoutePattern, Cost)>,
    pub(crate) on_store_failure: Option<FailureMode>,
    pub(crate) mode: Mode,
    pub(crate) enforced_share: f64,
    pub(crate) leased: bool,
}

impl LimitRule {
    /// A limit per tenant, of all routes, that gives everybody `allowance`.
    pub fn new(name: LimitName, allowance: impl Into<Allowance>) -> Self {
        Self {
            name,
            scope: Scope::Tenant,
            allowance: allowance.into(),
            tiers: HashMap::new(),
            tenants: HashMap::new(),
            routes: Vec::new(),
            cost: None,
            costs: Vec::new(),
            on_store_failure: None,
            mode: Mode::Enforce,
            enforced_share: 1.0,
            leased: false,
        }
    }

    /// Whose bucket is charged, by default the tenant's.
    pub fn scope(mut self, scope: Scope) -> Self {
        self.scope = scope;
        self
    }

    /// What tenants of this tier may spend instead; a second call for a tier replaces the first.
    pub fn tier(mut self, tier: impl Into<Arc<str>>, allowance: impl Into<Allowance>) -> Self {
        self.tiers.insert(tier.into(), allowance.into());
        self
    }

    /// What this tenant may spend, whatever its tier is; a second call for a tenant replaces the first.
    pub fn tenant(mut self, id: impl Into<Arc<str>>, allowance: impl Into<Allowance>) -> Self {
        self.tenants.insert(id.into(), allowance.into());
        self
    }

    /// Covers these requests, and those of further calls; all requests if there is no call.
    pub fn on_route(mut self, pattern: RoutePattern) -> Self {
        self.routes.push(pattern);
        self
    }

    /// What a request takes from this limit, instead of its route's cost. A limit that counts requests
    /// whatever they cost has a cost of 1 here.
    pub fn cost(mut self, cost: Cost) -> Self {
        self.cost = Some(cost);
        self
    }

    /// What the requests of some routes take from this limit. The first pattern that covers a request counts.
    pub fn cost_on(mut self, pattern: RoutePattern, cost: Cost) -> Self {
        self.costs.push((pattern, cost));
        self
    }

    /// What a request that it covers gets when the store gives no answer. Of a request's limits, the
    /// strictest wins: closed, then local, then open.
    pub fn on_store_failure(mut self, mode: FailureMode) -> Self {
        self.on_store_failure = Some(mode);
        self
    }

    /// Charges and counts, but never denies: to see whom a new limit would hit.
    pub fn shadow(self) -> Self {
        self.mode(Mode::Shadow)
    }

    /// Whether it denies, is only watched, or is off.
    pub fn mode(mut self, mode: Mode) -> Self {
        self.mode = mode;
        self
    }

    /// Denies for this share of tenants only, from 0 to 1, and is in shadow for the others. The choice hangs on
    /// the tenant's id and the limit's name alone, and a tenant for which it denies at a smaller share is
    /// among those of a larger one.
    pub fn enforced_for(mut self, share: f64) -> Self {
        self.enforced_share = share;
        self
    }

    /// Lets replicas claim tokens in batches ahead of time, when all limits of a request do.
    pub fn leased(mut self) -> Self {
        self.leased = true;
        self
    }

    /// The name.
    #[must_use]
    pub const fn name(&self) -> &LimitName {
        &self.name
    }

    /// Whose bucket is charged.
    #[must_use]
    pub const fn scope_of(&self) -> &Scope {
        &self.scope
    }

    /// Whether it is not even looked at.
    #[must_use]
    pub fn is_off(&self) -> bool {
        self.mode == Mode::Off
    }

    /// The failure policy of its own.
    #[must_use]
    pub const fn failure_mode(&self) -> Option<FailureMode> {
        self.on_store_failure
    }

    /// Whether tokens may be claimed ahead.
    #[must_use]
    pub const fn is_leased(&self) -> bool {
        self.leased
    }

    /// Whether it has a say on this request. Without a route, only limits of all routes have.
    #[must_use]
    pub fn covers(&self, route: Option<&Route<'_>>) -> bool {
        !self.is_off()
            && (self.routes.is_empty()
                || route.is_some_and(|route| self.routes.iter().any(|it| it.covers(route))))
    }

    /// Whether it hangs on a request's route if and how it is charged.
    #[must_use]
    pub fn looks_at_routes(&self) -> bool {
        !(self.routes.is_empty() && self.costs.is_empty())
    }

    /// What a request takes from this limit, if its route costs `cost`.
    #[must_use]
    pub fn cost_of(&self, route: Option<&Route<'_>>, cost: Cost) -> Cost {
        let own = route.and_then(|route| self.costs.iter().find(|(it, _)| it.covers(route)));
        own.map(|(_, cost)| *cost).or(self.cost).unwrap_or(cost)
    }

    /// Whether it denies for `tenant`, and is not only watched.
    #[must_use]
    pub fn is_enforced_for(&self, tenant: &Tenant) -> bool {
        match self.mode {
            Mode::Enforce if self.enforced_share >= 1.0 => true,
            Mode::Enforce => position(&self.name, tenant.id()) < self.enforced_share,
            Mode::Shadow | Mode::Off => false,
        }
    }

    /// Whether it is on, and its bucket the tenant's own.
    pub(crate) fn is_own(&self) -> bool {
        self.mode != Mode::Off && !self.scope.is_shared()
    }

    /// Whether it denies for every tenant and request, by what the route costs.
    pub(crate) fn charges_all_as_routed(&self) -> bool {
        self.mode == Mode::Enforce
            && self.enforced_share >= 1.0
            && !matches!(self.scope, Scope::Member(_))
            && self.routes.is_empty()
            && self.cost.is_none()
            && self.costs.is_empty()
    }

    /// The largest cost that it has of its own, at least 1.
    pub(crate) fn largest_own_cost(&self) -> u64 {
        let costs = self.costs.iter().map(|(_, cost)| *cost).chain(self.cost);
        costs.map(Cost::tokens).fold(1, u64::max)
    }

    /// Every allowance that it gives anybody.
    pub(crate) fn allowances(&self) -> impl Iterator<Item = &Allowance> {
        self.tiers
            .values()
            .chain(self.tenants.values())
            .chain([&self.allowance])
    }

    /// The largest cost that anybody could ever pay.
    pub(crate) fn largest_cost(&self) -> u64 {
        self.allowances()
            .map(Allowance::largest_cost)
            .max()
            .unwrap_or(0)
    }
}

/// Where from 0 to 1 a tenant stands for a limit: the same in every process and release, and for each limit
/// another, so that it is not always the same tenants who go first.
fn position(limit: &LimitName, tenant: &str) -> f64 {
    let hash = Sha256::new()
        .chain_update(limit.as_str())
        .chain_update([0])
        .chain_update(tenant);
    let hash = hash.finalize();
    let bytes = [hash[0], hash[1], hash[2], hash[3]];
    f64::from(u32::from_be_bytes(bytes)) / (f64::from(u32::MAX) + 1.0)
}

#[cfg(test)]
mod tests {
    use tollgate_core::Quota;

    use super::*;

    fn rule(name: &str) -> LimitRule {
        let quota = Quota::new(10, 1).expect("a quota");
        LimitRule::new(LimitName::new(name).expect("a name"), quota)
    }

    fn route<'a>(method: &'a str, path: &'a str) -> Route<'a> {
        Route {
            method,
            path,
            template: None,
        }
    }

    #[test]
    fn a_limit_covers_its_routes_or_all() {
        let all = rule("all");
        assert!(all.covers(None) && all.covers(Some(&route("GET", "/x"))));
        let some = rule("some")
            .on_route("/a".parse().expect("a pattern"))
            .on_route("POST /b".parse().expect("a pattern"));
        assert!(some.covers(Some(&route("GET", "/a"))) && some.covers(Some(&route("POST", "/b"))));
        assert!(!some.covers(Some(&route("GET", "/b"))) && !some.covers(None));
        assert!(!all.mode(Mode::Off).covers(None));
    }

    #[test]
    fn the_limits_own_cost_goes_before_the_routes() {
        let seven = Cost::new(7);
        let plain = rule("plain");
        assert_eq!(plain.cost_of(None, seven), seven);
        let own = plain
            .cost(Cost::ONE)
            .cost_on("/a".parse().expect("a pattern"), Cost::new(5));
        assert_eq!(own.cost_of(Some(&route("GET", "/a")), seven), Cost::new(5));
        assert_eq!(own.cost_of(Some(&route("GET", "/b")), seven), Cost::ONE);
    }

    #[test]
    fn a_share_is_of_tenants_always_the_same_and_grows() {
        let enforced = |share: f64| -> Vec<bool> {
            let rule = rule("new").enforced_for(share);
            let tenant = |i| Tenant::new(format!("tenant-{i}"), "pro").expect("an id");
            (0..4_000)
                .map(|i| rule.is_enforced_for(&tenant(i)))
                .collect()
        };
        let count = |list: &[bool]| list.iter().filter(|it| **it).count();
        let (quarter, half) = (enforced(0.25), enforced(0.5));
        assert!(
            (900..1100).contains(&count(&quarter)),
            "{}",
            count(&quarter)
        );
        assert!((1900..2100).contains(&count(&half)), "{}", count(&half));
        assert!(quarter.iter().zip(&half).all(|(a, b)| *b || !*a));
        assert_eq!(count(&enforced(0.0)), 0);
        assert_eq!(count(&enforced(1.0)), 4_000);
        // Written down, so that no release changes it by accident.
        assert_eq!(
            quarter[..12]
                .iter()
                .map(|it| u8::from(*it))
                .collect::<Vec<_>>(),
            [0, 0, 1, 0, 1, 0, 1, 0, 1, 0, 0, 0]
        );
    }
}
