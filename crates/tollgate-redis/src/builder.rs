//! How a store comes about.

use std::{error::Error, fmt, marker::PhantomData, time::Duration};

use fred::types::config::Config;

use crate::{ConnectError, RedisStore, config, engine::Engine, fred_lane::FredLane, lane::Lane};

/// Long enough for a few attempts, short enough for a service to start without Redis.
const CONNECT_WAIT: Duration = Duration::from_secs(1);

const DEFAULT_DEADLINE: Duration = Duration::from_millis(25);

/// Settings of the store `S`. Made by [`RedisStore::builder`], and by that of `RedisRsStore`.
#[must_use = "a builder does nothing until `connect`"]
pub struct RedisStoreBuilder<S = RedisStore> {
    url: String,
    deadline: Duration,
    strict: bool,
    store: PhantomData<fn() -> S>,
}

impl<S> RedisStoreBuilder<S> {
    pub(crate) fn new(url: &str) -> Self {
        Self {
            url: url.to_owned(),
            deadline: DEFAULT_DEADLINE,
            strict: false,
            store: PhantomData,
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

    /// Whether `connect` fails if Redis cannot be reached. `false` by default: a service
    /// starts without Redis, and the store works once Redis comes.
    pub fn strict(mut self, strict: bool) -> Self {
        self.strict = strict;
        self
    }

    /// What `connect` does, through whichever library.
    pub(crate) async fn open<L: Lane>(
        self,
        configure: impl FnOnce(Config) -> L::Config,
    ) -> Result<Engine<L>, ConnectError> {
        if self.deadline.is_zero() {
            return Err(ConnectError::ZeroDeadline);
        }
        let config = config::parse(&self.url)?;
        let address = config.server.hosts()[0].to_string();
        let engine = Engine::start(configure(config), address.clone(), self.deadline);
        match engine.wait(CONNECT_WAIT).await {
            Ok(()) => engine.load_script().await,
            Err(error) if self.strict => {
                let reason = error.source().map(ToString::to_string).unwrap_or_default();
                return Err(ConnectError::Unreachable { address, reason });
            }
            // Said in the log by whoever goes on trying.
            Err(_) => {}
        }
        Ok(engine)
    }
}

impl RedisStoreBuilder<RedisStore> {
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
        let engine = self.open::<FredLane>(|config| config).await?;
        Ok(RedisStore { engine })
    }
}

// === impl RedisStoreBuilder ===

impl<S> Clone for RedisStoreBuilder<S> {
    fn clone(&self) -> Self {
        Self {
            url: self.url.clone(),
            ..*self
        }
    }
}

impl<S> fmt::Debug for RedisStoreBuilder<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The URL may hold a password.
        f.debug_struct("RedisStoreBuilder")
            .field("deadline", &self.deadline)
            .field("strict", &self.strict)
            .finish_non_exhaustive()
    }
}
