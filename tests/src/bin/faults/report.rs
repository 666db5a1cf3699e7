//! The table.

use std::fmt::Write;

use tollgate_tests::lab::Policy;

use crate::verdict::Verdict;

const HEADER: &str = "\
| fault | policy | errors | requests | by policy | failed | slower, p99 | slower, max | heavy by policy | its bound | charged, of sent | unanswered | back after | promises |
|---|---|---|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|---|
";

/// The table in Markdown, and what was broken.
pub(crate) fn table(verdicts: &[Verdict]) -> String {
    let mut text = HEADER.to_owned();
    for verdict in verdicts {
        text += &row(verdict);
    }
    let broken: Vec<_> = verdicts
        .iter()
        .filter(|verdict| !verdict.broken.is_empty())
        .collect();
    let kept = verdicts.len() - broken.len();
    let _ = write!(
        text,
        "\n{kept} of {} rows kept all promises.\n",
        verdicts.len()
    );
    for verdict in broken {
        let _ = writeln!(
            text,
            "BROKEN {} {}: {}",
            verdict.fault,
            verdict.policy.as_str(),
            verdict.broken.join("; ")
        );
    }
    text
}

pub(crate) fn row(verdict: &Verdict) -> String {
    let heavy = verdict.heavy();
    let bound = match heavy.by_policy_bound {
        None => "none".to_owned(),
        Some(bound) => format!("{:.0}", bound.floor()),
    };
    let failed = if verdict.policy == Policy::Closed && verdict.unavailable > 0 {
        format!("{} ({} × 503)", verdict.failed, verdict.unavailable)
    } else {
        verdict.failed.to_string()
    };
    let charged = match (verdict.charged, verdict.charged_unanswered) {
        (Some(charged), Some(unanswered)) => {
            format!("{charged} of {} | {unanswered}", verdict.audited_sent)
        }
        _ => "buckets lost |".to_owned(),
    };
    let back = match verdict.back_after_s {
        Some(seconds) => format!("{seconds:.2} s"),
        None => "never".to_owned(),
    };
    format!(
        "| {} | {} | {} | {} | {} | {failed} | {:.0} ms | {:.0} ms | {} | {bound} | {charged} | {back} | {} |\n",
        verdict.fault,
        verdict.policy.as_str(),
        verdict.error_kinds.join(" "),
        verdict.requests,
        verdict.decided_by_policy,
        verdict.added_p99_ms,
        verdict.added_max_ms,
        heavy.by_policy,
        if verdict.broken.is_empty() {
            "kept"
        } else {
            "BROKEN"
        },
    )
}
