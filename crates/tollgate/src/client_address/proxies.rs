//! The networks that proxies are in.

use std::{fmt, net::IpAddr};

use ipnet::{IpNet, Ipv4Net};

/// A list of networks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Networks(Vec<IpNet>);

impl Networks {
    pub(super) fn parse(
        texts: impl IntoIterator<Item: AsRef<str>>,
    ) -> Result<Self, InvalidProxies> {
        let networks = texts.into_iter().map(|text| parse(text.as_ref().trim()));
        networks.collect::<Result<_, _>>().map(Self)
    }

    /// Whether `address`, in its canonical form, is in one of them.
    pub(super) fn contain(&self, address: IpAddr) -> bool {
        self.0.iter().any(|network| network.contains(&address))
    }
}

fn parse(text: &str) -> Result<IpNet, InvalidProxies> {
    let network = network(text).ok_or_else(|| InvalidProxies::NotANetwork {
        text: text.to_owned(),
    })?;
    let network = canonical(network);
    if network.prefix_len() == 0 {
        return Err(InvalidProxies::Everybody {
            text: text.to_owned(),
        });
    }
    if network.addr() != network.network() {
        return Err(InvalidProxies::HostBits {
            text: text.to_owned(),
            network: network.trunc().to_string(),
        });
    }
    Ok(network)
}

/// The address is for the standard library to parse: unlike `ipnet`, it refuses `010.0.0.0`, which others
/// read as octal.
fn network(text: &str) -> Option<IpNet> {
    let Some((address, length)) = text.split_once('/') else {
        return text.parse().ok().map(IpAddr::into);
    };
    IpNet::new(address.parse().ok()?, length.parse().ok()?).ok()
}

/// IPv4-mapped networks as IPv4, since they are compared with addresses of that form.
fn canonical(network: IpNet) -> IpNet {
    let mapped = match (network.addr().to_canonical(), network.prefix_len()) {
        (IpAddr::V4(v4), length @ 96..) => Ipv4Net::new(v4, length - 96).ok(),
        _ => None,
    };
    mapped.map_or(network, IpNet::V4)
}

/// Why proxies cannot be trusted as configured.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum InvalidProxies {
    /// A text is neither a network nor an address.
    NotANetwork {
        /// The text.
        text: String,
    },
    /// A network has bits set behind its prefix, so that it is unclear whether one address was meant, or all.
    HostBits {
        /// The network as given.
        text: String,
        /// The network that the address is in.
        network: String,
    },
    /// A network has all addresses in it, clients' too, so that clients could choose theirs.
    Everybody {
        /// The network as given.
        text: String,
    },
    /// The number of proxies is 0.
    NoHops,
}

impl fmt::Display for InvalidProxies {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotANetwork { text } => write!(
                f,
                "{text:?} is not a network of proxies; write it as 10.1.0.0/16, 2001:db8::/32 or 192.0.2.7"
            ),
            Self::HostBits { text, network } => write!(
                f,
                "{text} has bits set behind its prefix; write {network} for the network, or leave the \
                 prefix out for the one address"
            ),
            Self::Everybody { text } => write!(
                f,
                "{text} would trust every client to state its own address; name the proxies' networks"
            ),
            Self::NoHops => f.write_str(
                "0 hops mean that there are no proxies, and no header to look at: use the peer's address",
            ),
        }
    }
}

impl std::error::Error for InvalidProxies {}

#[cfg(test)]
mod tests {
    use super::*;

    fn contains(network: &str, address: &str) -> bool {
        let networks = Networks::parse([network]).expect("a network");
        networks.contain(address.parse().expect("an address"))
    }

    #[test]
    fn networks_contain_what_they_say() {
        for (network, inside, outside) in [
            ("10.1.0.0/16", "10.1.255.255", "10.2.0.0"),
            (" 192.0.2.7 ", "192.0.2.7", "192.0.2.8"),
            ("192.0.2.7/32", "192.0.2.7", "192.0.2.6"),
            ("2001:db8::/32", "2001:db8:ffff::1", "2001:db9::"),
            ("2001:db8::1", "2001:db8::1", "2001:db8::2"),
            ("::ffff:10.1.0.0/112", "10.1.2.3", "10.2.0.0"),
            ("::ffff:10.1.2.3", "10.1.2.3", "10.1.2.4"),
            ("fd00::/8", "fd12::1", "10.0.0.1"),
        ] {
            assert!(contains(network, inside), "{inside} in {network}");
            assert!(!contains(network, outside), "{outside} not in {network}");
        }
    }

    #[test]
    fn what_is_no_network_says_so() {
        for bad in [
            "",
            "  ",
            "10.0.0.0/33",
            "10.0.0/8",
            "::/129",
            "2001:db8::/-1",
            "10.0.0.0/8,10.1.0.0/16",
            "proxy.internal",
            "[::1]",
            "010.0.0.0/8",
            "*",
        ] {
            let text = bad.trim().to_owned();
            assert_eq!(
                Networks::parse(["10.0.0.0/8", bad]),
                Err(InvalidProxies::NotANetwork { text }),
                "{bad:?}"
            );
        }
    }

    #[test]
    fn a_network_with_host_bits_is_refused() {
        let error = Networks::parse(["10.1.2.3/16"]).expect_err("host bits");
        let said = error.to_string();
        assert!(said.contains("10.1.2.3/16") && said.contains("10.1.0.0/16"));
    }

    #[test]
    fn nobody_can_trust_everybody() {
        for text in ["0.0.0.0/0", "::/0", "::ffff:0.0.0.0/96"] {
            let error = Networks::parse([text]).expect_err(text);
            assert!(
                matches!(&error, InvalidProxies::Everybody { text: said } if said == text),
                "{error}"
            );
        }
    }
}
