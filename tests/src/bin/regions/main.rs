//! What several regions do to limits: one store for all of them, quotas split over regions, and tenants with a
//! home.
//!
//! Simulated time and no network, but the arithmetic of the buckets and the parts of the quotas are those of the
//! library. Prints what `docs/topologies.md` shows, within seconds.
//!
//! ```text
//! cargo run --release -p tollgate-tests --bin regions
//! ```

use std::{
    error::Error,
    io::{self, Write},
    process::ExitCode,
};

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

type BoxError = Box<dyn Error + Send + Sync>;

const HELP: &str = "\
What one store for several regions, split quotas and tenants with a home cost, simulated.

Usage: cargo run --release -p tollgate-tests --bin regions -- [OPTIONS]

Options:
  --help   print this

Prints the tables of `docs/topologies.md`, within seconds; the figures are the same on any machine.
";

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

fn main() -> ExitCode {
    match start() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("regions: {error}");
            ExitCode::from(2)
        }
    }
}

fn start() -> Result<(), BoxError> {
    use lexopt::prelude::Long;

    match lexopt::Parser::from_env().next()? {
        None => tables()?,
        Some(Long("help")) => print!("{HELP}"),
        Some(other) => return Err(format!("{}; see --help", other.unexpected()).into()),
    }
    Ok(())
}

fn tables() -> io::Result<()> {
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
