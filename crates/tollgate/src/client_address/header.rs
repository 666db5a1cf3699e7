//! The headers in which proxies say whom they act for.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use http::{HeaderMap, HeaderName, HeaderValue, header::FORWARDED};

use super::forwarded;

const X_FORWARDED_FOR: HeaderName = HeaderName::from_static("x-forwarded-for");

/// The header in which a service's proxies say whom they act for.
///
/// Choose the one that **all** of them extend, or set anew. A header that they pass on as they got it has
/// been written by the client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ProxyHeader {
    /// `X-Forwarded-For: 192.0.2.7, 10.1.0.4`: a list of addresses.
    XForwardedFor,
    /// `Forwarded: for=192.0.2.7;proto=https, for="[2001:db8::1]:4711"`: the standard one ([RFC 7239]),
    /// whose `for` parameter counts.
    ///
    /// [RFC 7239]: https://www.rfc-editor.org/rfc/rfc7239
    Forwarded,
}

impl ProxyHeader {
    /// What the proxies say, from the one next to the service outwards: an address, or `None` where there
    /// is an entry without one.
    pub(super) fn addresses(self, headers: &HeaderMap) -> impl Iterator<Item = Option<IpAddr>> {
        let name = match self {
            Self::XForwardedFor => X_FORWARDED_FOR,
            Self::Forwarded => FORWARDED,
        };
        let lines = headers.get_all(name).iter().rev();
        lines.flat_map(move |line| self.entries(line))
    }

    fn entries(self, line: &HeaderValue) -> impl Iterator<Item = Option<IpAddr>> {
        let mut rest = Some(line.as_bytes());
        std::iter::from_fn(move || {
            let line = rest?;
            let comma = match self {
                Self::XForwardedFor => line.iter().rposition(|&byte| byte == b','),
                Self::Forwarded => forwarded::last_comma(line),
            };
            rest = comma.map(|comma| &line[..comma]);
            let entry = &line[comma.map_or(0, |comma| comma + 1)..];
            // What is no UTF-8 becomes no address, and leaves the entry's other parts as they are.
            let entry = String::from_utf8_lossy(entry);
            let entry = entry.trim_matches([' ', '\t']);
            Some(match self {
                Self::XForwardedFor => address(entry),
                Self::Forwarded => forwarded::for_parameter(entry).and_then(|node| address(&node)),
            })
        })
    }
}

/// The address of a node that may have a port: `192.0.2.7:4711`, `[2001:db8::1]:4711`, `2001:db8::1`.
fn address(node: &str) -> Option<IpAddr> {
    let address = if let Some(bracketed) = node.strip_prefix('[') {
        let (address, after) = bracketed.split_once(']')?;
        let is_whole = after.is_empty() || after.strip_prefix(':').is_some_and(is_port);
        is_whole.then(|| address.parse::<Ipv6Addr>().ok())??.into()
    } else if let Ok(address) = node.parse::<IpAddr>() {
        address
    } else {
        let (address, port) = node.split_once(':')?;
        is_port(port)
            .then(|| address.parse::<Ipv4Addr>().ok())??
            .into()
    };
    Some(address.to_canonical())
}

/// Whether this is a port of RFC 7239: a number, or a name that hides it.
fn is_port(text: &str) -> bool {
    match text.strip_prefix('_') {
        Some(hidden) => !hidden.is_empty(),
        None => (1..=5).contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_digit()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_is_an_address_and_maybe_a_port() {
        for (node, expected) in [
            ("192.0.2.7", Some("192.0.2.7")),
            ("192.0.2.7:4711", Some("192.0.2.7")),
            ("192.0.2.7:_hidden", Some("192.0.2.7")),
            ("2001:db8::1", Some("2001:db8::1")),
            ("2001:DB8:0::1", Some("2001:db8::1")),
            ("[2001:db8::1]", Some("2001:db8::1")),
            ("[2001:db8::1]:4711", Some("2001:db8::1")),
            ("::ffff:192.0.2.7", Some("192.0.2.7")),
            ("[::ffff:192.0.2.7]:80", Some("192.0.2.7")),
            ("", None),
            ("unknown", None),
            ("_hidden", None),
            ("unix:", None),
            ("localhost", None),
            ("192.0.2", None),
            ("192.0.2.256", None),
            ("192.0.2.07", None),
            ("3221225991", None),
            ("192.0.2.7:", None),
            ("192.0.2.7:123456", None),
            ("192.0.2.7:4711:1", None),
            ("192.0.2.7:-1", None),
            ("192.0.2.7:_", None),
            ("192.0.2.7 198.51.100.1", None),
            ("192.0.2.7/32", None),
            ("[192.0.2.7]", None),
            ("[2001:db8::1", None),
            ("2001:db8::1]", None),
            ("[2001:db8::1]4711", None),
            ("[2001:db8::1]:", None),
            ("[[2001:db8::1]]", None),
            ("fe80::1%eth0", None),
            ("\"192.0.2.7\"", None),
        ] {
            let expected = expected.map(|text| text.parse().expect("an address"));
            assert_eq!(address(node), expected, "{node:?}");
        }
    }
}
