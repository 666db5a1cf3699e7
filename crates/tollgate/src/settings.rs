//! What a layer was told, and what follows from it for one request.

use std::{
    fmt, iter,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use http::{Extensions, Method, Request, Response, header};
use http_body::Body;
use tollgate_core::{Cost, Decision, Tenant};
use tollgate_limiter::{Checking, FailurePolicy, Limiter};
use tollgate_quota::{Quotas, Route, RoutePrice};

use crate::{
    ClientAddress, Headers, Identify, MissingIdentity, Rejection, Reset,
    costs::{self, Price, Resolved, RouteCosts},
    headers,
    identity::{peer_address, tenant_extension},
    linger,
    refusal::{Reason, Refusal},
};

/// Everything that all copies of a layer share.
#[derive(Clone)]
pub(crate) struct Settings {
    pub(crate) limiter: Limiter,
    pub(crate) identify: Arc<dyn Identify>,
    pub(crate) missing_identity: MissingIdentity,
    pub(crate) client_address: ClientAddress,
    /// A table given to the layer itself; it wins over one that the router hands over.
    pub(crate) costs: Option<Arc<RouteCosts>>,
    /// What a request costs that the table does not name. `None` until somebody says so.
    pub(crate) default_cost: Option<Cost>,
    pub(crate) unmatched: Price,
    pub(crate) on_store_failure: Option<FailurePolicy>,
    pub(crate) charge_preflights: bool,
    pub(crate) headers: Headers,
    pub(crate) reset: Reset,
    pub(crate) warned: Arc<Warned>,
}

/// What has been warned of once.
#[derive(Default)]
pub(crate) struct Warned {
    no_tenant: AtomicBool,
    no_address: AtomicBool,
    no_client: AtomicBool,
    no_costs: AtomicBool,
    same_name: AtomicBool,
    unused_policy: AtomicBool,
}

/// What to do with a request.
pub(crate) enum Plan {
    /// Hand it to the service, uncharged.
    Pass,
    Refuse(Refusal),
    Check(Tenant, Cost),
}

/// Left in the extensions of a request by each limiter that has charged it, so that the same limiter,
/// layered twice, charges once.
#[derive(Clone)]
struct ChargedBy {
    first: Limiter,
    others: Vec<Limiter>,
}

impl ChargedBy {
    fn iter(&self) -> impl Iterator<Item = &Limiter> {
        iter::once(&self.first).chain(&self.others)
    }
}

impl Settings {
    pub(crate) fn new(limiter: Limiter) -> Self {
        Self {
            limiter,
            identify: Arc::new(tenant_extension),
            missing_identity: MissingIdentity::default(),
            client_address: ClientAddress::default(),
            costs: None,
            default_cost: None,
            unmatched: Price::Default,
            on_store_failure: None,
            charge_preflights: false,
            headers: Headers::default(),
            reset: Reset::default(),
            warned: Arc::default(),
        }
    }

    pub(crate) fn plan<B>(&self, request: &mut Request<B>) -> Plan {
        if self.has_charged(request.extensions()) {
            self.warn_of_unused_policy();
            return Plan::Pass;
        }
        if !self.charge_preflights && is_preflight(request) {
            return Plan::Pass;
        }
        let Some(cost) = self.cost(request) else {
            return Plan::Pass;
        };
        if let Some(tenant) = self.identify.identify(request.extensions()) {
            return Plan::Check(tenant, cost);
        }
        self.plan_unidentified(request, cost)
    }

    fn plan_unidentified<B>(&self, request: &Request<B>, cost: Cost) -> Plan {
        if self.missing_identity == MissingIdentity::Anonymous {
            let peer = peer_address(request.extensions());
            if let Some(caller) = self.client_address.find(peer, request.headers()) {
                if caller.is_proxy && first(&self.warned.no_client) {
                    tracing::warn!(
                        "a request without an identity comes from a proxy that does not say for whom, and \
                         counts as the proxy itself. If that is true of all of them, all strangers share \
                         one bucket: see that the proxies write the header that `ClientAddress` names"
                    );
                }
                return Plan::Check(self.client_address.tenant(&caller), cost);
            }
            if first(&self.warned.no_address) {
                tracing::error!(
                    "a request without an identity has no known address and is rejected: serve with \
                     `into_make_service_with_connect_info::<SocketAddr>()`, insert `PeerAddress`, or, behind a \
                     Unix socket, use `ClientAddress::behind_hops`"
                );
            }
        }
        self.limiter.observer().unidentified();
        if self.missing_identity == MissingIdentity::Exempt {
            return Plan::Pass;
        }
        if self.missing_identity == MissingIdentity::Reject && first(&self.warned.no_tenant) {
            tracing::warn!(
                "a request has no verified identity and is rejected with 401. If that is true of all of \
                 them, the authentication is inside of the rate limiter: add its layer after (outside \
                 of) `RateLimitLayer`, and have it insert a `Tenant`"
            );
        }
        Plan::Refuse(Refusal {
            reason: Reason::Unidentified,
            decision: None,
        })
    }

    /// `None` for an exempt request.
    fn cost<B>(&self, request: &mut Request<B>) -> Option<Cost> {
        if let Some(cost) = request.extensions().get::<Cost>() {
            return Some(*cost);
        }
        // What is configured goes before what was compiled: that is what configuration is for.
        match self.limiter.quotas().price_of(&route_of(request)) {
            Some(RoutePrice::Cost(cost)) => return Some(cost),
            Some(RoutePrice::Exempt) => return None,
            None => {}
        }
        match costs::resolve(self.costs.as_deref(), request) {
            Resolved::Price(cost) => Some(cost),
            Resolved::Exempt => None,
            Resolved::Unpriced => Some(self.default_cost(request)),
            Resolved::MethodNotAllowed | Resolved::Unmatched => {
                // Behind a fallback there may be a router with prices of its own.
                let default = self.default_cost(request);
                match self.unmatched {
                    Price::Cost(cost) => Some(cost),
                    Price::Exempt => None,
                    Price::Default => Some(default),
                }
            }
            // Not the price of unknown paths: where nothing is known, that would be everything.
            Resolved::NoTable if self.default_cost.is_some() => self.default_cost,
            Resolved::NoTable => {
                if first(&self.warned.no_costs) {
                    warn_of_missing_costs();
                }
                Some(self.default_cost(request))
            }
        }
    }

    /// The default for want of a price, of which it leaves word to tables further inside.
    fn default_cost<B>(&self, request: &mut Request<B>) -> Cost {
        costs::mark_default(request);
        self.default_cost.unwrap_or_default()
    }

    fn has_charged(&self, extensions: &Extensions) -> bool {
        let charged = extensions.get::<ChargedBy>();
        charged.is_some_and(|by| by.iter().any(|limiter| limiter.is_same(&self.limiter)))
    }

    fn warn_of_unused_policy(&self) {
        if self.on_store_failure.is_some() && first(&self.warned.unused_policy) {
            tracing::warn!(
                "a layer of the rate limiter has a failure policy of its own that never decides: the same \
                 limiter is layered outside of it, and charges first. Layer each group of routes once, and \
                 merge them"
            );
        }
    }

    /// Starts the check.
    pub(crate) fn check<B>(&self, tenant: &Tenant, cost: Cost, request: &Request<B>) -> Checking {
        let checking = self.limiter.check_on(tenant, cost, &route_of(request));
        match &self.on_store_failure {
            Some(policy) => checking.on_store_failure(policy.clone()),
            None => checking,
        }
    }

    /// Notes that this limiter has charged the request.
    pub(crate) fn mark(&self, extensions: &mut Extensions) {
        let Some(charged_by) = extensions.get_mut::<ChargedBy>() else {
            extensions.insert(ChargedBy {
                first: self.limiter.clone(),
                others: Vec::new(),
            });
            return;
        };
        if !self.warned.same_name.load(Ordering::Relaxed) {
            let quotas = self.limiter.quotas();
            let names = |quotas: &Quotas| -> Vec<_> {
                quotas
                    .limits()
                    .iter()
                    .map(|limit| limit.name().clone())
                    .collect()
            };
            let ours = names(&quotas);
            let theirs = charged_by.iter().flat_map(|other| names(&other.quotas()));
            if let Some(limit) = theirs.into_iter().find(|name| ours.contains(name))
                && first(&self.warned.same_name)
            {
                tracing::warn!(
                    limit = limit.as_str(),
                    "two limiters charge one request under the same name: if they share a store, they share \
                     buckets too, and charge twice. Name the limits of each by `LimitRule::new`"
                );
            }
        }
        charged_by.others.push(self.limiter.clone());
    }

    /// Tells the client, and the layers outside of this one, where the client stands.
    pub(crate) fn annotate<B>(&self, response: &mut Response<B>, decision: Decision) {
        // Taken out and put back, since parts of one response cannot be borrowed apart from each other.
        let inner = response.extensions_mut().remove::<Decision>();
        headers::write(
            response.headers_mut(),
            inner.as_ref(),
            &decision,
            self.headers,
            self.reset,
        );
        let shown = inner
            .filter(|inner| !headers::is_tighter(&decision, inner))
            .unwrap_or(decision);
        response.extensions_mut().insert(shown);
    }

    /// The response to a refused request.
    pub(crate) fn refuse<R, ReqBody, ResBody>(
        &self,
        rejection: &R,
        refusal: Refusal,
        request: Request<ReqBody>,
    ) -> Response<ResBody>
    where
        R: Rejection<ResBody>,
        ReqBody: Body + Send + 'static,
        ReqBody::Data: Send,
    {
        let mut response = rejection.respond(&refusal);
        refusal.write_headers(response.headers_mut());
        linger::close(request, response.headers_mut());
        if let Some(decision) = refusal.decision {
            self.annotate(&mut response, decision);
        }
        response
    }

    /// Says why, for whoever looks into one request.
    pub(crate) fn trace<B>(request: &Request<B>, decision: &Decision) {
        if !tracing::enabled!(tracing::Level::DEBUG) {
            return;
        }
        let tightest = decision.tightest();
        let route = route_of(request);
        tracing::debug!(
            route = route.template.unwrap_or(route.path),
            method = route.method,
            verdict = ?decision.verdict,
            source = decision.source.as_str(),
            limit = tightest.map(|limit| limit.name.as_str()),
            lacking = %Lacking(decision),
            cost = tightest.map(|limit| limit.cost.tokens()),
            remaining = tightest.and_then(|limit| limit.remaining),
            "rate limit"
        );
    }
}

/// The limits that lacked tokens, those that are only watched marked as such.
struct Lacking<'a>(&'a Decision);

impl fmt::Display for Lacking<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let lacking = self.0.limits.iter().filter(|limit| limit.lacked_tokens());
        for (i, limit) in lacking.enumerate() {
            let comma = if i == 0 { "" } else { ", " };
            let shadow = if limit.shadow { " (shadow)" } else { "" };
            write!(f, "{comma}{}{shadow}", limit.name)?;
        }
        Ok(())
    }
}

/// What the request asks for, with the pattern that the router has matched if it says so.
fn route_of<B>(request: &Request<B>) -> Route<'_> {
    #[cfg(feature = "axum")]
    let template = request.extensions().get::<axum::extract::MatchedPath>();
    #[cfg(feature = "axum")]
    let template = template.map(axum::extract::MatchedPath::as_str);
    #[cfg(not(feature = "axum"))]
    let template = None;
    Route {
        method: request.method().as_str(),
        path: whole_path(request),
        template,
    }
}

/// The path as the client wrote it, also where routers around this one have taken off what it is nested at.
fn whole_path<B>(request: &Request<B>) -> &str {
    #[cfg(feature = "axum")]
    if let Some(original) = request.extensions().get::<axum::extract::OriginalUri>() {
        return original.path();
    }
    request.uri().path()
}

fn warn_of_missing_costs() {
    tracing::warn!(
        "the rate limiter knows no costs of routes, so every request costs 1. Call \
         `CostRouter::into_router` after `.layer(RateLimitLayer)`, or give the layer a table with \
         `with_costs`; if that is what is wanted, say so with `with_default_cost`"
    );
}

/// A browser's question before a cross-origin request. It carries no credentials, so nobody could pay.
fn is_preflight<B>(request: &Request<B>) -> bool {
    request.method() == Method::OPTIONS
        && request.headers().contains_key(header::ORIGIN)
        && request
            .headers()
            .contains_key(header::ACCESS_CONTROL_REQUEST_METHOD)
}

/// Whether this is the first call with `flag`.
fn first(flag: &AtomicBool) -> bool {
    !flag.load(Ordering::Relaxed) && !flag.swap(true, Ordering::Relaxed)
}

impl fmt::Debug for Settings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Settings")
            .field("limiter", &self.limiter)
            .field("missing_identity", &self.missing_identity)
            .field("client_address", &self.client_address)
            .field("costs", &self.costs)
            .field("default_cost", &self.default_cost)
            .field("unmatched", &self.unmatched)
            .field("on_store_failure", &self.on_store_failure)
            .field("charge_preflights", &self.charge_preflights)
            .field("headers", &self.headers)
            .field("reset", &self.reset)
            .finish_non_exhaustive()
    }
}
