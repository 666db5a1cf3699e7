//! Requests at a steady pace, whatever becomes of them.

use std::{
    fmt,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use tokio::{
    task::{JoinHandle, JoinSet},
    time::{Instant, MissedTickBehavior, interval},
};
use tollgate::{Cost, Limiter, Source, Tenant};

/// Between two requests of a tenant.
const PACE: Duration = Duration::from_millis(20);

/// The requests of one tenant, until they are stopped.
pub(crate) struct Load {
    stop: Arc<AtomicBool>,
    task: JoinHandle<Vec<Seen>>,
}

/// What became of one request.
#[derive(Clone, Copy)]
pub(crate) struct Seen {
    asked: Instant,
    took: Duration,
    decided: bool,
}

impl Load {
    pub(crate) fn start(limiter: &Limiter, tenant: &str) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let (limiter, stopped) = (limiter.clone(), stop.clone());
        let tenant = Tenant::new(tenant, "pro").expect("an id");
        let task = tokio::spawn(async move {
            let mut pace = interval(PACE);
            pace.set_missed_tick_behavior(MissedTickBehavior::Delay);
            let mut requests = JoinSet::new();
            while !stopped.load(Ordering::Relaxed) {
                pace.tick().await;
                let (limiter, tenant) = (limiter.clone(), tenant.clone());
                requests.spawn(async move {
                    let asked = Instant::now();
                    let decision = limiter.check(&tenant, Cost::ONE).await;
                    Seen {
                        asked,
                        took: asked.elapsed(),
                        decided: decision.source == Source::Store,
                    }
                });
            }
            requests.join_all().await
        });
        Self { stop, task }
    }

    pub(crate) async fn stop(self) -> Vec<Seen> {
        self.stop.store(true, Ordering::Relaxed);
        self.task.await.expect("no panic")
    }
}

/// What became of the requests of several tenants.
#[derive(Default)]
pub(crate) struct Outcome {
    took: Vec<Duration>,
    undecided: usize,
    granted_again: f64,
    back: Duration,
}

impl Outcome {
    /// Adds those of one tenant, whose bucket holds `left` tokens now, after a fault that was `over` then.
    pub(crate) fn add(&mut self, seen: &[Seen], left: Option<f64>, over: Instant) {
        self.took.extend(seen.iter().map(|it| it.took));
        let undecided = seen.iter().filter(|it| !it.decided);
        self.undecided += undecided.clone().count();
        let last = undecided.map(|it| it.asked).max();
        let back = last.map(|last| last.saturating_duration_since(over));
        self.back = self.back.max(back.unwrap_or_default());
        let decided = seen.iter().filter(|it| it.decided).count();
        // Calls that were charged without an answer count against it.
        let charged = 100_000.0 - left.unwrap_or(100_000.0);
        self.granted_again += (decided as f64 - charged).max(0.0);
    }
}

// === impl Outcome ===

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut took = self.took.clone();
        took.sort_unstable();
        let millis = |took: Option<&Duration>| took.map_or(0.0, |it| it.as_secs_f64() * 1_000.0);
        write!(
            f,
            "| {} | {} | {:.1} ({:.1}) | {:.0} | {:.1} |",
            took.len(),
            self.undecided,
            millis(took.get(took.len() * 99 / 100)),
            millis(took.last()),
            self.granted_again,
            self.back.as_secs_f64(),
        )
    }
}
