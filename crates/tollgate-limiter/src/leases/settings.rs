//! How leases are sized, and how long they live.

use std::time::Duration;

/// How many requests are paid for ahead of time, and for how long.
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub struct LeaseSettings {
    /// How long claimed tokens may be spent, counted from when the claim was sent. What is left then goes
    /// back to the store. Above 0 and at most a minute; default 1 s.
    pub life: Duration,
    /// A claim is for as many requests as this replica has seen in such a span. Above 0 and at most `life`;
    /// default 500 ms.
    pub target: Duration,
    /// A claim takes at most this share of the tokens that each of its buckets has left. Above 0 and at most
    /// 1; default 0.1. A share that does not pay for three requests is not claimed at all, so by default
    /// a bucket with less than thirty requests left is asked for each single one.
    pub share: f64,
    /// A claim is for at most so many requests. From 3 to 10^12; default 1000.
    pub largest_batch: u64,
    /// So many sets of buckets are watched at most, in about half a kilobyte each; the requests of others
    /// are passed on one by one. At least 1; default 100 000.
    pub max_sets: usize,
}

/// Tokens that were claimed a minute ago say nothing about now.
const LONGEST_LIFE: Duration = Duration::from_secs(60);

impl LeaseSettings {
    /// A claim and what it gives back are two calls: for fewer requests than this they spare none.
    pub(super) const SMALLEST_BATCH: u64 = 3;

    /// What is wrong with the settings, by field.
    pub(crate) fn fault(&self) -> Option<&'static str> {
        if self.life.is_zero() || self.life > LONGEST_LIFE {
            Some("`life` must be above 0 and at most a minute")
        } else if self.target.is_zero() || self.target > self.life {
            Some("`target` must be above 0 and at most `life`")
        } else if !(self.share > 0.0 && self.share <= 1.0) {
            Some("`share` must be above 0 and at most 1")
        } else if !(Self::SMALLEST_BATCH..=1_000_000_000_000).contains(&self.largest_batch) {
            Some("`largest_batch` must be from 3 to 10^12")
        } else if self.max_sets == 0 {
            Some("`max_sets` must be at least 1")
        } else {
            None
        }
    }
}

// === impl LeaseSettings ===

impl Default for LeaseSettings {
    fn default() -> Self {
        Self {
            life: Duration::from_secs(1),
            target: Duration::from_millis(500),
            share: 0.1,
            largest_batch: 1_000,
            max_sets: 100_000,
        }
    }
}
