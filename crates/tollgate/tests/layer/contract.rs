//! The contract with tower: readiness, order, cancellation, one check per request.

use std::{
    convert::Infallible,
    future::Ready,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    task::{Context, Poll},
    time::Duration,
};

use http::{Request, Response, StatusCode};
use tokio_test::{assert_pending, assert_ready_ok, task};
use tollgate::{Charged, Decision, ManualClock, MemoryStore, RateLimitLayer};
use tower::{Layer, Service, ServiceBuilder, ServiceExt, limit::ConcurrencyLimitLayer, service_fn};
use tower_test::{assert_request_eq, mock};

use crate::support::{Body, Counting, CountingStore, HOURLY, limiter, named, request, send};

#[tokio::test]
async fn a_denied_request_never_reaches_the_service() {
    let (limiter, _) = limiter(2, HOURLY);
    let inner = Counting::default();
    let service = RateLimitLayer::new(limiter).layer(inner.clone());
    for expected in [
        StatusCode::OK,
        StatusCode::OK,
        StatusCode::TOO_MANY_REQUESTS,
    ] {
        let response = service
            .clone()
            .oneshot(request())
            .await
            .expect("infallible");
        assert_eq!(response.status(), expected);
    }
    assert_eq!(inner.calls(), 2);
}

#[tokio::test(start_paused = true)]
async fn the_check_is_made_once_and_before_the_service_is_called() {
    let memory = MemoryStore::with_clock(ManualClock::default());
    let store = CountingStore::new(memory, Duration::from_millis(5));
    let inner = Counting::default();
    let layer = RateLimitLayer::new(named("default", store.clone(), 10, HOURLY));
    let mut response = task::spawn(layer.layer(inner.clone()).oneshot(request()));
    assert_pending!(response.poll());
    assert_eq!((store.checks(), inner.calls()), (1, 0));
    tokio::time::advance(Duration::from_millis(6)).await;
    assert_ready_ok!(response.poll());
    assert_eq!((store.checks(), inner.calls()), (1, 1));
}

#[tokio::test(start_paused = true)]
async fn a_client_that_leaves_during_the_check_never_reaches_the_service() {
    let store = CountingStore::new(MemoryStore::new(), Duration::from_millis(5));
    let inner = Counting::default();
    let layer = RateLimitLayer::new(named("default", store, 10, HOURLY));
    let mut response = task::spawn(layer.layer(inner.clone()).oneshot(request()));
    assert_pending!(response.poll());
    drop(response);
    tokio::time::advance(Duration::from_secs(1)).await;
    assert_eq!(inner.calls(), 0);
}

#[tokio::test]
async fn the_same_limiter_layered_twice_charges_once() {
    let (limiter, _) = limiter(10, HOURLY);
    let layer = RateLimitLayer::new(limiter.clone());
    let twice = ServiceBuilder::new()
        .layer(layer.clone())
        .layer(RateLimitLayer::new(limiter));
    let response = twice
        .service(Counting::default())
        .oneshot(request())
        .await
        .expect("infallible");
    assert_eq!(response.headers()["x-ratelimit-remaining"], "9");
    assert_eq!(response.headers()["ratelimit"], r#""default";r=9;t=32400"#);
}

#[tokio::test]
async fn another_limiter_charges_too() {
    let outer = RateLimitLayer::new(limiter(10, HOURLY).0);
    let inner = RateLimitLayer::new(named("inner", MemoryStore::new(), 20, HOURLY));
    let both = ServiceBuilder::new()
        .layer(outer)
        .layer(inner)
        .service(Counting::default());
    let response = both.oneshot(request()).await.expect("infallible");
    assert_eq!(
        response.headers()["ratelimit"],
        r#""inner";r=19;t=68400, "default";r=9;t=32400"#
    );
}

#[tokio::test]
async fn it_is_ready_when_the_service_is() {
    let layer = RateLimitLayer::new(limiter(10, HOURLY).0);
    let (mut service, mut handle) = mock::spawn_layer::<Request<Body>, Response<Body>, _>(layer);
    handle.allow(0);
    assert_pending!(service.poll_ready());
    handle.allow(1);
    assert_ready_ok!(service.poll_ready());
}

#[tokio::test]
async fn errors_of_the_service_pass_through_unchanged() {
    let layer = RateLimitLayer::new(limiter(10, HOURLY).0);
    let (mut service, mut handle) = mock::spawn_layer::<Request<Body>, Response<Body>, _>(layer);
    assert_ready_ok!(service.poll_ready());
    let mut response = task::spawn(service.call(request()));
    assert_pending!(response.poll());
    let (_, reply) = handle.next_request().await.expect("a request");
    reply.send_error("of its own");
    assert_eq!(
        response.await.expect_err("an error").to_string(),
        "of its own"
    );
}

#[tokio::test]
async fn requests_without_a_check_reach_the_service_as_they_are() {
    let layer = RateLimitLayer::new(limiter(10, HOURLY).0);
    let layer = layer.on_missing_identity(tollgate::MissingIdentity::Exempt);
    let to_text = |request: Request<Body>| request.uri().to_string();
    let (mut service, mut handle) =
        mock::spawn_with(move |inner: mock::Mock<String, Response<Body>>| {
            layer.layer(inner.map_request(to_text))
        });
    assert_ready_ok!(service.poll_ready());
    let mut response =
        task::spawn(service.call(Request::get("/x").body(Body::default()).expect("a request")));
    assert_pending!(response.poll());
    assert_request_eq!(handle, "/x".to_owned()).send_response(Response::default());
    assert_ready_ok!(response.poll());
}

/// A service whose clones start unready, and which insists on being called ready.
#[derive(Default)]
struct Touchy {
    ready: bool,
    inside: Arc<AtomicUsize>,
}

impl Clone for Touchy {
    fn clone(&self) -> Self {
        Self {
            ready: false,
            inside: self.inside.clone(),
        }
    }
}

impl Service<Request<Body>> for Touchy {
    type Response = Response<Body>;
    type Error = Infallible;
    type Future = Ready<Result<Response<Body>, Infallible>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        self.ready = true;
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, _: Request<Body>) -> Self::Future {
        assert!(
            std::mem::take(&mut self.ready),
            "called without being made ready"
        );
        self.inside.fetch_add(1, Ordering::SeqCst);
        std::future::ready(Ok(Response::default()))
    }
}

#[tokio::test(start_paused = true)]
async fn the_instance_that_was_made_ready_is_the_one_called() {
    // A store that takes time, so that the service is called long after `call` has returned.
    let store = CountingStore::new(MemoryStore::new(), Duration::from_millis(1));
    let touchy = Touchy::default();
    let service = RateLimitLayer::new(named("default", store, 1000, 1.0)).layer(touchy.clone());
    for _ in 0..100 {
        let response = service
            .clone()
            .oneshot(request())
            .await
            .expect("infallible");
        assert_eq!(response.status(), StatusCode::OK);
    }
    assert_eq!(touchy.inside.load(Ordering::SeqCst), 100);
}

#[tokio::test]
async fn a_refusal_gives_back_what_the_inner_service_reserved() {
    let layer = RateLimitLayer::new(limiter(1, HOURLY).0);
    let limited = layer.layer(ConcurrencyLimitLayer::new(1).layer(Counting::default()));
    let unidentified = || Request::new(Body::default());
    let mut one = limited.clone();
    for (request, status) in [(request(), 200), (request(), 429), (unidentified(), 401)] {
        let ready = ServiceExt::<Request<Body>>::ready(&mut one).await;
        let response = ready.expect("infallible").call(request).await;
        assert_eq!(response.expect("infallible").status(), status);
        // The place is free again, though the first instance lives on.
        let mut other = task::spawn(limited.clone());
        let ready = other.enter(|cx, mut it| Service::<Request<Body>>::poll_ready(&mut *it, cx));
        assert!(ready.is_ready(), "after {status}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_concurrency_limit_inside_is_kept() {
    let store = CountingStore::new(MemoryStore::new(), Duration::from_millis(1));
    let (inside, most) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let slow = service_fn({
        let most = most.clone();
        move |_: Request<Body>| {
            let (inside, most) = (inside.clone(), most.clone());
            async move {
                most.fetch_max(inside.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
                tokio::time::sleep(Duration::from_millis(3)).await;
                inside.fetch_sub(1, Ordering::SeqCst);
                Ok::<_, Infallible>(Response::new(Body::default()))
            }
        }
    });
    let service = ServiceBuilder::new()
        .layer(RateLimitLayer::new(named("default", store, 1000, 1.0)))
        .layer(ConcurrencyLimitLayer::new(1))
        .service(slow);
    let mut clients = tokio::task::JoinSet::new();
    for _ in 0..10 {
        let service = service.clone();
        clients.spawn(async move {
            for _ in 0..10 {
                let response = service
                    .clone()
                    .oneshot(request())
                    .await
                    .expect("infallible");
                assert_eq!(response.status(), StatusCode::OK);
            }
        });
    }
    while let Some(client) = clients.join_next().await {
        client.expect("no panic");
    }
    assert_eq!(most.load(Ordering::SeqCst), 1);
}

#[tokio::test]
async fn the_decision_is_there_for_handlers_and_of_refusals_for_outer_layers() {
    let (limiter, _) = limiter(3, HOURLY);
    let layer = RateLimitLayer::new(limiter);
    let inner = Counting::default();
    let response = layer
        .layer(inner.clone())
        .oneshot(request())
        .await
        .expect("infallible");
    let seen = inner.last();
    let seen = seen.get::<Charged>().expect("a decision for the handler");
    assert_eq!(seen.decision().limits[0].remaining, Some(2));
    assert!(seen.outer().is_none());
    assert!(response.extensions().get::<Decision>().is_none());

    for _ in 0..2 {
        send(&layer, request()).await;
    }
    let denied = send(&layer, request()).await;
    assert!(
        !denied
            .extensions()
            .get::<Decision>()
            .expect("a decision")
            .is_allowed()
    );
}
