//! The figures, in Markdown.

use crate::{
    run::{Count, Outcome},
    topology::Topology,
    world::Spread,
};

pub(crate) const DAYS: &str = "\
| buckets | requests come | a check takes, mean | worst | let through, asking for 0.8 of its rate | for 1.5 | above the bound |
|---|---|---:|---:|---:|---:|---:|
";

pub(crate) const CUTS: &str = "
| buckets | let through in `us` while it is cut off | everywhere, of what it is entitled to | above the bound |
|---|---:|---:|---:|
";

pub(crate) fn day(topology: &Topology, spread: &Spread, [within, above]: &[Outcome; 2]) -> String {
    let (mean, worst) = round_trip(above);
    format!(
        "| {} | {} | {mean} ms | {worst} ms | {} | {} | {} |\n",
        topology.name,
        spread.name,
        percent(within.all.admitted, within.entitled),
        percent(above.all.admitted, above.entitled),
        tokens(within.excess.max(above.excess)),
    )
}

pub(crate) fn cut(topology: &Topology, outcome: &Outcome) -> String {
    let Count { asked, admitted } = outcome.cut;
    format!(
        "| {} | {} | {} | {} |\n",
        topology.name,
        percent(admitted, asked),
        percent(outcome.all.admitted, outcome.entitled),
        tokens(outcome.excess),
    )
}

/// The mean and the worst, in milliseconds.
#[expect(clippy::cast_precision_loss, reason = "requests of a day")]
pub(crate) fn round_trip(outcome: &Outcome) -> (String, u64) {
    let trips = &outcome.round_trips;
    let mean = trips.iter().sum::<u64>() as f64 / trips.len().max(1) as f64;
    let worst = trips.iter().max().copied().unwrap_or(0);
    (format!("{mean:.0}"), worst)
}

fn percent(part: u32, whole: u32) -> String {
    format!("{:.0} %", 100.0 * f64::from(part) / f64::from(whole))
}

fn tokens(excess: f64) -> String {
    if excess == 0.0 {
        "0".to_owned()
    } else {
        format!("{excess:.0} tokens")
    }
}
