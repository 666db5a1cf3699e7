use tokio::time::Instant;
use tollgate_tests::lab::{Client, Profile};

use super::*;
use crate::{round::POLICIES, tenants::Tenant, topology::Topology};

/// The tenants of each policy, by number: `OWN` and `SPENDER` on the primary concerned, `OTHER` on another one.
const OWN: usize = 0;
const SPENDER: usize = 1;
const OTHER: usize = 2;

fn round(faults: &[Fault]) -> Round {
    Round {
        topology: Topology::Cluster,
        faults: faults.iter().map(|fault| (*fault, 0)).collect(),
        client: Client::Fred,
    }
}

fn tenant(name: &'static str, capacity: u64, rate: f64, group: usize) -> Tenant {
    Tenant {
        profile: Profile {
            name: name.into(),
            capacity,
            rate,
            sends: 30,
        },
        group,
        steady: name != "spender",
    }
}

/// 15 seconds in which all promises are kept: a request of each tenant every 25 ms, which takes 2 ms. The fault
/// lasts from second 5 to second 10.
fn seen() -> Seen {
    let start = Instant::now();
    let at = |millis: u64| start + Duration::from_millis(millis);
    let answers = || {
        let mut samples = Vec::new();
        for turn in 0..600_u64 {
            for tenant in [OWN, SPENDER, OTHER] {
                let sent = at(25 * turn);
                let outcome = match tenant {
                    OWN if turn == 200 => Outcome::Admitted(By::Policy),
                    // All that it has, once more after the failover, and what refills.
                    SPENDER if turn >= 215 => Outcome::Denied(By::Store),
                    _ => Outcome::Admitted(By::Store),
                };
                samples.push(Sample {
                    tenant,
                    replica: 0,
                    sent,
                    answered: sent + Duration::from_millis(2),
                    outcome,
                });
            }
        }
        Answers {
            tenants: vec![
                tenant("own", 1_000, 100.0, 0),
                tenant("spender", 100, 1.0, 0),
                tenant("other", 1_000, 100.0, 1),
            ],
            samples,
        }
    };
    Seen {
        calm_from: at(1_000),
        windows: vec![Window {
            group: 0,
            began: at(5_000),
            ended: at(10_000),
            back: Some(Duration::from_secs(7)),
        }],
        answers: POLICIES.iter().map(|_| answers()).collect(),
    }
}

fn row(spoil: impl FnOnce(&mut Seen)) -> Row {
    let mut seen = seen();
    spoil(&mut seen);
    Row::new(&round(&[Fault::Frozen]), &seen)
}

/// The requests of a tenant of the first policy while the fault lasts.
fn disturbed(seen: &mut Seen, tenant: usize) -> impl Iterator<Item = &mut Sample> {
    let Seen {
        windows, answers, ..
    } = seen;
    let window = windows[0].began..windows[0].ended;
    let samples = answers[0].samples.iter_mut();
    samples.filter(move |it| it.tenant == tenant && window.contains(&it.sent))
}

fn all(seen: &mut Seen, tenant: usize) -> impl Iterator<Item = &mut Sample> {
    let samples = seen.answers[0].samples.iter_mut();
    samples.filter(move |it| it.tenant == tenant)
}

/// So many of the requests that are disturbed take so much longer.
fn delay(seen: &mut Seen, tenant: usize, requests: usize, millis: u64) {
    for sample in disturbed(seen, tenant).take(requests) {
        sample.answered += Duration::from_millis(millis);
    }
}

#[test]
fn a_round_that_kept_everything_is_told_so() {
    let row = row(|_| {});
    assert_eq!(row.broken, [""; 0]);
    assert!(!row.is_only_slow);
}

#[test]
fn each_broken_promise_is_missed() {
    type Spoil = fn(&mut Seen);
    let spoils: [(Spoil, &str); 9] = [
        (
            |seen| all(seen, OWN).last().expect("one").outcome = Outcome::Unavailable,
            "1 requests failed; such as: Unavailable",
        ),
        (
            |seen| {
                all(seen, OTHER).last().expect("one").outcome =
                    Outcome::Failed("status 500".into());
            },
            "1 requests failed; such as: Failed(\"status 500\")",
        ),
        (
            |seen| {
                let more = all(seen, SPENDER).skip(215).take(3);
                more.for_each(|it| it.outcome = Outcome::Admitted(By::Store));
            },
            "103.0 tokens granted again to spender, at most 101",
        ),
        (
            |seen| all(seen, OTHER).next().expect("one").outcome = Outcome::Denied(By::Store),
            "other was denied",
        ),
        (
            |seen| all(seen, SPENDER).for_each(|it| it.outcome = Outcome::Denied(By::Policy)),
            "spender was never denied",
        ),
        (
            |seen| seen.windows[0].back = Some(Duration::from_millis(7_100)),
            "shared limits back after 7.1 s",
        ),
        (|seen| seen.windows[0].back = None, "shared limits not back"),
        (
            |seen| all(seen, OWN).for_each(|it| it.outcome = Outcome::Admitted(By::Store)),
            "the fault had no effect: the lab is broken",
        ),
        (
            |seen| delay(seen, OTHER, 10, 3),
            "99th percentile on other primaries 2.5 times that of the calm",
        ),
    ];
    for (spoil, expected) in spoils {
        let row = row(spoil);
        assert_eq!(row.broken.join("; "), expected);
        assert_eq!(row.is_only_slow, expected.starts_with("99th"), "{expected}");
    }
}

#[test]
fn one_request_on_a_healthy_primary_that_waits_for_the_deadline_is_missed() {
    let slow = row(|seen| delay(seen, OTHER, 1, 25));
    assert_eq!(
        slow.broken,
        ["a request on other primaries took 25.0 ms longer than in the calm"]
    );
    assert!(slow.is_only_slow, "it is tried again");
    let shorter = row(|seen| delay(seen, OTHER, 1, 24));
    assert_eq!(shorter.broken, [""; 0]);
}

#[test]
fn tenants_of_the_frozen_primary_may_wait_for_the_deadline() {
    let row = row(|seen| delay(seen, OWN, 100, 30));
    assert_eq!(row.broken, [""; 0]);
}

#[test]
fn latency_does_not_excuse_what_else_was_missed() {
    let row = row(|seen| {
        delay(seen, OTHER, 10, 30);
        seen.windows[0].back = None;
    });
    assert_eq!(row.broken.len(), 3, "{:?}", row.broken);
    assert!(!row.is_only_slow);
}

#[test]
fn latency_is_judged_only_where_nothing_but_a_freeze_happens() {
    let mut seen = seen();
    delay(&mut seen, OTHER, 10, 30);
    for faults in [&[Fault::Killed][..], &[Fault::Frozen, Fault::Frozen]] {
        assert_eq!(Row::new(&round(faults), &seen).broken, [""; 0]);
    }
}
