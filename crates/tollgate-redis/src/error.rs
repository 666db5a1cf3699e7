//! Why there is no store.

use std::fmt;

/// A store that could not be built or, when [`strict`](crate::RedisStoreBuilder::strict), not connected.
///
/// Neither text nor `Debug` output ever holds the user name or the password of the URL.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ConnectError {
    /// The URL is not of the form `redis://[[user]:password@]host[:port][/database]`. Holds what is wrong
    /// with it.
    Url(String),
    /// The deadline of a check is zero, so that no check could ever be answered.
    ZeroDeadline,
    /// Redis could not be reached, or refused the connection, and the store is strict.
    Unreachable {
        /// Host and port.
        address: String,
        /// What went wrong last.
        reason: String,
    },
}

impl fmt::Display for ConnectError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Url(problem) => write!(
                f,
                "bad Redis URL: {problem}; write redis://[[user]:password@]host[:port][/database]"
            ),
            Self::ZeroDeadline => f.write_str("the deadline of a check must be longer than zero"),
            Self::Unreachable { address, reason } => {
                write!(f, "Redis at {address} cannot be reached: {reason}")
            }
        }
    }
}

impl std::error::Error for ConnectError {}
