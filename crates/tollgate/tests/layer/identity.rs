//! Who pays.

use std::net::{IpAddr, SocketAddr};

use axum::extract::ConnectInfo;
use http::{Extensions, Request, StatusCode};
use tollgate::{
    ANONYMOUS, FailurePolicy, Limiter, MemoryStore, MissingIdentity, PeerAddress, Quota, Quotas,
    RateLimitLayer, Tenant,
};

use crate::support::{Body, HOURLY, has, header, limiter, request, send, tenant};

fn bare() -> Request<Body> {
    Request::new(Body::default())
}

#[tokio::test]
async fn a_request_without_identity_is_rejected_and_says_how_to_authenticate() {
    let layer = RateLimitLayer::new(limiter(5, HOURLY).0);
    for _ in 0..10 {
        let response = send(&layer, bare()).await;
        assert_eq!(response.status(), StatusCode::UNAUTHORIZED);
        assert_eq!(header(&response, "www-authenticate"), "Bearer");
        assert_eq!(header(&response, "cache-control"), "no-store");
        assert!(!has(&response, "ratelimit") && !has(&response, "retry-after"));
    }
}

#[tokio::test]
async fn no_header_that_a_client_sets_chooses_a_bucket() {
    let layer = RateLimitLayer::new(limiter(5, HOURLY).0);
    for i in 0..10 {
        let mut request = request();
        for name in [
            "x-tenant-id",
            "tenant",
            "x-api-key",
            "authorization",
            "x-forwarded-for",
            "forwarded",
        ] {
            request
                .headers_mut()
                .append(name, format!("other-{i}").parse().expect("a value"));
            request
                .headers_mut()
                .append(name, "".parse().expect("a value"));
        }
        let expected = if i < 5 {
            StatusCode::OK
        } else {
            StatusCode::TOO_MANY_REQUESTS
        };
        assert_eq!(send(&layer, request).await.status(), expected);
    }
    let mut request = bare();
    request
        .headers_mut()
        .insert("x-tenant-id", "42".parse().expect("a value"));
    assert_eq!(
        send(&layer, request).await.status(),
        StatusCode::UNAUTHORIZED
    );
}

#[tokio::test]
async fn claims_of_the_users_own_type_give_the_tenant() {
    #[derive(Clone)]
    struct Claims(&'static str);

    let layer =
        RateLimitLayer::new(limiter(1, HOURLY).0).with_identity(|extensions: &Extensions| {
            Tenant::new(extensions.get::<Claims>()?.0, "free").ok()
        });
    let claimed = |id| {
        let mut request = bare();
        request.extensions_mut().insert(Claims(id));
        request
    };
    assert_eq!(send(&layer, claimed("a")).await.status(), StatusCode::OK);
    assert_eq!(send(&layer, claimed("b")).await.status(), StatusCode::OK);
    assert_eq!(
        send(&layer, claimed("a")).await.status(),
        StatusCode::TOO_MANY_REQUESTS
    );
    // An empty id is nobody, not one bucket for all.
    assert_eq!(
        send(&layer, claimed("")).await.status(),
        StatusCode::UNAUTHORIZED
    );
}

#[tokio::test]
async fn exempt_lets_strangers_through_and_limits_the_rest() {
    let layer =
        RateLimitLayer::new(limiter(1, HOURLY).0).on_missing_identity(MissingIdentity::Exempt);
    for _ in 0..5 {
        let response = send(&layer, bare()).await;
        assert_eq!(response.status(), StatusCode::OK);
        assert!(!has(&response, "ratelimit"));
    }
    assert_eq!(send(&layer, request()).await.status(), StatusCode::OK);
    assert_eq!(
        send(&layer, request()).await.status(),
        StatusCode::TOO_MANY_REQUESTS
    );
}

#[tokio::test]
async fn anonymous_callers_have_a_bucket_per_address() {
    let quota = |capacity| Quota::new(capacity, HOURLY).expect("a quota");
    let quotas = Quotas::new(quota(100)).tier(ANONYMOUS, quota(2));
    let builder = Limiter::builder(MemoryStore::new())
        .quotas(quotas)
        .on_store_failure(FailurePolicy::Closed);
    let layer = RateLimitLayer::new(builder.build().expect("a limiter"))
        .on_missing_identity(MissingIdentity::Anonymous);
    let from = |address: &str| {
        let mut request = bare();
        let address: IpAddr = address.parse().expect("an address");
        request
            .extensions_mut()
            .insert(ConnectInfo(SocketAddr::new(address, 4711)));
        request
    };
    for (address, expected) in [
        ("192.0.2.1", StatusCode::OK),
        ("192.0.2.1", StatusCode::OK),
        ("::ffff:192.0.2.1", StatusCode::TOO_MANY_REQUESTS),
        ("192.0.2.2", StatusCode::OK),
        ("2001:db8::1", StatusCode::OK),
        ("2001:db8::ffff", StatusCode::OK),
        ("2001:db8:0:0:1::", StatusCode::TOO_MANY_REQUESTS),
        ("2001:db8:0:1::", StatusCode::OK),
    ] {
        assert_eq!(
            send(&layer, from(address)).await.status(),
            expected,
            "{address}"
        );
    }

    // An address that a trusted proxy vouches for counts instead of the proxy's own.
    let mut request = from("192.0.2.1");
    request
        .extensions_mut()
        .insert(PeerAddress("198.51.100.7".parse().expect("an address")));
    assert_eq!(send(&layer, request).await.status(), StatusCode::OK);

    // A tenant whose id looks like an address has a bucket of its own.
    let mut request = bare();
    request.extensions_mut().insert(tenant("192.0.2.1"));
    assert_eq!(
        header(&send(&layer, request).await, "x-ratelimit-remaining"),
        "99"
    );
}

#[tokio::test]
async fn anonymous_without_an_address_is_rejected_not_shared() {
    let layer =
        RateLimitLayer::new(limiter(5, HOURLY).0).on_missing_identity(MissingIdentity::Anonymous);
    for _ in 0..10 {
        assert_eq!(
            send(&layer, bare()).await.status(),
            StatusCode::UNAUTHORIZED
        );
    }
}
