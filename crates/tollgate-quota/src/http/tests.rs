use http_body_util::Full;

use super::*;

async fn read(body: &str) -> Result<Account, SourceError> {
    account(Response::new(Full::from(body.to_owned()))).await
}

#[tokio::test]
async fn a_body_that_makes_no_sense_is_an_error_of_the_tenant_and_not_quoted() {
    assert!(read("{}").await.is_ok());
    let large = format!("{{\"note\": \"{}\"}}", "x".repeat(LARGEST_BODY));
    for body in [
        "",
        "\"s3cret\"",
        "{\"tier\": s3cret}",
        "{\"tier\": 7}",
        &large,
    ] {
        let error = read(body).await.expect_err("no sense");
        assert!(error.is_of_tenant(), "{error}");
        assert!(!error.to_string().contains("s3cret"), "{error}");
    }
}

#[tokio::test]
async fn an_id_that_leads_elsewhere_is_an_error_of_the_tenant() {
    let source = HttpSource::builder("http://127.0.0.1:1")
        .build()
        .expect("a source");
    // As an id comes from a caller, it must not stop the source for all.
    for id in ["..", &"x".repeat(1 << 17)] {
        let loaded = QuotaSource::load(&source, id, None).await;
        assert!(loaded.expect_err("no path").is_of_tenant());
    }
    let loaded = QuotaSource::load(&source, "acme", None).await;
    assert!(!loaded.expect_err("nobody there").is_of_tenant());
}

#[test]
fn some_statuses_are_due_to_the_tenant() {
    for (status, of_tenant) in [(400, true), (410, true), (414, true), (422, true)]
        .into_iter()
        .chain([401, 403, 405, 408, 429, 500, 503].map(|status| (status, false)))
    {
        let status = StatusCode::from_u16(status).expect("a status");
        assert_eq!(is_of_tenant(status), of_tenant, "{status}");
    }
}
