//! Each way in which Redis may refuse, through the limiter and the layer: decided by the policy, counted by
//! its kind, and never shown as a quota that is used up.

use std::{thread, time::Duration};

use axum::{
    Router,
    body::{Body, to_bytes},
    http::{Request, Response, StatusCode},
    routing::get,
};
use tokio::time::{sleep, timeout};
use tollgate::{FailurePolicy, Limiter, Metrics, Quota, Quotas, RateLimitLayer, Tenant};
use tollgate_tests::{
    Answer, Fault, FaultProxy, RedisClient, RedisServer, StubServer, free_port, with_each_client,
};
use tower::ServiceExt;

/// Fewer in a row than open the breaker.
const REQUESTS: u64 = 3;

const KEY: &str = "tg:{tenant:42}:default";

struct App {
    router: Router,
    metrics: Metrics,
    policy: &'static str,
}

/// One app of each policy on the Redis at `url`.
async fn apps<S: RedisClient>(url: &str) -> [App; 3] {
    tokio::join!(
        app::<S>(url, FailurePolicy::Open),
        app::<S>(url, FailurePolicy::Closed),
        app::<S>(url, FailurePolicy::local(2)),
    )
    .into()
}

async fn app<S: RedisClient>(url: &str, policy: FailurePolicy) -> App {
    let (name, metrics) = (policy.as_str(), Metrics::new());
    let store = S::open(S::builder(url)).await.expect("a store");
    let quota = Quota::new(10, "1/h").expect("a quota");
    let limiter = Limiter::builder(store)
        .quotas(Quotas::new(quota))
        .on_store_failure(policy)
        .deadline(Duration::from_millis(300))
        .observer(metrics.clone());
    let layer = RateLimitLayer::new(limiter.build().expect("a limiter"))
        .with_default_cost(1)
        .expect("it fits")
        .with_identity(|_: &axum::http::Extensions| Tenant::new("42", "pro").ok());
    App {
        router: Router::new()
            .route("/", get(|| async { "ok" }))
            .layer(layer),
        metrics,
        policy: name,
    }
}

impl App {
    async fn send(&self) -> Response<Body> {
        let request = Request::get("/").body(Body::empty()).expect("a request");
        let answer = self.router.clone().oneshot(request);
        answer.await.expect("infallible")
    }

    fn counted(&self, family: &str, label: &str) -> u64 {
        let text = self.metrics.render();
        let line = |line: &&str| line.starts_with(family) && line.contains(label);
        let numbers = text.lines().filter(line);
        numbers
            .map(|line| {
                line.rsplit(' ')
                    .next()
                    .map_or(0, |n| n.parse().unwrap_or(0))
            })
            .sum()
    }

    async fn answers_by_policy(&self, kinds: &[&str], remaining: u64) {
        let response = self.send().await;
        let status = response.status();
        let headers = response.headers().clone();
        let body = to_bytes(response.into_body(), 10_000)
            .await
            .expect("a body");
        let body = String::from_utf8_lossy(&body);
        let told = format!("{} {kinds:?}: {status} {headers:?} {body}", self.policy);
        let has = |name: &str| headers.contains_key(name);
        assert!(has("ratelimit-policy"), "{told}");
        let numbers = ["ratelimit", "x-ratelimit-remaining", "x-ratelimit-limit"];
        match self.policy {
            "open" => assert_eq!(status, StatusCode::OK, "{told}"),
            "closed" => {
                assert_eq!(status, StatusCode::SERVICE_UNAVAILABLE, "{told}");
                assert!(body.contains("temporary-reduced-capacity"), "{told}");
                assert!(!body.contains("quota-exceeded"), "{told}");
                assert!(has("retry-after"), "{told}");
            }
            _ => {
                assert_eq!(status, StatusCode::OK, "{told}");
                assert_eq!(headers["x-ratelimit-limit"], "5", "{told}");
                assert_eq!(
                    headers["x-ratelimit-remaining"],
                    remaining.to_string(),
                    "{told}"
                );
            }
        }
        if self.policy != "local" {
            assert!(!numbers.into_iter().any(has), "{told}");
        }
    }
}

/// Sends a few requests to each app, and looks at answers and metrics. One kind of failure may be followed
/// by another, such as that of the connection that it ended.
async fn fails_as(apps: &[App], kinds: &[&str]) {
    for app in apps {
        for i in 1..=REQUESTS {
            app.answers_by_policy(kinds, 5 - i).await;
        }
        let errors = |kind: &str| {
            let label = format!("kind=\"{kind}\",policy=\"{}\"", app.policy);
            app.counted("ratelimit_store_errors_total", &label)
        };
        let told = app.metrics.render();
        assert!(errors(kinds[0]) > 0, "{kinds:?}\n{told}");
        let all: u64 = kinds.iter().map(|kind| errors(kind)).sum();
        assert_eq!(all, REQUESTS, "{kinds:?}\n{told}");
        let rejected = app.counted("ratelimit_decisions_total", "outcome=\"rejected\"");
        assert_eq!(rejected, 0, "never counted as denied by quota");
    }
}

fn run(server: &RedisServer, command: &[&str]) {
    let mut cmd = redis::cmd(command[0]);
    let done = cmd
        .arg(&command[1..])
        .query::<redis::Value>(&mut server.connection());
    done.unwrap_or_else(|error| panic!("{command:?}: {error}"));
}

async fn stub_fails_as<S: RedisClient>(answer: Answer, kinds: &[&str]) {
    let stub = StubServer::start(answer);
    fails_as(&apps::<S>(&stub.url()).await, kinds).await;
    assert!(stub.calls() > 0);
}

async fn out_of_memory<S: RedisClient>() {
    let server = RedisServer::start();
    let apps = apps::<S>(&server.url()).await;
    run(&server, &["CONFIG", "SET", "maxmemory", "1"]);
    fails_as(&apps, &["oom"]).await;
}

async fn busy_with_a_script<S: RedisClient>() {
    let server = RedisServer::start_with(&["--busy-reply-threshold", "1"]);
    let apps = apps::<S>(&server.url()).await;
    let mut connection = server.connection();
    let endless = thread::spawn(move || {
        let mut eval = redis::cmd("EVAL");
        eval.arg("while true do end")
            .arg(0)
            .query::<()>(&mut connection)
    });
    let mut other = server.connection();
    timeout(Duration::from_secs(5), async {
        while redis::cmd("PING").query::<()>(&mut other).is_ok() {
            sleep(Duration::from_millis(5)).await;
        }
    })
    .await
    .expect("a busy server");
    fails_as(&apps, &["other"]).await;
    run_ok(&mut other, &["SCRIPT", "KILL"]);
    assert!(endless.join().expect("no panic").is_err());
}

fn run_ok(connection: &mut redis::Connection, command: &[&str]) {
    let mut cmd = redis::cmd(command[0]);
    cmd.arg(&command[1..]).query::<()>(connection).expect("OK");
}

async fn read_only<S: RedisClient>() {
    let server = RedisServer::start();
    let apps = apps::<S>(&server.url()).await;
    run(
        &server,
        &["REPLICAOF", "127.0.0.1", &free_port().to_string()],
    );
    fails_as(&apps, &["readonly"]).await;
}

async fn no_permission<S: RedisClient>() {
    let server = RedisServer::start();
    let user = [
        "ACL", "SETUSER", "limiter", "on", ">secret", "~tg:*", "-@all",
    ];
    run(
        &server,
        &[&user[..], &["+evalsha", "+script|load", "+get", "+pttl"]].concat(),
    );
    let url = format!("redis://limiter:secret@127.0.0.1:{}", server.port());
    fails_as(&apps::<S>(&url).await, &["auth"]).await;
}

async fn no_password<S: RedisClient>() {
    let server = RedisServer::start_with(&["--requirepass", "secret"]);
    fails_as(&apps::<S>(&server.url()).await, &["auth"]).await;
}

async fn a_wrong_password<S: RedisClient>() {
    let server = RedisServer::start_with(&["--requirepass", "secret"]);
    let url = format!("redis://:guess@127.0.0.1:{}", server.port());
    fails_as(&apps::<S>(&url).await, &["auth"]).await;
}

async fn a_hash_under_the_key<S: RedisClient>() {
    let server = RedisServer::start();
    let apps = apps::<S>(&server.url()).await;
    run(&server, &["HSET", KEY, "tokens", "3"]);
    fails_as(&apps, &["other"]).await;
}

async fn a_string_of_another_length_under_the_key<S: RedisClient>() {
    let server = RedisServer::start();
    let apps = apps::<S>(&server.url()).await;
    run(&server, &["SET", KEY, "17 bytes, not 16."]);
    fails_as(&apps, &["other"]).await;
}

async fn replies_that_only_a_stub_gives_in_time<S: RedisClient>() {
    for (reply, kinds) in [
        (
            "LOADING Redis is loading the dataset in memory",
            &["loading"][..],
        ),
        (
            "MISCONF Redis is configured to save RDB snapshots",
            &["other"],
        ),
        (
            "NOSCRIPT No matching script. Please use EVAL.",
            &["noscript"],
        ),
        (
            "TRYAGAIN Multiple keys request during rehashing of slot",
            &["cluster"],
        ),
        // The client ends its connection after these.
        (
            "CLUSTERDOWN The cluster is down",
            &["cluster", "io", "timeout"],
        ),
        (
            "NOAUTH Authentication required.",
            &["auth", "io", "timeout"],
        ),
        (
            "WRONGPASS invalid username-password pair",
            &["auth", "io", "timeout"],
        ),
    ] {
        stub_fails_as::<S>(Answer::Error(reply.to_owned()), kinds).await;
    }
}

async fn replies_that_make_no_sense<S: RedisClient>() {
    for reply in [
        "+OK\r\n",
        ":1\r\n",
        "$-1\r\n",
        "*1\r\n:1\r\n",
        "*3\r\n:1\r\n:x\r\n",
    ] {
        let answer = Answer::Raw(reply.as_bytes().to_vec());
        stub_fails_as::<S>(answer, &["other", "io", "timeout"]).await;
    }
    let garbage = Answer::Raw(b"HTTP/1.1 400 Bad Request\r\n\r\n".to_vec());
    let stub = StubServer::start(garbage);
    for app in apps::<S>(&stub.url()).await {
        app.answers_by_policy(&["any"], 4).await;
    }
}

async fn no_reply<S: RedisClient>() {
    stub_fails_as::<S>(Answer::Silence, &["timeout"]).await;
}

async fn a_refused_connection<S: RedisClient>() {
    let url = format!("redis://127.0.0.1:{}", free_port());
    fails_as(&apps::<S>(&url).await, &["io"]).await;
}

async fn a_connection_cut_in_mid_reply<S: RedisClient>() {
    let server = RedisServer::start();
    let proxy = FaultProxy::start(server.port());
    let apps = apps::<S>(&proxy.url()).await;
    proxy.set(Fault::CutReplies);
    fails_as(&apps, &["io", "timeout"]).await;
}

with_each_client! {
    #[tokio::test] out_of_memory
    #[tokio::test] busy_with_a_script
    #[tokio::test] read_only
    #[tokio::test] no_permission
    #[tokio::test] no_password
    #[tokio::test] a_wrong_password
    #[tokio::test] a_hash_under_the_key
    #[tokio::test] a_string_of_another_length_under_the_key
    #[tokio::test] replies_that_only_a_stub_gives_in_time
    #[tokio::test] replies_that_make_no_sense
    #[tokio::test] no_reply
    #[tokio::test] a_refused_connection
    #[tokio::test] a_connection_cut_in_mid_reply
}
