//! The store that a fleet shares.

use std::fmt;

use tollgate_core::{AdjustFuture, Adjustment, Check, CheckFuture, KeySpace, Store};

use crate::{ConnectError, RedisStoreBuilder, engine::Engine, fred_lane::FredLane};

/// Token buckets in Redis or Valkey: one `EVALSHA` per check, through the client library `fred`; or one
/// for several, if many are in flight at a time.
///
/// Clones are cheap and share the connections: one to each server unless told otherwise. They are closed when
/// the last clone, the last [`Heartbeats`](crate::Heartbeats) and the last pending check are dropped.
#[derive(Clone)]
pub struct RedisStore {
    pub(crate) engine: Engine<FredLane>,
}

impl RedisStore {
    /// A store with default settings on the Redis at `url`, of the form
    /// `redis://[[user]:password@]host[:port][/database]` or another that the crate's page lists.
    ///
    /// It waits for Redis for at most about a second. If Redis is not there by then, it logs a warning;
    /// checks fail until Redis comes, and work by themselves from then on.
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
    pub async fn connect(url: &str) -> Result<Self, ConnectError> {
        Self::builder(url).connect().await
    }

    /// Settings for a store on the Redis at `url`.
    pub fn builder(url: &str) -> RedisStoreBuilder {
        RedisStoreBuilder::new(url)
    }
}

// === impl RedisStore ===

impl Store for RedisStore {
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

impl fmt::Debug for RedisStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("RedisStore").field(&self.engine).finish()
    }
}
