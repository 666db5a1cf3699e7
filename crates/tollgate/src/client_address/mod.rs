//! From which address a request without an identity comes.

mod forwarded;
mod header;
mod proxies;

use std::net::IpAddr;

use http::HeaderMap;
use tollgate_core::{Ipv6Prefix, Tenant};

use self::proxies::Networks;
pub use self::{header::ProxyHeader, proxies::InvalidProxies};

/// How the address of an anonymous caller is found, and how much of it counts.
///
/// By default it is the [peer's](Self::peer), and no header is looked at. Behind proxies, that is the
/// address of the last proxy, and all strangers would share one bucket. What the proxies say in a header
/// then counts instead, in one of two ways:
///
/// ```
/// use tollgate::{ClientAddress, Ipv6Prefix, ProxyHeader};
///
/// // The proxies have known addresses,
/// let known = ClientAddress::behind(ProxyHeader::XForwardedFor, ["10.1.0.0/16", "2001:db8:1::/48"])?;
///
/// // or it is known how many there are.
/// let counted = ClientAddress::behind_hops(ProxyHeader::Forwarded, 2)?
///     .with_ipv6_prefix(Ipv6Prefix::new(56)?);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Rules
///
/// 1. One header counts, the one that the proxies are known to write. The other one would be a client's to
///    fill.
/// 2. All lines of that header are one list, which each proxy extends at its end by the address that it was
///    called from. So the list is read from its end, and what a client had put into it before is never
///    reached.
/// 3. An entry may have a port, which is ignored, and an IPv6 address may stand in brackets; an IPv4-mapped
///    one is IPv4.
/// 4. An entry that is no address (empty, malformed, `unknown`, a name that hides one) ends the list: what
///    is before it has no one to vouch for it. The caller then counts as the last address before that, seen
///    from the service, which is that of a proxy. So strangers of whom the proxies say nothing share its
///    bucket, and the layer warns of them once.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ClientAddress {
    trust: Trust,
    prefix: Ipv6Prefix,
}

/// Whose word counts.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
enum Trust {
    #[default]
    Nobody,
    Networks(ProxyHeader, Networks),
    Hops(ProxyHeader, u8),
}

/// What the address of a request says about it.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Caller {
    address: IpAddr,
    /// Whether this is a proxy, since nothing says for whom it acts.
    pub(crate) is_proxy: bool,
}

impl ClientAddress {
    /// The address of the connection's other end: see [`PeerAddress`](crate::PeerAddress).
    #[must_use]
    pub fn peer() -> Self {
        Self::default()
    }

    /// The last address in `header` that is not in `proxies`: networks such as `10.1.0.0/16`, or single
    /// addresses.
    ///
    /// The header is looked at only if the peer is one of the proxies; else the peer is the caller, whatever
    /// the header says. If all addresses are in `proxies`, the first one counts: a proxy that calls on its
    /// own behalf. A peer without an address, such as that of a Unix socket, is nobody's proxy, and its
    /// requests are rejected; use [`behind_hops`](Self::behind_hops) for these.
    ///
    /// Name the proxies' own addresses, and not a network that clients are in as well: each of these could
    /// state any address as that of somebody it acts for. Without any proxies, this is [`peer`](Self::peer).
    ///
    /// # Errors
    ///
    /// If a text is no network, has bits set behind its prefix (`10.1.2.3/16`), or stands for all addresses
    /// (`0.0.0.0/0`), of which each client has one.
    pub fn behind<P>(header: ProxyHeader, proxies: P) -> Result<Self, InvalidProxies>
    where
        P: IntoIterator<Item: AsRef<str>>,
    {
        Ok(Self {
            trust: Trust::Networks(header, Networks::parse(proxies)?),
            ..Self::default()
        })
    }

    /// The address that is the `hops`-th from the end in `header`, for services behind that many proxies
    /// which each add one: 1 means the last address.
    ///
    /// This needs no addresses of proxies, and so it serves behind a Unix socket and where proxies come and
    /// go. It trusts **everyone who can connect**: use it only if nobody gets at the service, or at one of
    /// the proxies but the outermost, other than through the proxies. A number that is too high lets clients
    /// choose their address; one that is too low gives a proxy's.
    ///
    /// If there are fewer addresses, the first of them counts, and without any, the peer's.
    ///
    /// # Errors
    ///
    /// If `hops` is 0.
    pub fn behind_hops(header: ProxyHeader, hops: u8) -> Result<Self, InvalidProxies> {
        if hops == 0 {
            return Err(InvalidProxies::NoHops);
        }
        Ok(Self {
            trust: Trust::Hops(header, hops),
            ..Self::default()
        })
    }

    /// By which prefix IPv6 addresses are told apart, by default 64 bits.
    #[must_use]
    pub const fn with_ipv6_prefix(mut self, prefix: Ipv6Prefix) -> Self {
        self.prefix = prefix;
        self
    }

    /// Finds who calls. `None` if there is no address at all.
    pub(crate) fn find(&self, peer: Option<IpAddr>, headers: &HeaderMap) -> Option<Caller> {
        let peer = peer.map(|peer| peer.to_canonical());
        match &self.trust {
            Trust::Nobody => peer.map(Caller::client),
            Trust::Networks(header, proxies) => {
                let mut last = peer?;
                let mut said = header.addresses(headers);
                while proxies.contain(last) {
                    match said.next() {
                        Some(Some(before)) => last = before,
                        Some(None) | None => return Some(Caller::proxy(last)),
                    }
                }
                Some(Caller::client(last))
            }
            Trust::Hops(header, hops) => {
                let mut last = peer;
                let mut said = header.addresses(headers);
                for _ in 0..*hops {
                    match said.next() {
                        Some(Some(before)) => last = Some(before),
                        Some(None) | None => return last.map(Caller::proxy),
                    }
                }
                last.map(Caller::client)
            }
        }
    }

    /// Who pays for what `caller` asks for.
    pub(crate) fn tenant(&self, caller: &Caller) -> Tenant {
        Tenant::anonymous_in(caller.address, self.prefix)
    }
}

impl Caller {
    const fn client(address: IpAddr) -> Self {
        Self {
            address,
            is_proxy: false,
        }
    }

    const fn proxy(address: IpAddr) -> Self {
        Self {
            address,
            is_proxy: true,
        }
    }
}

#[cfg(test)]
mod tests;
