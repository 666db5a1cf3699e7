//! What the benchmarks have in common.

mod chart;
mod machine;
mod processes;
mod progress;
mod proxy;
mod script;
mod server;
mod spread;
mod targets;
mod verdict;

pub use self::{
    chart::{Bar, bars},
    machine::machine,
    processes::{Process, end_on_signals},
    progress::show,
    proxy::DelayProxy,
    script::{Costs, Targets as ScriptTargets},
    server::{Server, Usage, free_port},
    spread::{Spread, number},
    targets::{Bound, Figure, Target, Targets},
    verdict::Verdict,
};

/// The token bucket as it is usually written.
pub const TEXTBOOK: &str = include_str!("../../tests/lua/textbook.lua");

/// That of Tollgate.
pub const TOKEN_BUCKET: &str = include_str!("../../lua/token_bucket.lua");

/// The tenant that the replicas of `bench-scale` share, and its quota.
pub const SHARED: &str = "shared";
pub const SHARED_CAPACITY: u64 = 100;
pub const SHARED_RATE: i32 = 500;

pub type BoxError = Box<dyn std::error::Error + Send + Sync>;
