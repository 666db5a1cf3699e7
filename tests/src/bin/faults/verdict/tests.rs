use tokio::time::Instant;

use super::*;
use crate::fault::{FAULTS, Kind};

/// A run of 4 s of fault, from 2 s on, in which each tenant gets each of these outcomes once per second.
fn observed(outcomes: &[(usize, Outcome)]) -> Observed {
    let start = Instant::now();
    let mut samples = Vec::new();
    for second in 0..10 {
        for (tenant, outcome) in outcomes {
            let sent = start + Duration::from_secs(second);
            samples.push(Sample {
                tenant: *tenant,
                replica: 0,
                sent,
                answered: sent + Duration::from_millis(2),
                outcome: outcome.clone(),
            });
        }
    }
    Observed {
        samples,
        fault_began: start + Duration::from_secs(2),
        fault_ended: start + Duration::from_secs(6),
        back: Some(Duration::from_secs(1)),
        start: Duration::from_millis(100),
        error_kinds: std::iter::once("io".to_owned()).collect(),
        charged: Some(10.0),
        grown: 100,
        log: "one line".to_owned(),
    }
}

fn stopped() -> Fault {
    let mut faults = FAULTS.into_iter();
    faults
        .find(|fault| fault.kind == Kind::Stopped)
        .expect("in the list")
}

fn broken(policy: Policy, observed: &Observed) -> String {
    Verdict::new(&stopped(), policy, observed).broken.join("; ")
}

fn well() -> Vec<(usize, Outcome)> {
    vec![
        (AUDITED, Outcome::Admitted(By::Store)),
        (HEAVY, Outcome::Denied(By::Policy)),
    ]
}

#[test]
fn a_run_that_kept_everything_is_told_so() {
    for policy in Policy::ALL {
        assert_eq!(broken(policy, &observed(&well())), "");
    }
}

#[test]
fn each_broken_promise_is_named() {
    type Spoil = fn(&mut Observed);
    let spoils: [(Spoil, &str); 8] = [
        (|run| run.back = None, "did not come back"),
        (
            |run| run.back = Some(Duration::from_secs(6)),
            "only after 6.0 s",
        ),
        (|run| run.charged = Some(11.0), "charged twice"),
        (
            |run| run.start = Duration::from_secs(4),
            "listened only after",
        ),
        (|run| run.grown = 40_000, "grew by 40000 KiB"),
        (
            |run| run.log = "thread 'x' panicked at y".to_owned(),
            "panicked",
        ),
        (|run| run.log = "line\n".repeat(50), "50 lines were logged"),
        (
            |run| run.samples[7].answered += Duration::from_secs(1),
            "a request took 1002 ms",
        ),
    ];
    for (spoil, expected) in spoils {
        let mut run = observed(&well());
        spoil(&mut run);
        let broken = broken(Policy::Local, &run);
        assert!(broken.contains(expected), "{expected}: {broken}");
    }
}

#[test]
fn requests_that_got_the_wrong_answer_are_named() {
    let and = |tenant, outcome| {
        let mut outcomes = well();
        outcomes.push((tenant, outcome));
        observed(&outcomes)
    };
    let failed = and(HEAVY, Outcome::Failed("status 500".to_owned()));
    assert!(broken(Policy::Closed, &failed).contains("such as: status 500"));
    let unavailable = and(HEAVY, Outcome::Unavailable);
    assert!(broken(Policy::Open, &unavailable).contains("10 requests failed"));
    assert_eq!(broken(Policy::Closed, &unavailable), "");
    let admitted = and(HEAVY, Outcome::Admitted(By::Policy));
    assert!(broken(Policy::Closed, &admitted).contains("the policy admitted heavy 10, at most 0"));
    assert_eq!(broken(Policy::Local, &admitted), "");
    let denied = and(STEADY, Outcome::Denied(By::Policy));
    assert!(broken(Policy::Local, &denied).contains("within its quota"));
}

#[test]
fn a_drained_tenant_is_held_to_the_rate() {
    let drained = &TENANTS[DRAINED];
    let span = Duration::from_millis(9_500);
    assert_eq!(local_bound(drained, span, false), 60.0 + 6.0 * 10.0);
    assert_eq!(local_bound(drained, span, true), 3.0 + 6.0 * 10.0);
}

#[test]
fn a_fault_without_effect_is_a_fault_of_the_lab() {
    let run = observed(&[(AUDITED, Outcome::Admitted(By::Store))]);
    assert!(broken(Policy::Open, &run).contains("no effect"));
}
