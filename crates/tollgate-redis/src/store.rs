//! The store that a fleet shares.

use std::{fmt, sync::Arc, time::Duration};

use fred::types::{Value, config::Config};
use tokio::{
    runtime::Handle,
    time::{Instant, sleep},
};
use tollgate_core::{
    AdjustFuture, Adjustment, Check, CheckFuture, Decision, ErrorKind, Store, StoreError,
    StoreFuture,
};

use crate::{
    ConnectError, RedisStoreBuilder, arguments, config,
    connection::{Complaint, Connection, Current, Fault},
    reply,
    run_out::RunOut,
    script::Script,
    single_flight::SingleFlight,
};

/// Between two looks at a connection on which something failed.
const LOOK_PAUSE: Duration = Duration::from_millis(500);

/// Token buckets in Redis or Valkey: one `EVALSHA` per check.
///
/// Clones are cheap and share one connection. It is closed when the last clone, the last
/// [`Heartbeats`](crate::Heartbeats) and the last pending check are dropped.
#[derive(Clone)]
pub struct RedisStore {
    inner: Arc<Inner>,
}

struct Inner {
    connection: Connection,
    script: Arc<Script>,
    adjust: Script,
    runtime: Handle,
    looking: SingleFlight<()>,
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
    pub(crate) fn start(config: Config, address: String, deadline: Duration) -> Self {
        let runtime = Handle::current();
        let inner = Inner {
            connection: Connection::start(config, address.clone(), &runtime),
            script: Arc::new(Script::token_bucket(runtime.clone())),
            adjust: Script::adjust(runtime.clone()),
            looking: SingleFlight::new(),
            runtime,
            address,
            deadline,
        };
        Self {
            inner: Arc::new(inner),
        }
    }

    /// Waits for the connection.
    pub(crate) async fn wait(&self, patience: Duration) -> Result<(), StoreError> {
        self.inner.connection.wait(patience).await
    }

    /// Spares the first check a round trip. A failure shows again at that check, with its kind.
    pub(crate) async fn load_script(&self) {
        let deadline = Instant::now() + config::SETUP_TIMEOUT;
        let loaded = match self.inner.connection.current().client {
            Ok(client) => self.inner.script.load(&client, deadline).await,
            Err(error) => Err(error),
        };
        if let Err(error) = loaded {
            tracing::warn!(address = %self.inner.address, %error, "cannot load the script");
        }
    }

    pub(crate) fn runtime(&self) -> &Handle {
        &self.inner.runtime
    }

    /// Lets `work` ask Redis, by the deadline or else within the store's own time.
    fn ask<T, F>(
        &self,
        deadline: Option<Instant>,
        work: impl FnOnce(Arc<Inner>, Current, Instant) -> F + Send + 'static,
    ) -> StoreFuture<T>
    where
        T: Send + 'static,
        F: Future<Output = Result<T, StoreError>> + Send + 'static,
    {
        let inner = self.inner.clone();
        let deadline = deadline.unwrap_or_else(|| Instant::now() + inner.deadline);
        StoreFuture::new(async move {
            let current = inner.connection.settled(deadline).await;
            // To its end also when the caller leaves, as a limiter does at the deadline: only then is a
            // connection that has fallen silent noticed.
            let runtime = inner.runtime.clone();
            RunOut::new(runtime, work(inner, current, deadline)).await
        })
    }

    /// Calls another script, over the connection of the checks.
    pub(crate) async fn call(
        &self,
        script: &Script,
        args: impl Fn(&str) -> Vec<String>,
        deadline: Instant,
    ) -> Result<Value, StoreError> {
        let current = self.inner.connection.settled(deadline).await;
        self.inner.call(current, script, args, deadline).await
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
        let deadline = check.deadline().map(Instant::from_std);
        self.ask(deadline, |inner, current, deadline| async move {
            inner.decide(current, check, deadline).await
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
        self.ask(deadline, |inner, current, deadline| async move {
            inner.change(current, adjustment, deadline).await
        })
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
    async fn decide(
        &self,
        current: Current,
        check: Check,
        deadline: Instant,
    ) -> Result<Decision, StoreError> {
        let args = |sha: &str| arguments::of_check(sha, &check);
        let reply = self.call(current, &self.script, args, deadline).await?;
        reply::decide(check, &reply)
    }

    async fn change(
        &self,
        current: Current,
        adjustment: Adjustment,
        deadline: Instant,
    ) -> Result<Vec<i64>, StoreError> {
        let args = |sha: &str| arguments::of_adjustment(sha, &adjustment);
        let reply = self.call(current, &self.adjust, args, deadline).await?;
        reply::tokens(&adjustment, &reply)
    }

    async fn call(
        &self,
        current: Current,
        script: &Script,
        args: impl Fn(&str) -> Vec<String>,
        deadline: Instant,
    ) -> Result<Value, StoreError> {
        let client = current.client.as_ref().map_err(Clone::clone)?;
        let reply = script.call(client, args, deadline).await;
        if let Err(error) = &reply {
            self.look_into(error.kind(), current);
        }
        reply
    }

    /// Finds out in the background whether the connection is still of use, and complains if not.
    ///
    /// A server that became a replica keeps its connections. And a connection may fall silent, or the client
    /// get stuck: nothing but asking tells.
    fn look_into(&self, kind: ErrorKind, current: Current) {
        if !matches!(kind, ErrorKind::ReadOnly | ErrorKind::Timeout) {
            return;
        }
        let (script, complaints) = (self.script.clone(), self.connection.complaints());
        self.looking.join(&self.runtime, async move {
            let fault = match (kind, current.client) {
                (ErrorKind::ReadOnly, _) => Some(Fault::ReadOnly),
                (_, Ok(client)) => script.is_silent(&client).await.then_some(Fault::Silent),
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
