//! The client libraries, as the command line names them.

use std::str::FromStr;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Client {
    Fred,
    RedisRs,
}

// === impl Client ===

impl Client {
    const ALL: [Self; 2] = [Self::Fred, Self::RedisRs];

    pub(crate) const fn as_str(self) -> &'static str {
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
