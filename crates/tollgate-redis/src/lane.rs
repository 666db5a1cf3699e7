//! One client with one connection.

use std::time::Duration;

use fred::{
    clients::Client,
    error::{Error, ErrorKind},
    interfaces::ClientLike,
    types::{
        ClusterHash, ConnectHandle, CustomCommand, Value,
        config::{Config, Server},
    },
};
use tokio::time::sleep;

use crate::config;

/// How often to look whether the client is connected.
const GLANCE: Duration = Duration::from_millis(2);

/// A client that is connected, until its connection ends; then it is of no more use. Dropping it closes the
/// connection, whatever the client's task is waiting for.
#[derive(Debug)]
pub(crate) struct Lane {
    client: Client,
    /// fred's task: the connection lives in it.
    task: ConnectHandle,
}

impl Lane {
    /// Makes one attempt. It ends within two [`SETUP_TIMEOUT`](config::SETUP_TIMEOUT)s: one for the
    /// connection, one for the login.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future closes whatever was opened.
    pub(crate) async fn open(config: Config) -> Result<Self, Error> {
        let client = config::client(config)?;
        let mut lane = Self {
            task: client.connect(),
            client,
        };
        // fred tells the event only to those who waited before, and drops it if it comes in between.
        while !lane.client.is_connected() {
            tokio::select! {
                error = lane.ended() => return Err(error),
                () = sleep(GLANCE) => {}
            }
        }
        Ok(lane)
    }

    pub(crate) const fn client(&self) -> &Client {
        &self.client
    }

    /// The server it leads to.
    pub(crate) fn server(&self) -> Option<Server> {
        self.client.client_config().server.hosts().pop()
    }

    /// Asks the server something that is no check, within [`SETUP_TIMEOUT`](config::SETUP_TIMEOUT).
    pub(crate) async fn ask(
        &self,
        command: &'static str,
        args: Vec<String>,
    ) -> Result<Value, Error> {
        ask(&self.client, command, args, config::SETUP_TIMEOUT).await
    }

    /// Waits for the end of the connection, or of the client's task in any other way, such as a panic.
    pub(crate) async fn ended(&mut self) -> Error {
        match (&mut self.task).await {
            Ok(Err(error)) => error,
            Ok(Ok(())) => Error::new(ErrorKind::IO, "the connection was closed"),
            Err(broken) => Error::new(
                ErrorKind::Unknown,
                format!("the client's task ended: {broken}"),
            ),
        }
    }
}

/// Asks the server behind `client` something that is no check.
pub(crate) async fn ask(
    client: &Client,
    command: &'static str,
    args: Vec<String>,
    timeout: Duration,
) -> Result<Value, Error> {
    let client = client.with_options(&config::call_options(timeout));
    let command = CustomCommand::new_static(command, ClusterHash::Random, false);
    client.custom(command, args).await
}

// === impl Lane ===

impl Drop for Lane {
    fn drop(&mut self) {
        // fred's task holds a client of its own, so it would go on for ever.
        self.task.abort();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_client_whose_task_panics_has_ended() {
        let mut lane = Lane {
            client: config::client(Config::default()).expect("a client"),
            task: tokio::spawn(async { panic!("expected by the test") }),
        };
        let error = lane.ended().await;
        assert!(error.details().contains("panic"), "{error}");
    }
}
