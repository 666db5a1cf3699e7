//! The fault lab: what a service does when Redis is slow, silent, wrong or gone.
//!
//! Runs every fault under every failure policy, each against a Redis, a proxy and replica processes of its
//! own under load, and compares what clients got with what is promised in `docs/failure.md`.
//!
//! ```text
//! cargo run --release -p tollgate-tests --bin faults
//! ```

use std::{
    error::Error,
    io::{self, IsTerminal, Write},
    process::ExitCode,
    sync::{Mutex, PoisonError},
    thread,
    time::Duration,
};

use tokio::runtime::Runtime;
use tollgate_tests::{
    lab::{self, Client, Policy},
    server_version,
};

mod bench;
mod fault;
mod report;
mod run;
mod tenants;
mod verdict;

use self::{
    fault::{FAULTS, Fault},
    run::Progress,
    verdict::Verdict,
};

type BoxError = Box<dyn Error + Send + Sync>;

const HELP: &str = "\
What a service does when Redis is slow, silent, wrong or gone.

Usage: cargo run --release -p tollgate-tests --bin faults -- [OPTIONS]

Options:
  --fault NAME    only this fault; may be repeated (default: all)
  --client NAME   the client library of the replicas: fred (default) or redis-rs
  --policy NAME   only this policy: open, closed or local; may be repeated (default: all)
  --list          print the faults
  --seconds S     let each fault last S seconds, from 2 to 120 (default 4)
  --full          let `stopped` last 20 s and the flapping ones 60 s, whatever --seconds says
  --json          print the result as JSON; progress goes to standard error
  --help          print this

Each fault is tried on 3 replica processes with 300 requests per second; the policies of one fault
run side by side. All of it takes 4 to 5 minutes, and 6 to 7 with --full.

Exits with 1 if a promise was broken, and with 2 if the lab could not run.
";

/// What the command line says.
struct Options {
    faults: Vec<Fault>,
    policies: Vec<Policy>,
    client: Client,
    length: Duration,
    full: bool,
    json: bool,
}

fn main() -> ExitCode {
    match start() {
        Ok(code) => code,
        Err(error) => {
            eprintln!("faults: {error}");
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
    if server_version().is_err() {
        return Err("there is no `redis-server`. Install it (Debian and Ubuntu: apt-get install redis-server; \
                    macOS: brew install redis)."
            .into());
    }
    let runtime = Runtime::new()?;
    let mut verdicts = Vec::new();
    for (number, fault) in options.faults.iter().enumerate() {
        eprintln!(
            "{:>2}/{} {}: {}",
            number + 1,
            options.faults.len(),
            fault.name,
            fault.about
        );
        for verdict in try_all(fault, &options, &runtime)? {
            eprint!("      {}", report::row(&verdict));
            for broken in &verdict.broken {
                eprintln!("      BROKEN: {broken}");
            }
            verdicts.push(verdict);
        }
    }
    if options.json {
        println!("{}", serde_json::to_string_pretty(&verdicts)?);
    } else {
        print!("{}", report::table(&verdicts));
    }
    let holds = verdicts.iter().all(|verdict| verdict.broken.is_empty());
    Ok(if holds {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}

/// One fault under all policies, side by side.
fn try_all(fault: &Fault, options: &Options, runtime: &Runtime) -> Result<Vec<Verdict>, BoxError> {
    let length = fault.length(options.length, options.full);
    let progress: Vec<_> = options
        .policies
        .iter()
        .map(|_| Progress::default())
        .collect();
    thread::scope(|scope| {
        let runs: Vec<_> = options
            .policies
            .iter()
            .zip(&progress)
            .map(|(&policy, progress)| {
                let handle = runtime.handle();
                scope.spawn(move || {
                    let client = options.client;
                    let observed = run::run(fault, policy, client, length, handle, progress)?;
                    Ok(Verdict::new(fault, policy, &observed))
                })
            })
            .collect();
        while !runs.iter().all(thread::ScopedJoinHandle::is_finished) {
            show(&progress);
            thread::sleep(Duration::from_millis(200));
        }
        clear();
        // All of them, before the first error counts.
        let ended: Vec<_> = runs.into_iter().map(|run| run.join()).collect();
        ended
            .into_iter()
            .map(|run| run.map_err(|_| BoxError::from("a run panicked; see above"))?)
            .collect()
    })
}

/// On a terminal, one line that changes.
fn show(progress: &[Mutex<String>]) {
    if !io::stderr().is_terminal() {
        return;
    }
    let lines: Vec<_> = progress
        .iter()
        .map(|line| line.lock().unwrap_or_else(PoisonError::into_inner).clone())
        .collect();
    eprint!("\r\x1b[K      {}", lines.join(" | "));
    let _ = io::stderr().flush();
}

fn clear() {
    if io::stderr().is_terminal() {
        eprint!("\r\x1b[K");
    }
}

/// `None` if only help or the list is wanted.
fn options() -> Result<Option<Options>, BoxError> {
    use lexopt::prelude::{Long, ValueExt};

    let mut options = Options {
        faults: Vec::new(),
        policies: Vec::new(),
        client: Client::Fred,
        length: Duration::from_secs(4),
        full: false,
        json: false,
    };
    let mut args = lexopt::Parser::from_env();
    while let Some(arg) = args.next()? {
        match arg {
            Long("fault") => options.faults.push(named(&args.value()?.string()?)?),
            Long("policy") => options.policies.push(args.value()?.parse()?),
            Long("client") => options.client = args.value()?.parse()?,
            Long("seconds") => {
                let seconds = args.value()?.parse()?;
                if !(2..=120).contains(&seconds) {
                    return Err("--seconds must be from 2 to 120".into());
                }
                options.length = Duration::from_secs(seconds);
            }
            Long("full") => options.full = true,
            Long("json") => options.json = true,
            Long("list") => {
                for fault in FAULTS {
                    println!("{:<18}{}", fault.name, fault.about);
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
    if options.faults.is_empty() {
        options.faults = FAULTS.to_vec();
    }
    if options.policies.is_empty() {
        options.policies = Policy::ALL.to_vec();
    }
    Ok(Some(options))
}

fn named(name: &str) -> Result<Fault, BoxError> {
    let fault = FAULTS.into_iter().find(|fault| fault.name == name);
    fault.ok_or_else(|| format!("no fault `{name}`; see --list").into())
}
