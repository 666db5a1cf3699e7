//! Counting replicas by their heartbeats.

use std::{
    fmt,
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
    time::Duration,
};

use tokio::{
    sync::oneshot,
    time::{Instant, sleep},
};
use tollgate_core::{ChargeState, ErrorKind, LimitName, ReplicaCount, StoreError};

use crate::{RedisStore, arguments::Arguments, engine::Engine, lane::Lane, script::Name};

/// Much longer than a check may take: nobody waits for it.
const PATIENCE: Duration = Duration::from_secs(1);

/// So many heartbeats may be missed before a replica counts as gone.
const LIVES: u32 = 3;

/// The hash tag of the key.
const TAG: &str = "replicas";

/// The script takes no longer life than a day.
const LONGEST_INTERVAL: Duration = Duration::from_secs(8 * 3_600);
const SHORTEST_INTERVAL: Duration = Duration::from_millis(100);

/// The number of replicas that share a Redis, counted by their heartbeats in it; made by
/// [`RedisStore::heartbeats`].
///
/// 1. Each value is one replica, with an id of its own, drawn at random. It tells Redis each `interval` that
///    it is alive, and hears how many are.
/// 2. A new replica counts in all others within one interval. One that is dropped in an orderly way is gone
///    as fast; one that crashed counts for three intervals, and one more until the others hear of it.
/// 3. The clock is Redis's own.
/// 4. Until the first answer the number is 1. While Redis is away, the last known number is kept: a fleet that
///    grows meanwhile is counted too low, and one that shrinks too high. When a Redis comes back empty, the
///    number may be too low for one interval, until all have told it that they are alive.
///
/// Dropping the value ends the heartbeats and takes the replica out of the set, in the background.
///
/// # Deployment caveat
///
/// The set is one small key, `<prefix>:{replicas}:<group>`. The user on the server needs six more commands for
/// it: `+time +zadd +zrem +zremrangebyscore +zcard +pexpire`. Without them the number stays 1, and a warning
/// is logged.
pub struct Heartbeats {
    key: String,
    known: Arc<AtomicU32>,
    /// When this goes, the task says farewell and ends.
    _stop: oneshot::Sender<()>,
}

/// What the task needs.
struct Beat<L: Lane> {
    engine: Engine<L>,
    key: String,
    member: String,
    interval: Duration,
    known: Arc<AtomicU32>,
}

impl RedisStore {
    /// Counts the replicas whose stores have the same key prefix and that call this with the same `group`,
    /// each of which tells that it is alive each `interval`; a few seconds will do. Not more often than each
    /// 100 ms.
    ///
    /// ```no_run
    /// # use std::time::Duration;
    /// # use tollgate_core::{LimitName, ReplicaCount};
    /// # async fn count() -> Result<(), Box<dyn std::error::Error>> {
    /// let store = tollgate_redis::RedisStore::connect("redis://127.0.0.1:6379").await?;
    /// let group = LimitName::new("shop")?;
    /// let replicas = store.heartbeats(&group, Duration::from_secs(2));
    /// assert!(replicas.replicas() >= 1);
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn heartbeats(&self, group: &LimitName, interval: Duration) -> Heartbeats {
        Heartbeats::start(&self.engine, group, interval)
    }
}

impl Heartbeats {
    pub(crate) fn start<L: Lane>(
        engine: &Engine<L>,
        group: &LimitName,
        interval: Duration,
    ) -> Self {
        let (key, known) = (engine.keys().replicas(group), Arc::new(AtomicU32::new(1)));
        let (stop, stopped) = oneshot::channel();
        let beat = Beat {
            engine: engine.clone(),
            key: key.clone(),
            member: format!("{:032x}", fastrand::u128(..)),
            interval: interval.clamp(SHORTEST_INTERVAL, LONGEST_INTERVAL),
            known: known.clone(),
        };
        engine.runtime().spawn(async move {
            tokio::select! {
                () = beat.go_on() => {}
                _ = stopped => {}
            }
            // If Redis cannot be told, it expires.
            let _ = beat.tell(Duration::ZERO).await;
        });
        Self {
            key,
            known,
            _stop: stop,
        }
    }
}

impl<L: Lane> Beat<L> {
    async fn go_on(&self) {
        let mut failing = None;
        loop {
            match self.tell(LIVES * self.interval).await {
                Ok(number) => {
                    failing = None;
                    self.known.store(number.max(1), Ordering::Relaxed);
                }
                Err(error) => {
                    if failing.replace(error.kind()) != Some(error.kind()) {
                        let replicas = self.known.load(Ordering::Relaxed);
                        tracing::warn!(%error, replicas, "cannot count the replicas; the last number is kept");
                    }
                }
            }
            // The beats of a fleet that started together drift apart.
            sleep(self.interval.mul_f64(0.8 + 0.2 * fastrand::f64())).await;
        }
    }

    /// Tells Redis that this replica lives for `life` from now on, and hears how many do.
    async fn tell(&self, life: Duration) -> Result<u32, StoreError> {
        let args = |sha: &str| {
            let mut args = Arguments::of_script(sha, 4, 128);
            args.push_number(1);
            args.push(&self.key);
            args.push(&self.member);
            args.push_number(life.as_millis());
            args
        };
        let deadline = Instant::now() + PATIENCE;
        let reply = self.engine.call(TAG, Name::Replicas, args, deadline);
        match reply.await?.number() {
            Some(number) => Ok(u32::try_from(number.max(0)).unwrap_or(u32::MAX)),
            None => Err(StoreError::new(
                ErrorKind::Other,
                ChargeState::NotCharged,
                "the script's reply is malformed",
            )),
        }
    }
}

// === impl Heartbeats ===

impl ReplicaCount for Heartbeats {
    fn replicas(&self) -> u32 {
        self.known.load(Ordering::Relaxed)
    }
}

impl fmt::Debug for Heartbeats {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Heartbeats")
            .field("key", &self.key)
            .field("replicas", &self.replicas())
            .finish_non_exhaustive()
    }
}
