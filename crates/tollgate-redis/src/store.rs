//! The store that a fleet shares.

use std::{fmt, sync::Arc, time::Duration};

use fred::{clients::Client, interfaces::ClientLike, types::ConnectHandle};
use tokio::{
    runtime::Handle,
    time::{Instant, sleep},
};
use tollgate_core::{Check, CheckFuture, Decision, ErrorKind, Store, StoreError};

use crate::{
    ConnectError, RedisStoreBuilder, config, reply, run_out::RunOut, script::Script,
    single_flight::SingleFlight,
};

/// Between two attempts to mend the connection: a server that stays read-only is not to be hammered.
const MENDING_PAUSE: Duration = Duration::from_millis(500);

/// Token buckets in Redis or Valkey: one `EVALSHA` per check.
///
/// Clones are cheap and share one connection. It is closed when the last clone and the last pending check
/// are dropped.
#[derive(Clone)]
pub struct RedisStore {
    inner: Arc<Inner>,
}

struct Inner {
    client: Client,
    script: Arc<Script>,
    runtime: Handle,
    mending: SingleFlight<()>,
    /// fred's task: the connection lives in it.
    task: ConnectHandle,
    address: String,
    deadline: Duration,
}

impl RedisStore {
    /// A store with default settings on the Redis at `url`, of the form
    /// `redis://[[user]:password@]host[:port][/database]`.
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
    pub(crate) fn start(client: Client, address: String, deadline: Duration) -> Self {
        let runtime = Handle::current();
        let inner = Inner {
            script: Arc::new(Script::new(client.clone(), runtime.clone())),
            task: client.connect(),
            mending: SingleFlight::new(),
            client,
            runtime,
            address,
            deadline,
        };
        Self {
            inner: Arc::new(inner),
        }
    }

    /// Spares the first check a round trip. A failure shows again at that check, with its kind.
    pub(crate) async fn load_script(&self) {
        let deadline = Instant::now() + config::SETUP_TIMEOUT;
        if let Err(error) = self.inner.script.load(deadline).await {
            tracing::warn!(address = %self.inner.address, %error, "cannot load the script");
        }
    }
}

// === impl RedisStore ===

impl Store for RedisStore {
    /// Asks Redis, and answers within the deadline, plus the time it takes to be scheduled.
    ///
    /// # Errors
    ///
    /// Any failure, with its kind and whether the check may have been charged. Nothing is sent twice,
    /// except a call that Redis refused because it did not know the script.
    ///
    /// # Cancel safety
    ///
    /// A call that was sent before the future is dropped may charge the check; one that was not sent within
    /// the deadline never will.
    fn check(&self, check: Check) -> CheckFuture {
        let inner = self.inner.clone();
        let deadline = check
            .deadline()
            .map_or_else(|| Instant::now() + inner.deadline, Instant::from_std);
        // To its end also when the caller leaves, as a limiter does at the deadline: only then is a connection
        // that has fallen silent noticed.
        let runtime = inner.runtime.clone();
        CheckFuture::new(RunOut::new(runtime, async move {
            inner.decide(check, deadline).await
        }))
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
    async fn decide(&self, check: Check, deadline: Instant) -> Result<Decision, StoreError> {
        let reply = self.script.call(&check, deadline).await;
        if let Err(error) = &reply {
            self.mend(error.kind());
        }
        reply::decide(check, &reply?)
    }

    /// Replaces a connection that fred would keep, in the background.
    ///
    /// A server that became a replica keeps its connections; behind the same name, a new one may lead to the
    /// new primary. And a connection may fall silent: fred counts the silence from the latest write, so under
    /// steady traffic it never notices.
    fn mend(&self, kind: ErrorKind) {
        if !matches!(kind, ErrorKind::ReadOnly | ErrorKind::Timeout) {
            return;
        }
        let (client, script) = (self.client.clone(), self.script.clone());
        self.mending.join(&self.runtime, async move {
            let is_useless = kind == ErrorKind::ReadOnly || script.is_silent().await;
            // Without a connection, fred is at it already.
            if is_useless && client.is_connected() {
                // If it fails, fred goes on trying by itself.
                let _ = client.force_reconnection().await;
            }
            sleep(MENDING_PAUSE).await;
        });
    }
}

// === impl Inner ===

impl Drop for Inner {
    fn drop(&mut self) {
        // fred's task holds a client of its own, so it would go on for ever.
        self.task.abort();
    }
}
