//! How a store comes about.

use std::{fmt, time::Duration};

use fred::{
    clients::Client,
    interfaces::{ClientLike, EventInterface},
};
use tokio::time::timeout;

use crate::{ConnectError, RedisStore, config};

/// Long enough for a few attempts, short enough for a service to start without Redis.
const CONNECT_WAIT: Duration = Duration::from_secs(1);

const DEFAULT_DEADLINE: Duration = Duration::from_millis(25);

/// Settings of a [`RedisStore`]. Made by [`RedisStore::builder`].
#[derive(Clone)]
#[must_use = "a builder does nothing until `connect`"]
pub struct RedisStoreBuilder {
    url: String,
    deadline: Duration,
    strict: bool,
}

impl RedisStoreBuilder {
    pub(crate) fn new(url: &str) -> Self {
        Self {
            url: url.to_owned(),
            deadline: DEFAULT_DEADLINE,
            strict: false,
        }
    }

    /// How long one check may take, from the call to the answer: waiting for the connection, for the reply
    /// and for a script that has to be loaded all count. 25 ms by default. Checks that bring a deadline of
    /// their own, as those of a limiter do, keep to that one.
    ///
    /// A check that takes longer fails with [`ErrorKind::Timeout`](tollgate_core::ErrorKind::Timeout).
    pub fn deadline(mut self, deadline: Duration) -> Self {
        self.deadline = deadline;
        self
    }

    /// Whether [`connect`](Self::connect) fails if Redis cannot be reached. `false` by default: a service
    /// starts without Redis, and the store works once Redis comes.
    pub fn strict(mut self, strict: bool) -> Self {
        self.strict = strict;
        self
    }

    /// Connects, waiting for Redis for at most about a second.
    ///
    /// # Errors
    ///
    /// If the URL is not one of Redis, the deadline is zero, or Redis cannot be reached and the store is
    /// [`strict`](Self::strict).
    ///
    /// # Panics
    ///
    /// Outside of a Tokio runtime with time and I/O enabled.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future closes whatever was opened.
    pub async fn connect(self) -> Result<RedisStore, ConnectError> {
        if self.deadline.is_zero() {
            return Err(ConnectError::ZeroDeadline);
        }
        let config = config::parse(&self.url)?;
        let address = config.server.hosts()[0].to_string();
        let client = config::client(config)?;
        let mut errors = client.error_rx();
        let store = RedisStore::start(client.clone(), address.clone(), self.deadline);

        if is_connected_soon(&client).await {
            store.load_script().await;
            return Ok(store);
        }
        let reason = match errors.try_recv() {
            Ok((error, _)) => error.details().to_owned(),
            Err(_) => format!("no answer within {CONNECT_WAIT:?}"),
        };
        if self.strict {
            return Err(ConnectError::Unreachable { address, reason });
        }
        tracing::warn!(%address, %reason, "Redis cannot be reached; trying again until it can");
        Ok(store)
    }
}

// === impl RedisStoreBuilder ===

impl fmt::Debug for RedisStoreBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The URL may hold a password.
        f.debug_struct("RedisStoreBuilder")
            .field("deadline", &self.deadline)
            .field("strict", &self.strict)
            .finish_non_exhaustive()
    }
}

async fn is_connected_soon(client: &Client) -> bool {
    // The state is what counts: the event may pass between fred's look at the state and its wait.
    let _ = timeout(CONNECT_WAIT, client.wait_for_connect()).await;
    client.is_connected()
}
