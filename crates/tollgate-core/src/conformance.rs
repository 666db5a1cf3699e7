//! The rules that every [`Store`] keeps, as a suite that anyone can run against theirs.
//!
//! A store's author implements [`Harness`] and calls [`run`] from a test of their own runtime:
//!
//! ```
//! use std::time::Duration;
//!
//! use tollgate_core::{MemoryStore, Store, conformance::{self, Harness}};
//!
//! struct Memory(MemoryStore);
//!
//! impl Harness for Memory {
//!     fn store(&self) -> &dyn Store {
//!         &self.0
//!     }
//!
//!     async fn sleep(&self, time: Duration) {
//!         std::thread::sleep(time); // In a real test: `tokio::time::sleep(time).await`.
//!     }
//! }
//!
//! # fn main() {
//! # let future = async {
//! conformance::run(&Memory(MemoryStore::new())).await;
//! # };
//! # let mut future = std::pin::pin!(future);
//! # let mut context = std::task::Context::from_waker(std::task::Waker::noop());
//! # while future.as_mut().poll(&mut context).is_pending() {}
//! # }
//! ```
//!
//! 1. Each rule uses tenants of its own, with names that no other run has used, so a server may be shared and
//!    need not be empty. What is left behind are some two hundred small buckets.
//! 2. Rules about time wait for some tens or hundreds of milliseconds of the store's own time. Whatever they
//!    demand is computed from the times measured before and after the calls, so that it holds on a machine
//!    that stalls.
//! 3. Nothing is faked: whether a store keeps to its deadlines and survives its server's failures takes a
//!    server that fails, and is not looked at here.
//! 4. The store must not fail while the suite runs: give it a deadline of some seconds.
//!
//! A store that passes may wrap another one, be sharded or keep its buckets anywhere.

use std::{fmt, sync::OnceLock, time::Duration};

use crate::{Clock, KeySpace, MonotonicClock, Store};

mod adjusting;
mod bench;
mod deciding;
mod naming;
mod passing_time;

use self::bench::Bench;

/// What the suite needs to know of a store.
pub trait Harness: Sync {
    /// The store.
    fn store(&self) -> &dyn Store;

    /// Lets at least so much time pass, for the store as well as for [`now`](Self::now).
    fn sleep(&self, time: Duration) -> impl Future<Output = ()> + Send;

    /// The time since some fixed instant, on a clock that runs as fast as the store's and is read in whole
    /// milliseconds or finer. The system's monotonic clock unless told otherwise, which suits every store
    /// whose clock is a real one, its server's included.
    fn now(&self) -> Duration {
        static CLOCK: OnceLock<MonotonicClock> = OnceLock::new();
        Duration::from_millis(CLOCK.get_or_init(MonotonicClock::default).now())
    }

    /// Where the buckets of the suite live. The store's own keys unless told otherwise.
    fn keys(&self) -> KeySpace {
        self.store().keys()
    }
}

/// A rule that a store does not keep.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Broken {
    /// The rule, as a sentence.
    pub rule: &'static str,
    /// What the store did.
    pub found: String,
}

impl fmt::Display for Broken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.rule, self.found)
    }
}

/// Checks every rule, which takes some seconds of the harness's time.
///
/// # Panics
///
/// If the store breaks one, with a line for each that it breaks.
pub async fn run<H: Harness>(harness: &H) {
    let broken = broken(harness).await;
    let lines: Vec<_> = broken.iter().map(ToString::to_string).collect();
    assert!(
        broken.is_empty(),
        "the store breaks {} of {} rules\n{}",
        broken.len(),
        RULES.len(),
        lines.join("\n")
    );
}

/// The rules that the store breaks, for who wants to judge for themselves.
pub async fn broken<H: Harness>(harness: &H) -> Vec<Broken> {
    let run = bench::draw();
    let mut broken = Vec::new();
    try_all(harness, &run, &mut broken).await;
    broken
}

macro_rules! rules {
    ($($rule:literal => $module:ident::$check:ident,)*) => {
        /// All rules, in the order in which they are tried.
        pub const RULES: &[&str] = &[$($rule),*];

        async fn try_all<H: Harness>(harness: &H, run: &str, broken: &mut Vec<Broken>) {
            $(
                let place = concat!(stringify!($module), "-", stringify!($check));
                let bench = Bench::new(harness, run, place);
                if let Err(found) = $module::$check(&bench).await {
                    broken.push(Broken { rule: $rule, found });
                }
            )*
        }
    };
}

rules! {
    "a bucket that is missing is full" => deciding::missing_is_full,
    "a full bucket holds exactly its capacity" => deciding::capacity_exactly,
    "a cost of 0 only reads" => deciding::free_only_reads,
    "a denial costs nothing" => deciding::denial_costs_nothing,
    "several limits are charged all or none" => deciding::all_or_none,
    "of a count, as many are granted as fit every limit" => deciding::as_many_as_fit,
    "a limit in shadow never blocks, and pays for as many as fit it" => deciding::shadow,
    "a cost above the capacity never fits, and takes nothing" => deciding::never_fits,
    "checks side by side are never granted more than there is" => deciding::side_by_side,
    "what is asked after its deadline and fails is not charged" => deciding::after_the_deadline,
    "a changed quota keeps the tokens, up to the new capacity" => deciding::changed_quota,
    "tokens come back at the rate" => passing_time::refill,
    "a bucket refills up to its capacity" => passing_time::refill_ends,
    "the stated wait suffices, and is no longer than it need be" => passing_time::stated_wait,
    "polling does not delay the refill" => passing_time::polling,
    "in any span, no more is spent than the capacity and the refill" => passing_time::long_run,
    "tokens are given back up to the capacity" => adjusting::give_back,
    "tokens are taken out down to the floor" => adjusting::take_out,
    "a debt is paid off by the refill" => adjusting::debt,
    "an adjustment changes each of its buckets" => adjusting::several,
    "an adjustment after its deadline that fails changes nothing" => adjusting::after_the_deadline,
    "tenants never share a bucket, whatever their ids" => naming::tenants,
    "limits, members, scopes and shards never share a bucket" => naming::buckets,
    "limits and members of one tenant fit one check" => naming::one_tag,
}
