//! What several regions do to limits: one store for all of them, quotas split over regions, and tenants with a
//! home.
//!
//! Simulated time and no network, but the arithmetic of the buckets and the parts of the quotas are those of the
//! library. Prints what `docs/topologies.md` shows, within seconds.
//!
//! ```text
//! cargo run --release -p tollgate-tests --bin regions
//! ```

use std::io::{self, Write};

mod meter;
mod run;
mod table;
#[cfg(test)]
mod tests;
mod topology;
mod world;

use self::{
    run::{Cut, Outcome, run},
    topology::{CUT_OFF, Topology, USUAL},
    world::{DAY, SPREADS, Spread, requests},
};

/// What a tenant asks for, as a part of its quota's rate.
const WITHIN: f64 = 0.8;
const ABOVE: f64 = 1.5;

/// A day of a tenant that stays within its quota, and of one that does not.
fn day(topology: &Topology, spread: &Spread, length: u64) -> [Outcome; 2] {
    [WITHIN, ABOVE].map(|load| run(topology, &requests(spread, length, load), None))
}

/// A day on which the region `us` is cut off from the others for an hour of 24.
fn day_with_cut(topology: &Topology, length: u64) -> Outcome {
    let cut = Cut::at_noon(length);
    run(topology, &requests(&SPREADS[0], length, ABOVE), Some(&cut))
}

fn main() -> io::Result<()> {
    let mut text = table::DAYS.to_owned();
    for topology in &USUAL {
        for spread in &SPREADS {
            text += &table::day(topology, spread, &day(topology, spread, DAY));
        }
    }
    text += table::CUTS;
    for topology in &CUT_OFF {
        text += &table::cut(topology, &day_with_cut(topology, DAY));
    }
    io::stdout().write_all(text.as_bytes())
}
