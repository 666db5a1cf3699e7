//! The client libraries that a store may call Redis through.

use std::{fmt, time::Duration};

use tollgate_core::{LimitName, Store};
use tollgate_redis::{ConnectError, Heartbeats, RedisRsStore, RedisStore, RedisStoreBuilder};

/// A store on Redis, through one of the libraries: what holds for one holds for each, so tests are written for
/// any and [run with each](crate::with_each_client).
pub trait RedisClient: Store + Clone + fmt::Debug {
    /// The rights on the server that the library asks for on each new connection and does without. Redis notes
    /// a denial in its ACL log then.
    const ASKS: &[&str];

    /// Settings for a store on the Redis at `url`.
    fn builder(url: &str) -> RedisStoreBuilder<Self>;

    /// Connects with these settings.
    ///
    /// # Errors
    ///
    /// Those of the builder.
    fn open(
        builder: RedisStoreBuilder<Self>,
    ) -> impl Future<Output = Result<Self, ConnectError>> + Send;

    /// Counts the replicas of `group`.
    fn count_replicas(&self, group: &LimitName, interval: Duration) -> Heartbeats;
}

impl RedisClient for RedisStore {
    const ASKS: &[&str] = &["+client|id", "+info"];

    fn builder(url: &str) -> RedisStoreBuilder<Self> {
        Self::builder(url)
    }

    async fn open(builder: RedisStoreBuilder<Self>) -> Result<Self, ConnectError> {
        builder.connect().await
    }

    fn count_replicas(&self, group: &LimitName, interval: Duration) -> Heartbeats {
        self.heartbeats(group, interval)
    }
}

impl RedisClient for RedisRsStore {
    const ASKS: &[&str] = &["+ping", "+info"];

    fn builder(url: &str) -> RedisStoreBuilder<Self> {
        Self::builder(url)
    }

    async fn open(builder: RedisStoreBuilder<Self>) -> Result<Self, ConnectError> {
        builder.connect().await
    }

    fn count_replicas(&self, group: &LimitName, interval: Duration) -> Heartbeats {
        self.heartbeats(group, interval)
    }
}

/// Makes a test for each client library of each function named, which is generic over [`RedisClient`].
#[macro_export]
macro_rules! with_each_client {
    ($(#[$test:meta] $name:ident)*) => {
        mod fred {
            $(
                #[$test]
                async fn $name() {
                    super::$name::<tollgate_redis::RedisStore>().await;
                }
            )*
        }

        mod redis_rs {
            $(
                #[$test]
                async fn $name() {
                    super::$name::<tollgate_redis::RedisRsStore>().await;
                }
            )*
        }
    };
}
