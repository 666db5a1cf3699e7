//! The layer behind real servers, with clients that see what goes over the wire.

use std::{
    io::{Read, Write},
    net::{SocketAddr, TcpStream},
    time::Duration,
};

use axum::{
    Router,
    body::Bytes,
    extract::{DefaultBodyLimit, Request},
    http::{HeaderValue, Method, header},
    middleware::{self, Next},
    response::Response,
    routing::{get, post},
};
use http_body_util::Full;
use hyper_util::{
    rt::{TokioExecutor, TokioIo},
    server::conn::auto,
    service::TowerToHyperService,
};
use tokio::net::TcpListener;
use tollgate::{
    ANONYMOUS, EXPOSED_HEADERS, FailurePolicy, Limiter, MemoryStore, MissingIdentity, Quota,
    Quotas, RateLimitLayer, Tenant,
};
use tower::{Layer, ServiceExt, service_fn};
use tower_http::cors::CorsLayer;

fn limiter(capacity: u64) -> Limiter {
    let quota = Quota::new(capacity, 1.0 / 3600.0).expect("a quota");
    let builder =
        Limiter::builder(MemoryStore::new()).quotas(Quotas::new(quota).tier(ANONYMOUS, quota));
    builder
        .on_store_failure(FailurePolicy::Closed)
        .build()
        .expect("a limiter")
}

/// Takes everybody for tenant 42.
async fn authenticate(mut request: Request, next: Next) -> Response {
    request
        .extensions_mut()
        .insert(Tenant::new("42", "pro").expect("an id"));
    next.run(request).await
}

fn rate_limit(capacity: u64) -> RateLimitLayer {
    let layer = RateLimitLayer::new(limiter(capacity));
    layer.with_default_cost(1).expect("it fits")
}

fn app(capacity: u64) -> Router {
    Router::new()
        .route("/ok", get(|| async { "ok" }))
        .route(
            "/upload",
            post(|body: Bytes| async move { body.len().to_string() }),
        )
        .layer(DefaultBodyLimit::disable())
        .layer(rate_limit(capacity))
        .layer(middleware::from_fn(authenticate))
}

async fn serve(app: Router) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let address = listener.local_addr().expect("its address");
    let app = app.into_make_service_with_connect_info::<SocketAddr>();
    tokio::spawn(async move { axum::serve(listener, app).await });
    address
}

fn connect(address: SocketAddr) -> TcpStream {
    let stream = TcpStream::connect(address).expect("the server listens");
    stream
        .set_read_timeout(Some(Duration::from_secs(20)))
        .expect("a timeout");
    stream
        .set_write_timeout(Some(Duration::from_secs(20)))
        .expect("a timeout");
    stream
}

/// Runs a client that blocks.
async fn blocking<T: Send + 'static>(client: impl FnOnce() -> T + Send + 'static) -> T {
    tokio::task::spawn_blocking(client).await.expect("no panic")
}

/// Sends `request` and reads until the server closes.
fn talk(address: SocketAddr, request: &str) -> String {
    let mut stream = connect(address);
    stream.write_all(request.as_bytes()).expect("sent");
    let mut answer = String::new();
    stream
        .read_to_string(&mut answer)
        .expect("an answer, then an orderly end");
    answer.to_ascii_lowercase()
}

const GET: &str = "GET /ok HTTP/1.1\r\nHost: x\r\n\r\n";
const LAST_GET: &str = "GET /ok HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n";

#[tokio::test(flavor = "multi_thread")]
async fn a_denial_without_a_body_keeps_the_connection() {
    let address = serve(app(1)).await;
    let answers = blocking(move || talk(address, &format!("{GET}{GET}{LAST_GET}"))).await;
    assert_eq!(answers.matches("http/1.1 200 ok").count(), 1, "{answers}");
    assert_eq!(
        answers.matches("http/1.1 429 too many requests").count(),
        2,
        "{answers}"
    );
    assert_eq!(
        answers.matches("connection: close").count(),
        1,
        "the one that was asked for: {answers}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_is_still_sending_reads_its_denial() {
    let address = serve(app(1)).await;
    let answer = blocking(move || {
        talk(address, LAST_GET);
        let mut stream = connect(address);
        let size = 32 << 20;
        let head = format!("POST /upload HTTP/1.1\r\nHost: x\r\nContent-Length: {size}\r\n\r\n");
        stream.write_all(head.as_bytes()).expect("sent");
        // Far more than the sockets buffer: it only goes through if the server reads on.
        let part = vec![0; 1 << 20];
        for sent in 0..size >> 20 {
            stream
                .write_all(&part)
                .unwrap_or_else(|error| panic!("cut off after {sent} MiB: {error}"));
        }
        let mut answer = String::new();
        stream
            .read_to_string(&mut answer)
            .expect("an answer, then an orderly end");
        answer.to_ascii_lowercase()
    })
    .await;
    assert!(answer.starts_with("http/1.1 429 "), "{answer}");
    assert!(
        answer.contains("connection: close") && answer.ends_with('}'),
        "{answer}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_denial_does_not_wait_for_the_body() {
    let address = serve(app(1)).await;
    let answer = blocking(move || {
        talk(address, LAST_GET);
        let mut stream = connect(address);
        stream
            .write_all(
                b"POST /upload HTTP/1.1\r\nHost: x\r\nContent-Length: 1000\r\n\r\nnever more",
            )
            .expect("sent");
        let mut start = [0; 12];
        stream.read_exact(&mut start).expect("an answer");
        String::from_utf8_lossy(&start).into_owned()
    })
    .await;
    assert_eq!(answer, "HTTP/1.1 429");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_asks_before_it_sends_is_told_no() {
    let address = serve(app(1)).await;
    let answer = blocking(move || {
        talk(address, LAST_GET);
        talk(
            address,
            "POST /upload HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\nExpect: 100-continue\r\n\r\n",
        )
    })
    .await;
    assert!(
        answer.starts_with("http/1.1 429 "),
        "not 100 Continue: {answer}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn addresses_come_from_the_connection() {
    let app = Router::new().route("/ok", get(|| async { "ok" })).layer(
        RateLimitLayer::new(limiter(1))
            .with_default_cost(1)
            .expect("it fits")
            .on_missing_identity(MissingIdentity::Anonymous),
    );
    let address = serve(app).await;
    let answers = blocking(move || talk(address, &format!("{GET}{LAST_GET}"))).await;
    assert_eq!(answers.matches("http/1.1 200 ok").count(), 1, "{answers}");
    assert_eq!(answers.matches("http/1.1 429 ").count(), 1, "{answers}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_plain_hyper_service_is_limited_by_path() {
    let layer = RateLimitLayer::new(limiter(10))
        .with_identity(|_: &axum::http::Extensions| Tenant::new("42", "pro").ok())
        .with_costs(tollgate::RouteCosts::new().set(Method::GET, "/big", 6))
        .expect("costs that fit");
    let answer = |_: hyper::Request<hyper::body::Incoming>| async {
        Ok::<_, std::convert::Infallible>(Response::new(Full::new(Bytes::from("hello"))))
    };
    let service = TowerToHyperService::new(layer.layer(service_fn(answer)));
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let address = listener.local_addr().expect("its address");
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let server = auto::Builder::new(TokioExecutor::new());
            let service = service.clone();
            tokio::spawn(async move {
                server
                    .serve_connection(TokioIo::new(stream), service)
                    .await
                    .map_err(drop)
            });
        }
    });
    let big = "GET /big HTTP/1.1\r\nHost: x\r\n\r\n";
    let answers = blocking(move || talk(address, &format!("{big}{big}{LAST_GET}"))).await;
    let remaining: Vec<_> = answers
        .lines()
        .filter(|line| line.starts_with("x-ratelimit-remaining"))
        .collect();
    assert_eq!(
        remaining,
        [
            "x-ratelimit-remaining: 4",
            "x-ratelimit-remaining: 4",
            "x-ratelimit-remaining: 3"
        ]
    );
    assert!(
        answers.contains("http/1.1 429 ") && answers.ends_with("hello"),
        "{answers}"
    );
}

#[tokio::test]
async fn a_browser_can_read_its_denial() {
    let cors = CorsLayer::new()
        .allow_origin(HeaderValue::from_static("https://shop.example"))
        .expose_headers(EXPOSED_HEADERS);
    let app = app(2).layer(cors);
    let with_origin = |method| {
        let builder = Request::builder().method(method).uri("/ok");
        builder.header(header::ORIGIN, "https://shop.example")
    };
    for _ in 0..10 {
        let preflight =
            with_origin(Method::OPTIONS).header(header::ACCESS_CONTROL_REQUEST_METHOD, "GET");
        let preflight = preflight
            .body(axum::body::Body::empty())
            .expect("a request");
        assert_eq!(
            app.clone()
                .oneshot(preflight)
                .await
                .expect("infallible")
                .status(),
            200
        );
    }
    for expected in [200, 200, 429] {
        let request = with_origin(Method::GET)
            .body(axum::body::Body::empty())
            .expect("a request");
        let response = app.clone().oneshot(request).await.expect("infallible");
        assert_eq!(response.status(), expected);
        assert_eq!(
            response.headers()[header::ACCESS_CONTROL_ALLOW_ORIGIN],
            "https://shop.example"
        );
        let exposed = response.headers()[header::ACCESS_CONTROL_EXPOSE_HEADERS]
            .to_str()
            .expect("ASCII");
        for name in EXPOSED_HEADERS {
            assert!(exposed.contains(name.as_str()), "{name} in {exposed}");
        }
    }
}
