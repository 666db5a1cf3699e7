//! Who may spend how much.

use std::collections::HashMap;

use tollgate_core::{Quota, Tenant};

/// The key class of tenants without a tier of their own, in metrics.
pub const DEFAULT_CLASS: &str = "default";

/// The quotas of all tenants: an override for one tenant, else the tier of its key class, else the default.
///
/// ```
/// use tollgate_core::{Quota, Tenant};
/// use tollgate_limiter::Quotas;
///
/// let quotas = Quotas::new(Quota::new(20, "2/s")?)
///     .tier("pro", Quota::new(200, "50/s")?)
///     .tenant("acme", Quota::new(10_000, "1000/s")?);
///
/// assert_eq!(quotas.of(&Tenant::new("acme", "pro")?).capacity(), 10_000);
/// assert_eq!(quotas.of(&Tenant::new("42", "pro")?).capacity(), 200);
/// assert_eq!(quotas.of(&Tenant::new("42", "trial")?).capacity(), 20);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
#[must_use]
pub struct Quotas {
    default: Quota,
    tiers: HashMap<String, Quota>,
    tenants: HashMap<String, Quota>,
}

impl Quotas {
    /// The same quota for everyone, unless more is said.
    pub fn new(default: Quota) -> Self {
        Self {
            default,
            tiers: HashMap::new(),
            tenants: HashMap::new(),
        }
    }

    /// Gives tenants of `key_class` a quota of their own; a second call for a class replaces the first.
    ///
    /// Callers limited by their address have the class [`ANONYMOUS`](tollgate_core::ANONYMOUS).
    pub fn tier(mut self, key_class: impl Into<String>, quota: Quota) -> Self {
        self.tiers.insert(key_class.into(), quota);
        self
    }

    /// Gives the tenant `id` a quota of its own; a second call for a tenant replaces the first. Callers known only by their address
    /// are not tenants in this sense.
    pub fn tenant(mut self, id: impl Into<String>, quota: Quota) -> Self {
        self.tenants.insert(id.into(), quota);
        self
    }

    /// The quota of `tenant`.
    #[must_use]
    pub fn of(&self, tenant: &Tenant) -> Quota {
        let own = if tenant.is_anonymous() {
            None
        } else {
            self.tenants.get(tenant.id())
        };
        *own.or_else(|| self.tiers.get(tenant.key_class()))
            .unwrap_or(&self.default)
    }

    /// The largest capacity that any tenant has: a request that costs more can never be served.
    #[must_use]
    pub fn largest_capacity(&self) -> u64 {
        let all = self.tiers.values().chain(self.tenants.values());
        all.map(Quota::capacity)
            .fold(self.default.capacity(), u64::max)
    }

    /// The key class of `tenant` for metrics: its own if there is such a tier, else [`DEFAULT_CLASS`]. So
    /// the set of label values is the one written here, whatever is in the tokens that callers bring.
    #[must_use]
    pub fn label(&self, tenant: &Tenant) -> &str {
        self.tiers
            .get_key_value(tenant.key_class())
            .map_or(DEFAULT_CLASS, |(class, _)| class)
    }

    /// Every value that [`label`](Self::label) can have.
    pub fn labels(&self) -> impl Iterator<Item = &str> {
        self.tiers.keys().map(String::as_str).chain([DEFAULT_CLASS])
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use super::*;

    fn quota(capacity: u64) -> Quota {
        Quota::new(capacity, 1).expect("a quota")
    }

    fn tenant(id: &str, class: &str) -> Tenant {
        Tenant::new(id, class).expect("an id")
    }

    #[test]
    fn the_most_specific_quota_wins() {
        let quotas = Quotas::new(quota(1))
            .tier("pro", quota(2))
            .tenant("vip", quota(3));
        assert_eq!(quotas.of(&tenant("vip", "pro")), quota(3));
        assert_eq!(quotas.of(&tenant("x", "pro")), quota(2));
        assert_eq!(quotas.of(&tenant("x", "unheard-of")), quota(1));
        assert_eq!(quotas.largest_capacity(), 3);
    }

    #[test]
    fn an_address_cannot_claim_a_tenants_override() {
        let quotas = Quotas::new(quota(1))
            .tenant("127.0.0.1", quota(3))
            .tier("anonymous", quota(2));
        assert_eq!(
            quotas.of(&Tenant::anonymous(Ipv4Addr::LOCALHOST.into())),
            quota(2)
        );
    }

    #[test]
    fn labels_are_the_configured_ones_whatever_tokens_say() {
        let quotas = Quotas::new(quota(1)).tier("pro", quota(2));
        assert_eq!(quotas.label(&tenant("x", "pro")), "pro");
        assert_eq!(quotas.label(&tenant("x", "x-4711")), "default");
    }
}
