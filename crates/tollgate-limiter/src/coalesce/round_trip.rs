//! How long calls take of late.

use std::{
    sync::atomic::{AtomicU64, Ordering::Relaxed},
    time::Duration,
};

/// Taken for usual before the first call has ended: long for a local network.
const UNKNOWN: Duration = Duration::from_millis(5);

/// Longer times say more of a caller that has stopped than of the network.
const LONGEST: u64 = 1_000_000;

/// So many calls are remembered by their longest. Slowness that is rarer than one call in a hundred may be
/// forgotten: that it strikes twice in a row is then rarer than once in ten thousand.
const WINDOW: u64 = 64;

/// The mean of the calls' times, of which the latest counts an eighth, and the longest of the last 64 to 128.
///
/// The mean says when a call may be expected to end, the longest what has to be allowed for. Neither needs a
/// lock: calls that end at the same instant may count as one.
#[derive(Debug, Default)]
pub(super) struct RoundTrip {
    /// How many calls have ended.
    calls: AtomicU64,
    /// In microseconds, as all below.
    mean: AtomicU64,
    longest: AtomicU64,
    /// In the window before.
    longest_before: AtomicU64,
}

impl RoundTrip {
    /// What a call takes on the average.
    pub(super) fn usual(&self) -> Duration {
        match self.mean.load(Relaxed) {
            0 => UNKNOWN,
            mean => Duration::from_micros(mean),
        }
    }

    /// What few calls exceed; `None` before the first has ended.
    pub(super) fn long(&self) -> Option<Duration> {
        let longest = self.longest.load(Relaxed);
        let longest = longest.max(self.longest_before.load(Relaxed));
        (longest > 0).then(|| Duration::from_micros(longest))
    }

    /// A call took so long.
    pub(super) fn observe(&self, time: Duration) {
        // At least 1, since 0 means that nothing is known.
        let time = u64::try_from(time.as_micros()).unwrap_or(LONGEST);
        let time = time.clamp(1, LONGEST);
        let mean = match self.mean.load(Relaxed) {
            0 => time,
            mean => (7 * mean + time) / 8,
        };
        self.mean.store(mean.max(1), Relaxed);
        if self.calls.fetch_add(1, Relaxed).is_multiple_of(WINDOW) {
            let before = self.longest.swap(time, Relaxed);
            self.longest_before.store(before, Relaxed);
        } else {
            self.longest.fetch_max(time, Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn millis(millis: u64) -> Duration {
        Duration::from_millis(millis)
    }

    #[test]
    fn a_steady_network_is_known_to_be_steady() {
        let round_trip = RoundTrip::default();
        assert_eq!((round_trip.usual(), round_trip.long()), (UNKNOWN, None));
        for _ in 0..200 {
            round_trip.observe(millis(2));
            let known = (round_trip.usual(), round_trip.long());
            assert_eq!(known, (millis(2), Some(millis(2))));
        }
    }

    #[test]
    fn a_rare_long_time_is_remembered_and_hardly_changes_the_mean() {
        let round_trip = RoundTrip::default();
        for call in 1..2_000 {
            round_trip.observe(millis(if call % 50 == 0 { 18 } else { 3 }));
            assert!(round_trip.usual() < millis(5));
            let long = millis(if call < 50 { 3 } else { 18 });
            assert_eq!(round_trip.long(), Some(long));
        }
    }

    #[test]
    fn slowness_that_has_ended_is_forgotten() {
        let round_trip = RoundTrip::default();
        for _ in 0..50 {
            round_trip.observe(millis(20));
        }
        for _ in 0..128 {
            round_trip.observe(millis(1));
        }
        assert_eq!(round_trip.long(), Some(millis(1)));
        assert!(round_trip.usual() < Duration::from_micros(1_010));
    }

    #[test]
    fn absurd_times_do_no_harm() {
        let round_trip = RoundTrip::default();
        for time in [Duration::MAX, Duration::ZERO, Duration::MAX] {
            round_trip.observe(time);
            assert!(round_trip.usual() <= millis(1_000));
            assert_eq!(round_trip.long(), Some(millis(1_000)));
        }
    }
}
