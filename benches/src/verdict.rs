//! Whether a target was met.

use std::fmt::Write;

use serde::Serialize;

use crate::{Spread, number};

/// What was wanted, and what there is.
#[derive(Clone, Debug, Serialize)]
pub struct Verdict {
    pub target: String,
    pub wanted: String,
    /// `None` if a variant of it was not measured; then that is met, unless it was to be measured and broke.
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

    /// Puts the second attempts, in the same order, in the place of those that were missed at the first.
    pub fn replace_missed(verdicts: &mut [Self], again: Vec<Self>) {
        for (verdict, again) in verdicts.iter_mut().zip(again) {
            if !verdict.is_met {
                *verdict = again;
            }
        }
    }

    /// A row for each.
    #[must_use]
    pub fn table(verdicts: &[Self]) -> String {
        let mut text = "\n| target | measured | wanted | |\n|---|---:|---:|---|\n".to_owned();
        for verdict in verdicts {
            let measured = verdict.measured.map(|it| it.to_string());
            let word = match (&measured, verdict.is_met, verdict.again) {
                (None, true, _) => "not measured",
                (None, false, _) => "**broke**",
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

#[cfg(test)]
mod tests {
    use super::*;

    fn at_most_one(measured: f64, again: bool) -> Verdict {
        let measured = Spread::of([measured]);
        Verdict::at_most("it".to_owned(), measured, 1.0, again)
    }

    #[test]
    fn what_was_met_at_the_first_attempt_stays_met() {
        let mut verdicts = [0.9, 1.1, 1.1].map(|it| at_most_one(it, false));
        let again = [1.2, 0.8, 1.2].map(|it| at_most_one(it, true));
        Verdict::replace_missed(&mut verdicts, again.into());
        let table = Verdict::table(&verdicts);
        let words: Vec<_> = table.lines().skip(3).collect();
        assert_eq!(
            words,
            [
                "| it | 0.90 | ≤ 1.00 | met |",
                "| it | 0.80 | ≤ 1.00 | met at the second attempt |",
                "| it | 1.20 | ≤ 1.00 | **missed twice** |",
            ]
        );
    }
}
