//! One server, and how to call it.

use std::{sync::Arc, time::Duration};

use tokio::{
    runtime::Handle,
    time::{Instant, sleep},
};
use tollgate_core::{ErrorKind, StoreError};

use crate::{
    arguments::Arguments,
    config,
    connections::{Complaint, Connections, Current, Fault},
    eviction,
    lane::{Asking, Lane},
    reply::Reply,
    script::{Name, Scripts},
    single_flight::SingleFlight,
    target::Target,
};

/// Between two looks at a connection on which something failed.
const LOOK_PAUSE: Duration = Duration::from_millis(500);

/// A server with supervised connections of its own, so that nothing that happens to another one is felt
/// here.
pub(crate) struct Node<L: Lane> {
    connections: Connections<L>,
    scripts: Arc<Scripts>,
    runtime: Handle,
    /// At the connection in each place.
    looking: Box<[SingleFlight<()>]>,
    address: String,
}

impl<L: Lane> Node<L> {
    /// Starts to connect, and keeps on trying until it is dropped.
    pub(crate) fn start(
        target: &Target,
        address: String,
        connections: u8,
        runtime: &Handle,
    ) -> Self {
        let looking = (0..connections).map(|_| SingleFlight::new());
        Self {
            connections: Connections::start(target, address.clone(), connections, runtime),
            scripts: Arc::new(Scripts::new(runtime)),
            runtime: runtime.clone(),
            looking: looking.collect(),
            address,
        }
    }

    pub(crate) fn address(&self) -> &str {
        &self.address
    }

    /// A client that is connected.
    pub(crate) fn client(&self) -> Result<L::Client, StoreError> {
        self.connections.current().client
    }

    pub(crate) async fn settled(&self, deadline: Instant) -> Current<L::Client> {
        self.connections.settled(deadline).await
    }

    /// Waits for the connections.
    pub(crate) async fn wait(&self, patience: Duration) -> Result<(), StoreError> {
        self.connections.wait(patience).await
    }

    /// Loads `scripts`, which spares the first checks a round trip, and looks whether the server may forget buckets. A failure shows
    /// again at that check, with its kind.
    pub(crate) async fn prepare(&self, scripts: &[Name]) {
        let deadline = Instant::now() + config::SETUP_TIMEOUT;
        let loaded = match self.client() {
            Ok(client) => {
                eviction::warn(&client, &self.address).await;
                self.load(scripts, &client, deadline).await
            }
            Err(error) => Err(error),
        };
        if let Err(error) = loaded {
            tracing::warn!(address = %self.address, %error, "cannot load the script");
        }
    }

    async fn load(
        &self,
        scripts: &[Name],
        client: &L::Client,
        deadline: Instant,
    ) -> Result<(), StoreError> {
        for script in scripts {
            self.scripts.get(*script).load(client, deadline).await?;
        }
        Ok(())
    }

    /// Calls a script over `current`.
    pub(crate) async fn call(
        &self,
        current: Current<L::Client>,
        script: Name,
        args: &(impl Fn(&str) -> Arguments + Sync),
        asking: Asking,
        deadline: Instant,
    ) -> Result<Reply, StoreError> {
        let client = current.client.as_ref().map_err(Clone::clone)?;
        let script = self.scripts.get(script);
        let reply = script.call(client, args, asking, deadline).await;
        if let Err(error) = &reply {
            self.look_into(error.kind(), &current);
        }
        reply
    }

    /// Finds out in the background whether the connection is still of use, and complains if not.
    ///
    /// A server that became a replica keeps its connections. And a connection may fall silent, or the client
    /// get stuck: nothing but asking tells.
    pub(crate) fn look_into(&self, kind: ErrorKind, current: &Current<L::Client>) {
        if !matches!(kind, ErrorKind::ReadOnly | ErrorKind::Timeout) {
            return;
        }
        let current = current.clone();
        let (scripts, place) = (self.scripts.clone(), current.place);
        let complaints = self.connections.complaints(place);
        self.looking[place].join(&self.runtime, async move {
            let fault = match (kind, current.client) {
                (ErrorKind::ReadOnly, _) => Some(Fault::ReadOnly),
                (_, Ok(client)) => {
                    let silent = scripts.get(Name::TokenBucket).is_silent(&client).await;
                    silent.then_some(Fault::Silent)
                }
                (_, Err(_)) => None,
            };
            if let Some(fault) = fault {
                let number = current.number;
                // A queue that is full holds the same complaint.
                let _ = complaints.try_send(Complaint { number, fault });
            }
            sleep(LOOK_PAUSE).await;
        });
    }
}
