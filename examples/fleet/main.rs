//! The proof that anyone can watch: one bucket per tenant, whatever the number of replicas.
//!
//! Starts a Redis of its own (or uses `REDIS_URL`), replica processes of a service, and sends them the load
//! of three tenants; half-way, it adds replicas. Then it compares what was admitted with the bound
//! `capacity + rate × T`, and with what the same load gets from limiters that each replica has for itself.
//!
//! ```text
//! cargo run --release --example fleet
//! cargo run --release --example fleet -- --topology cluster
//! ```

use std::{error::Error, process::ExitCode, time::Duration};

use tokio::signal::unix::{SignalKind, signal};

mod load;
mod redis;
mod replica;
mod report;
mod servers;
mod tenants;
mod topology;

use self::topology::Topology;

type BoxError = Box<dyn Error + Send + Sync>;

const HELP: &str = "\
One bucket for the whole fleet, watched from outside.

Usage: cargo run --release --example fleet -- [OPTIONS]

Options:
  --replicas N   grow to N replica processes half-way, from 3 at the start (default 10, at least 1)
  --seconds S    send load for S seconds (default 15, at least 2)
  --topology T   start one server (single, the default), a cluster of three primaries (cluster), a primary with
                 a replica and three sentinels (sentinel), or a server behind TLS (tls)
  --json         print the result as JSON; progress goes to standard error
  --help         print this

Environment:
  REDIS_URL      use this Redis instead of starting one; its keys `tollgate-fleet:*` are used

Exits with 1 if a bound was broken, or a tenant was admitted nothing.
";

/// What the command line says.
struct Options {
    replicas: usize,
    seconds: u64,
    topology: Option<Topology>,
    json: bool,
}

/// How many replicas there are at the start.
const FIRST: usize = 3;

fn main() -> ExitCode {
    match run() {
        Ok(code) => code,
        Err(error) => {
            eprintln!("fleet: {error}");
            ExitCode::from(2)
        }
    }
}

#[tokio::main]
async fn run() -> Result<ExitCode, BoxError> {
    let Some(options) = options()? else {
        print!("{HELP}");
        return Ok(ExitCode::SUCCESS);
    };
    // This program is also the replica: see `replica::spawn`.
    if let Some(redis) = replica::role() {
        replica::serve(&redis?).await?;
        return Ok(ExitCode::SUCCESS);
    }
    tokio::select! {
        outcome = demonstrate(&options) => outcome,
        // What was started is ended, as after the last request.
        () = interrupted() => Err("interrupted".into()),
    }
}

async fn demonstrate(options: &Options) -> Result<ExitCode, BoxError> {
    let redis = redis::Redis::find_or_start(options.topology)?;
    let mut replicas = Vec::new();
    for _ in 0..FIRST.min(options.replicas) {
        replicas.push(replica::spawn(&redis)?);
    }
    eprintln!(
        "Redis at {}, {} replicas, then {}.",
        redis.url_without_password(),
        replicas.len(),
        options.replicas
    );

    let load = load::Load::start(replicas.iter().map(replica::Replica::address).collect());
    let half = Duration::from_secs(options.seconds) / 2;
    load.watch(half).await;
    while replicas.len() < options.replicas {
        let replica = replica::spawn(&redis)?;
        load.add_replica(replica.address());
        replicas.push(replica);
    }
    load.watch(half).await;
    let report = report::Report::new(&load.stop().await, replicas.len());

    if options.json {
        println!("{}", serde_json::to_string_pretty(&report)?);
    } else {
        print!("{report}");
    }
    Ok(if report.holds() {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}

async fn interrupted() {
    let terminated = signal(SignalKind::terminate());
    let terminated = async {
        match terminated {
            Ok(mut signals) => signals.recv().await,
            Err(_) => std::future::pending().await,
        }
    };
    tokio::select! {
        _ = tokio::signal::ctrl_c() => {}
        _ = terminated => {}
    }
}

/// `None` if only help is wanted.
fn options() -> Result<Option<Options>, BoxError> {
    use lexopt::prelude::{Long, ValueExt};

    let mut options = Options {
        replicas: 10,
        seconds: 15,
        topology: None,
        json: false,
    };
    let mut args = lexopt::Parser::from_env();
    while let Some(arg) = args.next()? {
        match arg {
            Long("replicas") => options.replicas = args.value()?.parse()?,
            Long("seconds") => options.seconds = args.value()?.parse()?,
            Long("topology") => options.topology = Some(args.value()?.parse()?),
            Long("json") => options.json = true,
            Long("help") => return Ok(None),
            other => return Err(format!("{}; see --help", other.unexpected()).into()),
        }
    }
    if !(1..=100).contains(&options.replicas) {
        return Err("--replicas must be from 1 to 100".into());
    }
    if !(2..=600).contains(&options.seconds) {
        return Err("--seconds must be from 2 to 600".into());
    }
    Ok(Some(options))
}
