//! All limits, tiers and tenants together.

use std::{
    collections::{BTreeSet, HashMap, HashSet},
    num::{NonZeroU8, NonZeroU32},
    sync::Arc,
};

use tollgate_core::{Cost, LimitName, MAX_CHARGES, Quota, Tenant};

use crate::{
    Account, Allowance, FailureMode, Fault, InvalidQuotas, LimitRule, Mode, Regions, Route,
    RoutePattern, Scope, Terms,
};

/// The key class of tenants without a tier of their own, in metrics.
pub const DEFAULT_CLASS: &str = "default";

/// A window from which on the loss of a store is felt for long.
const LONG_WINDOW_SECS: f64 = 86_400.0;

/// So many places where patterns meet are looked at.
const MOST_MEETINGS: usize = 10_000;

const NO_LIMIT_YET: &str = "it was said before there was a limit that it could be about";

/// What a route costs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RoutePrice {
    /// This much, unless a limit says something else.
    Cost(Cost),
    /// It is not checked at all.
    Exempt,
}

/// Who may spend how much: named limits, and what each lets tiers and single tenants spend.
///
/// The most specific wins:
///
/// | what a limit lets a tenant spend | where it is said |
/// |---|---|
/// | 1. the tenant's override | [`tenant`](Self::tenant), [`LimitRule::tenant`], then the sources in their order |
/// | 2. its tier's | [`tier`](Self::tier), [`LimitRule::tier`]; which tier, its account says, else its identity |
/// | 3. the limit's own | [`new`](Self::new), [`LimitRule::new`] |
///
/// ```
/// use tollgate_core::{Quota, Tenant};
/// use tollgate_quota::{Allowance, Quotas};
///
/// let quotas = Quotas::new(Quota::new(20, "2/s")?)
///     .tier("pro", Quota::new(200, "50/s")?)
///     .tenant("acme", Quota::new(10_000, "1000/s")?)
///     .tenant("status-page", Allowance::Unlimited)
///     .tenant("spammer", Allowance::Blocked);
/// # quotas.check()?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq)]
#[must_use]
pub struct Quotas {
    limits: Vec<LimitRule>,
    pub(crate) tiers: BTreeSet<Arc<str>>,
    tenants: HashMap<Arc<str>, Account>,
    routes: Vec<(RoutePattern, RoutePrice)>,
    on_store_failure: Option<FailureMode>,
    replicas: Option<NonZeroU32>,
    regions: Option<Regions>,
    /// What was said too early to be about anything.
    premature: Vec<Fault>,
}

impl Quotas {
    /// One limit per tenant, named `default`, that gives everybody `allowance` unless more is said.
    pub fn new(allowance: impl Into<Allowance>) -> Self {
        Self::of(LimitRule::new(LimitName::default(), allowance))
    }

    /// This limit; [`tier`](Self::tier) and [`tenant`](Self::tenant) say more about it.
    pub fn of(limit: LimitRule) -> Self {
        Self::default().limit(limit)
    }

    /// Gives tenants of `key_class` another allowance in the first limit; a second call for a class replaces
    /// the first.
    ///
    /// Callers limited by their address have the class [`ANONYMOUS`](tollgate_core::ANONYMOUS).
    pub fn tier(mut self, key_class: impl Into<Arc<str>>, allowance: impl Into<Allowance>) -> Self {
        let tier = key_class.into();
        match self.limits.first_mut() {
            Some(first) => {
                first.tiers.insert(tier.clone(), allowance.into());
            }
            None => self
                .premature
                .push(Fault::new(["tiers", &tier], NO_LIMIT_YET)),
        }
        self.with_tier(tier)
    }

    /// Gives the tenant `id` another allowance in the first limit, whatever its tier is; a second call for a
    /// tenant replaces the first. Callers known only by their address are not tenants in this sense.
    pub fn tenant(mut self, id: impl Into<Arc<str>>, allowance: impl Into<Allowance>) -> Self {
        let (id, allowance) = (id.into(), allowance.into());
        match self.limits.first_mut() {
            Some(first) => {
                first.tenants.insert(id.clone(), allowance);
                let account = self.tenants.entry(id).or_default();
                account.limits.insert(first.name.clone(), allowance);
            }
            None => self
                .premature
                .push(Fault::new(["tenants", &id], NO_LIMIT_YET)),
        }
        self
    }

    /// One more limit. A request is charged against all that cover it.
    pub fn limit(mut self, limit: LimitRule) -> Self {
        self.tiers.extend(limit.tiers.keys().cloned());
        for (id, allowance) in &limit.tenants {
            let account = self.tenants.entry(id.clone()).or_default();
            account.limits.insert(limit.name.clone(), *allowance);
        }
        self.limits.push(limit);
        self
    }

    /// Makes a tier known of which no limit says anything, so that metrics show it.
    pub fn with_tier(mut self, tier: impl Into<Arc<str>>) -> Self {
        self.tiers.insert(tier.into());
        self
    }

    /// The tier of a tenant, instead of the key class that its identity brings.
    pub fn tier_of(mut self, tenant: impl Into<Arc<str>>, tier: impl Into<Arc<str>>) -> Self {
        self.tenants.entry(tenant.into()).or_default().tier = Some(tier.into());
        self
    }

    /// Spreads the buckets of a tenant over so many parts, for one that is too hot for a slot of a cluster.
    pub fn shards_of(mut self, tenant: impl Into<Arc<str>>, shards: NonZeroU8) -> Self {
        self.tenants.entry(tenant.into()).or_default().shards = Some(shards);
        self
    }

    /// Splits every quota over regions: this process gets the part of its own.
    pub fn in_regions(mut self, regions: Regions) -> Self {
        self.regions = Some(regions);
        self
    }

    /// The region where a tenant has its whole quotas; elsewhere it has what is kept for visitors, or nothing.
    pub fn home_of(mut self, tenant: impl Into<Arc<str>>, region: impl Into<Arc<str>>) -> Self {
        self.tenants.entry(tenant.into()).or_default().home = Some(region.into());
        self
    }

    /// What these requests cost, whatever their route says. The first pattern that covers a request counts.
    pub fn price(mut self, pattern: RoutePattern, price: RoutePrice) -> Self {
        self.routes.push((pattern, price));
        self
    }

    /// What a request gets when the store gives no answer, unless one of its limits says something stricter;
    /// `replicas` is what [`FailureMode::Local`] divides by.
    pub fn on_store_failure(mut self, mode: FailureMode, replicas: Option<NonZeroU32>) -> Self {
        self.on_store_failure = Some(mode);
        self.replicas = replicas.or(self.replicas);
        self
    }

    /// What [`FailureMode::Local`] divides by, for limits with a failure policy of their own.
    pub fn with_replicas(mut self, replicas: NonZeroU32) -> Self {
        self.replicas = Some(replicas);
        self
    }

    /// The limits, in the order in which clients see them.
    pub fn limits(&self) -> &[LimitRule] {
        &self.limits
    }

    /// What is written here about the tenant `id`.
    #[must_use]
    pub fn account(&self, id: &str) -> Option<&Account> {
        self.tenants.get(id)
    }

    /// What the routes table says that a request costs.
    #[must_use]
    pub fn price_of(&self, route: &Route<'_>) -> Option<RoutePrice> {
        let found = self
            .routes
            .iter()
            .find(|(pattern, _)| pattern.covers(route));
        found.map(|(_, price)| *price)
    }

    /// What a request gets when the store gives no answer, if it is written here.
    #[must_use]
    pub const fn failure_mode(&self) -> Option<FailureMode> {
        self.on_store_failure
    }

    /// The number of replicas, if it is written here.
    #[must_use]
    pub const fn replicas(&self) -> Option<NonZeroU32> {
        self.replicas
    }

    /// The regions, where there are several.
    #[must_use]
    pub const fn regions(&self) -> Option<&Regions> {
        self.regions.as_ref()
    }

    /// The largest cost of a route that any tenant could ever pay, by the limits that charge every tenant for
    /// every request what its route costs: one that costs more can never be served.
    #[must_use]
    pub fn largest_capacity(&self) -> u64 {
        let all = self
            .limits
            .iter()
            .filter(|limit| limit.charges_all_as_routed());
        all.map(|limit| self.largest_cost(limit))
            .min()
            .unwrap_or(u64::MAX)
    }

    /// What holds for `tenant`, of whom a source has said `account`.
    #[must_use]
    pub fn terms<'a>(&'a self, tenant: &'a Tenant, account: Option<&'a Account>) -> Terms<'a> {
        // An address cannot claim what is meant for a tenant of that name.
        if tenant.is_anonymous() {
            return Terms::new(self, tenant, [None, None]);
        }
        Terms::new(self, tenant, [self.tenants.get(tenant.id()), account])
    }

    /// Every tier that is written here.
    pub fn tiers(&self) -> impl Iterator<Item = &str> {
        self.tiers.iter().map(|tier| &**tier)
    }

    /// Finds what is wrong.
    ///
    /// # Errors
    ///
    /// All faults, each with its place as a limits file would have it.
    pub fn check(&self) -> Result<(), InvalidQuotas> {
        let mut faults = self.premature.clone();
        if self.limits.is_empty() {
            faults.push(Fault::new(["limits"], "there must be at least one limit"));
        }
        for (i, limit) in self.limits.iter().enumerate() {
            self.check_limit(i, limit, &mut faults);
        }
        self.check_crowds(&mut faults);
        self.check_prices(&mut faults);
        for tier in self.tiers.iter().filter(|tier| tier.is_empty()) {
            faults.push(Fault::new(["tiers", tier], "a tier has a name"));
        }
        // The same faults come in the same order each time.
        let mut tenants: Vec<_> = self.tenants.iter().collect();
        tenants.sort_by_key(|(id, _)| *id);
        for (id, account) in tenants {
            self.check_tenant(id, account, &mut faults);
        }
        if self.replicas.is_none() {
            self.check_local(&mut faults);
        }
        self.check_split(&mut faults);
        if faults.is_empty() {
            Ok(())
        } else {
            Err(InvalidQuotas { faults })
        }
    }

    fn check_limit(&self, i: usize, limit: &LimitRule, faults: &mut Vec<Fault>) {
        let name = limit.name.as_str();
        let mut fault = |field: &[&str], problem: String| {
            faults.push(Fault::new(["limits", name].iter().chain(field), problem));
        };
        if self.limits[..i]
            .iter()
            .any(|other| other.name == limit.name)
        {
            fault(&[], "two limits have this name".to_owned());
        }
        if !(0.0..=1.0).contains(&limit.enforced_share) {
            let share = limit.enforced_share;
            fault(
                &["enforce"],
                format!("{share} is not a share of tenants from 0 to 1"),
            );
        }
        match &limit.scope {
            scope if scope.is_shared() => {
                if !(limit.tiers.is_empty() && limit.tenants.is_empty()) {
                    let problem = "a limit that all tenants share is the same for all of them, without tiers or overrides";
                    fault(&[], problem.to_owned());
                }
                if matches!(scope, Scope::Dependency(name) if name.is_empty()) {
                    fault(&["scope"], "a dependency has a name".to_owned());
                }
            }
            Scope::Member(kind) if kind.is_empty() => {
                fault(&["scope"], "a kind of member has a name".to_owned());
            }
            _ => {}
        }
        if limit.mode == Mode::Off {
            return;
        }
        let (largest, everywhere) = (self.largest_cost(limit), self.everywhere());
        let costs = limit
            .costs
            .iter()
            .map(|(pattern, cost)| (pattern.to_string(), *cost));
        let all = limit.cost.map(|cost| ("cost".to_owned(), cost));
        for (what, cost) in costs.chain(all) {
            // Where nobody may spend anything, every cost is in vain and none is wrong.
            if cost.tokens() > largest && largest > 0 {
                let problem = format!(
                    "a cost of {} is above every capacity of this limit (at most {largest}{everywhere}), and could never be paid",
                    cost.tokens()
                );
                if what == "cost" {
                    fault(&["cost"], problem);
                } else {
                    fault(&["costs", &what], problem);
                }
            }
        }
        for (pattern, _) in &limit.costs {
            let meets = |route: &RoutePattern| route.meet(pattern).is_some();
            if !(limit.routes.is_empty() || limit.routes.iter().any(meets)) {
                let problem = "the limit does not cover this route".to_owned();
                fault(&["costs", &pattern.to_string()], problem);
            }
        }
    }

    /// Requests that more limits cover than one check can have.
    fn check_crowds(&self, faults: &mut Vec<Fault>) {
        let active = self.limits.iter().filter(|limit| limit.mode != Mode::Off);
        let meetings = meetings(active.flat_map(|limit| &limit.routes));
        let routes = meetings.iter().map(RoutePattern::sample).map(Some);
        for route in [None].into_iter().chain(routes) {
            // A tenant's own limits make one check, and those of each shared scope another.
            let mut crowds: HashMap<Option<&Scope>, usize> = HashMap::new();
            for limit in self
                .limits
                .iter()
                .filter(|limit| limit.covers(route.as_ref()))
            {
                let shared = limit.scope.is_shared().then_some(&limit.scope);
                *crowds.entry(shared).or_default() += 1;
            }
            let Some((scope, count)) = crowds.iter().find(|(_, count)| **count > MAX_CHARGES)
            else {
                continue;
            };
            let of = match scope {
                None => "of the tenant",
                Some(_) => "that share one scope",
            };
            let path = route.and_then(|route| route.template);
            let what = path.map_or("every request".to_owned(), |path| format!("`{path}`"));
            let problem = format!("{count} limits {of} cover {what}; at most {MAX_CHARGES} can");
            faults.push(Fault::new(["limits"], problem));
            return;
        }
    }

    /// Routes whose cost nobody could ever pay.
    fn check_prices(&self, faults: &mut Vec<Fault>) {
        for (pattern, price) in &self.routes {
            let RoutePrice::Cost(cost) = price else {
                continue;
            };
            let route = pattern.sample();
            let asks_the_route = |limit: &&LimitRule| {
                limit.mode == Mode::Enforce
                    && limit.cost.is_none()
                    && limit.covers(Some(&route))
                    && !limit.costs.iter().any(|(own, _)| own.covers(&route))
            };
            for limit in self.limits.iter().filter(asks_the_route) {
                let (largest, everywhere) = (self.largest_cost(limit), self.everywhere());
                if cost.tokens() > largest && largest > 0 {
                    let problem = format!(
                        "a cost of {} is above every capacity of the limit `{}` (at most {largest}{everywhere}), and could never be paid",
                        cost.tokens(),
                        limit.name
                    );
                    faults.push(Fault::new(["routes", &pattern.to_string()], problem));
                    break;
                }
            }
        }
    }

    /// Places that choose the local policy, where nothing says what it divides by.
    fn check_local(&self, faults: &mut Vec<Fault>) {
        let field = "on_store_failure";
        let problem =
            "`local` divides limits by the number of replicas: say how many in `replicas`";
        if self.on_store_failure == Some(FailureMode::Local) {
            faults.push(Fault::new([field], problem));
        }
        for limit in &self.limits {
            if limit.on_store_failure == Some(FailureMode::Local) {
                let path = ["limits", limit.name.as_str(), field];
                faults.push(Fault::new(path, problem));
            }
        }
    }

    fn check_tenant(&self, id: &str, account: &Account, faults: &mut Vec<Fault>) {
        let mut fault = |field: &[&str], problem: String| {
            faults.push(Fault::new(["tenants", id].iter().chain(field), problem));
        };
        if id.is_empty() {
            fault(&[], "a tenant has a name".to_owned());
        }
        if let Some(tier) = account
            .tier
            .as_deref()
            .filter(|tier| !self.tiers.contains(*tier))
        {
            let known: Vec<_> = self.tiers().map(|it| format!("`{it}`")).collect();
            let known = match known.as_slice() {
                [] => "there are no tiers".to_owned(),
                known => format!("there are {}", known.join(", ")),
            };
            fault(&["tier"], format!("there is no tier `{tier}`; {known}"));
        }
        let mut overrides: Vec<_> = account.limits.keys().collect();
        overrides.sort();
        for name in overrides {
            let limit = self.limits.iter().find(|limit| limit.name == *name);
            let problem = match limit {
                None => format!("there is no limit `{name}`"),
                Some(limit) if limit.scope.is_shared() => {
                    format!("the limit `{name}` is shared by all tenants")
                }
                Some(_) => continue,
            };
            fault(&["limits", name.as_str()], problem);
        }
        // The tier is checked above; here only what follows from it.
        let Ok(tenant) = Tenant::new(id, "") else {
            return;
        };
        let terms = self.terms(&tenant, None);
        let regions = self.regions.iter().flat_map(Regions::names);
        // A region where fewer fit has fewer.
        let fitting = regions.map(|at| terms.seen_from(at).shards()).max();
        let (wanted, fitting) = (terms.wanted_shards(), fitting.unwrap_or(terms.shards()));
        if fitting < wanted {
            let problem = format!(
                "{wanted} parts would be too small for what its limits allow and cost; at most {fitting} fit"
            );
            fault(&["shards"], problem);
        }
    }

    /// What is allowed but will surprise somebody one day.
    #[must_use]
    pub fn warnings(&self) -> Vec<Fault> {
        let mut seen = HashSet::new();
        let mut warnings: Vec<_> = self.regions.iter().filter_map(Regions::warning).collect();
        for limit in &self.limits {
            let long = |allowance: &&Allowance| matches!(allowance, Allowance::Limited(quota) if window(quota) >= LONG_WINDOW_SECS);
            if limit.allowances().any(|it| long(&it)) && seen.insert(&limit.name) {
                let problem = "a bucket takes a day or longer to fill: a store that loses its data gives everybody a full one anew";
                warnings.push(Fault::new(["limits", limit.name.as_str()], problem));
            }
        }
        warnings
    }
}

/// Where any of the patterns cover a request together: the patterns, and all that they have in common.
fn meetings<'a>(patterns: impl Iterator<Item = &'a RoutePattern>) -> HashSet<RoutePattern> {
    let mut all = HashSet::new();
    for pattern in patterns {
        let met = all.iter().filter_map(|other| pattern.meet(other));
        let met: Vec<_> = met.chain(pattern.meet(pattern)).collect();
        all.extend(met);
        // Patterns that cross in so many ways are nobody's routes.
        if all.len() > MOST_MEETINGS {
            break;
        }
    }
    all
}

fn window(quota: &Quota) -> f64 {
    quota.seconds_for(quota.capacity())
}

// === impl Quotas ===

impl From<LimitRule> for Quotas {
    fn from(limit: LimitRule) -> Self {
        Self::of(limit)
    }
}

mod split;

#[cfg(test)]
mod tests;
