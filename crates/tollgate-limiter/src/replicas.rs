//! Where the number of replicas comes from.

use std::{env, fmt};

pub use tollgate_core::ReplicaCount;

mod dns;

pub use self::dns::DnsReplicas;

/// The number of replicas from an environment variable, read once.
///
/// # Errors
///
/// If the variable is not set, or is not a whole number from 1.
pub fn env_replicas(variable: &str) -> Result<u32, InvalidReplicas> {
    let invalid = |given: Option<String>| InvalidReplicas {
        variable: variable.to_owned(),
        given,
    };
    let given = env::var(variable).map_err(|_| invalid(None))?;
    match given.trim().parse() {
        Ok(number) if number >= 1 => Ok(number),
        _ => Err(invalid(Some(given))),
    }
}

/// An environment variable that does not tell the number of replicas.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InvalidReplicas {
    variable: String,
    given: Option<String>,
}

// === impl InvalidReplicas ===

impl fmt::Display for InvalidReplicas {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let variable = &self.variable;
        match &self.given {
            None => write!(
                f,
                "{variable} is not set; it must tell the number of replicas"
            ),
            Some(given) => write!(
                f,
                "{variable} is `{given}`; it must be the number of replicas, from 1"
            ),
        }
    }
}

impl std::error::Error for InvalidReplicas {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_variable_is_named() {
        let error = env_replicas("TOLLGATE_TEST_NOT_SET").expect_err("not set");
        assert!(
            error
                .to_string()
                .contains("TOLLGATE_TEST_NOT_SET is not set")
        );
        // Cargo sets this one, and it is no number.
        let error = env_replicas("CARGO_PKG_NAME").expect_err("not a number");
        assert!(error.to_string().contains("from 1"), "{error}");
        let patch = env::var("CARGO_PKG_VERSION_MINOR").expect("set by cargo");
        assert_eq!(
            env_replicas("CARGO_PKG_VERSION_MINOR")
                .ok()
                .map(|n| n.to_string()),
            Some(patch)
        );
    }
}
