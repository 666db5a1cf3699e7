//! Where in-process stores take the time from.

#![expect(
    clippy::disallowed_types,
    reason = "the one place that wraps the system's clock"
)]

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Instant,
};

/// A clock in whole milliseconds since some fixed instant, as Redis's own expiry clock is.
pub trait Clock: Send + Sync + 'static {
    /// Milliseconds since an instant that stays the same for this clock.
    fn now(&self) -> u64;
}

/// The operating system's monotonic clock.
#[derive(Clone, Copy, Debug)]
pub struct MonotonicClock {
    start: Instant,
}

impl Default for MonotonicClock {
    fn default() -> Self {
        Self {
            start: Instant::now(),
        }
    }
}

impl Clock for MonotonicClock {
    fn now(&self) -> u64 {
        let elapsed = self.start.elapsed();
        elapsed.as_secs() * 1_000 + u64::from(elapsed.subsec_millis())
    }
}

/// A clock that only moves when told to, for tests. Clones show the same time.
#[derive(Clone, Debug, Default)]
pub struct ManualClock(Arc<AtomicU64>);

impl ManualClock {
    /// Moves the clock to `millis`, forward or back.
    pub fn set(&self, millis: u64) {
        self.0.store(millis, Ordering::SeqCst);
    }

    /// Moves the clock forward.
    pub fn advance(&self, millis: u64) {
        self.0.fetch_add(millis, Ordering::SeqCst);
    }
}

impl Clock for ManualClock {
    fn now(&self) -> u64 {
        self.0.load(Ordering::SeqCst)
    }
}
