//! Who pays.

use std::{fmt, net::IpAddr, sync::Arc};

use crate::Ipv6Prefix;

/// Who pays for a request: a customer, API key, user or partner.
///
/// Always made from something verified, such as the claims of a token whose signature was checked; never
/// from a header that a client can set. Ids are compared byte by byte: `ACME` and `acme` are two tenants,
/// and so are two Unicode forms of one name.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct Tenant {
    scope: Scope,
    key_class: Arc<str>,
    members: Option<Arc<[Member]>>,
}

/// Who within a tenant makes a request: a kind and an id.
type Member = (Arc<str>, Arc<str>);

/// Which part of the key space a tenant lives in, so that no verified id can collide with an address.
#[derive(Clone, PartialEq, Eq, Hash)]
enum Scope {
    Tenant(Arc<str>),
    Anonymous(Arc<str>),
}

/// The key class of callers without an identity that are limited by their address.
pub const ANONYMOUS: &str = "anonymous";

impl Tenant {
    /// A tenant with a verified `id` and a key class: the kind of tenant (`pro`, `free`), which selects the
    /// tier and is the only part that reaches metric labels.
    ///
    /// # Errors
    ///
    /// If the id is empty: a missing identity must not become one bucket for all.
    pub fn new(id: impl Into<Arc<str>>, key_class: impl Into<Arc<str>>) -> Result<Self, EmptyId> {
        let id = id.into();
        if id.is_empty() {
            return Err(EmptyId);
        }
        Ok(Self {
            scope: Scope::Tenant(id),
            key_class: key_class.into(),
            members: None,
        })
    }

    /// A caller known only by its network address, in key class [`ANONYMOUS`].
    ///
    /// IPv6 addresses count by their /64: see [`Ipv6Prefix`]. IPv4-mapped IPv6 addresses count as IPv4.
    #[must_use]
    pub fn anonymous(address: IpAddr) -> Self {
        Self::anonymous_in(address, Ipv6Prefix::default())
    }

    /// As [`anonymous`](Self::anonymous), with IPv6 addresses counting by another prefix.
    ///
    /// The prefix is part of the id, so another one means other buckets.
    #[must_use]
    pub fn anonymous_in(address: IpAddr, prefix: Ipv6Prefix) -> Self {
        let id = match address.to_canonical() {
            IpAddr::V4(v4) => v4.to_string(),
            IpAddr::V6(v6) => format!("{}/{}", prefix.network(v6), prefix.bits()),
        };
        Self {
            scope: Scope::Anonymous(id.into()),
            key_class: ANONYMOUS.into(),
            members: None,
        }
    }

    /// Names who within the tenant makes the request, by a `kind` such as `user` and a verified `id`, for
    /// limits per member. A second call for a kind replaces the first.
    ///
    /// # Errors
    ///
    /// If the id is empty.
    pub fn with_member(
        mut self,
        kind: impl Into<Arc<str>>,
        id: impl Into<Arc<str>>,
    ) -> Result<Self, EmptyId> {
        let (kind, id) = (kind.into(), id.into());
        if id.is_empty() {
            return Err(EmptyId);
        }
        let others = self.members().iter();
        let others = others.filter(|(other, _)| *other != kind).cloned();
        self.members = Some(others.chain([(kind.clone(), id)]).collect());
        Ok(self)
    }

    /// The id of the member of this kind who makes the request, if it was named.
    #[must_use]
    pub fn member(&self, kind: &str) -> Option<&str> {
        let mut members = self.members().iter();
        members.find(|(own, _)| **own == *kind).map(|(_, id)| &**id)
    }

    /// Each kind of member that was named, and its id.
    #[must_use]
    pub fn members(&self) -> &[(Arc<str>, Arc<str>)] {
        self.members.as_deref().unwrap_or_default()
    }

    /// The id: as given, or the address of an anonymous caller.
    #[must_use]
    pub fn id(&self) -> &str {
        match &self.scope {
            Scope::Tenant(id) | Scope::Anonymous(id) => id,
        }
    }

    /// The kind of tenant.
    #[must_use]
    pub fn key_class(&self) -> &str {
        &self.key_class
    }

    /// Whether this is a caller known only by its address.
    #[must_use]
    pub const fn is_anonymous(&self) -> bool {
        matches!(self.scope, Scope::Anonymous(_))
    }
}

// === impl Tenant ===

impl fmt::Debug for Tenant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // An id may be personal or a secret; it does not belong into logs by accident.
        f.debug_struct("Tenant")
            .field("key_class", &self.key_class)
            .finish_non_exhaustive()
    }
}

/// A tenant id without a byte.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EmptyId;

impl fmt::Display for EmptyId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a tenant's id is empty; treat the request as one without an identity")
    }
}

impl std::error::Error for EmptyId {}

#[cfg(test)]
mod tests {
    use super::*;

    fn anonymous(address: &str) -> Tenant {
        Tenant::anonymous(address.parse().expect("an address"))
    }

    #[test]
    fn an_empty_id_is_no_tenant() {
        assert_eq!(Tenant::new("", "pro"), Err(EmptyId));
    }

    #[test]
    fn addresses_count_by_subscriber() {
        assert_eq!(
            anonymous("2001:db8:1:2:3::4"),
            anonymous("2001:db8:1:2:ffff::1")
        );
        assert_ne!(anonymous("2001:db8:1:2::1"), anonymous("2001:db8:1:3::1"));
        assert_eq!(anonymous("::ffff:192.0.2.7"), anonymous("192.0.2.7"));
        assert_ne!(anonymous("192.0.2.8"), anonymous("192.0.2.7"));
    }

    #[test]
    fn addresses_count_by_the_prefix_that_is_asked_for() {
        let id = |address: &str, bits| {
            let prefix = Ipv6Prefix::new(bits).expect("a prefix");
            let address = address.parse().expect("an address");
            Tenant::anonymous_in(address, prefix).id().to_owned()
        };
        assert_eq!(id("2001:db8:1:2ff:3::4", 56), "2001:db8:1:200::/56");
        assert_eq!(id("2001:db8::1", 128), "2001:db8::1/128");
        assert_eq!(id("2001:db8::1", 1), "::/1");
        // The length is one of IPv6 alone.
        assert_eq!(id("192.0.2.7", 1), "192.0.2.7");
        assert_eq!(id("::ffff:192.0.2.7", 1), "192.0.2.7");
        assert_eq!(anonymous("2001:db8:1:2:3::4").id(), "2001:db8:1:2::/64");
    }

    #[test]
    fn an_id_that_looks_like_an_address_is_another_tenant() {
        assert_ne!(
            Tenant::new("192.0.2.7", ANONYMOUS),
            Ok(anonymous("192.0.2.7"))
        );
    }

    #[test]
    fn debug_output_keeps_the_id_to_itself() {
        let tenant = Tenant::new("alice@example.com", "free").expect("an id");
        assert!(!format!("{tenant:?}").contains("alice"));
    }
}
