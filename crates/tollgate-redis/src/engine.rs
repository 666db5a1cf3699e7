//! What every store does, whatever client library it calls Redis through.

use std::{fmt, sync::Arc, time::Duration};

use tokio::{
    runtime::Handle,
    time::{Instant, sleep},
};
use tollgate_core::{
    AdjustFuture, Adjustment, Check, CheckFuture, Decision, ErrorKind, StoreError, StoreFuture,
};

use crate::{
    arguments, config,
    connection::{Complaint, Connection, Current, Fault},
    lane::Lane,
    reply::{self, Reply},
    run_out::RunOut,
    script::Script,
    single_flight::SingleFlight,
};

/// Between two looks at a connection on which something failed.
const LOOK_PAUSE: Duration = Duration::from_millis(500);

/// Calls, the connection that they go over, and what is found out about it. Clones share all of that.
pub(crate) struct Engine<L: Lane> {
    inner: Arc<Inner<L>>,
}

struct Inner<L: Lane> {
    connection: Connection<L>,
    script: Arc<Script>,
    adjust: Script,
    runtime: Handle,
    looking: SingleFlight<()>,
    address: String,
    deadline: Duration,
}

impl<L: Lane> Engine<L> {
    /// Starts to connect, and keeps on trying.
    pub(crate) fn start(config: L::Config, address: String, deadline: Duration) -> Self {
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
        work: impl FnOnce(Arc<Inner<L>>, Current<L::Client>, Instant) -> F + Send + 'static,
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

    pub(crate) fn check(&self, check: Check) -> CheckFuture {
        let deadline = check.deadline().map(Instant::from_std);
        self.ask(deadline, |inner, current, deadline| async move {
            inner.decide(current, check, deadline).await
        })
    }

    pub(crate) fn adjust(&self, adjustment: Adjustment) -> AdjustFuture {
        let deadline = adjustment.deadline().map(Instant::from_std);
        self.ask(deadline, |inner, current, deadline| async move {
            inner.change(current, adjustment, deadline).await
        })
    }

    /// Calls another script, over the connection of the checks.
    pub(crate) async fn call(
        &self,
        script: &Script,
        args: impl Fn(&str) -> Vec<String>,
        deadline: Instant,
    ) -> Result<Reply, StoreError> {
        let current = self.inner.connection.settled(deadline).await;
        self.inner.call(current, script, args, deadline).await
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
            .finish_non_exhaustive()
    }
}

impl<L: Lane> Inner<L> {
    async fn decide(
        &self,
        current: Current<L::Client>,
        check: Check,
        deadline: Instant,
    ) -> Result<Decision, StoreError> {
        let args = |sha: &str| arguments::of_check(sha, &check);
        let reply = self.call(current, &self.script, args, deadline).await?;
        reply::decide(check, &reply)
    }

    async fn change(
        &self,
        current: Current<L::Client>,
        adjustment: Adjustment,
        deadline: Instant,
    ) -> Result<Vec<i64>, StoreError> {
        let args = |sha: &str| arguments::of_adjustment(sha, &adjustment);
        let reply = self.call(current, &self.adjust, args, deadline).await?;
        reply::tokens(&adjustment, &reply)
    }

    async fn call(
        &self,
        current: Current<L::Client>,
        script: &Script,
        args: impl Fn(&str) -> Vec<String>,
        deadline: Instant,
    ) -> Result<Reply, StoreError> {
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
    fn look_into(&self, kind: ErrorKind, current: Current<L::Client>) {
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
