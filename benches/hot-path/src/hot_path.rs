//! The layer without a server around it, for what is counted rather than timed.

use std::{
    convert::Infallible,
    future::{Ready, ready},
    pin::pin,
    task::{Context, Poll, Waker},
    time::Duration,
};

use axum::{Router, body::Body};
use http::{Request, Response, StatusCode};
use tollgate::{
    CostRouter, FailurePolicy, Headers, LeaseSettings, LimitName, LimitRule, Limiter, MemoryStore,
    Metrics, Quota, Quotas, RateLimitLayer, RouteCosts, Store, Tenant,
};
use tollgate_core::{AdjustFuture, Adjustment, Check, CheckFuture};
use tower::{Layer, Service, service_fn};

/// Ways through the layer, over a store in memory. Those from [`Asked`](Self::Asked) on take it for one that is
/// elsewhere, and so go through all stages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// The service alone.
    Floor,
    Allowed,
    AllowedHeaderless,
    AllowedMetrics,
    Denied,
    /// The store is asked.
    Asked,
    /// It is known that the store would deny it.
    DenialCached,
    /// It is paid for by a lease.
    Leased,
    /// The service alone, in a router of Axum.
    Routes,
    /// Allowed, without fields, by the layer of a router with costs.
    Routed,
}

impl Way {
    pub const ALL: [Self; 10] = [
        Self::Floor,
        Self::Allowed,
        Self::AllowedHeaderless,
        Self::AllowedMetrics,
        Self::Denied,
        Self::Asked,
        Self::DenialCached,
        Self::Leased,
        Self::Routes,
        Self::Routed,
    ];

    /// What is not the layer's in it.
    #[must_use]
    pub const fn floor(self) -> Option<Self> {
        match self {
            Self::Floor | Self::Routes => None,
            Self::Routed => Some(Self::Routes),
            _ => Some(Self::Floor),
        }
    }

    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Floor => "floor",
            Self::Allowed => "allowed",
            Self::AllowedHeaderless => "allowed-headerless",
            Self::AllowedMetrics => "allowed-metrics",
            Self::Denied => "denied",
            Self::Asked => "asked",
            Self::DenialCached => "denial-cached",
            Self::Leased => "leased",
            Self::Routes => "routes",
            Self::Routed => "routed",
        }
    }

    #[must_use]
    pub fn of_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|way| way.name() == name)
    }

    /// A function that sends one request this way.
    ///
    /// # Panics
    ///
    /// If the limiter cannot be built.
    #[must_use]
    pub fn start(self) -> Box<dyn FnMut()> {
        let tenant = Tenant::new("acme", "pro").expect("an id");
        let service = service_fn(answer);
        match self {
            Self::Floor => return sender(tenant, StatusCode::OK, service),
            Self::Routes => {
                let routes = Router::new().route_service("/", service);
                return sender(tenant, StatusCode::OK, routes);
            }
            _ => {}
        }
        let is_denied = matches!(self, Self::Denied | Self::DenialCached);
        let quota = if is_denied {
            Quota::new(1, "1/d")
        } else {
            Quota::new(1_000_000_000, 1_000_000)
        };
        let rule = LimitRule::new(LimitName::default(), quota.expect("a quota"));
        let rule = if self == Self::Leased {
            rule.leased()
        } else {
            rule
        };
        // Claims are made here.
        let mut runtime = tokio::runtime::Builder::new_current_thread();
        let runtime = runtime.enable_time().build().expect("a runtime");
        let entered = runtime.enter();
        let mut builder = match self {
            Self::Asked | Self::DenialCached | Self::Leased => {
                Limiter::builder(Elsewhere(MemoryStore::new()))
            }
            _ => Limiter::builder(MemoryStore::new()),
        };
        builder = builder
            .quotas(Quotas::default().limit(rule))
            .on_store_failure(FailurePolicy::Closed);
        if self == Self::Leased {
            // However slowly they are counted, none of them expires.
            let mut leases = LeaseSettings::default();
            leases.life = Duration::from_secs(60);
            builder = builder.leases(leases);
        }
        if self == Self::AllowedMetrics {
            builder = builder.observer(Metrics::new());
        }
        let layer = RateLimitLayer::new(builder.build().expect("a limiter"));
        drop(entered);
        let layer = match self {
            Self::AllowedHeaderless | Self::Routed => layer.with_headers(Headers::RetryAfterOnly),
            _ => layer,
        };
        if self == Self::Routed {
            let routes = CostRouter::new().route_service("/", service).layer(layer);
            return sender(tenant, StatusCode::OK, routes.into_router());
        }
        let layer = layer.with_costs(RouteCosts::default()).expect("costs");
        let service = layer.layer(service);
        if is_denied {
            // The one token that there is.
            sender(tenant.clone(), StatusCode::OK, service.clone())();
            return sender(tenant, StatusCode::TOO_MANY_REQUESTS, service);
        }
        if self != Self::Leased {
            return sender(tenant, StatusCode::OK, service);
        }
        let mut first = service.clone();
        runtime.block_on(async {
            // Until enough is claimed at a time that no request has to wait for more.
            for _ in 0..5_000 {
                let answer = first.call(request(&tenant)).await;
                assert!(answer.is_ok_and(|response| response.status() == StatusCode::OK));
                tokio::task::yield_now().await;
            }
        });
        let mut send = sender(tenant, StatusCode::OK, service);
        let mut requests = 0;
        Box::new(move || {
            send();
            requests += 1;
            // Often enough that no claim comes too late, and so seldom that it does not count.
            if requests % 64 == 0 {
                runtime.block_on(async {
                    for _ in 0..4 {
                        tokio::task::yield_now().await;
                    }
                });
            }
        })
    }
}

/// A store in memory that passes for one that is asked over a network.
struct Elsewhere(MemoryStore);

impl Store for Elsewhere {
    fn check(&self, check: Check) -> CheckFuture {
        CheckFuture::new(self.0.check(check))
    }

    fn adjust(&self, adjustment: Adjustment) -> AdjustFuture {
        AdjustFuture::new(self.0.adjust(adjustment))
    }
}

fn request(tenant: &Tenant) -> Request<Body> {
    let mut request = Request::new(Body::empty());
    request.extensions_mut().insert(tenant.clone());
    request
}

fn answer(_: Request<Body>) -> Ready<Result<Response<Body>, Infallible>> {
    ready(Ok(Response::new(Body::empty())))
}

fn sender<S>(tenant: Tenant, expected: StatusCode, mut service: S) -> Box<dyn FnMut()>
where
    S: Service<Request<Body>, Response = Response<Body>, Error = Infallible> + 'static,
{
    Box::new(move || {
        let future = pin!(service.call(request(&tenant)));
        // A store in memory never lets it wait.
        let Poll::Ready(Ok(response)) = future.poll(&mut Context::from_waker(Waker::noop())) else {
            panic!("not ready at once");
        };
        assert_eq!(response.status(), expected);
    })
}
