//! Whom a request comes from, by what its peer and its headers say.

use super::*;
use ProxyHeader::{Forwarded, XForwardedFor};

/// Two proxies in front of the service; the balancer is next to it.
const BALANCER: &str = "10.1.0.1";
const EDGE: &str = "10.1.0.2";
const CLIENT: &str = "203.0.113.7";
/// What an attacker would like to count as.
const SPOOF: &str = "198.51.100.99";

fn networks(header: ProxyHeader) -> ClientAddress {
    ClientAddress::behind(header, ["10.1.0.0/16", "2001:db8:1::/48"]).expect("networks")
}

fn hops(header: ProxyHeader, hops: u8) -> ClientAddress {
    ClientAddress::behind_hops(header, hops).expect("proxies")
}

fn name(header: ProxyHeader) -> &'static str {
    match header {
        XForwardedFor => "x-forwarded-for",
        Forwarded => "forwarded",
    }
}

fn headers(header: ProxyHeader, lines: &[&str]) -> HeaderMap {
    let mut headers = HeaderMap::new();
    for line in lines {
        let line = http::HeaderValue::from_bytes(line.as_bytes()).expect("a value");
        headers.append(name(header), line);
    }
    headers
}

fn ip(text: &str) -> IpAddr {
    text.parse().expect("an address")
}

#[track_caller]
fn assert_client(address: &ClientAddress, peer: &str, headers: &HeaderMap, client: &str) {
    let found = address.find(Some(ip(peer)), headers);
    assert_eq!(found, Some(Caller::client(ip(client))), "{headers:?}");
}

#[track_caller]
fn assert_proxy(address: &ClientAddress, peer: &str, headers: &HeaderMap, proxy: &str) {
    let found = address.find(Some(ip(peer)), headers);
    assert_eq!(found, Some(Caller::proxy(ip(proxy))), "{headers:?}");
}

#[test]
fn by_default_no_header_is_looked_at() {
    for header in [XForwardedFor, Forwarded] {
        let headers = headers(header, &[SPOOF, "for=198.51.100.99"]);
        assert_client(&ClientAddress::default(), CLIENT, &headers, CLIENT);
        assert_client(&ClientAddress::peer(), BALANCER, &headers, BALANCER);
        assert_eq!(ClientAddress::peer().find(None, &headers), None);
    }
}

#[test]
fn the_last_address_that_is_no_proxy_is_the_client() {
    let address = networks(XForwardedFor);
    for lines in [
        &["203.0.113.7"][..],
        &["203.0.113.7, 10.1.0.2"],
        &["203.0.113.7,10.1.0.2,10.1.0.3"],
        &["203.0.113.7:4711, 10.1.0.2:80"],
        &["203.0.113.7", "10.1.0.2"],
        &["  203.0.113.7\t,\t 10.1.0.2  "],
        &["::ffff:203.0.113.7, ::ffff:10.1.0.2"],
        &["203.0.113.7, [2001:db8:1::5]:443, 2001:db8:1:f::"],
        // What a client has sent itself, before the proxies appended.
        &["198.51.100.99, 203.0.113.7"],
        &["198.51.100.99, 203.0.113.7, 10.1.0.2"],
        &["198.51.100.99", "203.0.113.7", "10.1.0.2"],
        &["198.51.100.99, 10.1.0.2, 203.0.113.7"],
        &["10.1.0.2, 203.0.113.7"],
        &[", , ,203.0.113.7"],
        &["", "203.0.113.7"],
        &["unknown, 203.0.113.7, 10.1.0.2"],
        &["<script>, \"203.0.113.1, \\, é, 203.0.113.7"],
    ] {
        assert_client(&address, BALANCER, &headers(XForwardedFor, lines), CLIENT);
    }
}

#[test]
fn forwarded_elements_say_the_same() {
    let address = networks(Forwarded);
    for lines in [
        &["for=203.0.113.7"][..],
        &["For=\"203.0.113.7:4711\";proto=https;by=10.1.0.1"],
        &["for=203.0.113.7;host=\"a, for=198.51.100.99\", for=10.1.0.2"],
        &["for=203.0.113.7", "for=10.1.0.2"],
        &["for=203.0.113.7, for=\"[2001:db8:1::5]:443\""],
        &["for=203.0.113.7, for=\"[2001:db8:1::5]:_port\""],
        &["for=\"[::ffff:203.0.113.7]\""],
        // What a client has sent itself, before the proxies appended.
        &["for=198.51.100.99, for=203.0.113.7"],
        &["for=198.51.100.99, for=203.0.113.7, for=10.1.0.2"],
        &["for=198.51.100.99", "for=203.0.113.7", "for=10.1.0.2"],
        &["for=\"198.51.100.99, for=203.0.113.7, for=10.1.0.2"],
        &["for=198.51.100.99;by=\", for=203.0.113.7, for=10.1.0.2"],
        &["for=\"198.51.100.99\\, for=\"203.0.113.7\", for=10.1.0.2"],
        &["for=198.51.100.99;x=\"", "for=203.0.113.7"],
        &["for=unknown, for=_me, =;,, for=203.0.113.7"],
        &["é\"\\, for=203.0.113.7"],
    ] {
        assert_client(&address, BALANCER, &headers(Forwarded, lines), CLIENT);
    }
}

#[test]
fn a_peer_that_is_no_proxy_is_the_client_whatever_it_says() {
    for header in [XForwardedFor, Forwarded] {
        for lines in [
            &[SPOOF][..],
            &["for=198.51.100.99"],
            &["198.51.100.99, 10.1.0.2"],
            &["198.51.100.99", "10.1.0.2"],
            &[],
        ] {
            assert_client(&networks(header), CLIENT, &headers(header, lines), CLIENT);
        }
    }
    let nobody = ClientAddress::behind(XForwardedFor, Vec::<String>::new()).expect("no networks");
    let headers = headers(XForwardedFor, &[SPOOF]);
    assert_client(&nobody, BALANCER, &headers, BALANCER);
}

#[test]
fn only_the_header_that_was_chosen_counts() {
    let mut both = headers(XForwardedFor, &[CLIENT]);
    both.extend(headers(Forwarded, &["for=198.51.100.99"]));
    assert_client(&networks(XForwardedFor), BALANCER, &both, CLIENT);
    assert_client(&networks(Forwarded), BALANCER, &both, SPOOF);
    // Nor does the other one stand in for it.
    let other = headers(Forwarded, &["for=198.51.100.99"]);
    assert_proxy(&networks(XForwardedFor), BALANCER, &other, BALANCER);
    assert_proxy(&hops(XForwardedFor, 1), BALANCER, &other, BALANCER);
}

#[test]
fn an_entry_without_an_address_leaves_the_last_proxy() {
    for (lines, proxy) in [
        (&[][..], BALANCER),
        (&[""], BALANCER),
        (&["unknown"], BALANCER),
        (&["198.51.100.99,"], BALANCER),
        (&["198.51.100.99", ""], BALANCER),
        (&["198.51.100.99, unknown"], BALANCER),
        (&["198.51.100.99, unix:"], BALANCER),
        (&["198.51.100.99 203.0.113.7"], BALANCER),
        (&["198.51.100.99; 203.0.113.7"], BALANCER),
        (&["198.51.100.99, _hidden, 10.1.0.2"], EDGE),
        (&["198.51.100.99, , 10.1.0.2"], EDGE),
        (&["198.51.100.99, 203.0.113.7:, 10.1.0.2"], EDGE),
        (&["198.51.100.99, é, 10.1.0.2"], EDGE),
        (&["198.51.100.99, 203.0.113.7/32, 10.1.0.2"], EDGE),
        // A proxy that calls on its own behalf.
        (&["10.1.0.2"], EDGE),
        (&["10.1.0.2, 10.1.0.3"], EDGE),
    ] {
        let headers = headers(XForwardedFor, lines);
        assert_proxy(&networks(XForwardedFor), BALANCER, &headers, proxy);
    }
    for (lines, proxy) in [
        (&["for=198.51.100.99, for=unknown"][..], BALANCER),
        (&["for=198.51.100.99, for=_hidden"], BALANCER),
        (&["for=198.51.100.99, proto=https"], BALANCER),
        (&["for=198.51.100.99, 203.0.113.7"], BALANCER),
        (&["for=198.51.100.99,"], BALANCER),
        (
            &["for=198.51.100.99, for=203.0.113.7;for=203.0.113.8"],
            BALANCER,
        ),
        (
            &["for=198.51.100.99, for=\"203.0.113.7, for=10.1.0.2"],
            EDGE,
        ),
        (&["for=198.51.100.99, for=unknown, for=10.1.0.2"], EDGE),
    ] {
        let headers = headers(Forwarded, lines);
        assert_proxy(&networks(Forwarded), BALANCER, &headers, proxy);
    }
}

#[test]
fn hops_count_from_the_end() {
    for (count, lines, client) in [
        (1, &["203.0.113.7"][..], CLIENT),
        (2, &["203.0.113.7, 10.1.0.2"], CLIENT),
        (2, &["203.0.113.7", "10.1.0.2"], CLIENT),
        // More than expected: the client has put them there.
        (1, &["198.51.100.99, 203.0.113.7"], CLIENT),
        (2, &["198.51.100.99, 203.0.113.7, 10.1.0.2"], CLIENT),
        (2, &["198.51.100.99", "203.0.113.7, 10.1.0.2"], CLIENT),
        (1, &["unknown, , 203.0.113.7"], CLIENT),
        // Whether an address is private does not matter.
        (1, &["203.0.113.7, 10.1.0.2"], EDGE),
    ] {
        let headers = headers(XForwardedFor, lines);
        assert_client(&hops(XForwardedFor, count), BALANCER, &headers, client);
        // The same through a Unix socket.
        let found = hops(XForwardedFor, count).find(None, &headers);
        assert_eq!(found, Some(Caller::client(ip(client))));
    }
    let headers = headers(
        Forwarded,
        &["for=\"198.51.100.99, for=203.0.113.7, for=\"10.1.0.2:80\""],
    );
    assert_client(&hops(Forwarded, 2), BALANCER, &headers, CLIENT);
}

#[test]
fn fewer_hops_than_expected_leave_the_first_that_is_known() {
    for (count, lines, proxy) in [
        (1, &[][..], BALANCER),
        (1, &["unknown"], BALANCER),
        (1, &["198.51.100.99,"], BALANCER),
        (2, &["10.1.0.2"], EDGE),
        (255, &["10.1.0.2"], EDGE),
        (2, &["unknown, 10.1.0.2"], EDGE),
        (3, &["198.51.100.99, unknown, 10.1.0.2"], EDGE),
    ] {
        let headers = headers(XForwardedFor, lines);
        assert_proxy(&hops(XForwardedFor, count), BALANCER, &headers, proxy);
    }
    assert_eq!(
        ClientAddress::behind_hops(Forwarded, 0),
        Err(InvalidProxies::NoHops)
    );
}

#[test]
fn a_peer_without_an_address_is_no_trusted_proxy() {
    let found = networks(XForwardedFor).find(None, &headers(XForwardedFor, &[SPOOF]));
    assert_eq!(found, None);
    let found = hops(XForwardedFor, 1).find(None, &HeaderMap::new());
    assert_eq!(found, None);
}

#[test]
fn the_peer_is_compared_in_its_canonical_form() {
    let headers = headers(XForwardedFor, &[CLIENT]);
    let mapped = "::ffff:10.1.0.1";
    assert_client(&networks(XForwardedFor), mapped, &headers, CLIENT);
}

#[test]
fn huge_headers_change_nothing() {
    for junk in [",", "198.51.100.99,", "10.1.0.9,", "\"\\,", "for=\"\\\\\","] {
        let junk = junk.repeat(100_000);
        let line = format!("{junk}203.0.113.7, 10.1.0.2");
        let map = headers(XForwardedFor, &[&line]);
        assert_client(&networks(XForwardedFor), BALANCER, &map, CLIENT);
        assert_client(&hops(XForwardedFor, 2), BALANCER, &map, CLIENT);
        let line = format!("{junk}for=203.0.113.7, for=10.1.0.2");
        let map = headers(Forwarded, &[&line]);
        assert_client(&networks(Forwarded), BALANCER, &map, CLIENT);
        assert_client(&hops(Forwarded, 2), BALANCER, &map, CLIENT);
    }
    let many = ["198.51.100.99"; 10_000];
    let map = headers(XForwardedFor, &[&many[..], &[CLIENT]].concat());
    assert_client(&networks(XForwardedFor), BALANCER, &map, CLIENT);
}

#[test]
fn callers_count_by_the_prefix() {
    let address = ClientAddress::peer().with_ipv6_prefix(Ipv6Prefix::new(48).expect("a prefix"));
    let caller = address.find(Some(ip("2001:db8:7:ffff::1")), &HeaderMap::new());
    let tenant = address.tenant(&caller.expect("an address"));
    assert_eq!(tenant.id(), "2001:db8:7::/48");
}
