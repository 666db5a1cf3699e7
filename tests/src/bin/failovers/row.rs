//! What was seen in a round, against what is promised.

use std::{fmt, time::Duration};

use tollgate_tests::lab::{By, DEADLINE, Outcome, Sample, quantile};

use crate::{
    fault::Fault,
    round::{Answers, Round, Seen, Window},
};

/// After the topology has healed, shared limits are back within this time.
const BACK_WITHIN: Duration = Duration::from_secs(7);

/// While a primary is frozen, the 99th percentile of the tenants on others is at most so many times what it
/// was before.
const TIMES_CALM: f64 = 2.0;

/// A millisecond of refill, and what the slack of the script allows.
const ROUNDING: f64 = 1.0;

pub(crate) const HEADER: &str = "\
| what happens | requests | failed | not decided by the store: open, local | other primaries: added p99 (longest), ms | p99 there, to calm | this primary: added p99 (longest), ms | granted again: tokens (of a capacity) | shared limits back, s |
|---|---:|---:|---:|---:|---:|---:|---:|---:|
";

/// One row of the table.
#[derive(Debug)]
pub(crate) struct Row {
    name: String,
    requests: usize,
    failed: usize,
    undecided: Vec<usize>,
    others: Option<Slower>,
    own: Slower,
    again: Again,
    back: Option<Duration>,
    /// What was promised and not kept.
    pub(crate) broken: Vec<String>,
    /// Whether all that was missed is a latency, which a busy machine may be to blame for.
    pub(crate) is_only_slow: bool,
}

/// How much longer requests of steady tenants took while a fault lasted, in milliseconds.
#[derive(Clone, Copy, Debug)]
struct Slower {
    p99: f64,
    longest: f64,
    /// 99th percentile to 99th percentile.
    times: f64,
}

/// What the store granted beyond `capacity + rate × T` to the tenant that got most of it.
#[derive(Clone, Copy, Debug, Default)]
struct Again {
    tokens: f64,
    capacities: f64,
}

// === impl Row ===

impl Row {
    pub(crate) fn new(round: &Round, seen: &Seen) -> Self {
        let samples = || seen.answers.iter().flat_map(|it| &it.samples);
        let failed = samples().filter(|it| is_failed(it));
        let count = |answers: &Answers| {
            let undecided = answers.samples.iter();
            undecided.filter(|it| it.outcome.is_by_policy()).count()
        };
        let is_shared = seen.windows.iter().all(|window| window.back.is_some());
        let backs = seen.windows.iter().filter_map(|window| window.back);
        let several = seen.answers[0].tenants.iter().any(|it| it.group > 0);
        let mut row = Self {
            name: round.name(),
            requests: samples().count(),
            failed: failed.clone().count(),
            undecided: seen.answers.iter().map(count).collect(),
            others: several.then(|| slower(seen, |window, group| window.group != group)),
            own: slower(seen, |window, group| window.group == group),
            again: again(seen),
            back: is_shared.then(|| backs.max().unwrap_or_default()),
            broken: Vec::new(),
            is_only_slow: false,
        };
        row.judge(round, seen);
        if let Some(example) = failed.map(|it| &it.outcome).next() {
            row.broken.push(format!("such as: {example:?}"));
        }
        row
    }

    fn judge(&mut self, round: &Round, seen: &Seen) {
        if self.failed > 0 {
            self.broken.push(format!("{} requests failed", self.failed));
        }
        let failovers: u32 = round
            .faults
            .iter()
            .map(|(fault, _)| fault.failovers())
            .sum();
        for (answers, number) in tenants(seen) {
            let tenant = &answers.tenants[number];
            let granted = beyond(answers, number);
            let bound = f64::from(failovers) * real(tenant.profile.capacity) + ROUNDING;
            if granted > bound {
                let name = &tenant.profile.name;
                let text = format!("{granted:.1} tokens granted again to {name}, at most {bound}");
                self.broken.push(text);
            }
            let denied =
                |it: &&Sample| it.tenant == number && it.outcome == Outcome::Denied(By::Store);
            let is_denied = answers.samples.iter().any(|it| denied(&it));
            if is_denied == tenant.steady {
                let name = &tenant.profile.name;
                let denied = if is_denied { "was" } else { "was never" };
                self.broken.push(format!("{name} {denied} denied"));
            }
        }
        match self.back {
            Some(back) if back <= BACK_WITHIN => {}
            Some(back) => {
                let text = format!("shared limits back after {:.1} s", back.as_secs_f64());
                self.broken.push(text);
            }
            None => self.broken.push("shared limits not back".into()),
        }
        let needs_the_policy = round.faults.iter().any(|it| it.0.needs_the_policy());
        if needs_the_policy && self.undecided.contains(&0) {
            let text = "the fault had no effect: the lab is broken";
            self.broken.push(text.into());
        }
        // Of several faults in a row, the windows are not told apart.
        if let Some(others) = self.others
            && matches!(round.faults[..], [(Fault::Frozen, _)])
        {
            let slow = others.broken();
            self.is_only_slow = self.broken.is_empty() && !slow.is_empty();
            self.broken.extend(slow);
        }
    }
}

impl fmt::Display for Row {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            name,
            requests,
            failed,
            own,
            again,
            ..
        } = self;
        let undecided: Vec<_> = self.undecided.iter().map(usize::to_string).collect();
        let undecided = undecided.join(", ");
        write!(f, "| {name} | {requests} | {failed} | {undecided} | ")?;
        match self.others {
            Some(others) => write!(f, "{others} | {:.1} | ", others.times)?,
            None => write!(f, "– | – | ")?,
        }
        let share = 100.0 * again.capacities;
        write!(f, "{own} | {:.0} ({share:.0} %) | ", again.tokens)?;
        match self.back {
            Some(back) => writeln!(f, "{:.1} |", back.as_secs_f64()),
            None => writeln!(f, "never |"),
        }
    }
}

// === impl Slower ===

impl Slower {
    /// What is promised to tenants on other primaries while one is frozen, and was not kept.
    fn broken(self) -> Vec<String> {
        let mut broken = Vec::new();
        if self.times > TIMES_CALM {
            broken.push(format!(
                "99th percentile on other primaries {:.1} times that of the calm",
                self.times
            ));
        }
        // So long takes a check that waits for the frozen primary.
        if self.longest >= DEADLINE.as_secs_f64() * 1e3 {
            broken.push(format!(
                "a request on other primaries took {:.1} ms longer than in the calm",
                self.longest
            ));
        }
        broken
    }
}

impl fmt::Display for Slower {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:.1} ({:.1})", self.p99, self.longest)
    }
}

fn is_failed(sample: &Sample) -> bool {
    matches!(sample.outcome, Outcome::Failed(_) | Outcome::Unavailable)
}

/// Compares the steady tenants of the groups that are chosen, while a fault lasts, with the calm before.
fn slower(seen: &Seen, chosen: impl Fn(&Window, usize) -> bool) -> Slower {
    let steady = |answers: &Answers, it: &Sample| answers.tenants[it.tenant].steady;
    let of = |counts: &dyn Fn(&Sample, usize) -> bool, share| {
        let samples = seen.answers.iter().flat_map(|answers| {
            let samples = answers.samples.iter();
            samples.filter(|it| steady(answers, it) && counts(it, answers.tenants[it.tenant].group))
        });
        quantile(samples, share).as_secs_f64() * 1e3
    };
    let first = &seen.windows[0];
    let calm = |it: &Sample, group: usize| {
        it.sent >= seen.calm_from && it.answered < first.began && chosen(first, group)
    };
    let disturbed = |it: &Sample, group: usize| {
        let mut windows = seen.windows.iter();
        windows
            .any(|window| (window.began..window.ended).contains(&it.sent) && chosen(window, group))
    };
    let usual = of(&calm, 0.5);
    let p99 = of(&disturbed, 0.99);
    Slower {
        p99: (p99 - usual).max(0.0),
        longest: (of(&disturbed, 1.0) - usual).max(0.0),
        times: p99 / of(&calm, 0.99),
    }
}

fn tenants(seen: &Seen) -> impl Iterator<Item = (&Answers, usize)> {
    seen.answers.iter().flat_map(|answers| {
        let numbers = 0..answers.tenants.len();
        numbers.map(move |number| (answers, number))
    })
}

fn again(seen: &Seen) -> Again {
    let of = |(answers, number): (&Answers, usize)| {
        let tokens = beyond(answers, number).max(0.0);
        let capacities = tokens / real(answers.tenants[number].profile.capacity);
        Again { tokens, capacities }
    };
    let most = tenants(seen).map(of);
    most.max_by(|one, other| one.capacities.total_cmp(&other.capacities))
        .unwrap_or_default()
}

/// The tokens that the store granted to a tenant beyond `capacity + rate × T`; negative if it granted fewer.
fn beyond(answers: &Answers, number: usize) -> f64 {
    let profile = &answers.tenants[number].profile;
    let own = || answers.samples.iter().filter(|it| it.tenant == number);
    let granted = own().filter(|it| it.outcome == Outcome::Admitted(By::Store));
    let first = own().map(|it| it.sent).min();
    let last = own().map(|it| it.answered).max();
    let span = first.zip(last).map(|(first, last)| last - first);
    let refilled = profile.rate * span.unwrap_or_default().as_secs_f64();
    real(granted.count() as u64) - real(profile.capacity) - refilled
}

#[expect(clippy::cast_precision_loss, reason = "a small number")]
fn real(tokens: u64) -> f64 {
    tokens as f64
}

#[cfg(test)]
mod tests;
