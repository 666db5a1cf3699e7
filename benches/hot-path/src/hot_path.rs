//! The layer without a server around it, for what is counted rather than timed.

use std::{
    convert::Infallible,
    future::{Ready, ready},
    pin::pin,
    task::{Context, Poll, Waker},
};

use axum::body::Body;
use http::{Request, Response, StatusCode};
use tollgate::{
    FailurePolicy, Headers, Limiter, MemoryStore, Metrics, Quota, Quotas, RateLimitLayer,
    RouteCosts, Tenant,
};
use tower::{Layer, Service, service_fn};

/// Ways through the layer, over a store in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// The service alone.
    Floor,
    Allowed,
    AllowedHeaderless,
    AllowedMetrics,
    Denied,
}

impl Way {
    pub const ALL: [Self; 5] = [
        Self::Floor,
        Self::Allowed,
        Self::AllowedHeaderless,
        Self::AllowedMetrics,
        Self::Denied,
    ];

    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Floor => "floor",
            Self::Allowed => "allowed",
            Self::AllowedHeaderless => "allowed-headerless",
            Self::AllowedMetrics => "allowed-metrics",
            Self::Denied => "denied",
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
        if self == Self::Floor {
            return sender(tenant, StatusCode::OK, service);
        }
        let quota = match self {
            Self::Denied => Quota::new(1, "1/d"),
            _ => Quota::new(1_000_000_000, 1_000_000),
        };
        let mut builder = Limiter::builder(MemoryStore::new())
            .quotas(Quotas::new(quota.expect("a quota")))
            .on_store_failure(FailurePolicy::Closed);
        if self == Self::AllowedMetrics {
            builder = builder.observer(Metrics::new());
        }
        let layer = RateLimitLayer::new(builder.build().expect("a limiter"))
            .with_costs(RouteCosts::default())
            .expect("costs");
        let layer = match self {
            Self::AllowedHeaderless => layer.with_headers(Headers::RetryAfterOnly),
            _ => layer,
        };
        let service = layer.layer(service);
        if self == Self::Denied {
            // The one token that there is.
            sender(tenant.clone(), StatusCode::OK, service.clone())();
            return sender(tenant, StatusCode::TOO_MANY_REQUESTS, service);
        }
        sender(tenant, StatusCode::OK, service)
    }
}

fn answer(_: Request<Body>) -> Ready<Result<Response<Body>, Infallible>> {
    ready(Ok(Response::new(Body::empty())))
}

fn sender<S>(tenant: Tenant, expected: StatusCode, mut service: S) -> Box<dyn FnMut()>
where
    S: Service<Request<Body>, Response = Response<Body>, Error = Infallible> + 'static,
{
    Box::new(move || {
        let mut request = Request::new(Body::empty());
        request.extensions_mut().insert(tenant.clone());
        let future = pin!(service.call(request));
        // A store in memory never lets it wait.
        let Poll::Ready(Ok(response)) = future.poll(&mut Context::from_waker(Waker::noop())) else {
            panic!("not ready at once");
        };
        assert_eq!(response.status(), expected);
    })
}
