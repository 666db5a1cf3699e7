//! What `docs/topologies.md` concludes from the figures, on a shorter day.

use super::*;
use crate::{topology::Kind, world::US};

const SHORT_DAY: u64 = DAY / 12;

/// What is let through of what the tenant is entitled to: within its quota, and above.
fn shares(topology: &Topology, spread: usize) -> [f64; 2] {
    let outcomes = day(topology, &SPREADS[spread], SHORT_DAY);
    for outcome in &outcomes {
        assert!(
            outcome.excess == 0.0,
            "{}: {}",
            topology.name,
            outcome.excess
        );
    }
    outcomes.map(|it| f64::from(it.all.admitted) / f64::from(it.entitled))
}

#[track_caller]
fn assert_between(shares: [f64; 2], within: [f64; 2], above: [f64; 2]) {
    for (share, [least, most]) in shares.into_iter().zip([within, above]) {
        assert!(
            (least..=most).contains(&share),
            "{share}: {least} to {most}"
        );
    }
}

const ONE_STORE: &Topology = &USUAL[0];
const SPLIT: &Topology = &USUAL[1];
const HOME: &Topology = &USUAL[2];
const HOME_AND_AWAY: &Topology = &USUAL[3];

// Places in `SPREADS`.
const THIRDS: usize = 0;
const UNEVEN: usize = 1;
const SUN: usize = 2;
const ALL_FROM_EU: usize = 3;

#[test]
fn one_store_gives_everything_to_everybody_at_the_price_of_distance() {
    for (spread, _) in SPREADS.iter().enumerate() {
        assert_between(shares(ONE_STORE, spread), [0.99, 1.01], [0.99, 1.01]);
    }
    let [_, above] = day(ONE_STORE, &SPREADS[THIRDS], SHORT_DAY);
    assert_eq!(table::round_trip(&above), ("100".to_owned(), 220));
    for local in [SPLIT, HOME, HOME_AND_AWAY] {
        let [_, above] = day(local, &SPREADS[THIRDS], SHORT_DAY);
        assert_eq!(above.round_trips.iter().max(), Some(&1));
    }
}

#[test]
fn a_split_suits_even_traffic_and_costs_uneven_tenants_what_others_do_not_use() {
    assert_between(shares(SPLIT, THIRDS), [0.98, 1.0], [0.98, 1.0]);
    assert_between(shares(SPLIT, UNEVEN), [0.5, 0.7], [0.5, 0.7]);
    assert_between(shares(SPLIT, SUN), [0.6, 0.9], [0.6, 0.9]);
    assert_between(shares(SPLIT, ALL_FROM_EU), [0.4, 0.5], [0.3, 0.4]);
}

#[test]
fn a_home_suits_a_tenant_that_is_there() {
    assert_between(shares(HOME, ALL_FROM_EU), [0.99, 1.0], [0.99, 1.0]);
    assert_between(shares(HOME, UNEVEN), [0.75, 0.85], [0.9, 1.0]);
    assert_between(shares(HOME, THIRDS), [0.3, 0.37], [0.45, 0.55]);
    // What is kept away from home is lost where nobody visits.
    assert_between(
        shares(HOME_AND_AWAY, ALL_FROM_EU),
        [0.97, 1.0],
        [0.79, 0.82],
    );
    assert_between(shares(HOME_AND_AWAY, UNEVEN), [0.95, 1.0], [0.88, 1.0]);
}

#[test]
fn only_a_remote_store_makes_an_isolated_region_a_matter_of_policy() {
    for topology in &CUT_OFF {
        let outcome = day_with_cut(topology, SHORT_DAY);
        let cut = f64::from(outcome.cut.admitted) / f64::from(outcome.cut.asked);
        let (expected, exceeds) = match topology.name {
            "one store, `open`" => ([1.0, 1.0], true),
            "one store, `closed`" => ([0.0, 0.0], false),
            "one store, `local`" => ([0.55, 0.85], true),
            "split" => ([0.6, 0.75], false),
            _ => ([0.15, 0.3], false),
        };
        assert!(
            (expected[0]..=expected[1]).contains(&cut),
            "{}: {cut}",
            topology.name
        );
        assert_eq!(
            outcome.excess > 0.0,
            exceeds,
            "{}: {}",
            topology.name,
            outcome.excess
        );
        // Cut off or not is the same to a region with a store of its own.
        if !matches!(topology.kind, Kind::OneStore(_)) {
            let [_, usual] = day(topology, &SPREADS[THIRDS], SHORT_DAY);
            assert_eq!(outcome.all.admitted, usual.all.admitted);
        }
    }
    assert_eq!(world::REGIONS[US], "us");
}
