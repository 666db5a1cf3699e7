//! What was admitted, against the bound.

use tollgate_core::Quota;

/// The most that any span of time had above `rate × T`.
pub(crate) struct Meter {
    quota: Quota,
    level: f64,
    at: u64,
    peak: f64,
}

impl Meter {
    pub(crate) const fn new(quota: Quota) -> Self {
        Self {
            quota,
            level: 0.0,
            at: 0,
            peak: 0.0,
        }
    }

    /// A token was spent at `at`, not before the one before it.
    #[expect(clippy::cast_precision_loss, reason = "milliseconds of a day")]
    pub(crate) fn spent(&mut self, at: u64) {
        let refilled = (at - self.at) as f64 * self.quota.rate().per_second() / 1_000.0;
        self.level = (self.level - refilled).max(0.0) + 1.0;
        self.at = at;
        self.peak = self.peak.max(self.level);
    }

    /// How many tokens above `capacity + rate × T` were spent in the worst span.
    #[expect(clippy::cast_precision_loss, reason = "a small capacity")]
    pub(crate) fn excess(&self) -> f64 {
        // The rounding of so many sums.
        let excess = self.peak - self.quota.capacity() as f64;
        if excess < 1e-3 { 0.0 } else { excess }
    }
}
