//! What every store does, whatever client library it calls Redis through.

use std::{fmt, sync::Arc, time::Duration};

use fred::util::redis_keyslot;
use tokio::{runtime::Handle, time::Instant};
use tollgate_core::{
    AdjustFuture, Adjustment, Check, CheckFuture, KeySpace, StoreError, StoreFuture,
};

use crate::{
    arguments::{self, Arguments},
    cluster::Cluster,
    connections::Current,
    gather::Gather,
    lane::{Asking, Lane},
    node::Node,
    reply::{self, Reply},
    run_out::RunOut,
    script::Name,
    settings::{Plan, Servers as Planned},
};

/// Calls, and the servers that they go to. Clones share all of that.
pub(crate) struct Engine<L: Lane> {
    inner: Arc<Inner<L>>,
}

struct Inner<L: Lane> {
    servers: Servers<L>,
    runtime: Handle,
    address: String,
    deadline: Duration,
    keys: KeySpace,
}

/// What there is to ask.
enum Servers<L: Lane> {
    Single(Arc<Gather<L>>),
    Cluster(Cluster<L>),
}

impl<L: Lane> Engine<L> {
    /// Starts to connect, and keeps on trying.
    pub(crate) fn start(plan: Plan) -> Self {
        let runtime = Handle::current();
        let (address, connections) = (plan.address, plan.connections);
        let servers = match plan.servers {
            Planned::Single(target) => {
                let node = Node::start(&target, address.clone(), connections, &runtime);
                let gather = Gather::new(Arc::new(node), connections.into(), &runtime);
                Servers::Single(Arc::new(gather))
            }
            Planned::Cluster { access, seeds } => {
                let cluster = Cluster::start(access, seeds, address.clone(), connections, &runtime);
                Servers::Cluster(cluster)
            }
        };
        let inner = Inner {
            servers,
            runtime,
            address,
            deadline: plan.deadline,
            keys: plan.keys,
        };
        Self {
            inner: Arc::new(inner),
        }
    }

    /// Waits for the connections.
    pub(crate) async fn wait(&self, patience: Duration) -> Result<(), StoreError> {
        match &self.inner.servers {
            Servers::Single(gather) => gather.node().wait(patience).await,
            Servers::Cluster(cluster) => cluster.wait(patience).await,
        }
    }

    /// Spares the first checks a round trip.
    pub(crate) async fn prepare(&self) {
        match &self.inner.servers {
            Servers::Single(gather) => {
                gather
                    .node()
                    .prepare(&[Name::TokenBucket, Name::Gather])
                    .await
            }
            Servers::Cluster(cluster) => {
                for node in cluster.nodes() {
                    node.prepare(&[Name::TokenBucket]).await;
                }
            }
        }
    }

    pub(crate) fn address(&self) -> &str {
        &self.inner.address
    }

    pub(crate) fn keys(&self) -> &KeySpace {
        &self.inner.keys
    }

    pub(crate) fn runtime(&self) -> &Handle {
        &self.inner.runtime
    }

    pub(crate) fn check(&self, check: Check) -> CheckFuture {
        let deadline = check.deadline().map(Instant::from_std);
        if let Servers::Single(gather) = &self.inner.servers {
            let deadline = deadline.unwrap_or_else(|| Instant::now() + self.inner.deadline);
            return gather.check(check, deadline);
        }
        let asked = check.clone();
        let args = move |sha: &str| arguments::of_check(sha, &asked);
        let tag = check.clone();
        self.ask(tag.tag(), Name::TokenBucket, deadline, args, move |reply| {
            reply::decide(&check, reply)
        })
    }

    pub(crate) fn adjust(&self, adjustment: Adjustment) -> AdjustFuture {
        let deadline = adjustment.deadline().map(Instant::from_std);
        let asked = adjustment.clone();
        let args = move |sha: &str| arguments::of_adjustment(sha, &asked);
        let tag = adjustment.clone();
        self.ask(tag.tag(), Name::Adjust, deadline, args, move |reply| {
            reply::tokens(&adjustment, reply)
        })
    }

    /// The number of the server that has the keys under `tag`. Each primary of a cluster has one of its own,
    /// as long as it is in use.
    pub(crate) fn node(&self, tag: &str) -> usize {
        match &self.inner.servers {
            Servers::Single(_) => 0,
            Servers::Cluster(cluster) => cluster.number(slot(tag)),
        }
    }

    /// Calls a script on the server that has the keys under `tag`, by the deadline or else within the store's
    /// own time, and reads the reply.
    fn ask<T: Send + 'static>(
        &self,
        tag: &str,
        script: Name,
        deadline: Option<Instant>,
        args: impl Fn(&str) -> Arguments + Send + Sync + 'static,
        read: impl FnOnce(&Reply) -> Result<T, StoreError> + Send + 'static,
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
        args: impl Fn(&str) -> Arguments + Sync,
        deadline: Instant,
    ) -> Result<Reply, StoreError> {
        let node = self.inner.node(tag)?;
        let current = node.settled(deadline).await;
        self.inner
            .call(node, current, script, &args, deadline)
            .await
    }
}

// === impl Engine ===

impl<L: Lane> Clone for Engine<L> {
    fn clone(&self) -> Self {
        Self {
            inner: self.inner.clone(),
        }
    }
}

impl<L: Lane> fmt::Debug for Engine<L> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Engine")
            .field("address", &self.inner.address)
            .field("deadline", &self.inner.deadline)
            .field("keys", &self.inner.keys)
            .finish_non_exhaustive()
    }
}

impl<L: Lane> Inner<L> {
    fn node(&self, tag: &str) -> Result<Arc<Node<L>>, StoreError> {
        match &self.servers {
            Servers::Single(gather) => Ok(gather.node().clone()),
            Servers::Cluster(cluster) => cluster.node(slot(tag)),
        }
    }

    async fn call(
        &self,
        node: Arc<Node<L>>,
        current: Current<L::Client>,
        script: Name,
        args: &(impl Fn(&str) -> Arguments + Sync),
        deadline: Instant,
    ) -> Result<Reply, StoreError> {
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
