//! Whether the figures are as they should be.

use tollgate_benches::{Bound, Figure, Target, Verdict};

use crate::{loads::FLOOR, measured::Measured};

/// By its median.
pub(crate) fn judge(target: &Target, measured: &Measured, again: bool) -> Verdict {
    let against = target.against.as_deref();
    let spread = measured.figure(target.figure, &target.variant, against);
    let name = name(target, measured);
    let mut verdict = match target.bound {
        Bound::AtLeast(least) => Verdict::at_least(name, spread, least, again),
        Bound::AtMost(most) => Verdict::at_most(name, spread, most, again),
    };
    // What was not asked for, or is not built, is nobody's fault.
    if [FLOOR, &target.variant].map(|it| measured.has_broken(it)) != [false; 2] {
        verdict.is_met = false;
    }
    verdict
}

/// Whether `variant` has to be measured again to judge this again.
pub(crate) fn takes(target: &Target, variant: &str, measured: &Measured) -> bool {
    let against = match target.against.as_deref() {
        Some("best-exact-peer") => measured.best_exact_peer(),
        other => other,
    };
    variant == FLOOR || variant == target.variant || Some(variant) == against
}

fn name(target: &Target, measured: &Measured) -> String {
    let what = match target.figure {
        Figure::Throughput => "requests per second",
        Figure::AppCpu => "CPU of the app per request",
        Figure::RedisCpu => "CPU of Redis per request",
        Figure::Calls => "calls of Redis per request",
        Figure::AddedP50 => "added p50",
        Figure::AddedP99 => "added p99",
    };
    let name = format!("{}: {}, {what}", target.load, target.variant);
    match target.against.as_deref() {
        Some("best-exact-peer") => {
            let peer = measured.best_exact_peer().unwrap_or_default();
            format!("{name}, of the best exact peer {peer}")
        }
        Some(other) => format!("{name}, of {other}"),
        None if matches!(target.figure, Figure::AddedP50 | Figure::AddedP99) => name + ", µs",
        None => name,
    }
}
