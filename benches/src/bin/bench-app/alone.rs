//! What limiters send, without a limiter: how near to bare Axum one could get that takes no time to decide.

use std::sync::Arc;

use axum::{
    Router,
    http::StatusCode,
    response::{IntoResponse, Response},
    routing::get,
};
use http::{HeaderName, HeaderValue};
use tower::util::MapResponseLayer;

use crate::counting::Counts;

/// Both families, as of a quota of 60 000 tokens.
const FIELDS: [(HeaderName, HeaderValue); 5] = [
    field("ratelimit-policy", r#""default";q=60000;w=60"#),
    field("ratelimit", r#""default";r=59999;t=60"#),
    field("x-ratelimit-limit", "60000"),
    field("x-ratelimit-remaining", "59999"),
    field("x-ratelimit-reset", "1"),
];

const REFUSAL: [(HeaderName, HeaderValue); 3] = [
    field("content-type", "application/problem+json"),
    field("cache-control", "no-store"),
    field("retry-after", "1"),
];

const PROBLEM: &str = concat!(
    r#"{"type":"https://iana.org/assignments/http-problem-types#quota-exceeded","title":"Quota Exceeded","#,
    r#""status":429,"detail":"This request costs 1, and the limit default has 0 left. Retry after 1 s.","#,
    r#""violated-policies":["default"]}"#
);

const fn field(name: &'static str, value: &'static str) -> (HeaderName, HeaderValue) {
    (
        HeaderName::from_static(name),
        HeaderValue::from_static(value),
    )
}

/// All are let through, and told where they stand.
pub(crate) fn fields(router: Router<Arc<Counts>>) -> Router<Arc<Counts>> {
    router.layer(MapResponseLayer::new(|mut response: Response| {
        let headers = response.headers_mut();
        headers.reserve(FIELDS.len());
        headers.extend(FIELDS);
        response
    }))
}

/// All are refused, by a handler and not in front of one.
pub(crate) fn refusal() -> Router<Arc<Counts>> {
    let refuse = || async {
        let mut response = (StatusCode::TOO_MANY_REQUESTS, PROBLEM).into_response();
        let headers = response.headers_mut();
        headers.reserve(FIELDS.len() + REFUSAL.len());
        for (name, value) in REFUSAL.into_iter().chain(FIELDS) {
            headers.insert(name, value);
        }
        response
    };
    Router::new().route("/", get(refuse))
}
