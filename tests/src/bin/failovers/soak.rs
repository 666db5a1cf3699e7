//! Chains of faults at random.

use std::{ffi::OsStr, iter, time::Duration};

use fastrand::Rng;
use lexopt::ValueExt;
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

/// How long, unless the command line says it.
const USUAL: Duration = Duration::from_secs(10 * 60);

/// The length that stands after an option, such as `90s` or `10m`, if there is one.
pub(crate) fn length(args: &mut lexopt::Parser) -> Result<Duration, lexopt::Error> {
    if let Some(joined) = args.optional_value() {
        return joined.parse_with(parse);
    }
    let is_length = |next: &OsStr| !next.as_encoded_bytes().starts_with(b"-");
    match args.raw_args()?.next_if(is_length) {
        Some(length) => length.parse_with(parse),
        None => Ok(USUAL),
    }
}

fn parse(text: &str) -> Result<Duration, String> {
    let wrong = || format!("`{text}` is no length such as 90s or 10m");
    let (number, unit) = match (text.strip_suffix('s'), text.strip_suffix('m')) {
        (Some(seconds), _) => (seconds, 1),
        (_, Some(minutes)) => (minutes, 60),
        _ => return Err(wrong()),
    };
    let number: u32 = number.parse().map_err(|_| wrong())?;
    if number == 0 {
        return Err(format!("`{text}` is too short: nothing would be tried"));
    }
    Ok(Duration::from_secs(u64::from(number) * unit))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What `--soak` with these arguments after it says, and what is left of them.
    fn soak(rest: &[&str]) -> (Option<Duration>, usize) {
        let first = rest.first().filter(|it| it.starts_with('='));
        let option = format!("--soak{}", first.copied().unwrap_or_default());
        let rest = &rest[usize::from(first.is_some())..];
        let mut args =
            lexopt::Parser::from_args([&*option].into_iter().chain(rest.iter().copied()));
        args.next().expect("valid").expect("the option");
        let length = length(&mut args).ok();
        (length, args.raw_args().map_or(0, Iterator::count))
    }

    #[test]
    fn a_length_may_be_left_out() {
        let minutes = |number: u64| Some(Duration::from_secs(60 * number));
        assert_eq!(soak(&[]), (minutes(10), 0));
        assert_eq!(soak(&["--seed", "3"]), (minutes(10), 2));
        assert_eq!(soak(&["90m", "--seed", "3"]), (minutes(90), 2));
        assert_eq!(soak(&["=120s", "--seed", "3"]), (minutes(2), 2));
    }

    #[test]
    fn a_length_in_which_nothing_would_be_tried_is_refused() {
        for wrong in ["0s", "0m", "=0s", "10", "m", "-1s"] {
            let told = parse(wrong.trim_start_matches('='));
            assert!(told.is_err(), "{wrong}");
        }
        assert_eq!(soak(&["0s"]).0, None);
        assert_eq!(soak(&["=0s"]).0, None);
    }
}
