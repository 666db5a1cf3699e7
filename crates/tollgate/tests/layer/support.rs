//! What these tests share.

use std::{
    convert::Infallible,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
};

use bytes::Bytes;
use http::{Extensions, Request, Response};
use http_body_util::Full;
use tollgate::{
    FailurePolicy, LimitName, LimitRule, Limiter, ManualClock, MemoryStore, Quota, RateLimitLayer,
    Rejection, Store, Tenant,
};
use tollgate_core::{
    AdjustFuture, Adjustment, ChargeState, Check, CheckFuture, ErrorKind, StoreError,
};
use tower::{Layer, Service, ServiceExt, service_fn};

pub(crate) type Body = Full<Bytes>;

/// A limiter of one quota over memory, and the clock that it goes by.
pub(crate) fn limiter(capacity: u64, rate: f64) -> (Limiter, ManualClock) {
    let clock = ManualClock::default();
    (
        named(
            "default",
            MemoryStore::with_clock(clock.clone()),
            capacity,
            rate,
        ),
        clock,
    )
}

pub(crate) fn named(name: &str, store: impl Store, capacity: u64, rate: f64) -> Limiter {
    let quota = Quota::new(capacity, rate).expect("a quota");
    let rule = LimitRule::new(LimitName::new(name).expect("a name"), quota);
    // A cache goes by the runtime's clock, and these stores by one of their own.
    let builder = Limiter::builder(store).quotas(rule).denial_cache(false);
    builder
        .on_store_failure(FailurePolicy::Closed)
        .build()
        .expect("a limiter")
}

/// One token an hour: refill does not disturb a count.
pub(crate) const HOURLY: f64 = 1.0 / 3600.0;

pub(crate) fn tenant(id: &str) -> Tenant {
    Tenant::new(id, "pro").expect("an id")
}

/// A request of tenant 42.
pub(crate) fn request() -> Request<Body> {
    let mut request = Request::new(Body::default());
    request.extensions_mut().insert(tenant("42"));
    request
}

/// Sends one request through `layer` to a service that answers 200.
pub(crate) async fn send<R>(layer: &RateLimitLayer<R>, request: Request<Body>) -> Response<Body>
where
    R: Rejection<Body>,
{
    let ok = service_fn(|_| async { Ok::<_, Infallible>(Response::new(Body::from("ok"))) });
    layer.layer(ok).oneshot(request).await.expect("infallible")
}

/// The value of a header, which must be there once.
pub(crate) fn header<'a, B>(response: &'a Response<B>, name: &str) -> &'a str {
    let mut values = response.headers().get_all(name).iter();
    let value = values.next().unwrap_or_else(|| panic!("no {name}"));
    assert!(values.next().is_none(), "{name} in two lines");
    value.to_str().expect("visible ASCII")
}

pub(crate) fn has<B>(response: &Response<B>, name: &str) -> bool {
    response.headers().contains_key(name)
}

/// A service that counts its calls and remembers the extensions of the last request.
#[derive(Clone, Default)]
pub(crate) struct Counting {
    calls: Arc<AtomicUsize>,
    last: Arc<std::sync::Mutex<Option<Extensions>>>,
}

impl Counting {
    pub(crate) fn calls(&self) -> usize {
        self.calls.load(Ordering::SeqCst)
    }

    pub(crate) fn last(&self) -> Extensions {
        self.last
            .lock()
            .expect("no panic")
            .clone()
            .expect("a request")
    }
}

impl<B> Service<Request<B>> for Counting {
    type Response = Response<Body>;
    type Error = Infallible;
    type Future = std::future::Ready<Result<Response<Body>, Infallible>>;

    fn poll_ready(
        &mut self,
        _: &mut std::task::Context<'_>,
    ) -> std::task::Poll<Result<(), Infallible>> {
        std::task::Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        self.calls.fetch_add(1, Ordering::SeqCst);
        *self.last.lock().expect("no panic") = Some(request.extensions().clone());
        std::future::ready(Ok(Response::new(Body::default())))
    }
}

/// Counts the checks that reach the store behind it, and answers them after `delay`.
#[derive(Clone)]
pub(crate) struct CountingStore {
    inner: Arc<dyn Store>,
    checks: Arc<AtomicUsize>,
    delay: std::time::Duration,
}

impl CountingStore {
    pub(crate) fn new(inner: impl Store, delay: std::time::Duration) -> Self {
        Self {
            inner: Arc::new(inner),
            checks: Arc::default(),
            delay,
        }
    }

    pub(crate) fn checks(&self) -> usize {
        self.checks.load(Ordering::SeqCst)
    }
}

impl Store for CountingStore {
    fn check(&self, check: Check) -> CheckFuture {
        self.checks.fetch_add(1, Ordering::SeqCst);
        let (inner, delay) = (self.inner.clone(), self.delay);
        CheckFuture::new(async move {
            tokio::time::sleep(delay).await;
            inner.check(check).await
        })
    }

    fn adjust(&self, adjustment: Adjustment) -> AdjustFuture {
        self.inner.adjust(adjustment)
    }
}

/// A store that is gone.
pub(crate) struct Broken;

impl Store for Broken {
    fn check(&self, _: Check) -> CheckFuture {
        CheckFuture::ready(Err(StoreError::new(
            ErrorKind::Io,
            ChargeState::Unknown,
            "connection reset",
        )))
    }

    fn adjust(&self, _: Adjustment) -> AdjustFuture {
        unreachable!("nothing is given back here")
    }
}
