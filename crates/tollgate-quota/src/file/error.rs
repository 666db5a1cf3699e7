//! What is wrong with a limits file, and where.

use std::fmt;

use crate::Fault;

/// So many faults are shown; a list of thousands says no more.
const SHOWN: usize = 20;

/// A place in a text.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[non_exhaustive]
pub struct Place {
    /// The line, from 1.
    pub line: usize,
    /// The character in the line, from 1.
    pub column: usize,
}

/// One thing that is wrong or surprising in a limits file.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct PlacedFault {
    /// Where in the text; `None` if it is about no part of it, such as a file that cannot be read.
    pub place: Option<Place>,
    /// Under which field, and what would be right. The path is empty where the text is no TOML.
    pub fault: Fault,
}

impl PlacedFault {
    /// A fault that is about no part of the text.
    pub(super) fn of_file(problem: impl Into<String>) -> Self {
        Self {
            place: None,
            fault: Fault::new([""; 0], problem),
        }
    }
}

/// A limits file that is not taken.
///
/// Shown as `file:line:column: field: problem`, the faults after one another and at most 20 of them.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct LimitsError {
    /// The file, as it was named.
    pub file: String,
    /// All that is wrong, at least one, from the first line to the last.
    pub faults: Vec<PlacedFault>,
}

// === impl PlacedFault ===

impl fmt::Display for PlacedFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(Place { line, column }) = self.place {
            write!(f, "{line}:{column}: ")?;
        }
        self.fault.fmt(f)
    }
}

// === impl LimitsError ===

impl fmt::Display for LimitsError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, fault) in self.faults.iter().take(SHOWN).enumerate() {
            let semicolon = if i == 0 { "" } else { "; " };
            let space = if fault.place.is_none() { " " } else { "" };
            write!(f, "{semicolon}{}:{space}{fault}", self.file)?;
        }
        match self.faults.len().saturating_sub(SHOWN) {
            0 => Ok(()),
            more => write!(f, "; and {more} more"),
        }
    }
}

impl std::error::Error for LimitsError {}
