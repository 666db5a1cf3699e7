//! Traffic as it was recorded: the same in each process and run.

use std::ops::Range;

/// The tenants, by their numbers.
pub const TENANTS: Range<u64> = 0..64;

/// The tenant of each request, in the order in which they came: few ask often, many ask seldom.
pub fn recorded() -> impl Iterator<Item = u64> {
    let mut random = 42_u64;
    let tenant = move || {
        random = random
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        // Each is half as likely as the one before.
        u64::from(random.leading_zeros()).min(TENANTS.end - 1)
    };
    std::iter::repeat_with(tenant).take(3_000)
}

/// What each request of a tenant costs, from 1 to 3 tokens.
#[must_use]
pub const fn cost(tenant: u64) -> u64 {
    1 + tenant % 3
}
