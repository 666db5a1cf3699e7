//! What was admitted, against what may be.

use std::fmt;

use serde::Serialize;

use crate::{
    load::Tally,
    tenants::{Profile, TENANTS},
};

#[derive(Debug, Serialize)]
pub(crate) struct Report {
    replicas: usize,
    tenants: Vec<Row>,
}

#[derive(Debug, Serialize)]
struct Row {
    tenant: &'static str,
    capacity: u64,
    rate: u32,
    seconds: f64,
    sent: u64,
    failed: u64,
    admitted_per_replica: Vec<u64>,
    admitted: u64,
    /// `capacity + rate × T`, rounded down.
    bound: u64,
    held: bool,
    admitted_by_own_limiters: u64,
}

impl Report {
    pub(crate) fn new(tallies: &[Tally], replicas: usize) -> Self {
        let rows = TENANTS
            .iter()
            .zip(tallies)
            .map(|(profile, tally)| Row::new(profile, tally, replicas));
        Self {
            replicas,
            tenants: rows.collect(),
        }
    }

    /// Whether every bound was held, and by admitting something.
    pub(crate) fn holds(&self) -> bool {
        self.tenants.iter().all(|row| row.held && row.admitted > 0)
    }
}

impl Row {
    fn new(profile: &Profile, tally: &Tally, replicas: usize) -> Self {
        let mut per_replica = tally.shared.clone();
        per_replica.resize(replicas, 0);
        let admitted = per_replica.iter().sum();
        let seconds = tally.span.as_secs_f64();
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "positive and small"
        )]
        let refilled = (f64::from(profile.rate) * seconds) as u64;
        let bound = profile.capacity + refilled;
        Self {
            tenant: profile.name,
            capacity: profile.capacity,
            rate: profile.rate,
            seconds,
            sent: tally.sent,
            failed: tally.failed,
            admitted_per_replica: per_replica,
            admitted,
            bound,
            held: admitted <= bound,
            admitted_by_own_limiters: tally.own.iter().sum(),
        }
    }

    fn verdict(&self) -> &'static str {
        match (self.held, self.admitted) {
            (false, _) => "BROKEN",
            (true, 0) => "NOTHING ADMITTED",
            (true, _) => "held",
        }
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "\nOne bucket for the fleet, in Redis:\n")?;
        writeln!(
            f,
            "{:<8}{:>8}{:>10}{:>8}  {:<9} admitted by replica",
            "tenant", "sent", "admitted", "bound", "verdict"
        )?;
        for row in &self.tenants {
            let per_replica: Vec<_> = row
                .admitted_per_replica
                .iter()
                .map(u64::to_string)
                .collect();
            writeln!(
                f,
                "{:<8}{:>8}{:>10}{:>8}  {:<9} {}",
                row.tenant,
                row.sent,
                row.admitted,
                row.bound,
                row.verdict(),
                per_replica.join(" ")
            )?;
        }
        writeln!(
            f,
            "\nThe same load on limiters that each of the {} replicas has for itself:\n",
            self.replicas
        )?;
        for row in &self.tenants {
            #[expect(clippy::cast_precision_loss, reason = "small numbers")]
            let times = row.admitted_by_own_limiters as f64 / row.bound as f64;
            writeln!(
                f,
                "{:<8}{:>8}{:>10}{:>8}  {times:.1} times the bound",
                row.tenant, row.sent, row.admitted_by_own_limiters, row.bound
            )?;
        }
        let failed: u64 = self.tenants.iter().map(|row| row.failed).sum();
        let seconds = self
            .tenants
            .iter()
            .map(|row| row.seconds)
            .fold(0.0, f64::max);
        writeln!(
            f,
            "\nbound = capacity + rate × T, here 40 + 20/s × {seconds:.1} s. Neither 200 nor 429, since a check missed its deadline: {failed}."
        )
    }
}
