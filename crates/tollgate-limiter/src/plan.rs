//! What a request is charged.

use std::sync::Arc;

use smallvec::SmallVec;
use tollgate_core::{
    BucketKey, Charge, Check, Cost, KeySpace, Limit, LimitDecision, MAX_CHARGES, Tenant,
};
use tollgate_quota::{Account, Allowance, FailureMode, LimitRule, Quotas, Route, Scope, Terms};

use crate::FailurePolicy;

/// What a request is charged: the tenant's own limits in one check, then those that it shares with others, a
/// check for each scope.
#[derive(Debug)]
pub(crate) struct Plan {
    /// Mostly one, and then here: each place in memory that a request has to look at counts where there are many
    /// tenants.
    pub(crate) parts: SmallVec<[Part; 1]>,
    /// Limits that let the tenant spend nothing.
    pub(crate) blocked: Vec<LimitDecision>,
    /// The metric label of the tenant's tier.
    pub(crate) label: Arc<str>,
}

/// One check of a request.
#[derive(Debug)]
pub(crate) struct Part {
    pub(crate) check: Check,
    pub(crate) failure: Failure,
    /// What follows from `failure`, unless a request has a policy of its own. `None` for the limiter's.
    pub(crate) policy: Option<FailurePolicy>,
}

/// What a request takes from each limit.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Takes {
    /// Its route's cost, as far as a limit has none of its own, from all limits.
    Everywhere(Cost),
    /// So much from each limit, in their order, and nothing from one that does not cover it.
    ByLimit(Box<[Option<Cost>]>),
}

impl Takes {
    /// What a request of `route` takes that costs `cost`.
    pub(crate) fn new(quotas: &Quotas, route: Option<&Route<'_>>, cost: Cost) -> Self {
        let limits = quotas.limits();
        if !limits.iter().any(LimitRule::looks_at_routes) {
            return Self::Everywhere(cost);
        }
        let takes = limits.iter().map(|limit| {
            let covers = limit.covers(route);
            covers.then(|| limit.cost_of(route, cost))
        });
        Self::ByLimit(takes.collect())
    }

    /// From `limit`, the one of this `index`.
    fn from(&self, index: usize, limit: &LimitRule) -> Option<Cost> {
        match self {
            Self::Everywhere(cost) => limit.covers(None).then(|| limit.cost_of(None, *cost)),
            Self::ByLimit(takes) => takes[index],
        }
    }
}

/// What the limits of a check say about a store that gives no answer.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Failure {
    /// The strictest that a limit has of its own.
    pub(crate) strictest: Option<FailureMode>,
    /// Whether a limit has none of its own.
    pub(crate) default_too: bool,
}

impl Plan {
    pub(crate) fn new(
        keys: &KeySpace,
        quotas: &Quotas,
        tenant: &Tenant,
        account: Option<&Account>,
        takes: &Takes,
    ) -> Self {
        let terms = quotas.terms(tenant, account);
        let mut plan = Self {
            parts: SmallVec::new(),
            blocked: Vec::new(),
            label: terms.label(),
        };
        let mut own = Draft::default();
        let mut shared: Vec<(&Scope, Draft)> = Vec::new();
        for (i, limit) in quotas.limits().iter().enumerate() {
            let Some(cost) = takes.from(i, limit) else {
                continue;
            };
            let scope = limit.scope_of();
            let draft = if scope.is_shared() {
                let at = shared.iter().position(|(other, _)| *other == scope);
                let at = at.unwrap_or_else(|| {
                    shared.push((scope, Draft::default()));
                    shared.len() - 1
                });
                &mut shared[at].1
            } else {
                &mut own
            };
            plan.add(draft, keys, &terms, tenant, limit, cost);
        }
        plan.finish(own, &terms);
        for (_, draft) in shared {
            plan.finish(draft, &terms);
        }
        plan
    }

    fn add(
        &mut self,
        draft: &mut Draft,
        keys: &KeySpace,
        terms: &Terms<'_>,
        tenant: &Tenant,
        rule: &LimitRule,
        cost: Cost,
    ) {
        let key = match rule.scope_of() {
            Scope::Global => keys.global_bucket(rule.name()),
            Scope::Dependency(name) => keys.dependency_bucket(name, rule.name()),
            Scope::Tenant | Scope::Member(_) => match own_key(keys, tenant, rule) {
                Some(key) => key,
                None => return,
            },
        };
        let enforced = rule.is_enforced_for(tenant);
        let quota = match terms.allowance(rule) {
            Allowance::Unlimited => return,
            Allowance::Blocked => {
                let name = rule.name().clone();
                self.blocked
                    .push(LimitDecision::blocked(name, cost, !enforced));
                return;
            }
            Allowance::Limited(quota) => quota,
        };
        let limit = Limit {
            name: rule.name().clone(),
            quota,
        };
        draft.add(Charge { key, limit, cost }, rule, enforced);
    }

    fn finish(&mut self, draft: Draft, terms: &Terms<'_>) {
        let Draft {
            mut enforced,
            mut shadow,
            failure,
            not_leased,
            shared,
        } = draft;
        // Sources may combine what no file would be accepted with. Those that only watch go first.
        enforced.truncate(MAX_CHARGES);
        shadow.truncate(MAX_CHARGES - enforced.len());
        let watched = shadow.len();
        let check = match (enforced.pop(), shadow.is_empty()) {
            (Some(charge), true) if enforced.is_empty() => Check::single(charge),
            (last, _) => {
                enforced.extend(last);
                enforced.append(&mut shadow);
                // Nothing to charge, or two limits of one name: neither passes a check of the quotas.
                let Ok(check) = Check::new(enforced) else {
                    return;
                };
                check.with_shadow(watched).expect("so many were added")
            }
        };
        let mut check = check
            .with_lease(!not_leased)
            .with_key_class(self.label.clone());
        if !shared {
            check = check.with_shards(terms.shards());
        }
        self.parts.push(Part {
            check,
            failure,
            policy: None,
        });
    }
}

/// The bucket of a limit that is the tenant's own. `None` for one that it shares, or of a member that it does
/// not name.
pub(crate) fn own_key(keys: &KeySpace, tenant: &Tenant, rule: &LimitRule) -> Option<BucketKey> {
    match rule.scope_of() {
        Scope::Tenant => Some(keys.bucket(tenant, rule.name())),
        Scope::Member(kind) => Some(keys.member_bucket(tenant, rule.name(), tenant.member(kind)?)),
        Scope::Global | Scope::Dependency(_) => None,
    }
}

/// A check in the making.
#[derive(Default)]
struct Draft {
    enforced: Vec<Charge>,
    shadow: Vec<Charge>,
    failure: Failure,
    not_leased: bool,
    shared: bool,
}

impl Draft {
    fn add(&mut self, charge: Charge, rule: &LimitRule, enforced: bool) {
        self.not_leased |= !rule.is_leased();
        self.shared |= rule.scope_of().is_shared();
        if enforced {
            self.failure.strictest = self.failure.strictest.max(rule.failure_mode());
            self.failure.default_too |= rule.failure_mode().is_none();
            self.enforced.push(charge);
        } else {
            self.shadow.push(charge);
        }
    }
}

#[cfg(test)]
pub(crate) mod tests;
