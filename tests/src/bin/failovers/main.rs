//! What failovers of a cluster, of a primary under Sentinel and of a server behind TLS cost: each fault against
//! servers and replica processes of its own under load, as the tables of `docs/topologies.md`, compared with
//! what is promised there.
//!
//! ```text
//! cargo run --release -p tollgate-tests --bin failovers
//! ```

use std::{error::Error, process::ExitCode, thread, time::Duration};

use tokio::{runtime::Handle, time::Instant};
use tollgate_tests::{
    lab::{self, Client},
    server_version,
};

mod cluster;
mod fault;
mod pause;
mod replicas;
mod round;
mod row;
mod sentinel;
mod soak;
mod tenants;
mod tls;
mod topology;

use self::{
    round::Round,
    row::{HEADER, Row},
    topology::Topology,
};

type BoxError = Box<dyn Error + Send + Sync>;

const HELP: &str = "\
What failovers cost, and whether what is promised of them holds.

Usage: cargo run --release -p tollgate-tests --bin failovers -- [OPTIONS]

Options:
  --only NAME      only the rows whose name contains NAME, such as `cluster` or `cluster: primary frozen`
  --list           print the names
  --client NAME    the client library of the replicas: fred (default) or redis-rs
  --soak [LENGTH]  random chains of faults instead, for so long: such as 90s, or 10m (default)
  --seed N         the seed of the chains, as printed by a run before
  --help           print this

Each fault is tried on 3 replica processes under the policy `open` and 3 under `local`. All of it takes about
8 minutes; progress goes to standard error.

Exits with 1 if a promise was broken, and with 2 if the lab could not run or was interrupted. Promised are: no
failed request; the store denies no tenant that stays within its quota; of each tenant's tokens at most one
capacity granted again per failover; shared limits back within 7 s after the topology has healed; and for
tenants on other primaries, while one is frozen, a 99th percentile of at most twice that of the calm, and no
request that takes 25 ms, the deadline, longer than the calm median. Latency counts as missed only if it is in
three attempts (machines are busy), and is not judged with --soak.
";

/// How often a row is tried again in which only latency was missed.
const MORE_ATTEMPTS: u32 = 2;

/// What the command line says.
struct Options {
    only: String,
    client: Client,
    soak: Option<Duration>,
    seed: u64,
}

fn main() -> ExitCode {
    match start() {
        Ok(code) => code,
        Err(error) => {
            eprintln!("failovers: {error}");
            ExitCode::from(2)
        }
    }
}

fn start() -> Result<ExitCode, BoxError> {
    // This program is also the replica.
    if let Some(served) = lab::serve() {
        return served.map(|()| ExitCode::SUCCESS);
    }
    let Some(options) = options()? else {
        return Ok(ExitCode::SUCCESS);
    };
    let caption = caption(&options)?;
    let holds = lab::carry_out(move |runtime| match options.soak {
        Some(length) => soak(&options, length, &caption, runtime),
        None => tables(&options, &caption, runtime),
    })?;
    Ok(if holds {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}

fn soak(
    options: &Options,
    length: Duration,
    caption: &str,
    runtime: &Handle,
) -> Result<bool, BoxError> {
    eprintln!("seed {}", options.seed);
    println!("{caption}\n");
    print!("{HEADER}");
    let end = Instant::now() + length;
    let mut holds = true;
    let mut chains = soak::chains(&options.only, options.client, options.seed);
    while Instant::now() < end {
        let chain = chains.next().ok_or_else(|| nothing(&options.only))?;
        holds &= print(&chain, runtime)?;
    }
    Ok(holds)
}

fn tables(options: &Options, caption: &str, runtime: &Handle) -> Result<bool, BoxError> {
    let is_wanted = |name: &str| name.contains(&options.only);
    let rounds = rounds(options.client).filter(|round| is_wanted(&round.name()));
    let rounds: Vec<_> = rounds.collect();
    let others = replicas::TABLES.iter().filter(|it| is_wanted(it.name));
    let others: Vec<_> = others.collect();
    if rounds.is_empty() && others.is_empty() {
        return Err(nothing(&options.only));
    }
    println!("{caption}");
    if !rounds.is_empty() {
        print!("\n{HEADER}");
    }
    let mut holds = true;
    for round in &rounds {
        holds &= print(round, runtime)?;
    }
    for table in others {
        eprintln!("{}", table.name);
        print!("\n{}", (table.measure)());
    }
    Ok(holds)
}

/// Carries out a round and prints its row; false if a promise was broken.
fn print(round: &Round, runtime: &Handle) -> Result<bool, BoxError> {
    eprintln!("{}", round.name());
    let mut row = Row::new(round, &round.run(runtime)?);
    for _ in 0..MORE_ATTEMPTS {
        if !row.is_only_slow {
            break;
        }
        eprintln!("  {}: once more", row.broken.join("; "));
        row = Row::new(round, &round.run(runtime)?);
    }
    print!("{row}");
    for broken in &row.broken {
        eprintln!("  BROKEN: {broken}");
    }
    Ok(row.broken.is_empty())
}

fn rounds(client: Client) -> impl Iterator<Item = Round> {
    Topology::ALL.into_iter().flat_map(move |topology| {
        topology.faults().iter().map(move |fault| Round {
            topology,
            faults: vec![(*fault, 0)],
            client,
        })
    })
}

/// What the figures are of.
fn caption(options: &Options) -> Result<String, BoxError> {
    let version = server_version().map_err(|_| {
        "there is no `redis-server`. Install it (Debian and Ubuntu: apt-get install redis-server; macOS: brew \
         install redis)."
    })?;
    let cores = thread::available_parallelism()?;
    let client = options.client.as_str();
    Ok(format!(
        "One machine with {cores} cores for all processes, Redis {version}, client library {client}:"
    ))
}

fn nothing(only: &str) -> BoxError {
    format!("no row with `{only}` in its name; see --list").into()
}

/// `None` if only help or the list is wanted.
fn options() -> Result<Option<Options>, BoxError> {
    use lexopt::prelude::{Long, ValueExt};

    let mut options = Options {
        only: String::new(),
        client: Client::Fred,
        soak: None,
        seed: fastrand::u64(..1_000_000),
    };
    let mut args = lexopt::Parser::from_env();
    while let Some(arg) = args.next()? {
        match arg {
            Long("only") => options.only = args.value()?.string()?,
            Long("client") => options.client = args.value()?.parse()?,
            Long("soak") => options.soak = Some(soak::length(&mut args)?),
            Long("seed") => options.seed = args.value()?.parse()?,
            Long("list") => {
                for round in rounds(options.client) {
                    println!("{}", round.name());
                }
                for table in replicas::TABLES {
                    println!("{}", table.name);
                }
                return Ok(None);
            }
            Long("help") => {
                print!("{HELP}");
                return Ok(None);
            }
            other => return Err(format!("{}; see --help", other.unexpected()).into()),
        }
    }
    Ok(Some(options))
}
