//! The failure policies, as the command line names them.

use std::str::FromStr;

use serde::Serialize;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Policy {
    Open,
    Closed,
    Local,
}

// === impl Policy ===

impl Policy {
    pub(crate) const ALL: [Self; 3] = [Self::Open, Self::Closed, Self::Local];

    pub(crate) const fn as_str(self) -> &'static str {
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
