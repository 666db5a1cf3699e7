//! How much is asked for.

use std::time::Duration;

use tokio::time::Instant;

/// How many requests came in the last interval, from two counters.
pub(super) struct Demand {
    interval: Duration,
    /// When the interval that is counted now ends.
    ends: Instant,
    current: u32,
    previous: u32,
}

impl Demand {
    pub(super) fn new(interval: Duration, now: Instant) -> Self {
        Self {
            interval,
            ends: now + interval,
            current: 0,
            previous: 0,
        }
    }

    pub(super) fn count(&mut self, now: Instant) {
        if now >= self.ends + self.interval {
            *self = Self::new(self.interval, now);
        } else if now >= self.ends {
            self.ends += self.interval;
            self.previous = self.current;
            self.current = 0;
        }
        self.current = self.current.saturating_add(1);
    }

    /// No fewer than [`recent`](Self::recent), whenever that is asked for.
    pub(super) fn at_most(&self) -> u64 {
        u64::from(self.current) + u64::from(self.previous)
    }

    /// The requests of the interval up to `now`, as of the last that was counted: the ones of the interval
    /// before count as if they had come evenly.
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "a share of a count"
    )]
    pub(super) fn recent(&self, now: Instant) -> u64 {
        let share = self
            .ends
            .duration_since(now)
            .div_duration_f64(self.interval);
        u64::from(self.current) + (f64::from(self.previous) * share) as u64
    }

    /// Whether a whole interval has passed without a request.
    pub(super) fn is_over(&self, now: Instant) -> bool {
        now >= self.ends + self.interval
    }
}
