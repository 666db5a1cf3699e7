//! Who pays.

use std::net::{IpAddr, SocketAddr};

use axum::extract::ConnectInfo;
use http::{Extensions, Request, StatusCode};
use tollgate::{
    ANONYMOUS, ClientAddress, FailurePolicy, Ipv6Prefix, Limiter, MemoryStore, MissingIdentity,
    PeerAddress, ProxyHeader, Quota, Quotas, RateLimitLayer, Tenant,
};

use crate::{
    log::Log,
    support::{Body, HOURLY, has, header, limiter, request, send, tenant},
};

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

/// A layer that allows strangers two requests, and tenants a hundred.
fn two_for_strangers() -> RateLimitLayer {
    let quota = |capacity| Quota::new(capacity, HOURLY).expect("a quota");
    let quotas = Quotas::new(quota(100)).tier(ANONYMOUS, quota(2));
    let builder = Limiter::builder(MemoryStore::new())
        .quotas(quotas)
        .on_store_failure(FailurePolicy::Closed);
    RateLimitLayer::new(builder.build().expect("a limiter"))
        .on_missing_identity(MissingIdentity::Anonymous)
}

/// A request without an identity, on a connection from `address`.
fn from(address: &str) -> Request<Body> {
    let mut request = bare();
    let address: IpAddr = address.parse().expect("an address");
    request
        .extensions_mut()
        .insert(ConnectInfo(SocketAddr::new(address, 4711)));
    request
}

/// The same, with what `header` says as it arrives.
fn said(mut request: Request<Body>, header: &'static str, value: &str) -> Request<Body> {
    request
        .headers_mut()
        .append(header, value.parse().expect("a value"));
    request
}

async fn is_allowed(layer: &RateLimitLayer, request: Request<Body>) -> bool {
    match send(layer, request).await.status() {
        StatusCode::OK => true,
        StatusCode::TOO_MANY_REQUESTS => false,
        other => panic!("{other}"),
    }
}

#[tokio::test]
async fn anonymous_callers_have_a_bucket_per_address() {
    let layer = two_for_strangers();
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

    // An address that is known from elsewhere counts instead of the connection's.
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

#[tokio::test]
async fn without_known_proxies_no_header_changes_the_bucket_of_an_address() {
    let trusting = ClientAddress::behind(ProxyHeader::XForwardedFor, ["10.1.0.0/16"]);
    for address in [ClientAddress::peer(), trusting.expect("networks")] {
        let layer = two_for_strangers().with_client_address(address);
        for i in 0..10 {
            let request = said(from("192.0.2.1"), "x-forwarded-for", &format!("10.1.0.{i}"));
            let request = said(request, "x-forwarded-for", &format!("198.51.100.{i}"));
            let request = said(request, "forwarded", &format!("for=198.51.100.{i}"));
            let request = said(request, "x-real-ip", &format!("198.51.100.{i}"));
            assert_eq!(is_allowed(&layer, request).await, i < 2, "request {i}");
        }
        // Nor has it spent anyone else's.
        assert!(is_allowed(&layer, from("198.51.100.0")).await);
    }
}

#[tokio::test]
async fn clients_behind_one_proxy_have_buckets_of_their_own() {
    use ProxyHeader::{Forwarded, XForwardedFor};
    let networks = |header| ClientAddress::behind(header, ["10.1.0.1"]).expect("a network");
    let hops = |header| ClientAddress::behind_hops(header, 1).expect("a proxy");
    for (address, header, entry) in [
        (networks(XForwardedFor), "x-forwarded-for", ""),
        (networks(Forwarded), "forwarded", "for="),
        (hops(XForwardedFor), "x-forwarded-for", ""),
        (hops(Forwarded), "forwarded", "for="),
    ] {
        let layer = two_for_strangers().with_client_address(address);
        for client in ["203.0.113.7", "203.0.113.8"] {
            for i in 0..10 {
                // The client sends a line of its own; the proxy appends to it.
                let value = format!("{entry}198.51.100.{i}, {entry}{client}");
                let request = said(from("10.1.0.1"), header, &value);
                assert_eq!(
                    is_allowed(&layer, request).await,
                    i < 2,
                    "{header}: {value}"
                );
                // The proxy adds a line.
                let request = said(from("10.1.0.1"), header, &format!("{entry}198.51.100.{i}"));
                let request = said(request, header, &format!("{entry}{client}"));
                if i >= 2 {
                    assert!(!is_allowed(&layer, request).await, "{header}");
                }
            }
        }
        // Those of whom the proxy says nothing share one.
        for i in 0..10 {
            let value = format!("{entry}198.51.100.{i}, {entry}unknown");
            let request = said(from("10.1.0.1"), header, &value);
            assert_eq!(is_allowed(&layer, request).await, i < 2, "{value}");
        }
    }
}

#[tokio::test]
async fn proxies_that_do_not_say_for_whom_they_act_are_told_of_once() {
    const WARNING: &str = "comes from a proxy that does not say for whom";
    let (log, _guard) = Log::capture();
    let address = ClientAddress::behind(ProxyHeader::XForwardedFor, ["10.1.0.1"]);
    let layer = two_for_strangers().with_client_address(address.expect("a network"));
    send(&layer, from("192.0.2.1")).await;
    let request = said(from("10.1.0.1"), "x-forwarded-for", "203.0.113.7");
    send(&layer, request).await;
    assert_eq!(log.count(WARNING), 0);
    for _ in 0..3 {
        send(&layer, from("10.1.0.1")).await;
    }
    assert_eq!(log.count(WARNING), 1);
}

#[tokio::test]
async fn a_unix_socket_has_callers_by_hops_alone() {
    let from_socket = || said(bare(), "x-forwarded-for", "198.51.100.1, 203.0.113.7");
    let hops = ClientAddress::behind_hops(ProxyHeader::XForwardedFor, 1).expect("a proxy");
    let layer = two_for_strangers().with_client_address(hops);
    for expected in [true, true, false] {
        assert_eq!(is_allowed(&layer, from_socket()).await, expected);
    }
    let networks = ClientAddress::behind(ProxyHeader::XForwardedFor, ["10.1.0.0/16"]);
    let layer = two_for_strangers().with_client_address(networks.expect("a network"));
    assert_eq!(
        send(&layer, from_socket()).await.status(),
        StatusCode::UNAUTHORIZED
    );
}

#[tokio::test]
async fn neighbours_in_one_prefix_share_a_bucket() {
    for (bits, neighbour, stranger) in [
        (48, "2001:db8:7:ffff::1", "2001:db8:8::1"),
        (64, "2001:db8:7:0:ffff::1", "2001:db8:7:1::1"),
        (128, "2001:db8:7::1", "2001:db8:7::2"),
    ] {
        let address = ClientAddress::behind(ProxyHeader::Forwarded, ["10.1.0.1"])
            .expect("a network")
            .with_ipv6_prefix(Ipv6Prefix::new(bits).expect("a prefix"));
        let layer = two_for_strangers().with_client_address(address);
        let by_proxy = |client: &str| {
            let value = format!("for=\"[{client}]:4711\"");
            said(from("10.1.0.1"), "forwarded", &value)
        };
        assert!(is_allowed(&layer, by_proxy("2001:db8:7::1")).await);
        // The same, whether it comes through the proxy or not.
        assert!(is_allowed(&layer, from(neighbour)).await);
        assert!(
            !is_allowed(&layer, by_proxy("2001:db8:7::1")).await,
            "/{bits}"
        );
        assert!(is_allowed(&layer, by_proxy(stranger)).await, "/{bits}");
    }
}
