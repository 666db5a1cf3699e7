//! What is asked of whom.

use std::time::Duration;

/// One pattern of requests, and the variants that meet it.
pub(crate) struct Load {
    pub(crate) name: &'static str,
    pub(crate) about: &'static str,
    /// For `load.lua`.
    pub(crate) shape: &'static str,
    pub(crate) tenants: u32,
    pub(crate) connections: u32,
    /// The quota of each tenant: tokens, and tokens per second.
    pub(crate) capacity: u64,
    pub(crate) rate: u64,
    pub(crate) redis: Redis,
    /// Whether tenants have accounts that Tollgate looks up.
    pub(crate) has_accounts: bool,
    /// How long the first round is preceded by the same load, beyond what precedes each.
    pub(crate) warm_up: Duration,
    /// Names, and `*8` for eight limits in place of one. The floor is among them.
    pub(crate) variants: &'static [&'static str],
}

/// Where the app finds Redis.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Redis {
    Near,
    /// Behind a proxy that holds each reply back for 2 ms.
    Far,
    /// On a port that refuses.
    Gone,
}

/// What no limiter costs.
pub(crate) const FLOOR: &str = "bare";

/// Not a service, but the bare call on one connection: what the network and the script take.
pub(crate) const RAW: &str = "raw-evalsha";

/// The limiters of others that hold the same bound, in Redis, for a fleet.
pub(crate) const EXACT_PEERS: [&str; 3] = [
    "tower-rate-limit-fred",
    "tower-rate-limit-redis",
    "tower-rate-limiter",
];

/// What a variant enforces, where that is less than one exact limit for the fleet.
pub(crate) fn caveat(variant: &str) -> &'static str {
    match variant {
        "bare" => "no limit",
        "fields-alone" => "no limit; the header fields of one",
        "refusal-alone" => "nothing is decided; the response to a rejected request",
        "tower-governor" => "each process for itself",
        "limitador-memory" => "each process for itself; fixed windows",
        "limitador-redis" => "fixed windows; asks and counts in two calls",
        "limitador-cached" => "fixed windows; counts of others up to a second late",
        "raw-evalsha" => "the call alone, without a service",
        _ if variant.contains("memory") => "each process for itself",
        _ if variant.contains("local") => "Redis is gone: each process for itself",
        _ if variant.contains("leases") => "the bound, and what is leased",
        _ => "",
    }
}

/// The tokens of one tenant that one process may have leased.
pub(crate) fn excess(variant: &str, capacity: u64) -> f64 {
    if variant.contains("leases") {
        // At most five quarters of a claim, which is for a tenth of what is left, and for a thousand.
        1.25 * (capacity as f64 / 10.0).min(1_000.0)
    } else {
        0.0
    }
}

/// Whether it tells Redis later what it has decided.
pub(crate) fn leaves_work(variant: &str) -> bool {
    variant.contains("leases") || variant.contains("cached")
}

/// Whether more than the bound is a fault of the variant, and not what it says of itself.
pub(crate) fn holds_bound(variant: &str) -> bool {
    !variant.starts_with("limitador") && ![FLOOR, RAW, "fields-alone"].contains(&variant)
}

/// What most have in common.
const PLAIN: Load = Load {
    name: "",
    about: "",
    shape: "even",
    tenants: 1_000,
    connections: 64,
    capacity: 60_000,
    rate: 1_000,
    redis: Redis::Near,
    has_accounts: false,
    warm_up: Duration::ZERO,
    variants: &[],
};

pub(crate) const LOADS: &[Load] = &[
    Load {
        name: "even",
        about: "1 000 tenants alike, all allowed",
        variants: &[
            FLOOR,
            "fields-alone",
            "by-hand",
            "tower-governor",
            "tower-rate-limit-fred",
            "tower-rate-limit-redis",
            "tower-rate-limiter",
            "limitador-memory",
            "limitador-redis",
            "limitador-cached",
            "tollgate",
            "tollgate-headerless",
            "tollgate-metrics",
            "tollgate-plain",
            "tollgate-redisrs",
            "tollgate-leases",
            "tollgate-leases-headerless",
            "tollgate-memory",
            "tollgate-memory-headerless",
        ],
        ..PLAIN
    },
    Load {
        name: "hot",
        about: "one tenant, all allowed",
        tenants: 1,
        capacity: 1_000_000_000,
        rate: 1_000_000,
        variants: &[
            FLOOR,
            "by-hand",
            "tower-governor",
            "tower-rate-limit-fred",
            "tower-rate-limiter",
            "limitador-cached",
            "tollgate",
            "tollgate-plain",
            "tollgate-redisrs",
            "tollgate-leases-headerless",
        ],
        ..PLAIN
    },
    Load {
        name: "zipf",
        about: "10 000 tenants, the n-th with 1/n of the first one's requests, all allowed",
        shape: "zipf",
        tenants: 10_000,
        variants: &[
            FLOOR,
            "by-hand",
            "tower-rate-limit-redis",
            "tollgate",
            "tollgate-redisrs",
            "tollgate-leases-headerless",
        ],
        ..PLAIN
    },
    Load {
        name: "rejected",
        about: "1 000 tenants alike, each with two tokens per second: about 95 of 100 rejected",
        // They all refill in step, so a round is a multiple of half a second.
        capacity: 1,
        rate: 2,
        variants: &[
            FLOOR,
            "refusal-alone",
            "by-hand",
            "tower-governor",
            "tower-rate-limit-fred",
            "tower-rate-limit-redis",
            "tower-rate-limiter",
            "limitador-memory",
            "limitador-redis",
            "limitador-cached",
            "tollgate",
            "tollgate-metrics",
            "tollgate-plain",
            "tollgate-redisrs",
            "tollgate-memory-headerless",
        ],
        ..PLAIN
    },
    Load {
        name: "attack",
        about: "99 of 100 requests from one tenant of 1 001, which is over its limit",
        shape: "one",
        tenants: 1_001,
        capacity: 100,
        rate: 50,
        variants: &[
            FLOOR,
            "by-hand",
            "tower-rate-limit-fred",
            "tower-rate-limit-redis",
            "limitador-cached",
            "tollgate",
            "tollgate-plain",
        ],
        ..PLAIN
    },
    Load {
        name: "accounts",
        about: "100 000 tenants alike, each with an account that is looked up and cached, all allowed",
        shape: "each",
        tenants: 100_000,
        has_accounts: true,
        warm_up: Duration::from_secs(6),
        variants: &[FLOOR, "by-hand", "tollgate", "tollgate-memory-headerless"],
        ..PLAIN
    },
    Load {
        name: "far",
        about: "1 000 tenants alike, all allowed, Redis 2 ms away",
        redis: Redis::Far,
        connections: 128,
        variants: &[
            FLOOR,
            "by-hand",
            "tower-rate-limit-redis",
            "tollgate",
            "tollgate-redisrs",
            "tollgate-leases-headerless",
        ],
        ..PLAIN
    },
    Load {
        name: "gone",
        about: "1 000 tenants alike, all allowed, no Redis: the circuit breaker is open",
        redis: Redis::Gone,
        variants: &[FLOOR, "tollgate-local", "tollgate-local-headerless"],
        ..PLAIN
    },
    Load {
        name: "eight",
        about: "1 000 tenants alike, eight limits in each check, all allowed",
        variants: &[FLOOR, "by-hand", "by-hand*8", "tollgate", "tollgate*8"],
        ..PLAIN
    },
    Load {
        name: "alone",
        about: "one connection, so that nothing is shared",
        connections: 1,
        variants: &[
            FLOOR,
            RAW,
            "by-hand",
            "tollgate-headerless",
            "tollgate",
            "tollgate-redisrs",
        ],
        ..PLAIN
    },
];

/// The name and the number of limits in a name such as `tollgate*8`.
pub(crate) fn limits_of(variant: &str) -> (&str, usize) {
    match variant.split_once('*') {
        Some((name, limits)) => (name, limits.parse().expect("a number")),
        None => (variant, 1),
    }
}
