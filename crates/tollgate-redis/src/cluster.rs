//! A cluster: a node for each primary, and who serves which slot.

use std::{
    fmt,
    sync::{Arc, PoisonError, RwLock},
    time::Duration,
};

use fred::types::config::{Server, ServerConfig};
use tokio::{
    runtime::Handle,
    sync::{Notify, watch},
    task::{AbortHandle, JoinSet},
    time::{Instant, sleep, timeout, timeout_at},
};
use tollgate_core::{ErrorKind, StoreError};

use crate::{
    arguments::Arguments,
    config::SETUP_TIMEOUT,
    connections::Current,
    failure::{not_charged, without_connection},
    journal::Journal,
    lane::{Asking, Client, Lane},
    map::Map,
    node::Node,
    redirect::Redirect,
    reply::Reply,
    script::Name,
    slots::{self, Layout},
    target::{Access, Target},
};

/// Between two looks at the layout while all is well: nodes also say when a slot has moved.
const CALM: Duration = Duration::from_secs(10);

/// Between two looks while something is wrong.
const TROUBLE: Duration = Duration::from_millis(500);

/// How long a node that is connected may take to tell the layout, before the next one is asked.
const PATIENCE: Duration = Duration::from_millis(300);

/// How often a check follows a redirection: to the new primary of a slot, and once more if the slot is moving
/// on from there.
const REDIRECTIONS: usize = 2;

/// The primaries of a cluster, each behind connections of its own: fred's own client for clusters stalls as
/// a whole while one node reconnects.
pub(crate) struct Cluster<L: Lane> {
    shared: Arc<Shared<L>>,
    mapper: AbortHandle,
}

struct Shared<L: Lane> {
    access: Arc<Access>,
    seeds: Vec<Server>,
    /// To each node.
    connections: u8,
    runtime: Handle,
    map: RwLock<Map<Node<L>>>,
    /// Something happened that the layout may explain.
    stale: Notify,
    /// Why there is no layout, until there is the first.
    unknown: watch::Sender<Option<StoreError>>,
}

impl<L: Lane> Cluster<L> {
    /// Starts to look for the nodes, and never stops.
    pub(crate) fn start(
        access: Arc<Access>,
        seeds: Vec<Server>,
        address: String,
        connections: u8,
        runtime: &Handle,
    ) -> Self {
        let not_yet = not_charged(ErrorKind::Io, "the layout of the cluster is not known yet");
        let shared = Arc::new(Shared {
            access,
            seeds,
            connections,
            runtime: runtime.clone(),
            map: RwLock::new(Map::default()),
            stale: Notify::new(),
            unknown: watch::channel(Some(not_yet)).0,
        });
        let mapper = runtime.spawn(keep_up_to_date(shared.clone(), Journal::new(address)));
        Self {
            shared,
            mapper: mapper.abort_handle(),
        }
    }

    /// Waits for the layout and the connections to all primaries.
    ///
    /// # Errors
    ///
    /// If they are not all there within `patience`; with the latest reason.
    pub(crate) async fn wait(&self, patience: Duration) -> Result<(), StoreError> {
        let deadline = Instant::now() + patience;
        let mut unknown = self.shared.unknown.subscribe();
        // Whatever ends the wait, the state says how it went.
        let _ = timeout_at(deadline, unknown.wait_for(Option::is_none)).await;
        if let Some(error) = unknown.borrow().clone() {
            return Err(error);
        }
        for node in self.nodes() {
            let left = deadline.saturating_duration_since(Instant::now());
            node.wait(left).await?;
        }
        Ok(())
    }

    /// The nodes of the moment.
    pub(crate) fn nodes(&self) -> Vec<Arc<Node<L>>> {
        self.shared.read(Map::nodes)
    }

    /// The number of the node that serves `slot`; 0 if none is known.
    pub(crate) fn number(&self, slot: u16) -> usize {
        self.shared.read(|map| map.number(slot)).unwrap_or_default()
    }

    /// The node that serves `slot`.
    ///
    /// # Errors
    ///
    /// If none is known.
    pub(crate) fn node(&self, slot: u16) -> Result<Arc<Node<L>>, StoreError> {
        if let Some(node) = self.shared.read(|map| map.node(slot)) {
            return Ok(node);
        }
        self.shared.stale.notify_one();
        let unknown = self.shared.unknown.borrow().clone();
        Err(unknown.unwrap_or_else(|| not_charged(ErrorKind::Cluster, "no node serves the slot")))
    }

    /// Calls a script on `node`, or where that one says: a redirection means that nothing ran.
    pub(crate) async fn call(
        &self,
        mut node: Arc<Node<L>>,
        mut current: Current<L::Client>,
        script: Name,
        args: &(impl Fn(&str) -> Arguments + Sync),
        deadline: Instant,
    ) -> Result<Reply, StoreError> {
        let (mut asking, mut left) = (Asking::No, REDIRECTIONS);
        loop {
            let reply = node.call(current, script, args, asking, deadline).await;
            let Err(error) = reply else {
                return reply;
            };
            let redirect = Redirect::read(&error, host(node.address()));
            // A slot that is on its way is no news: the layout changes when it has arrived.
            if !matches!(redirect, Some(Redirect::Ask(_))) && concerns_the_layout(error.kind()) {
                self.shared.stale.notify_one();
            }
            (node, asking) = match redirect {
                Some(Redirect::Moved(slot, server)) if left > 0 => {
                    (self.shared.moved(slot, server), Asking::No)
                }
                Some(Redirect::Ask(server)) if left > 0 => (self.shared.known(server), Asking::Yes),
                _ => return Err(error),
            };
            left -= 1;
            current = node.settled(deadline).await;
        }
    }
}

// === impl Cluster ===

impl<L: Lane> fmt::Debug for Cluster<L> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Cluster")
            .field("nodes", &self.nodes().len())
            .finish_non_exhaustive()
    }
}

impl<L: Lane> Drop for Cluster<L> {
    fn drop(&mut self) {
        self.mapper.abort();
    }
}

fn concerns_the_layout(kind: ErrorKind) -> bool {
    use ErrorKind::{Cluster, Io, ReadOnly, Timeout};
    matches!(kind, Cluster | Io | ReadOnly | Timeout)
}

/// `host` of `host:port`.
fn host(address: &str) -> &str {
    address.rsplit_once(':').map_or(address, |(host, _)| host)
}

async fn keep_up_to_date<L: Lane>(shared: Arc<Shared<L>>, mut journal: Journal) {
    loop {
        let pause = match shared.ask().await {
            Ok(layout) => {
                shared.apply(layout);
                shared.unknown.send_replace(None);
                journal.up();
                if shared.is_whole() { CALM } else { TROUBLE }
            }
            Err(error) => {
                journal.down(&error, false);
                shared.unknown.send_if_modified(|unknown| match unknown {
                    Some(former) => {
                        *former = error;
                        true
                    }
                    // Connections may still be of use where they lead to the right node.
                    None => false,
                });
                TROUBLE
            }
        };
        // However many checks fail, nodes are not asked more often than that.
        sleep(TROUBLE).await;
        let _ = timeout(pause - TROUBLE, shared.stale.notified()).await;
    }
}

impl<L: Lane> Shared<L> {
    /// Asks for the layout: whoever is connected, one after the other, and if none of them answers, all nodes
    /// ever heard of at the same time.
    async fn ask(&self) -> Result<Layout, StoreError> {
        let mut nodes = self.read(Map::nodes);
        // A node whose view is old is not always the one that is asked.
        fastrand::shuffle(&mut nodes);
        for node in nodes {
            let Ok(client) = node.client() else {
                continue;
            };
            let reply = client.ask("CLUSTER", slots_argument(), PATIENCE).await;
            if let Some(layout) = reply
                .ok()
                .and_then(|it| slots::read(&it, host(node.address())))
            {
                return Ok(layout);
            }
        }
        let mut asked = JoinSet::new();
        for server in self.read(|map| map.heard_of(&self.seeds)) {
            let access = self.access.clone();
            asked.spawn(async move {
                let lane = access.open_at::<L>(server.clone()).await?;
                let asked = lane
                    .client()
                    .ask("CLUSTER", slots_argument(), SETUP_TIMEOUT);
                let reply = asked.await?;
                slots::read(&reply, &server.host).ok_or_else(|| {
                    let malformed = "the reply to CLUSTER SLOTS is malformed";
                    without_connection(ErrorKind::Other, malformed)
                })
            });
        }
        let mut last = without_connection(ErrorKind::Io, "no node of the cluster answers");
        while let Some(answer) = asked.join_next().await {
            match answer {
                Ok(Ok(layout)) if !layout.ranges.is_empty() => return Ok(layout),
                Ok(Ok(_)) => {
                    last = without_connection(ErrorKind::Cluster, "no node serves any slot")
                }
                Ok(Err(error)) => last = error,
                Err(_) => {}
            }
        }
        Err(last)
    }

    fn apply(&self, layout: Layout) {
        let mut map = self.map.write().unwrap_or_else(PoisonError::into_inner);
        let gone = map.apply(layout, Instant::now(), |server| self.start(server));
        // Closing connections needs no lock.
        drop(map);
        drop(gone);
    }

    /// The node that serves `slot` from now on.
    fn moved(&self, slot: u16, server: Server) -> Arc<Node<L>> {
        let mut map = self.map.write().unwrap_or_else(PoisonError::into_inner);
        map.moved(slot, server, Instant::now(), |server| self.start(server))
    }

    fn known(&self, server: Server) -> Arc<Node<L>> {
        let mut map = self.map.write().unwrap_or_else(PoisonError::into_inner);
        map.known(server, Instant::now(), |server| self.start(server))
    }

    fn start(&self, server: &Server) -> Arc<Node<L>> {
        let address = server.to_string();
        let server = ServerConfig::Centralized {
            server: server.clone(),
        };
        let target = Target::Server(self.access.clone(), server);
        Arc::new(Node::start(
            &target,
            address,
            self.connections,
            &self.runtime,
        ))
    }

    /// Whether each slot has a node that is connected.
    fn is_whole(&self) -> bool {
        self.read(Map::is_whole)
    }

    fn read<T>(&self, look: impl FnOnce(&Map<Node<L>>) -> T) -> T {
        look(&self.map.read().unwrap_or_else(PoisonError::into_inner))
    }
}

fn slots_argument() -> Vec<String> {
    vec!["SLOTS".to_owned()]
}
