//! A script on the server.

use std::fmt;

use fred::{
    clients::Client,
    error::Error,
    interfaces::{ClientLike, LuaInterface},
    types::{ClusterHash, CustomCommand, Value},
};
use tokio::{
    runtime::Handle,
    time::{Instant, timeout_at},
};
use tollgate_core::{ChargeState, ErrorKind, StoreError};

use crate::{config, failure, single_flight::SingleFlight};

/// A script, called by its hash and loaded when the server does not know it.
pub(crate) struct Script {
    source: &'static str,
    runtime: Handle,
    sha: String,
    loading: SingleFlight<Result<(), Error>>,
}

impl Script {
    /// `token_bucket.lua`.
    pub(crate) fn token_bucket(runtime: Handle) -> Self {
        Self::new(include_str!("../lua/token_bucket.lua"), runtime)
    }

    /// `adjust.lua`.
    pub(crate) fn adjust(runtime: Handle) -> Self {
        Self::new(include_str!("../lua/adjust.lua"), runtime)
    }

    /// `replicas.lua`.
    pub(crate) fn replicas(runtime: Handle) -> Self {
        Self::new(include_str!("../lua/replicas.lua"), runtime)
    }

    fn new(source: &'static str, runtime: Handle) -> Self {
        Self {
            source,
            runtime,
            sha: fred::util::sha1_hash(source),
            loading: SingleFlight::new(),
        }
    }

    /// Calls the script with what `args` makes of its hash; if the server lost it, loads it and calls it
    /// once more. No other failure leads to a second call, because no other says for certain that nothing
    /// ran.
    pub(crate) async fn call(
        &self,
        client: &Client,
        args: impl Fn(&str) -> Vec<String>,
        deadline: Instant,
    ) -> Result<Value, StoreError> {
        match self.call_once(client, args(&self.sha), deadline).await {
            Err(error) if error.kind() == ErrorKind::NoScript => {
                self.load(client, deadline).await?;
                self.call_once(client, args(&self.sha), deadline).await
            }
            outcome => outcome,
        }
    }

    /// Loads the script, together with all who want that now. The task behind it is nobody's in particular
    /// and has more time than a check, so that a slow load ends one day.
    pub(crate) async fn load(&self, client: &Client, deadline: Instant) -> Result<(), StoreError> {
        let (client, source) = (client.clone(), self.source);
        let loading = self.loading.join(
            &self.runtime,
            async move { client.script_load(source).await },
        );
        match timeout_at(deadline, loading.wait()).await {
            Ok(Some(Ok(()))) => Ok(()),
            Ok(Some(Err(error))) => Err(failure::while_loading(error)),
            Ok(None) => Err(not_charged(ErrorKind::Io, "the runtime is shutting down")),
            Err(_) => Err(not_charged(
                ErrorKind::Timeout,
                "the script could not be loaded within the deadline",
            )),
        }
    }

    /// Whether the connection answers nothing for much longer than a check. A server that is merely slow does
    /// answer, and loading again is what every user of the script may do.
    pub(crate) async fn is_silent(&self, client: &Client) -> bool {
        let loaded = self
            .load(client, Instant::now() + config::SETUP_TIMEOUT)
            .await;
        // An error without a reply means that the queue is full, or the connection gone already.
        matches!(loaded, Err(error) if matches!(error.kind(), ErrorKind::Timeout | ErrorKind::Io))
    }

    async fn call_once(
        &self,
        client: &Client,
        args: Vec<String>,
        deadline: Instant,
    ) -> Result<Value, StoreError> {
        let left = deadline.saturating_duration_since(Instant::now());
        // To fred, zero means no timeout.
        if left.is_zero() {
            return Err(not_charged(
                ErrorKind::Timeout,
                "the deadline had passed already",
            ));
        }
        let client = client.with_options(&config::call_options(left));
        // Not fred's `evalsha`: a client with options does not have it, but derefs to one without options
        // that does, and so would wait in the queue of a lost connection.
        let evalsha = CustomCommand::new_static("EVALSHA", ClusterHash::Random, false);
        client.custom(evalsha, args).await.map_err(failure::of_call)
    }
}

// === impl Script ===

impl fmt::Debug for Script {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Script")
            .field("sha", &self.sha)
            .finish_non_exhaustive()
    }
}

fn not_charged(kind: ErrorKind, reason: &'static str) -> StoreError {
    StoreError::new(kind, ChargeState::NotCharged, reason)
}
