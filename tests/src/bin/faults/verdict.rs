//! What was seen in a run, against what is promised.

use std::time::Duration;

use serde::Serialize;

use tollgate_tests::lab::{By, DEADLINE, Outcome, Policy, Profile, REPLICAS, Sample, quantile};

use crate::{
    fault::Fault,
    run::Observed,
    tenants::{AUDITED, DRAINED, HEAVY, STEADY, TENANTS},
};

/// After the fault, shared limits are back within this time.
const BACK_WITHIN: Duration = Duration::from_secs(5);
/// A service listens within this time, whatever Redis does.
const LISTENS_WITHIN: Duration = Duration::from_secs(3);
/// What a busy machine may add to a deadline before we call it a hang.
const SCHEDULING: Duration = Duration::from_millis(500);
/// More than what allocators keep for later; less than what 300 requests a second that pile up take.
const MAY_GROW_KIB: u64 = 32 * 1024;

/// One row of the table.
#[derive(Debug, Serialize)]
pub(crate) struct Verdict {
    pub(crate) fault: &'static str,
    pub(crate) policy: Policy,
    pub(crate) seconds: f64,
    pub(crate) error_kinds: Vec<String>,
    pub(crate) requests: usize,
    /// `500`, no answer, a lost connection; `503` too, unless the policy is closed.
    pub(crate) failed: usize,
    pub(crate) unavailable: usize,
    pub(crate) decided_by_policy: usize,
    pub(crate) calm_median_ms: f64,
    /// From the start of the fault until shared limits are back, above the calm median.
    pub(crate) added_p99_ms: f64,
    pub(crate) added_max_ms: f64,
    pub(crate) tenants: Vec<Admitted>,
    /// Tokens that Redis took from the audited tenant, and the requests it sent: one token each.
    pub(crate) charged: Option<u64>,
    pub(crate) audited_sent: usize,
    /// Of these charges, those whose answer nobody got: it was lost, or came too late.
    pub(crate) charged_unanswered: Option<u64>,
    pub(crate) back_after_s: Option<f64>,
    pub(crate) listened_after_s: f64,
    pub(crate) grown_kib: u64,
    pub(crate) log_lines: usize,
    /// What was promised and not kept.
    pub(crate) broken: Vec<String>,
}

/// What a tenant was admitted.
#[derive(Debug, Serialize)]
pub(crate) struct Admitted {
    pub(crate) tenant: &'static str,
    pub(crate) by_store: usize,
    pub(crate) by_store_bound: f64,
    pub(crate) by_policy: usize,
    /// `None`: there is none.
    pub(crate) by_policy_bound: Option<f64>,
    pub(crate) denied: usize,
}

// === impl Verdict ===

impl Verdict {
    pub(crate) fn new(fault: &Fault, policy: Policy, observed: &Observed) -> Self {
        let samples = &observed.samples;
        let back_at = observed.fault_ended + observed.back.unwrap_or_default();
        let is_disturbed =
            |sample: &&Sample| sample.sent >= observed.fault_began && sample.sent <= back_at;
        let calm_median = quantile(samples.iter().filter(|it| !is_disturbed(it)), 0.5);
        let disturbed = |share| quantile(samples.iter().filter(is_disturbed), share);
        let tenants: Vec<_> = (0..TENANTS.len())
            .map(|tenant| Admitted::new(tenant, fault, policy, observed))
            .collect();
        let audited_answered = tenants[AUDITED].by_store;
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "a number of requests"
        )]
        let charged = observed.charged.map(|charged| charged.round() as u64);
        let unavailable = count(samples, |sample| sample.outcome == Outcome::Unavailable);
        let failed = count(samples, |sample| {
            matches!(sample.outcome, Outcome::Failed(_))
        });
        let mut verdict = Self {
            fault: fault.name,
            policy,
            seconds: (observed.fault_ended - observed.fault_began).as_secs_f64(),
            error_kinds: observed.error_kinds.iter().cloned().collect(),
            requests: samples.len(),
            failed: if policy == Policy::Closed {
                failed
            } else {
                failed + unavailable
            },
            unavailable,
            decided_by_policy: count(samples, |sample| sample.outcome.is_by_policy()),
            calm_median_ms: millis(calm_median),
            added_p99_ms: millis(disturbed(0.99).saturating_sub(calm_median)),
            added_max_ms: millis(disturbed(1.0).saturating_sub(calm_median)),
            tenants,
            charged,
            audited_sent: count(samples, |sample| sample.tenant == AUDITED),
            charged_unanswered: charged
                .map(|charged| charged.saturating_sub(audited_answered as u64)),
            back_after_s: observed.back.map(|back| back.as_secs_f64()),
            listened_after_s: observed.start.as_secs_f64(),
            grown_kib: observed.grown,
            log_lines: observed.log.lines().count(),
            broken: Vec::new(),
        };
        verdict.broken = verdict.broken_promises(fault, observed, disturbed(1.0));
        verdict
    }

    /// The row of the tenant that sends most.
    pub(crate) fn heavy(&self) -> &Admitted {
        &self.tenants[HEAVY]
    }

    fn broken_promises(
        &self,
        fault: &Fault,
        observed: &Observed,
        slowest: Duration,
    ) -> Vec<String> {
        let mut broken = Vec::new();
        if self.failed > 0 {
            let example = observed
                .samples
                .iter()
                .find_map(|sample| match &sample.outcome {
                    Outcome::Failed(why) => Some(why.as_str()),
                    _ => None,
                });
            let example = example.unwrap_or("status 503");
            broken.push(format!(
                "{} requests failed, such as: {example}",
                self.failed
            ));
        }
        if observed.log.contains("panicked") {
            broken.push("a replica panicked".to_owned());
        }
        if slowest > DEADLINE + SCHEDULING {
            broken.push(format!("a request took {:.0} ms", millis(slowest)));
        }
        for admitted in &self.tenants {
            admitted.check(&mut broken);
        }
        let denied = self.tenants[STEADY].denied;
        if denied > 0 {
            broken.push(format!(
                "a tenant within its quota was denied {denied} times"
            ));
        }
        match observed.back {
            None => broken.push("shared limits did not come back".to_owned()),
            Some(back) if back > BACK_WITHIN => {
                broken.push(format!(
                    "shared limits were back only after {:.1} s",
                    back.as_secs_f64()
                ));
            }
            Some(_) => {}
        }
        if self
            .charged
            .is_some_and(|charged| charged > self.audited_sent as u64)
        {
            broken.push("requests were charged twice".to_owned());
        }
        if observed.start > LISTENS_WITHIN {
            broken.push(format!(
                "a replica listened only after {:.1} s",
                self.listened_after_s
            ));
        }
        if self.grown_kib > MAY_GROW_KIB {
            broken.push(format!("a replica grew by {} KiB", self.grown_kib));
        }
        // One line per change of state: a few per second at most, and never one per request.
        if self.log_lines * 10 > self.requests {
            broken.push(format!("{} lines were logged", self.log_lines));
        }
        if self.decided_by_policy == 0 && fault.kind.needs_the_policy() {
            broken.push("the fault had no effect: the lab is broken".to_owned());
        }
        broken
    }
}

// === impl Admitted ===

impl Admitted {
    fn new(tenant: usize, fault: &Fault, policy: Policy, observed: &Observed) -> Self {
        let profile = &TENANTS[tenant];
        let samples = || {
            observed
                .samples
                .iter()
                .filter(move |sample| sample.tenant == tenant)
        };
        let of = |outcome: Outcome| samples().filter(|sample| sample.outcome == outcome).count();
        let by_policy_bound = match policy {
            Policy::Open => None,
            Policy::Closed => Some(0.0),
            Policy::Local => {
                let by_policy = samples().filter(|sample| sample.outcome.is_by_policy());
                let span = span(by_policy.clone());
                let was_drained = tenant == DRAINED && !fault.kind.is_at_start();
                Some(local_bound(profile, span, was_drained))
            }
        };
        let bursts = if fault.kind.loses_buckets() { 2.0 } else { 1.0 };
        Self {
            tenant: &profile.name,
            by_store: of(Outcome::Admitted(By::Store)),
            by_store_bound: bursts * number(profile.capacity)
                + profile.rate * span(samples()).as_secs_f64()
                + 1.0,
            by_policy: of(Outcome::Admitted(By::Policy)),
            by_policy_bound,
            denied: of(Outcome::Denied(By::Store)) + of(Outcome::Denied(By::Policy)),
        }
    }

    fn check(&self, broken: &mut Vec<String>) {
        let Self {
            tenant,
            by_store,
            by_store_bound,
            by_policy,
            ..
        } = self;
        if number(*by_store as u64) > *by_store_bound {
            broken.push(format!(
                "Redis admitted {tenant} {by_store}, at most {by_store_bound:.0}"
            ));
        }
        if let Some(bound) = self.by_policy_bound
            && number(*by_policy as u64) > bound
        {
            broken.push(format!(
                "the policy admitted {tenant} {by_policy}, at most {bound:.0}"
            ));
        }
    }
}

/// `N × local capacity + rate × T`, with the rate in whole tokens for each replica. A tenant that was seen
/// drained has no burst, but each replica may have been told of a token that another one has taken since.
fn local_bound(profile: &Profile, span: Duration, was_drained: bool) -> f64 {
    let replicas = f64::from(REPLICAS);
    let burst = if was_drained {
        1.0
    } else {
        number(profile.local_capacity(REPLICAS))
    };
    // Buckets refill from the last answer of Redis on, a little before the first one of the policy.
    let span = span + Duration::from_millis(500);
    replicas * burst + profile.rate * span.as_secs_f64()
}

fn span<'a>(samples: impl Iterator<Item = &'a Sample> + Clone) -> Duration {
    let first = samples.clone().map(|sample| sample.sent).min();
    let last = samples.map(|sample| sample.answered).max();
    match (first, last) {
        (Some(first), Some(last)) => last - first,
        _ => Duration::ZERO,
    }
}

fn count(samples: &[Sample], filter: impl Fn(&Sample) -> bool) -> usize {
    samples.iter().filter(|sample| filter(sample)).count()
}

fn millis(duration: Duration) -> f64 {
    duration.as_secs_f64() * 1e3
}

#[expect(clippy::cast_precision_loss, reason = "small numbers")]
fn number(tokens: u64) -> f64 {
    tokens as f64
}

#[cfg(test)]
mod tests;
