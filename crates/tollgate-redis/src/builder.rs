//! How a store comes about.

use std::{error::Error, fmt, marker::PhantomData, path::PathBuf, time::Duration};

use crate::{
    ConnectError, RedisSettings, RedisStore, engine::Engine, fred_lane::FredLane, lane::Lane,
};

/// Long enough for a few attempts, short enough for a service to start without Redis.
const CONNECT_WAIT: Duration = Duration::from_secs(1);

/// Settings of the store `S`. Made by [`RedisStore::builder`], by that of `RedisRsStore`, or from
/// [`RedisSettings`].
#[must_use = "a builder does nothing until `connect`"]
pub struct RedisStoreBuilder<S = RedisStore> {
    settings: RedisSettings,
    store: PhantomData<fn() -> S>,
}

impl<S> RedisStoreBuilder<S> {
    pub(crate) fn new(url: &str) -> Self {
        RedisSettings::new(url).into()
    }

    /// How long one check may take, from the call to the answer: waiting for the connection, for the reply
    /// and for a script that has to be loaded all count. 25 ms by default. Checks that bring a deadline of
    /// their own, as those of a limiter do, keep to that one.
    ///
    /// A check that takes longer fails with [`ErrorKind::Timeout`](tollgate_core::ErrorKind::Timeout).
    pub fn deadline(mut self, deadline: Duration) -> Self {
        self.settings.deadline = deadline;
        self
    }

    /// Whether `connect` fails if Redis cannot be reached. `false` by default: a service
    /// starts without Redis, and the store works once Redis comes.
    pub fn strict(mut self, strict: bool) -> Self {
        self.settings.strict = strict;
        self
    }

    /// The user to log in as; needs a password.
    pub fn username(mut self, username: impl Into<String>) -> Self {
        self.settings.username = Some(username.into());
        self
    }

    /// The password to log in with.
    pub fn password(mut self, password: impl Into<String>) -> Self {
        self.settings.password = Some(password.into());
        self
    }

    /// The file that holds the password. It is read for each connection, so that the password can be changed
    /// without a restart; line ends after it do not count.
    pub fn password_file(mut self, path: impl Into<PathBuf>) -> Self {
        self.settings.password_file = Some(path.into());
        self
    }

    /// The number of the database. 0 by default, and always on a cluster.
    pub fn database(mut self, database: u8) -> Self {
        self.settings.database = Some(database);
        self
    }

    /// The version of the protocol: 2, the default, or 3.
    pub fn resp(mut self, version: u8) -> Self {
        self.settings.resp = version;
        self
    }

    /// How many connections to keep to each server, 1 to 64; 1 by default. Calls take turns, and a connection
    /// that is down is passed over while another one is up.
    ///
    /// One is enough for most: many calls are on their way over it at a time. More let several threads write
    /// and read at the same time, and a single one that is lost or stuck concerns only the calls on it.
    pub fn connections(mut self, connections: u8) -> Self {
        self.settings.connections = connections;
        self
    }

    /// What all keys start with; `tg` by default. Services with prefixes of their own can share one Redis.
    ///
    /// A limiter and [`Heartbeats`](crate::Heartbeats) take it from the store.
    pub fn key_prefix(mut self, prefix: impl Into<String>) -> Self {
        self.settings.key_prefix = prefix.into();
        self
    }

    /// The word before the ids of tenants in the hash tag, by default `tenant` as in `tg:{tenant:42}:default`: see
    /// [`KeySpace::with_tag_scope`](tollgate_core::KeySpace::with_tag_scope).
    pub fn tag_scope(mut self, word: impl Into<String>) -> Self {
        self.settings.tag_scope = word.into();
        self
    }

    /// The file with the certificates of the authorities to trust, in PEM; by default, those of the system.
    #[cfg(feature = "tls")]
    pub fn ca_file(mut self, path: impl Into<PathBuf>) -> Self {
        self.settings.tls.ca_file = Some(path.into());
        self
    }

    /// The files with the client's own certificate and its key, in PEM.
    #[cfg(feature = "tls")]
    pub fn client_certificate(
        mut self,
        certificate: impl Into<PathBuf>,
        key: impl Into<PathBuf>,
    ) -> Self {
        self.settings.tls.certificate_file = Some(certificate.into());
        self.settings.tls.key_file = Some(key.into());
        self
    }

    /// The name that the servers' certificates have to show; by default, the host to which the connection
    /// leads. The nodes of a cluster are often named by address, and their certificates by name.
    #[cfg(feature = "tls")]
    pub fn server_name(mut self, name: impl Into<String>) -> Self {
        self.settings.tls.server_name = Some(name.into());
        self
    }

    /// The password for the sentinels, if they want one; they do not share it with the servers.
    pub fn sentinel_password(mut self, password: impl Into<String>) -> Self {
        self.settings.sentinel.password = Some(password.into());
        self
    }

    /// What `connect` does, through whichever library.
    pub(crate) async fn open<L: Lane>(self) -> Result<Engine<L>, ConnectError> {
        let settings = self.settings;
        let engine = Engine::start(settings.read()?);
        match engine.wait(CONNECT_WAIT).await {
            Ok(()) => engine.prepare().await,
            Err(error) if settings.strict => {
                let reason = error.source().map(ToString::to_string).unwrap_or_default();
                let address = engine.address().to_owned();
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
    /// If a setting is wrong or does not go with the others, or if Redis cannot be reached and the store is
    /// [`strict`](Self::strict). Of a cluster, all primaries have to be reached.
    ///
    /// # Panics
    ///
    /// Outside of a Tokio runtime with time and I/O enabled.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future closes whatever was opened.
    pub async fn connect(self) -> Result<RedisStore, ConnectError> {
        let engine = self.open::<FredLane>().await?;
        Ok(RedisStore { engine })
    }
}

// === impl RedisStoreBuilder ===

impl<S> From<RedisSettings> for RedisStoreBuilder<S> {
    fn from(settings: RedisSettings) -> Self {
        Self {
            settings,
            store: PhantomData,
        }
    }
}

impl<S> Clone for RedisStoreBuilder<S> {
    fn clone(&self) -> Self {
        self.settings.clone().into()
    }
}

impl<S> fmt::Debug for RedisStoreBuilder<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("RedisStoreBuilder")
            .field(&self.settings)
            .finish()
    }
}
