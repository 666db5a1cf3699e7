//! Where the next connection leads.

use std::sync::Arc;

use fred::types::config::{Config, Server, ServerConfig};
use tollgate_core::StoreError;

use crate::{lane::Lane, login::Login, sentinel::Sentinels};

/// Where a connection leads, and how it is made. Asked anew for each attempt, since a password may have
/// changed, and a primary.
#[derive(Clone, Debug)]
pub(crate) enum Target {
    /// Always the same server, by name.
    Server(Arc<Access>, ServerConfig),
    /// Whatever the sentinels say.
    Sentinels(Arc<Sentinels>),
}

/// How to get in.
#[derive(Clone, Debug)]
pub(crate) struct Access {
    /// Whatever does not differ from server to server.
    pub(crate) config: Config,
    pub(crate) login: Login,
    /// The name that the servers' certificates have to show, if not that of their hosts.
    #[cfg(feature = "tls")]
    pub(crate) server_name: Option<String>,
}

impl Target {
    /// Makes one attempt. Tells also which server it is, if that may change.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future closes whatever was opened.
    pub(crate) async fn open<L: Lane>(&self) -> Result<(L, Option<Server>), StoreError> {
        match self {
            Self::Server(access, server) => Ok((access.open(server.clone()).await?, None)),
            Self::Sentinels(sentinels) => {
                let (lane, primary) = sentinels.open().await?;
                Ok((lane, Some(primary)))
            }
        }
    }

    /// Waits until another server than `current` is to be used, although that one is still up.
    pub(crate) async fn replaced<L: Lane>(&self, current: Option<&Server>) {
        match (self, current) {
            (Self::Sentinels(sentinels), Some(current)) => sentinels.replaced::<L>(current).await,
            _ => std::future::pending().await,
        }
    }
}

impl Access {
    pub(crate) const fn with_database(mut self, database: Option<u8>) -> Self {
        self.config.database = database;
        self
    }

    pub(crate) async fn open<L: Lane>(&self, server: ServerConfig) -> Result<L, StoreError> {
        let mut config = self.config.clone();
        self.login.apply(&mut config)?;
        config.server = server;
        #[cfg(feature = "tls")]
        if let (ServerConfig::Centralized { server }, Some(name)) =
            (&mut config.server, &self.server_name)
        {
            server.tls_server_name = Some(name.as_str().into());
        }
        L::open(config).await
    }

    pub(crate) async fn open_at<L: Lane>(&self, server: Server) -> Result<L, StoreError> {
        self.open(ServerConfig::Centralized { server }).await
    }
}
