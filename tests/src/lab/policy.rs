//! The failure policies, as the command line names them.

use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// What decides where Redis does not.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Policy {
    /// Lets requests through.
    Open,
    /// Answers 503.
    Closed,
    /// Limits each replica to its share.
    Local,
}

// === impl Policy ===

impl Policy {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Open, Self::Closed, Self::Local];

    /// Its name.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Open => "open",
            Self::Closed => "closed",
            Self::Local => "local",
        }
    }
}

impl FromStr for Policy {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        Self::ALL
            .into_iter()
            .find(|policy| policy.as_str() == name)
            .ok_or_else(|| format!("no policy `{name}`; there are open, closed and local"))
    }
}
