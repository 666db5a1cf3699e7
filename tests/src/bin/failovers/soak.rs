//! Chains of faults at random.

use std::{iter, time::Duration};

use fastrand::Rng;
use tollgate_tests::lab::Client;

use crate::{fault::Fault, round::Round, topology::Topology};

/// How many faults the servers have to bear in a row.
const LENGTH: usize = 5;

/// Chains without end on the topologies whose name contains `only`, the same for the same seed; none if there is
/// no such topology.
pub(crate) fn chains(only: &str, client: Client, seed: u64) -> impl Iterator<Item = Round> {
    let mut random = Rng::with_seed(seed);
    let named = Topology::ALL.into_iter();
    let topologies: Vec<_> = named.filter(|it| it.name().contains(only)).collect();
    iter::from_fn(move || {
        let topology = random.choice(topologies.iter().copied())?;
        let faults = (0..LENGTH).map(|place| {
            let fault = random.choice(candidates(topology, place));
            (
                fault.expect("there are some"),
                random.usize(..topology.primaries()),
            )
        });
        Some(Round {
            topology,
            faults: faults.collect(),
            client,
        })
    })
}

/// What may happen at this place of a chain.
fn candidates(topology: Topology, place: usize) -> Vec<Fault> {
    let faults = topology.faults().iter().copied();
    let faults = faults.filter(|fault| match fault {
        // Whoever is killed is brought back anyway.
        Fault::None | Fault::BroughtBack => false,
        // The new node has no replica that could take over from it.
        Fault::SlotsMoved => place == LENGTH - 1,
        _ => true,
    });
    faults.collect()
}

/// A length such as `90s` or `10m`.
pub(crate) fn length(text: &str) -> Result<Duration, String> {
    let wrong = || format!("`{text}` is no duration such as 90s or 10m");
    let (number, unit) = match (text.strip_suffix('s'), text.strip_suffix('m')) {
        (Some(seconds), _) => (seconds, 1),
        (_, Some(minutes)) => (minutes, 60),
        _ => return Err(wrong()),
    };
    let number: u32 = number.parse().map_err(|_| wrong())?;
    Ok(Duration::from_secs(u64::from(number) * unit))
}
