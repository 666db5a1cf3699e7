//! Whether a target was met.

use std::fmt::Write;

use serde::Serialize;

use crate::{Spread, number};

/// What was wanted, and what there is.
#[derive(Clone, Debug, Serialize)]
pub struct Verdict {
    pub target: String,
    pub wanted: String,
    /// `None` if a variant of it was not measured.
    pub measured: Option<Spread>,
    pub is_met: bool,
    /// Whether this is the second attempt.
    pub again: bool,
}

impl Verdict {
    /// Wants a median of at least so much.
    #[must_use]
    pub fn at_least(target: String, measured: Option<Spread>, least: f64, again: bool) -> Self {
        Self {
            target,
            wanted: format!("≥ {}", number(least)),
            measured,
            is_met: measured.is_none_or(|it| it.median >= least),
            again,
        }
    }

    /// Wants a median of at most so much.
    #[must_use]
    pub fn at_most(target: String, measured: Option<Spread>, most: f64, again: bool) -> Self {
        Self {
            target,
            wanted: format!("≤ {}", number(most)),
            measured,
            is_met: measured.is_none_or(|it| it.median <= most),
            again,
        }
    }

    /// A row for each.
    #[must_use]
    pub fn table(verdicts: &[Self]) -> String {
        let mut text = "\n| target | measured | wanted | |\n|---|---:|---:|---|\n".to_owned();
        for verdict in verdicts {
            let measured = verdict.measured.map(|it| it.to_string());
            let word = match (&measured, verdict.is_met, verdict.again) {
                (None, ..) => "not measured",
                (_, true, false) => "met",
                (_, true, true) => "met at the second attempt",
                (_, false, false) => "**missed**",
                (_, false, true) => "**missed twice**",
            };
            let measured = measured.unwrap_or_default();
            let _ = writeln!(
                text,
                "| {} | {measured} | {} | {word} |",
                verdict.target, verdict.wanted
            );
        }
        text
    }
}
