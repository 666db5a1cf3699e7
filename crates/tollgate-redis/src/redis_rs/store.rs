//! The store that calls Redis through redis-rs.

use std::{fmt, time::Duration};

use tollgate_core::{AdjustFuture, Adjustment, Check, CheckFuture, KeySpace, LimitName, Store};

use crate::{
    ConnectError, Heartbeats, RedisStoreBuilder, engine::Engine, redis_rs::lane::RedisRsLane,
};

/// Token buckets in Redis or Valkey, as in a [`RedisStore`](crate::RedisStore), but through the client
/// library redis-rs: the same scripts, keys, settings and rules, and the two may share one Redis.
///
/// It writes the calls of many tasks to the server together, which spares both sides system calls when many
/// are in flight, and it hands an error reply to the one call that it answers.
///
/// Clones are cheap and share the connections: one to each server unless told otherwise. They are closed when
/// the last clone, the last [`Heartbeats`] and the last pending check are dropped.
#[derive(Clone)]
pub struct RedisRsStore {
    engine: Engine<RedisRsLane>,
}

impl RedisRsStore {
    /// A store with default settings on the Redis at `url`, as [`RedisStore::connect`] makes one.
    ///
    /// # Errors
    ///
    /// If the URL is not one of Redis.
    ///
    /// # Panics
    ///
    /// Outside of a Tokio runtime with time and I/O enabled.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future closes whatever was opened.
    ///
    /// [`RedisStore::connect`]: crate::RedisStore::connect
    pub async fn connect(url: &str) -> Result<Self, ConnectError> {
        Self::builder(url).connect().await
    }

    /// Settings for a store on the Redis at `url`.
    pub fn builder(url: &str) -> RedisStoreBuilder<Self> {
        RedisStoreBuilder::new(url)
    }

    /// Counts the replicas that call this with the same `group`, whichever library they use, as
    /// [`RedisStore::heartbeats`](crate::RedisStore::heartbeats) does.
    #[must_use]
    pub fn heartbeats(&self, group: &LimitName, interval: Duration) -> Heartbeats {
        Heartbeats::start(&self.engine, group, interval)
    }
}

impl RedisStoreBuilder<RedisRsStore> {
    /// Connects, waiting for Redis for at most about a second.
    ///
    /// # Errors
    ///
    /// If a setting is wrong or does not go with the others, or if Redis cannot be reached and the store is
    /// [`strict`](Self::strict). Of a cluster, all primaries have to be reached.
    ///
    /// # Panics
    ///
    /// Outside of a Tokio runtime with time and I/O enabled.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future closes whatever was opened.
    pub async fn connect(self) -> Result<RedisRsStore, ConnectError> {
        let engine = self.open::<RedisRsLane>().await?;
        Ok(RedisRsStore { engine })
    }
}

// === impl RedisRsStore ===

impl Store for RedisRsStore {
    /// Asks Redis, and answers within the deadline, plus the time it takes to be scheduled.
    ///
    /// # Errors
    ///
    /// Any failure, with its kind and whether the check may have been charged. Nothing is sent twice,
    /// except a call that Redis refused because it did not know the script, or sent elsewhere.
    ///
    /// # Cancel safety
    ///
    /// A call that was sent before the future is dropped may charge the check; one that was not sent within
    /// the deadline never will.
    fn check(&self, check: Check) -> CheckFuture {
        self.engine.check(check)
    }

    /// Asks Redis, and answers within the deadline, as for a check: the adjustment's own, or the store's.
    ///
    /// # Errors
    ///
    /// Any failure, with its kind and whether the buckets may have changed. Nothing is sent twice, except a
    /// call that Redis refused because it did not know the script, which is loaded when it is first needed.
    ///
    /// # Cancel safety
    ///
    /// A call that was sent before the future is dropped may change the buckets; one that was not sent within
    /// the deadline never will.
    fn adjust(&self, adjustment: Adjustment) -> AdjustFuture {
        self.engine.adjust(adjustment)
    }

    /// Each primary of a cluster has a number of its own, as long as it is in use.
    fn node(&self, tag: &str) -> usize {
        self.engine.node(tag)
    }

    /// As the settings `key_prefix` and `tag_scope` say.
    fn keys(&self) -> KeySpace {
        self.engine.keys().clone()
    }
}

impl fmt::Debug for RedisRsStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("RedisRsStore").field(&self.engine).finish()
    }
}
