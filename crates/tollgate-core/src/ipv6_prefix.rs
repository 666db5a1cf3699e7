//! How much of an IPv6 address tells one subscriber from another.

use std::{fmt, net::Ipv6Addr};

/// The length of the prefix by which IPv6 addresses are told apart: 1 to 128 bits, by default 64.
///
/// A /64 is the least that one subscriber is given, and whoever has it can send from any of its addresses
/// ([RFC 6177]); many are given a /56 or a /48. The shorter the prefix, the more neighbours share a bucket;
/// the longer, the more buckets one subscriber has. Above 64, nearly everyone has as many as they like.
///
/// [RFC 6177]: https://www.rfc-editor.org/rfc/rfc6177
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Ipv6Prefix(u8);

impl Ipv6Prefix {
    /// A prefix of so many bits.
    ///
    /// # Errors
    ///
    /// If it is 0, which would be one bucket for everybody, or more than 128.
    pub const fn new(bits: u8) -> Result<Self, InvalidIpv6Prefix> {
        match bits {
            1..=128 => Ok(Self(bits)),
            _ => Err(InvalidIpv6Prefix(bits)),
        }
    }

    /// The length in bits.
    #[must_use]
    pub const fn bits(self) -> u8 {
        self.0
    }

    /// The first address of the network that `address` is in.
    pub(crate) const fn network(self, address: Ipv6Addr) -> Ipv6Addr {
        let mask = u128::MAX << (128 - self.0);
        Ipv6Addr::from_bits(address.to_bits() & mask)
    }
}

// === impl Ipv6Prefix ===

impl Default for Ipv6Prefix {
    /// 64 bits.
    fn default() -> Self {
        Self(64)
    }
}

/// A length of a prefix that is not 1 to 128 bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InvalidIpv6Prefix(u8);

impl fmt::Display for InvalidIpv6Prefix {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "an IPv6 prefix of {} bits cannot tell callers apart; use 1 to 128, such as 64",
            self.0
        )
    }
}

impl std::error::Error for InvalidIpv6Prefix {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_prefix_has_1_to_128_bits() {
        for good in [1, 64, 128] {
            assert_eq!(Ipv6Prefix::new(good).map(Ipv6Prefix::bits), Ok(good));
        }
        for bad in [0, 129, 255] {
            assert_eq!(Ipv6Prefix::new(bad), Err(InvalidIpv6Prefix(bad)));
        }
        assert_eq!(Ipv6Prefix::default().bits(), 64);
    }

    #[test]
    fn a_network_keeps_the_leading_bits_alone() {
        let ones = Ipv6Addr::from_bits(u128::MAX);
        for (bits, network) in [
            (1, "8000::"),
            (33, "ffff:ffff:8000::"),
            (56, "ffff:ffff:ffff:ff00::"),
            (64, "ffff:ffff:ffff:ffff::"),
            (127, "ffff:ffff:ffff:ffff:ffff:ffff:ffff:fffe"),
            (128, "ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff"),
        ] {
            let prefix = Ipv6Prefix::new(bits).expect("a prefix");
            assert_eq!(prefix.network(ones).to_string(), network, "/{bits}");
        }
    }
}
