//! What a client library has to do for a store.

use std::time::Duration;

use fred::types::config::Config;
use tollgate_core::StoreError;

use crate::{arguments::Arguments, reply::Reply};

/// One connection, and the client that calls go through until it ends; then it is of no more use. Dropping
/// it closes the connection, whatever is in flight.
///
/// No library's own way to reconnect, or to follow a cluster, is used: a supervisor opens the next lane.
pub(crate) trait Lane: Sized + Send + Sync + 'static {
    /// What is given to callers. Clones are cheap, and all use the one connection.
    type Client: Client;

    /// Makes one attempt to connect to the one server that `config` names: whatever the library, settings are
    /// in the words of fred's. It ends within two [`SETUP_TIMEOUT`](crate::config::SETUP_TIMEOUT)s: one for
    /// the connection, one for the login. The server has answered something by then.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future closes whatever was opened.
    fn open(config: Config) -> impl Future<Output = Result<Self, StoreError>> + Send;

    fn client(&self) -> &Self::Client;

    /// Waits for the end of the connection, or of the client's task in any other way, such as a panic, and
    /// tells why. What is asked from then on is not sent.
    fn ended(&mut self) -> impl Future<Output = StoreError> + Send;
}

/// Calls over one connection, many at a time.
pub(crate) trait Client: Clone + Send + Sync + 'static {
    /// Sends `EVALSHA` with `args` once, and never again, and fails after `patience`, which is above zero.
    /// What was not sent by then never is, as long as the future lives until then.
    fn evalsha(
        &self,
        args: Arguments,
        asking: Asking,
        patience: Duration,
    ) -> impl Future<Output = Result<Reply, StoreError>> + Send;

    /// Loads a script. A failure charges nothing, since loading does not.
    fn script_load(&self, source: &str) -> impl Future<Output = Result<(), StoreError>> + Send;

    /// Asks the server something that charges nothing, within `patience`. It fails as if there were no
    /// connection.
    fn ask(
        &self,
        command: &'static str,
        args: Vec<String>,
        patience: Duration,
    ) -> impl Future<Output = Result<Reply, StoreError>> + Send;
}

/// Whether a cluster's server is to answer for a slot that is on its way to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Asking {
    No,
    /// The server takes the word for the very next command on the connection, so both are sent together.
    Yes,
}
