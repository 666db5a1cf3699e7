//! Waiting for others.

use std::{thread, time::Duration};

use tokio::time::Instant;

/// A cluster takes a few seconds.
const PATIENCE: Duration = Duration::from_secs(60);

/// Waits for what shall be seen soon after it comes to hold.
///
/// # Panics
///
/// If it does not within a minute.
pub(crate) fn until(mut holds: impl FnMut() -> bool) {
    let since = Instant::now();
    while !holds() {
        assert!(since.elapsed() < PATIENCE, "the topology does not heal");
        thread::sleep(Duration::from_millis(10));
    }
}
