//! What one request takes.

use crate::quota::MAX_TOKENS;

/// Tokens that one request takes from a limit: a whole number from 0 (free) to 10^12.
///
/// A cost of 0 only reads the bucket. As a request extension, set by middleware outside of the limiter,
/// it overrides the cost of the route.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Cost(u64);

impl Cost {
    /// Takes nothing, only reads the bucket.
    pub const FREE: Self = Self(0);
    /// What a request costs unless something else is said.
    pub const ONE: Self = Self(1);

    /// A cost of `tokens`. For more than `u32` holds, see the `TryFrom<u64>` implementation.
    #[must_use]
    pub const fn new(tokens: u32) -> Self {
        Self(tokens as u64)
    }

    /// The number of tokens.
    #[must_use]
    pub const fn tokens(self) -> u64 {
        self.0
    }
}

// === impl Cost ===

impl Default for Cost {
    fn default() -> Self {
        Self::ONE
    }
}

impl From<u32> for Cost {
    fn from(tokens: u32) -> Self {
        Self::new(tokens)
    }
}

impl TryFrom<u64> for Cost {
    type Error = CostTooLarge;

    fn try_from(tokens: u64) -> Result<Self, Self::Error> {
        if tokens <= MAX_TOKENS {
            Ok(Self(tokens))
        } else {
            Err(CostTooLarge(tokens))
        }
    }
}

/// A cost above 10^12 tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CostTooLarge(u64);

impl std::fmt::Display for CostTooLarge {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "cost {} is above 10^12 tokens", self.0)
    }
}

impl std::error::Error for CostTooLarge {}
