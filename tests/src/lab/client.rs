//! The client libraries, as the command line names them.

use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// The client library of the replicas.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Client {
    /// `RedisStore`.
    Fred,
    /// `RedisRsStore`.
    RedisRs,
}

// === impl Client ===

impl Client {
    const ALL: [Self; 2] = [Self::Fred, Self::RedisRs];

    /// Its name.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Fred => "fred",
            Self::RedisRs => "redis-rs",
        }
    }
}

impl FromStr for Client {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        Self::ALL
            .into_iter()
            .find(|client| client.as_str() == name)
            .ok_or_else(|| format!("no client `{name}`; there are fred and redis-rs"))
    }
}
