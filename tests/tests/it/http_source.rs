//! Accounts from a control plane.

use std::{fs, time::Duration};

use serde_json::{Value, json};
use tollgate_core::{LimitName, Quota};
use tollgate_quota::{Account, Allowance, HttpSource, HttpSourceBuilder, QuotaSource};
use tollgate_tests::{Fault, FaultProxy, free_port};
use wiremock::{
    Mock, MockServer, Request, ResponseTemplate,
    matchers::{header, method, path},
};

/// Nothing takes so long, on a busy machine either.
const LONG: Duration = Duration::from_secs(20);

fn builder(server: &MockServer) -> HttpSourceBuilder {
    HttpSource::builder(server.uri()).timeout(LONG)
}

fn source(server: &MockServer) -> HttpSource {
    builder(server).build().expect("a source")
}

/// A control plane that gives one answer to everything.
async fn answering(answer: ResponseTemplate) -> MockServer {
    let server = MockServer::start().await;
    Mock::given(method("GET"))
        .respond_with(answer)
        .mount(&server)
        .await;
    server
}

fn ok(body: &Value) -> ResponseTemplate {
    ResponseTemplate::new(200).set_body_json(body)
}

async fn load(source: &HttpSource, tenant: &str, known: Option<&Account>) -> Option<Account> {
    source.load(tenant, known).await.expect("an answer")
}

async fn fails(source: &HttpSource) -> String {
    let loaded = source.load("acme", None).await;
    let error = loaded.expect_err("no answer").to_string();
    assert!(!error.contains("acme"), "names the tenant: {error}");
    error
}

async fn requests(server: &MockServer) -> Vec<Request> {
    server.received_requests().await.expect("they are kept")
}

#[tokio::test]
async fn an_account_is_read_from_json() {
    let body = json!({
        "tier": "pro", "shards": 4, "name": "ACME Corp.",
        "limits": {"default": {"capacity": 10, "rate": "2/s"}, "reports": "unlimited", "daily": "default"},
    });
    let server = answering(ok(&body)).await;
    let source = HttpSource::builder(format!("{}/v1/", server.uri()))
        .timeout(LONG)
        .build();
    let source = source.expect("a source");
    let account = load(&source, "acme", None).await.expect("known");
    assert_eq!(account.tier.as_deref(), Some("pro"));
    assert_eq!(account.shards.map(u8::from), Some(4));
    assert_eq!(account.limits.len(), 2);
    let quota = Quota::new(10, 2).expect("a quota");
    assert_eq!(account.limits[&LimitName::default()], quota.into());
    assert!(
        account
            .limits
            .values()
            .any(|it| *it == Allowance::Unlimited)
    );
    assert_eq!(account.version, None);

    let request = &requests(&server).await[0];
    assert_eq!(request.url.path(), "/v1/tenants/acme");
    assert_eq!(request.headers["accept"], "application/json");
    for unwanted in ["authorization", "if-none-match"] {
        assert!(!request.headers.contains_key(unwanted), "{unwanted}");
    }
    assert!(source.changes().is_none());
}

#[tokio::test]
async fn an_id_stays_one_segment_of_the_path() {
    let server = answering(ok(&json!({}))).await;
    let source = source(&server);
    for (id, escaped) in [
        ("a-b.c_d~9", "a-b.c_d~9"),
        ("../admin", "..%2Fadmin"),
        ("a/b?c=d#e", "a%2Fb%3Fc%3Dd%23e"),
        ("100% é", "100%25%20%C3%A9"),
        ("a\r\nX: y", "a%0D%0AX%3A%20y"),
    ] {
        assert_eq!(
            load(&source, id, None).await,
            Some(Account::default()),
            "nothing said"
        );
        let seen = requests(&server).await;
        let path = seen.last().expect("a request").url.path();
        assert_eq!(path, format!("/tenants/{escaped}"));
    }
    let count = requests(&server).await.len();
    for id in [".", ".."] {
        source.load(id, None).await.expect_err("another path");
    }
    assert_eq!(requests(&server).await.len(), count);
}

#[tokio::test]
async fn an_unknown_tenant_is_no_failure() {
    let server = answering(ResponseTemplate::new(404)).await;
    let source = source(&server);
    assert_eq!(load(&source, "nobody", None).await, None);
    let known = Account::default();
    assert_eq!(load(&source, "deleted", Some(&known)).await, None);
}

#[tokio::test]
async fn an_unchanged_account_is_not_sent_again() {
    let server = MockServer::start().await;
    let unchanged =
        Mock::given(header("if-none-match", "\"v1\"")).respond_with(ResponseTemplate::new(304));
    unchanged
        .up_to_n_times(2)
        .with_priority(1)
        .mount(&server)
        .await;
    let first = ok(&json!({"tier": "free"})).insert_header("etag", "\"v1\"");
    Mock::given(method("GET"))
        .respond_with(first)
        .up_to_n_times(1)
        .mount(&server)
        .await;
    let second = ok(&json!({"tier": "pro"})).insert_header("etag", "W/\"v2\"");
    Mock::given(method("GET"))
        .respond_with(second)
        .mount(&server)
        .await;

    let source = source(&server);
    let v1 = load(&source, "acme", None).await.expect("known");
    assert_eq!(
        (v1.tier.as_deref(), v1.version.as_deref()),
        (Some("free"), Some("\"v1\""))
    );
    for _ in 0..2 {
        assert_eq!(load(&source, "acme", Some(&v1)).await.as_ref(), Some(&v1));
    }
    let v2 = load(&source, "acme", Some(&v1)).await.expect("known");
    assert_eq!(
        (v2.tier.as_deref(), v2.version.as_deref()),
        (Some("pro"), Some("W/\"v2\""))
    );
    load(&source, "acme", Some(&v2)).await;
    let conditions: Vec<_> = requests(&server)
        .await
        .iter()
        .map(|it| it.headers.get("if-none-match").cloned())
        .collect();
    let conditions: Vec<_> = conditions
        .iter()
        .map(|it| it.as_ref().map(|it| it.to_str().expect("ASCII")))
        .collect();
    assert_eq!(
        conditions,
        [
            None,
            Some("\"v1\""),
            Some("\"v1\""),
            Some("\"v1\""),
            Some("W/\"v2\"")
        ]
    );
}

#[tokio::test]
async fn a_304_that_nobody_asked_for_is_a_failure() {
    let server = answering(ResponseTemplate::new(304)).await;
    let source = source(&server);
    assert!(fails(&source).await.contains("304"));
    // Known from elsewhere, without a version.
    let known = Account::default();
    source
        .load("acme", Some(&known))
        .await
        .expect_err("no condition");
}

#[tokio::test]
async fn failures_tell_their_cause() {
    for status in [201, 204, 400, 401, 403, 410, 429, 500, 503] {
        let server =
            answering(ResponseTemplate::new(status).set_body_json(json!({"tier": "pro"}))).await;
        let error = fails(&source(&server)).await;
        assert!(error.contains(&status.to_string()), "{error}");
    }
    for (body, cause) in [
        ("", "not a JSON object"),
        ("{\"tier\": \"pro\"", "not a JSON object"),
        ("[]", "not a JSON object"),
        ("{\"tier\": 7}", "`tier`"),
        (
            "{\"limits\": {\"reports\": {\"capacity\": 0, \"rate\": 1}}}",
            "`limits.reports.capacity`",
        ),
        (
            "{\"limits\": {\"reports\": {\"capacity\": 1, \"rate\": 1, \"burst\": 2}}}",
            "`limits.reports.burst`",
        ),
    ] {
        let server = answering(ResponseTemplate::new(200).set_body_string(body)).await;
        let error = fails(&source(&server)).await;
        assert!(error.contains(cause), "{body}: {error}");
    }
    let nobody = HttpSource::builder(format!("http://127.0.0.1:{}", free_port()))
        .timeout(LONG)
        .build();
    let error = fails(&nobody.expect("a source")).await;
    assert!(error.contains("refused"), "{error}");
    // A plain server where TLS is asked for.
    let server = answering(ok(&json!({}))).await;
    let secure = HttpSource::builder(server.uri().replace("http://", "https://"))
        .timeout(LONG)
        .build();
    fails(&secure.expect("a source")).await;
    assert!(requests(&server).await.is_empty());
}

#[tokio::test]
async fn a_body_may_have_64_kib() {
    let body = |length: usize| {
        let frame = "{\"note\":\"\"}".len();
        format!("{{\"note\":\"{}\"}}", "x".repeat(length - frame))
    };
    let server = answering(ResponseTemplate::new(200).set_body_string(body(65_536))).await;
    assert_eq!(
        load(&source(&server), "acme", None).await,
        Some(Account::default())
    );
    let server = answering(ResponseTemplate::new(200).set_body_string(body(65_537))).await;
    let error = fails(&source(&server)).await;
    assert!(error.contains("larger than 65536 bytes"), "{error}");
}

#[tokio::test]
async fn a_late_answer_is_none() {
    let server = answering(ok(&json!({})).set_delay(LONG * 5)).await;
    let hasty = HttpSource::builder(server.uri())
        .timeout(Duration::from_millis(100))
        .build();
    let loaded = tokio::time::timeout(LONG, fails(&hasty.expect("a source"))).await;
    assert_eq!(loaded.expect("in time"), "no answer within 100ms");
}

#[tokio::test]
async fn a_silent_network_is_no_answer_and_leaves_nothing_behind() {
    let server = answering(ok(&json!({}))).await;
    let proxy = FaultProxy::start(server.address().port());
    let source = HttpSource::builder(format!("http://127.0.0.1:{}", proxy.port()));
    let source = source
        .timeout(Duration::from_secs(2))
        .build()
        .expect("a source");
    assert!(load(&source, "acme", None).await.is_some());
    proxy.set(Fault::BlackHole);
    assert_eq!(fails(&source).await, "no answer within 2s");
    proxy.silence_present();
    proxy.set(Fault::None);
    assert!(
        load(&source, "acme", None).await.is_some(),
        "on another connection"
    );
}

#[tokio::test]
async fn the_token_goes_nowhere_else() {
    let elsewhere = answering(ok(&json!({"tier": "pro"}))).await;
    let to = format!("{}/tenants/acme", elsewhere.uri());
    for status in [301, 302, 303, 307, 308] {
        let server =
            answering(ResponseTemplate::new(status).insert_header("location", to.as_str())).await;
        let source = builder(&server).token("s3cret").build().expect("a source");
        let error = fails(&source).await;
        assert!(error.contains(&status.to_string()), "{error}");
        assert_eq!(
            requests(&server).await[0].headers["authorization"],
            "Bearer s3cret"
        );
    }
    assert!(requests(&elsewhere).await.is_empty());
}

#[tokio::test]
async fn a_token_file_is_read_for_each_request() {
    let server = MockServer::start().await;
    for (token, tier) in [("first", "free"), ("second", "pro")] {
        Mock::given(path("/tenants/acme"))
            .and(header("authorization", format!("Bearer {token}")))
            .respond_with(ok(&json!({"tier": tier})))
            .mount(&server)
            .await;
    }
    let dir = tempfile::tempdir().expect("a folder");
    let file = dir.path().join("token");
    let source = builder(&server)
        .token_file(&file)
        .build()
        .expect("a source");

    let error = fails(&source).await;
    assert!(error.contains(file.to_str().expect("UTF-8")), "{error}");
    for (token, tier) in [("first\n", "free"), ("second", "pro")] {
        fs::write(&file, token).expect("a file");
        let account = load(&source, "acme", None).await.expect("known");
        assert_eq!(account.tier.as_deref(), Some(tier));
    }
    for wrong in ["", "two words", "line\r\nX-Other: header"] {
        fs::write(&file, wrong).expect("a file");
        let error = fails(&source).await;
        assert!(
            error.contains("one word") && !error.contains("words"),
            "{error}"
        );
    }
    assert_eq!(
        requests(&server).await.len(),
        2,
        "nothing is sent without its token"
    );
}

#[tokio::test]
async fn a_token_is_told_to_nobody() {
    let server = answering(ResponseTemplate::new(401)).await;
    let builder = builder(&server).token("s3cret");
    assert!(!format!("{builder:?}").contains("s3cret"), "{builder:?}");
    let source = builder.build().expect("a source");
    assert!(!format!("{source:?}").contains("s3cret"), "{source:?}");
    let error = fails(&source).await;
    assert!(
        error.contains("401") && !error.contains("s3cret"),
        "{error}"
    );
    let strange = HttpSource::builder(server.uri())
        .token("s3cret\n")
        .timeout(LONG)
        .build();
    let error = fails(&strange.expect("a source")).await;
    assert!(!error.contains("s3cret"), "{error}");
}

#[test]
fn a_base_that_makes_no_sense_is_refused() {
    for base in [
        "",
        "/v1",
        "control-plane",
        "control-plane:8080",
        "ftp://control-plane",
        "http://",
        "http://user:hunter2@control-plane",
        "http://control-plane/?key=hunter2",
        "http://control-plane/#hunter2",
    ] {
        let refused = HttpSource::builder(base).build();
        let error = refused.expect_err(base).to_string();
        assert!(!error.contains("hunter2"), "{error}");
    }
    let refused = HttpSource::builder("http://control-plane")
        .timeout(Duration::ZERO)
        .build();
    refused.expect_err("no time");
}
