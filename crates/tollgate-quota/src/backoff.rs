//! How long to leave alone what has failed.

use std::time::Duration;

const FIRST: Duration = Duration::from_secs(1);
const LONGEST: Duration = Duration::from_secs(30);

/// The pause after so many failures in a row: 1 s, 2 s and so on up to 30 s, give or take a fifth, so that those
/// who failed together do not come again together.
pub(crate) fn pause_after(failures: u32) -> Duration {
    let doublings = failures.saturating_sub(1).min(8);
    let pause = FIRST.saturating_mul(1 << doublings).min(LONGEST);
    pause.mul_f64(0.8 + 0.4 * fastrand::f64())
}
