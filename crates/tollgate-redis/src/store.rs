//! The store that a fleet shares.

use std::{fmt, sync::Arc, time::Duration};

use fred::{types::Value, util::redis_keyslot};
use tokio::{runtime::Handle, time::Instant};
use tollgate_core::{AdjustFuture, Adjustment, Check, CheckFuture, Store, StoreError, StoreFuture};

use crate::{
    ConnectError, RedisStoreBuilder, arguments,
    cluster::Cluster,
    connection::Current,
    node::Node,
    reply,
    run_out::RunOut,
    script::{Asking, Name},
    settings::Plan,
};

/// Token buckets in Redis or Valkey: one `EVALSHA` per check.
///
/// Clones are cheap and share one connection, or one for each primary of a cluster. It is closed when the last clone, the last
/// [`Heartbeats`](crate::Heartbeats) and the last pending check are dropped.
#[derive(Clone)]
pub struct RedisStore {
    inner: Arc<Inner>,
}

struct Inner {
    servers: Servers,
    runtime: Handle,
    address: String,
    deadline: Duration,
}

/// What there is to ask.
enum Servers {
    Single(Arc<Node>),
    Cluster(Cluster),
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

    /// Starts to connect, and keeps on trying.
    pub(crate) fn start(plan: Plan, deadline: Duration) -> Self {
        let runtime = Handle::current();
        let (servers, address) = match plan {
            Plan::Single { target, address } => {
                let node = Node::start(target, address.clone(), &runtime);
                (Servers::Single(Arc::new(node)), address)
            }
            Plan::Cluster {
                access,
                seeds,
                address,
            } => {
                let cluster = Cluster::start(access, seeds, address.clone(), &runtime);
                (Servers::Cluster(cluster), address)
            }
        };
        let inner = Inner {
            servers,
            runtime,
            address,
            deadline,
        };
        Self {
            inner: Arc::new(inner),
        }
    }

    /// Waits for the connections.
    pub(crate) async fn wait(&self, patience: Duration) -> Result<(), StoreError> {
        match &self.inner.servers {
            Servers::Single(node) => node.wait(patience).await,
            Servers::Cluster(cluster) => cluster.wait(patience).await,
        }
    }

    /// Spares the first checks a round trip.
    pub(crate) async fn prepare(&self) {
        match &self.inner.servers {
            Servers::Single(node) => node.prepare().await,
            Servers::Cluster(cluster) => {
                for node in cluster.nodes() {
                    node.prepare().await;
                }
            }
        }
    }

    pub(crate) fn address(&self) -> &str {
        &self.inner.address
    }

    pub(crate) fn runtime(&self) -> &Handle {
        &self.inner.runtime
    }

    /// Calls a script on the server that has the keys under `tag`, by the deadline or else within the store's
    /// own time, and reads the reply.
    fn ask<T: Send + 'static>(
        &self,
        tag: &str,
        script: Name,
        deadline: Option<Instant>,
        args: impl Fn(&str) -> Vec<String> + Send + Sync + 'static,
        read: impl FnOnce(&Value) -> Result<T, StoreError> + Send + 'static,
    ) -> StoreFuture<T> {
        let inner = self.inner.clone();
        let deadline = deadline.unwrap_or_else(|| Instant::now() + inner.deadline);
        let node = match inner.node(tag) {
            Ok(node) => node,
            Err(error) => return StoreFuture::ready(Err(error)),
        };
        StoreFuture::new(async move {
            let current = node.settled(deadline).await;
            // To its end also when the caller leaves, as a limiter does at the deadline: only then is a
            // connection that has fallen silent noticed.
            let runtime = inner.runtime.clone();
            let call = async move {
                let reply = inner.call(node, current, script, &args, deadline).await?;
                read(&reply)
            };
            RunOut::new(runtime, call).await
        })
    }

    /// Calls another script, on the server that has the keys under `tag`.
    pub(crate) async fn call(
        &self,
        tag: &str,
        script: Name,
        args: impl Fn(&str) -> Vec<String> + Sync,
        deadline: Instant,
    ) -> Result<Value, StoreError> {
        let node = self.inner.node(tag)?;
        let current = node.settled(deadline).await;
        self.inner
            .call(node, current, script, &args, deadline)
            .await
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
        let deadline = check.deadline().map(Instant::from_std);
        let asked = check.clone();
        let args = move |sha: &str| arguments::of_check(sha, &asked);
        let tag = check.clone();
        self.ask(tag.tag(), Name::TokenBucket, deadline, args, |reply| {
            reply::decide(check, reply)
        })
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
        let deadline = adjustment.deadline().map(Instant::from_std);
        let asked = adjustment.clone();
        let args = move |sha: &str| arguments::of_adjustment(sha, &asked);
        let tag = adjustment.clone();
        self.ask(tag.tag(), Name::Adjust, deadline, args, move |reply| {
            reply::tokens(&adjustment, reply)
        })
    }

    /// Each primary of a cluster has a number of its own, as long as it is in use.
    fn node(&self, tag: &str) -> usize {
        match &self.inner.servers {
            Servers::Single(_) => 0,
            Servers::Cluster(cluster) => cluster.number(slot(tag)),
        }
    }
}

impl fmt::Debug for RedisStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RedisStore")
            .field("address", &self.inner.address)
            .field("deadline", &self.inner.deadline)
            .finish_non_exhaustive()
    }
}

impl Inner {
    fn node(&self, tag: &str) -> Result<Arc<Node>, StoreError> {
        match &self.servers {
            Servers::Single(node) => Ok(node.clone()),
            Servers::Cluster(cluster) => cluster.node(slot(tag)),
        }
    }

    async fn call(
        &self,
        node: Arc<Node>,
        current: Current,
        script: Name,
        args: &(impl Fn(&str) -> Vec<String> + Sync),
        deadline: Instant,
    ) -> Result<Value, StoreError> {
        match &self.servers {
            Servers::Single(_) => node.call(current, script, args, Asking::No, deadline).await,
            Servers::Cluster(cluster) => cluster.call(node, current, script, args, deadline).await,
        }
    }
}

/// Where a cluster keeps what has this hash tag.
fn slot(tag: &str) -> u16 {
    redis_keyslot(tag.as_bytes())
}
