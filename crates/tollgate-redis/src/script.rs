//! The script on the server.

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
use tollgate_core::{ChargeState, Check, ErrorKind, StoreError};

use crate::{config, failure, single_flight::SingleFlight};

const TOKEN_BUCKET: &str = include_str!("../lua/token_bucket.lua");

/// `token_bucket.lua`, called by its hash and loaded when the server does not know it.
pub(crate) struct Script {
    client: Client,
    runtime: Handle,
    sha: String,
    loading: SingleFlight<Result<(), Error>>,
}

impl Script {
    pub(crate) fn new(client: Client, runtime: Handle) -> Self {
        Self {
            client,
            runtime,
            sha: fred::util::sha1_hash(TOKEN_BUCKET),
            loading: SingleFlight::new(),
        }
    }

    /// Calls the script; if the server lost it, loads it and calls it once more. No other failure leads to
    /// a second call, because no other says for certain that nothing ran.
    pub(crate) async fn call(&self, check: &Check, deadline: Instant) -> Result<Value, StoreError> {
        match self.call_once(check, deadline).await {
            Err(error) if error.kind() == ErrorKind::NoScript => {
                self.load(deadline).await?;
                self.call_once(check, deadline).await
            }
            outcome => outcome,
        }
    }

    /// Loads the script, together with all who want that now. The task behind it is nobody's in particular
    /// and has more time than a check, so that a slow load ends one day.
    pub(crate) async fn load(&self, deadline: Instant) -> Result<(), StoreError> {
        let client = self.client.clone();
        let loading = self.loading.join(&self.runtime, async move {
            client.script_load(TOKEN_BUCKET).await
        });
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
    pub(crate) async fn is_silent(&self) -> bool {
        let loaded = self.load(Instant::now() + config::SETUP_TIMEOUT).await;
        matches!(loaded, Err(error) if error.kind() == ErrorKind::Timeout)
    }

    async fn call_once(&self, check: &Check, deadline: Instant) -> Result<Value, StoreError> {
        let left = deadline.saturating_duration_since(Instant::now());
        // To fred, zero means no timeout.
        if left.is_zero() {
            return Err(not_charged(
                ErrorKind::Timeout,
                "the deadline had passed already",
            ));
        }
        let client = self.client.with_options(&config::call_options(left));
        let args = self.args(check);
        // Not fred's `evalsha`: a client with options does not have it, but derefs to one without options
        // that does, and so would wait in the queue of a lost connection.
        let evalsha = CustomCommand::new_static("EVALSHA", ClusterHash::Random, false);
        client.custom(evalsha, args).await.map_err(failure::of_call)
    }

    /// The hash, the keys, `capacity rate cost` for each key, then `count` and `shadow` as far as they are not
    /// the defaults.
    fn args(&self, check: &Check) -> Vec<String> {
        let charges = check.charges();
        let mut args = Vec::with_capacity(4 * charges.len() + 4);
        args.extend([self.sha.clone(), charges.len().to_string()]);
        args.extend(charges.iter().map(|charge| charge.key.to_string()));
        for charge in charges {
            let quota = &charge.limit.quota;
            args.push(quota.capacity().to_string());
            // The shortest decimal that reads back as the same double, never with an exponent.
            args.push(quota.rate().per_second().to_string());
            args.push(charge.cost.tokens().to_string());
        }
        if check.count() != 1 || check.shadow() != 0 {
            args.push(check.count().to_string());
        }
        if check.shadow() != 0 {
            args.push(check.shadow().to_string());
        }
        args
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
