//! How long to wait between attempts to connect.

use std::time::Duration;

const FIRST: Duration = Duration::from_millis(50);

/// With a fleet of replicas and a server that is away, each tries about once a second. Longer pauses would
/// keep shared limits away for longer after it is back.
const LONGEST: Duration = Duration::from_secs(1);

/// A connection that lasted this long was a good one: the next attempt after it comes at once.
pub(crate) const LASTING: Duration = Duration::from_secs(1);

/// The pauses between attempts: none, then from 50 ms doubling to 1 s, each shortened at random by up to a
/// half, so that a fleet does not come back in step.
///
/// Only a connection that lasts starts them anew. One that is accepted and lost at once, as by a proxy
/// whose server is away, or that leads to a useless server, counts like one that was refused.
#[derive(Debug)]
pub(crate) struct Pauses {
    next: Duration,
}

impl Pauses {
    pub(crate) const fn new() -> Self {
        // The very first attempt waits for nothing, so the first pause comes after it.
        Self { next: FIRST }
    }

    pub(crate) const fn reset(&mut self) {
        self.next = Duration::ZERO;
    }

    pub(crate) fn next_pause(&mut self) -> Duration {
        let pause = self.next;
        self.next = (pause * 2).clamp(FIRST, LONGEST);
        pause.mul_f64(0.5 + 0.5 * fastrand::f64())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_hour_of_failures_takes_two_attempts_a_second_at_most() {
        let mut pauses = Pauses::new();
        let (mut waited, mut attempts) = (Duration::ZERO, 1);
        while waited < Duration::from_secs(3_600) {
            waited += pauses.next_pause();
            attempts += 1;
        }
        assert!((3_600..=7_210).contains(&attempts), "{attempts}");
    }

    #[test]
    fn after_a_good_connection_the_next_comes_at_once_and_then_they_grow_again() {
        let mut pauses = Pauses::new();
        for _ in 0..100 {
            pauses.next_pause();
        }
        pauses.reset();
        assert_eq!(pauses.next_pause(), Duration::ZERO);
        for full in [50, 100, 200, 400, 800, 1_000, 1_000] {
            let full = Duration::from_millis(full);
            let pause = pauses.next_pause();
            assert!(full / 2 <= pause && pause <= full, "{pause:?} of {full:?}");
        }
    }
}
