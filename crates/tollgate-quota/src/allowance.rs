//! What one limit lets one tenant spend.

use tollgate_core::Quota;

/// What one limit lets one tenant spend.
///
/// Unlimited and blocked are words of their own: no number means either.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Allowance {
    /// A bucket of this quota.
    Limited(Quota),
    /// The limit does not apply.
    Unlimited,
    /// Nothing: every request that the limit covers is denied, without a look at the store.
    Blocked,
}

impl Allowance {
    /// The most tokens that one request may take; 0 when blocked.
    #[must_use]
    pub const fn largest_cost(&self) -> u64 {
        match self {
            Self::Limited(quota) => quota.capacity(),
            Self::Unlimited => u64::MAX,
            Self::Blocked => 0,
        }
    }
}

// === impl Allowance ===

impl From<Quota> for Allowance {
    fn from(quota: Quota) -> Self {
        Self::Limited(quota)
    }
}
