//! How long calls take of late.

use std::{
    sync::atomic::{AtomicU64, Ordering},
    time::Duration,
};

/// Taken for usual before the first call has ended: long for a local network, a fifth of a limiter's default
/// deadline.
const UNKNOWN: Duration = Duration::from_millis(5);

/// A moving estimate, made as TCP makes its own (RFC 6298): mean and mean deviation of the calls' times, of
/// which the latest counts an eighth and a quarter.
///
/// It follows a network that has become slow from the first slow call on, and believes in a fast one only
/// after several.
#[derive(Debug, Default)]
pub(super) struct RoundTrip {
    /// Both in microseconds, the mean in the upper half; 0 if nothing is known. One number, so that it needs
    /// no lock. Two calls that end at the same instant may count as one.
    packed: AtomicU64,
}

impl RoundTrip {
    /// A time that few calls exceed: the mean and four times the mean deviation.
    pub(super) fn usual(&self) -> Duration {
        match self.packed.load(Ordering::Relaxed) {
            0 => UNKNOWN,
            packed => {
                let (mean, deviation) = unpack(packed);
                Duration::from_micros(mean + 4 * deviation)
            }
        }
    }

    /// A call took so long.
    pub(super) fn observe(&self, time: Duration) {
        // At least 1, since 0 means that nothing is known; at most an hour, far from any overflow.
        let time = u64::try_from(time.as_micros()).unwrap_or(u64::MAX);
        let time = time.clamp(1, 3_600_000_000);
        let (mean, deviation) = match self.packed.load(Ordering::Relaxed) {
            0 => (time, time / 2),
            packed => {
                let (mean, deviation) = unpack(packed);
                let off = mean.abs_diff(time);
                ((7 * mean + time) / 8, (3 * deviation + off) / 4)
            }
        };
        self.packed
            .store(mean.max(1) << 32 | deviation, Ordering::Relaxed);
    }
}

const fn unpack(packed: u64) -> (u64, u64) {
    (packed >> 32, packed & 0xffff_ffff)
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
        assert_eq!(round_trip.usual(), UNKNOWN);
        round_trip.observe(millis(2));
        assert_eq!(round_trip.usual(), millis(6));
        for _ in 0..50 {
            round_trip.observe(millis(2));
        }
        assert!(round_trip.usual() >= millis(2));
        assert!(round_trip.usual() < millis(2) + Duration::from_micros(20));
    }

    #[test]
    fn slowness_is_believed_at_once_and_speed_after_a_while() {
        let round_trip = RoundTrip::default();
        for _ in 0..50 {
            round_trip.observe(millis(1));
        }
        round_trip.observe(millis(20));
        assert!(round_trip.usual() > millis(20));
        round_trip.observe(millis(1));
        assert!(round_trip.usual() > millis(15));
        for _ in 0..50 {
            round_trip.observe(millis(1));
        }
        assert!(round_trip.usual() < millis(2));
    }

    #[test]
    fn absurd_times_do_no_harm() {
        let round_trip = RoundTrip::default();
        for time in [Duration::MAX, Duration::ZERO, Duration::MAX] {
            round_trip.observe(time);
            assert!(round_trip.usual() <= millis(5 * 3_600_000));
        }
    }
}
