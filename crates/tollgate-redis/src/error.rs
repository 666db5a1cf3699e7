//! Why there is no store.

use std::fmt;

/// A store that could not be built or, when [`strict`](crate::RedisStoreBuilder::strict), not connected.
///
/// Neither text nor `Debug` output ever holds a user name or a password.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ConnectError {
    /// The URL is none of a Redis, in one of the forms that the crate's page lists. Holds what is wrong with
    /// it.
    Url(String),
    /// Another setting is wrong, or does not go with the rest.
    Setting {
        /// Its name, as in [`RedisSettings`](crate::RedisSettings).
        field: &'static str,
        /// What is wrong with it.
        problem: String,
    },
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

impl ConnectError {
    pub(crate) fn setting(field: &'static str, problem: impl Into<String>) -> Self {
        Self::Setting {
            field,
            problem: problem.into(),
        }
    }
}

// === impl ConnectError ===

impl fmt::Display for ConnectError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Url(problem) => write!(
                f,
                "bad Redis URL: {problem}; write redis://[[user]:password@]host[:port][/database], \
                 redis-cluster://…host[:port],host[:port] or redis-sentinel://…host[:port],host[:port]/name"
            ),
            Self::Setting { field, problem } => write!(f, "bad setting `{field}`: {problem}"),
            Self::ZeroDeadline => f.write_str("the deadline of a check must be longer than zero"),
            Self::Unreachable { address, reason } => {
                write!(f, "Redis at {address} cannot be reached: {reason}")
            }
        }
    }
}

impl std::error::Error for ConnectError {}
