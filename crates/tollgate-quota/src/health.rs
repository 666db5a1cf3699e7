//! Whether a source may be asked now.

use std::{
    sync::{Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use tokio::time::Instant;

use crate::backoff::pause_after;

/// While somebody else probes a source, one looks again after so long.
const PROBE_SPAN: Duration = Duration::from_secs(1);

/// How a source fares. One that fails is left alone for a while, and then asked for one tenant only: it may fail
/// because it is asked too much.
pub(crate) struct Health(Mutex<State>);

struct State {
    /// When it last answered, or was opened.
    heard: Instant,
    /// Nothing while it answers.
    outage: Option<Outage>,
}

struct Outage {
    failures: u32,
    /// From here on one may probe it.
    until: Instant,
    probed: bool,
}

/// Leave to ask a source once. Dropped, it says nothing about the source.
pub(crate) struct Attempt<'a> {
    health: &'a Health,
    probe: bool,
}

impl Health {
    pub(crate) fn new() -> Self {
        Self(Mutex::new(State {
            heard: Instant::now(),
            outage: None,
        }))
    }

    /// When to come again, if nobody may ask now.
    pub(crate) fn pause(&self) -> Option<Instant> {
        self.lock().outage.as_ref()?.pause()
    }

    /// Leave to ask now, or else when to come again.
    pub(crate) fn attempt(&self) -> Result<Attempt<'_>, Instant> {
        let mut state = self.lock();
        let probe = state.outage.is_some();
        if let Some(outage) = &mut state.outage {
            if let Some(until) = outage.pause() {
                return Err(until);
            }
            outage.probed = true;
        }
        Ok(Attempt {
            health: self,
            probe,
        })
    }

    /// The time since it was last heard, if it fails.
    pub(crate) fn failing_for(&self) -> Option<Duration> {
        let state = self.lock();
        state.outage.as_ref().map(|_| state.heard.elapsed())
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // Nothing in here panics half-way.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Outage {
    fn pause(&self) -> Option<Instant> {
        let now = Instant::now();
        if self.probed {
            Some(now + PROBE_SPAN)
        } else {
            Some(self.until).filter(|until| now < *until)
        }
    }
}

impl Attempt<'_> {
    /// It has answered. Whether it failed before.
    pub(crate) fn succeeded(self) -> bool {
        let mut state = self.health.lock();
        state.heard = Instant::now();
        state.outage.take().is_some()
    }

    /// It has not answered. Whether it did before.
    pub(crate) fn failed(self) -> bool {
        let mut state = self.health.lock();
        let failures = match &state.outage {
            // Others that were under way when it began tell nothing new.
            Some(_) if !self.probe => return false,
            Some(outage) => outage.failures.saturating_add(1),
            None => 1,
        };
        state.outage = Some(Outage {
            failures,
            until: Instant::now() + pause_after(failures),
            probed: false,
        });
        failures == 1
    }
}

impl Drop for Attempt<'_> {
    fn drop(&mut self) {
        if self.probe
            && let Some(outage) = &mut self.health.lock().outage
        {
            outage.probed = false;
        }
    }
}

#[cfg(test)]
mod tests {
    use tokio::time::{advance, sleep_until};

    use super::*;

    fn attempt(health: &Health) -> Attempt<'_> {
        health.attempt().expect("leave")
    }

    #[tokio::test(start_paused = true)]
    async fn pauses_grow_up_to_half_a_minute_and_end_with_a_success() {
        let health = Health::new();
        assert!(attempt(&health).failed());
        let mut pauses = Vec::new();
        for _ in 0..8 {
            let until = health.pause().expect("a pause");
            pauses.push((until - Instant::now()).as_secs_f64());
            assert!(health.attempt().is_err());
            sleep_until(until).await;
            assert!(!attempt(&health).failed());
        }
        for (pause, wanted) in pauses.iter().zip([1.0, 2.0, 4.0, 8.0, 16.0, 30.0, 30.0]) {
            let range = wanted * 0.79..wanted * 1.21;
            assert!(range.contains(pause), "{pause} for {wanted}");
        }
        sleep_until(health.pause().expect("a pause")).await;
        assert!(attempt(&health).succeeded());
        assert!(health.failing_for().is_none());
        assert!(!attempt(&health).succeeded());
        assert!(attempt(&health).failed());
        assert!(health.pause().expect("a pause") < Instant::now() + Duration::from_secs(2));
    }

    #[tokio::test(start_paused = true)]
    async fn one_at_a_time_probes() {
        let health = Health::new();
        let early = [attempt(&health), attempt(&health)];
        assert!(attempt(&health).failed());
        let until = health.pause().expect("a pause");
        for attempt in early {
            assert!(!attempt.failed());
        }
        assert_eq!(health.pause(), Some(until), "one outage, not three");
        sleep_until(until).await;
        let probe = attempt(&health);
        assert!(health.attempt().is_err());
        advance(Duration::from_secs(9)).await;
        assert!(health.attempt().is_err());
        // Given up, or answered with something that says nothing of the source.
        drop(probe);
        assert!(attempt(&health).succeeded());
        assert!(health.attempt().is_ok() && health.pause().is_none());
    }

    #[tokio::test(start_paused = true)]
    async fn it_fails_since_it_was_last_heard() {
        let health = Health::new();
        advance(Duration::from_secs(5)).await;
        attempt(&health).succeeded();
        advance(Duration::from_secs(7)).await;
        attempt(&health).failed();
        advance(Duration::from_secs(30)).await;
        attempt(&health).failed();
        assert_eq!(health.failing_for(), Some(Duration::from_secs(37)));
    }
}
