//! What is wrong with quotas, and where.

use std::fmt;

/// One thing that is wrong, or surprising.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Fault {
    /// Where: the keys that lead there in a limits file, such as `limits`, `reports`, `costs`.
    pub path: Vec<String>,
    /// What, and what would be right.
    pub problem: String,
}

impl Fault {
    pub(crate) fn new<P>(path: P, problem: impl Into<String>) -> Self
    where
        P: IntoIterator<Item: AsRef<str>>,
    {
        Self {
            path: path
                .into_iter()
                .map(|key| key.as_ref().to_owned())
                .collect(),
            problem: problem.into(),
        }
    }
}

// === impl Fault ===

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, key) in self.path.iter().enumerate() {
            let dot = if i == 0 { "" } else { "." };
            // As TOML writes it: a key with dots or spaces in it is quoted.
            let is_bare = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'_' | b'-');
            if !key.is_empty() && key.bytes().all(is_bare) {
                write!(f, "{dot}{key}")?;
            } else {
                write!(f, "{dot}{key:?}")?;
            }
        }
        let colon = if self.path.is_empty() { "" } else { ": " };
        write!(f, "{colon}{}", self.problem)
    }
}

/// Quotas that contradict themselves or could never be served.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct InvalidQuotas {
    /// All that is wrong, at least one.
    pub faults: Vec<Fault>,
}

impl fmt::Display for InvalidQuotas {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, fault) in self.faults.iter().enumerate() {
            let semicolon = if i == 0 { "" } else { "; " };
            write!(f, "{semicolon}{fault}")?;
        }
        Ok(())
    }
}

impl std::error::Error for InvalidQuotas {}
