//! How fred is set up: the one place, because its defaults do not suit a store that must answer in time.

use std::time::Duration;

use fred::{
    clients::Client,
    error::Error,
    types::{
        Builder,
        config::{Config, ConnectionConfig, Options, TcpConfig},
    },
};
use socket2::TcpKeepalive;

/// How long one attempt to connect, and each of fred's own commands on a new connection, may take. Much
/// longer than a check: a slow handshake must not keep the store from ever connecting.
pub(crate) const SETUP_TIMEOUT: Duration = Duration::from_secs(1);

/// Ends also a write that a black hole blocks, which no library waits for with a timeout.
#[cfg(target_os = "linux")]
pub(crate) const USER_TIMEOUT: Duration = Duration::from_secs(2);

/// Commands that wait while fred is stuck in a write. They time out where they stand, but leave the queue only
/// when it moves again; without a bound an outage would fill the memory.
const MAX_QUEUED: usize = 8_192;

/// A client that is not connected yet, and has one connection in its life: without a policy to reconnect,
/// its task ends when the connection does.
pub(crate) fn client(mut config: Config) -> Result<Client, Error> {
    // One attempt; the supervisor makes the next.
    config.fail_fast = true;
    let mut builder = Builder::from_config(config);
    builder.with_connection_config(set_connection);
    // For what carries no timeout of its own; fred's default is to wait for ever.
    builder.with_performance_config(|performance| {
        performance.default_command_timeout = SETUP_TIMEOUT;
    });
    builder.build()
}

/// What each script call is sent with.
pub(crate) fn call_options(timeout: Duration) -> Options {
    Options {
        // Covers the queue and the reply. fred skips a command that timed out while it was still queued,
        // so that nothing runs after its caller has given up.
        timeout: Some(timeout),
        // Never sent again: a lost connection does not say whether the script ran.
        max_attempts: Some(1),
        // A redirection says that nothing ran; two suffice while a slot moves.
        max_redirections: Some(2),
        // An error at once while there is no connection, instead of a place in the queue.
        fail_fast: true,
        ..Options::default()
    }
}

fn set_connection(connection: &mut ConnectionConfig) {
    connection.connection_timeout = SETUP_TIMEOUT;
    connection.internal_command_timeout = SETUP_TIMEOUT;
    connection.max_command_attempts = 1;
    connection.max_redirections = 2;
    connection.max_command_buffer_len = MAX_QUEUED;
    // A password that was changed on the server: managed services expect a new login on a new connection.
    connection.reconnect_on_auth_error = true;
    // fred's feature `custom-reconnect-errors` stays off: after READONLY or LOADING it would drop the
    // connection and hand the error to every call in flight, also to those that the server did run. The
    // store itself reconnects after READONLY, and LOADING passes without that. Its watch for unresponsive
    // connections stays off as well: it counts the silence from the latest write, so that under steady
    // traffic it never notices. The store asks for itself.
    connection.tcp = tcp();
}

fn tcp() -> TcpConfig {
    TcpConfig {
        // A check waits for one reply; holding its packet back to gather more only costs time.
        nodelay: Some(true),
        // Finds a dead peer, and keeps address translators from forgetting an idle connection.
        keepalive: Some(keepalive()),
        #[cfg(target_os = "linux")]
        user_timeout: Some(USER_TIMEOUT),
        ..TcpConfig::default()
    }
}

pub(crate) const fn keepalive() -> TcpKeepalive {
    TcpKeepalive::new()
        .with_time(Duration::from_secs(15))
        .with_interval(Duration::from_secs(5))
}
