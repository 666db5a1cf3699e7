//! A quota with a name.

use std::{fmt, sync::Arc};

use crate::Quota;

/// The name of a limit, shown in headers, metrics and keys.
///
/// It matches `[a-z][a-z0-9_.-]*` and has at most 64 bytes, so that it is valid as a structured-field
/// string and token ([RFC 9651]) and as a metric label without escaping.
///
/// [RFC 9651]: https://www.rfc-editor.org/rfc/rfc9651
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LimitName(Arc<str>);

impl LimitName {
    /// Takes `name` if it is a valid one.
    ///
    /// # Errors
    ///
    /// If the name is empty, longer than 64 bytes, or has other bytes than `[a-z][a-z0-9_.-]*`.
    pub fn new(name: &str) -> Result<Self, InvalidName> {
        let mut bytes = name.bytes();
        let starts_well = bytes.next().is_some_and(|first| first.is_ascii_lowercase());
        let goes_on_well = bytes.all(|b| {
            b.is_ascii_lowercase() || b.is_ascii_digit() || matches!(b, b'_' | b'.' | b'-')
        });
        if starts_well && goes_on_well && name.len() <= 64 {
            Ok(Self(name.into()))
        } else {
            Err(InvalidName(name.to_owned()))
        }
    }

    /// The name as text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

// === impl LimitName ===

impl Default for LimitName {
    /// `default`, the limit per tenant.
    fn default() -> Self {
        Self("default".into())
    }
}

impl fmt::Debug for LimitName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl fmt::Display for LimitName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// A name that is not of the form `[a-z][a-z0-9_.-]*`, or is longer than 64 bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InvalidName(String);

impl fmt::Display for InvalidName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{:?} is not a name for a limit; use a lower-case letter, then at most 63 of a-z 0-9 _ . -",
            self.0
        )
    }
}

impl std::error::Error for InvalidName {}

/// A named quota.
#[derive(Clone, Debug, PartialEq)]
pub struct Limit {
    /// The name that headers, metrics and keys show.
    pub name: LimitName,
    /// The capacity and the rate.
    pub quota: Quota,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_need_no_escaping_anywhere() {
        for good in ["default", "a", "search.v2", "per-user_daily"] {
            assert!(LimitName::new(good).is_ok(), "{good}");
        }
        let long = "a".repeat(65);
        for bad in [
            "",
            "Default",
            "1st",
            "_x",
            "with space",
            "quo\"te",
            "résumé",
            "a:b",
            "a{b",
            &long,
        ] {
            assert_eq!(
                LimitName::new(bad),
                Err(InvalidName(bad.to_owned())),
                "{bad}"
            );
        }
    }
}
