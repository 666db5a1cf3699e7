//! What a layer was told, and what follows from it for one request.

use std::{
    fmt,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use http::{Method, Request, Response, header};
use http_body::Body;
use tollgate_core::{Cost, Decision, Tenant, Verdict};
use tollgate_limiter::{Begun, FailurePolicy, Limiter};
use tollgate_quota::{Route, RoutePrice};

use crate::{
    Charged, ClientAddress, Headers, Identify, MissingIdentity, Rejection, Reset,
    charged::is_charged_by,
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
pub(crate) enum Start {
    /// Hand it to the service, uncharged.
    Pass,
    Refuse(Refusal),
    /// It is being charged, or was.
    Check(Charge, Begun),
}

/// How a request is charged, as far as others need to know.
#[derive(Clone, Copy)]
pub(crate) struct Charge {
    /// The limiter's default for want of a price.
    is_default: bool,
}

/// A request that was charged and may go on.
pub(crate) struct Admitted {
    settings: Arc<Settings>,
    decision: Decision,
    /// Another limiter, further outside, will look at the response.
    is_inner: bool,
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

    /// Finds out who pays how much, and begins to charge it.
    pub(crate) fn start<B>(&self, request: &Request<B>) -> Start {
        if is_charged_by(request.extensions(), &self.limiter) {
            self.warn_of_unused_policy();
            return Start::Pass;
        }
        if !self.charge_preflights && is_preflight(request) {
            return Start::Pass;
        }
        let route = route_of(request);
        let Some((cost, charge)) = self.cost(&route, request) else {
            return Start::Pass;
        };
        let tenant = match self.identify.identify(request.extensions()) {
            Some(tenant) => tenant,
            None => match self.unidentified(request) {
                Ok(tenant) => tenant,
                Err(Some(refusal)) => return Start::Refuse(refusal),
                Err(None) => return Start::Pass,
            },
        };
        let on_failure = self.on_store_failure.as_ref();
        Start::Check(
            charge,
            self.limiter.begin(&tenant, cost, &route, on_failure),
        )
    }

    /// Who pays for a request without an identity. If nobody does, it is refused, or passes uncharged.
    fn unidentified<B>(&self, request: &Request<B>) -> Result<Tenant, Option<Refusal>> {
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
                return Ok(self.client_address.tenant(&caller));
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
            return Err(None);
        }
        if self.missing_identity == MissingIdentity::Reject && first(&self.warned.no_tenant) {
            tracing::warn!(
                "a request has no verified identity and is rejected with 401. If that is true of all of \
                 them, the authentication is inside of the rate limiter: add its layer after (outside \
                 of) `RateLimitLayer`, and have it insert a `Tenant`"
            );
        }
        Err(Some(Refusal {
            reason: Reason::Unidentified,
            decision: None,
        }))
    }

    /// `None` for an exempt request.
    fn cost<B>(&self, route: &Route<'_>, request: &Request<B>) -> Option<(Cost, Charge)> {
        const PRICED: Charge = Charge { is_default: false };
        const DEFAULT: Charge = Charge { is_default: true };
        if let Some(cost) = request.extensions().get::<Cost>() {
            return Some((*cost, PRICED));
        }
        // What is configured goes before what was compiled: that is what configuration is for.
        match self.limiter.price_of(route) {
            Some(RoutePrice::Cost(cost)) => return Some((cost, PRICED)),
            Some(RoutePrice::Exempt) => return None,
            None => {}
        }
        let default = (self.default_cost.unwrap_or_default(), DEFAULT);
        match costs::resolve(self.costs.as_deref(), request) {
            Resolved::Price(cost) => Some((cost, PRICED)),
            Resolved::Exempt => None,
            Resolved::Unpriced => Some(default),
            Resolved::MethodNotAllowed | Resolved::Unmatched => match self.unmatched {
                // Behind a fallback there may be a router with prices of its own.
                Price::Cost(cost) => Some((cost, DEFAULT)),
                Price::Exempt => None,
                Price::Default => Some(default),
            },
            // Not the price of unknown paths: where nothing is known, that would be everything.
            Resolved::NoTable => {
                if self.default_cost.is_some() {
                    return Some((default.0, PRICED));
                }
                if first(&self.warned.no_costs) {
                    warn_of_missing_costs();
                }
                Some(default)
            }
        }
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

    /// Takes in the decision on a request: it may go on, and whoever is further inside sees that it was
    /// charged; or it is refused.
    pub(crate) fn admit<B>(
        self: &Arc<Self>,
        charge: Charge,
        decision: Decision,
        request: &mut Request<B>,
    ) -> Result<Admitted, Refusal> {
        Self::trace(request, &decision);
        let reason = match decision.verdict {
            Verdict::Allowed => {
                let outer = Charged::mark(
                    request.extensions_mut(),
                    &self.limiter,
                    decision.clone(),
                    charge.is_default,
                );
                if let Some(outer) = &outer {
                    self.warn_of_same_names(outer);
                }
                return Ok(Admitted {
                    settings: self.clone(),
                    decision,
                    is_inner: outer.is_some(),
                });
            }
            Verdict::Denied => Reason::QuotaExceeded,
            Verdict::Unavailable => Reason::StoreUnavailable,
        };
        Err(Refusal {
            reason,
            decision: Some(decision),
        })
    }

    fn warn_of_same_names(&self, outer: &Charged) {
        if self.warned.same_name.load(Ordering::Relaxed) {
            return;
        }
        let names = |limiter: &Limiter| -> Vec<_> {
            let quotas = limiter.quotas();
            let limits = quotas.limits().iter();
            limits.map(|limit| limit.name().clone()).collect()
        };
        let ours = names(&self.limiter);
        let mut theirs = outer.limiters().flat_map(names);
        if let Some(limit) = theirs.find(|name| ours.contains(name))
            && first(&self.warned.same_name)
        {
            tracing::warn!(
                limit = limit.as_str(),
                "two limiters charge one request under the same name: if they share a store, they share \
                 buckets too, and charge twice. Name the limits of each by `LimitRule::new`"
            );
        }
    }

    /// Tells the client where it stands, and the layers outside of this one if one of them is to know.
    fn annotate<B>(&self, response: &mut Response<B>, decision: Decision, is_shown: bool) {
        // Taken out and put back, since parts of one response cannot be borrowed apart from each other.
        let inner = response.extensions_mut().remove::<Decision>();
        headers::write(
            response.headers_mut(),
            inner.as_ref(),
            &decision,
            self.headers,
            self.reset,
        );
        if is_shown || inner.is_some() {
            let shown = inner
                .filter(|inner| !headers::is_tighter(&decision, inner))
                .unwrap_or(decision);
            response.extensions_mut().insert(shown);
        }
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
            self.annotate(&mut response, decision, true);
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

impl Admitted {
    /// Tells the client where it stands.
    pub(crate) fn annotate<B>(self, response: &mut Response<B>) {
        self.settings
            .annotate(response, self.decision, self.is_inner);
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
