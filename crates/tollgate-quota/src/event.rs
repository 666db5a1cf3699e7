//! What happens to quotas, for metrics.

use std::{sync::Arc, time::Duration};

/// What happens to quotas on their way to a limiter.
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub enum QuotaEvent {
    /// A source was asked for an account.
    Loaded {
        /// Its name.
        source: &'static str,
        /// Whether it answered.
        ok: bool,
    },
    /// A tenant seen for the first time was decided by its tier or the default, because a source gave no
    /// answer in time.
    Unknown,
    /// A source fails that was last heard so long ago, or was opened then and never heard; of several, the longest
    /// time. Zero once every source has answered the last time. Answers that make no sense for one tenant do
    /// not count.
    Stale(Duration),
    /// The limits file was read again, and is in force if `ok`. If not, what was in force stays.
    Reloaded {
        /// Whether it was valid.
        ok: bool,
    },
}

/// Who is told.
pub(crate) type Listener = Arc<dyn Fn(QuotaEvent) + Send + Sync>;
