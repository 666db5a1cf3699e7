//! How many calls of Redis each stage of the limiter saves, and what that costs.
//!
//! Starts a Redis of its own, and loads it through [`Limiter::check`](tollgate::Limiter::check), with each stage
//! on and off. Prints what `docs/accuracy.md` shows.
//!
//! ```text
//! cargo run --release -p tollgate-tests --bin trips
//! ```

use std::{
    error::Error,
    fs,
    io::{self, IsTerminal, Write},
    path::PathBuf,
    process::ExitCode,
    time::Duration,
};

use tokio::runtime;

mod excess;
mod plot;
mod round;
mod server;
mod table;
mod traffic;
mod variant;

use self::{excess::Point, server::Server, table::Rounds, traffic::Traffic, variant::Variant};

type BoxError = Box<dyn Error + Send + Sync>;

const HELP: &str = "\
How many calls of Redis each stage of the limiter saves, and what that costs.

Usage: cargo run --release -p tollgate-tests --bin trips -- [OPTIONS]

Options:
  --quick       short rounds, few of them: to see that it works
  --plot FILE   write the plot there (SVG)
  --help        print this

The stages take turns, round by round, so that whatever else the machine does meets all of them. Takes about
5 minutes.

Exits with 1 if a figure misses what is expected, and with 2 if a bound was exceeded or nothing could be measured.
";

struct Options {
    rounds: usize,
    length: Duration,
    plot: Option<PathBuf>,
}

fn main() -> ExitCode {
    match start() {
        Ok(code) => code,
        Err(error) => {
            eprintln!("trips: {error}");
            ExitCode::from(2)
        }
    }
}

fn start() -> Result<ExitCode, BoxError> {
    let Some(options) = options()? else {
        return Ok(ExitCode::SUCCESS);
    };
    let runtime = runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()?;
    runtime.block_on(measure(&options))
}

/// `None` if only help is wanted.
fn options() -> Result<Option<Options>, BoxError> {
    use lexopt::prelude::Long;

    let mut options = Options {
        rounds: 5,
        length: Duration::from_secs(1),
        plot: None,
    };
    let mut args = lexopt::Parser::from_env();
    while let Some(arg) = args.next()? {
        match arg {
            Long("quick") => {
                options.rounds = 1;
                options.length = Duration::from_millis(200);
            }
            Long("plot") => options.plot = Some(args.value()?.into()),
            Long("help") => {
                print!("{HELP}");
                return Ok(None);
            }
            other => return Err(format!("{}; see --help", other.unexpected()).into()),
        }
    }
    Ok(Some(options))
}

async fn measure(options: &Options) -> Result<ExitCode, BoxError> {
    let mut server = Server::start();
    let machine = format!(
        "{}; {}; Redis {} on the same machine; load from 2 threads of one process",
        processor(),
        kernel(),
        server.version()?
    );
    println!("{machine}.");
    println!(
        "Medians of rounds of about {:?}, {} of each (least to most). CPU, requests per second and latency as ratios: the plain store of the same round is 1.",
        options.length, options.rounds
    );
    let mut verdicts = Vec::new();
    let variants = Variant::all();
    for traffic in Traffic::all()? {
        let rounds = rounds(&mut server, &traffic, &variants, options).await?;
        print!("{}", table::table(&traffic, &variants, &rounds));
        verdicts.extend(table::verdicts(&traffic, &variants, &rounds));
    }
    let points = points(&mut server, options).await?;
    println!("\n| stages | calls saved | tokens beyond the plain bound |\n|---|---:|---:|");
    for point in &points {
        println!(
            "| {} | {:.0} % | {:.0} |",
            point.label,
            100.0 * point.saved,
            point.excess.ceil()
        );
    }
    if let Some(path) = &options.plot {
        fs::write(path, plot::svg(&points, &machine))?;
    }
    println!("\nNo bound was exceeded.");
    for (_, verdict) in &verdicts {
        println!("{verdict}.");
    }
    Ok(if verdicts.iter().all(|(is_met, _)| *is_met) {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}

async fn rounds(
    server: &mut Server,
    traffic: &Traffic,
    variants: &[Variant],
    options: &Options,
) -> Result<Rounds, BoxError> {
    let store = server.store().await?;
    let mut rounds = vec![Vec::new(); variants.len()];
    for number in 1..=options.rounds {
        // Each round starts with another one, so that none always follows the same.
        for turn in 0..variants.len() {
            let turn = (turn + number) % variants.len();
            let (variant, samples) = (&variants[turn], &mut rounds[turn]);
            show(&format!(
                "{}, round {number} of {}: {}",
                traffic.name, options.rounds, variant.name
            ));
            samples.push(round::round(server, &store, traffic, variant, options.length).await?);
        }
    }
    show("");
    Ok(rounds)
}

async fn points(server: &mut Server, options: &Options) -> Result<Vec<Point>, BoxError> {
    let settings = excess::settings();
    // Each takes about two seconds.
    let rounds = options.rounds.div_ceil(2);
    let mut seen = vec![Vec::new(); settings.len()];
    for number in 1..=rounds {
        for ((label, variant), seen) in settings.iter().zip(&mut seen) {
            show(&format!(
                "beyond the bound, round {number} of {rounds}: {label}"
            ));
            seen.push(excess::run(server, variant).await?);
        }
    }
    show("");
    let points = settings.into_iter().zip(seen);
    let points = points.map(|((label, _), mut seen)| {
        seen.sort_by(|a, b| a.0.total_cmp(&b.0));
        Point {
            label,
            saved: seen[seen.len() / 2].0,
            excess: seen.iter().map(|it| it.1).fold(0.0, f64::max),
        }
    });
    Ok(points.collect())
}

/// On a terminal, one line that changes; elsewhere, one for each.
fn show(progress: &str) {
    if io::stderr().is_terminal() {
        eprint!("\r\x1b[K{progress}");
        let _ = io::stderr().flush();
    } else if !progress.is_empty() {
        eprintln!("{progress}");
    }
}

fn processor() -> String {
    let info = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let mut models = info
        .lines()
        .filter_map(|line| line.strip_prefix("model name")?.split_once(':'))
        .map(|(_, name)| name.trim());
    let name = models.next().map(str::to_owned);
    let Some(name) = name else {
        return "an unknown processor".to_owned();
    };
    format!("{name}, {} cores", models.count() + 1)
}

fn kernel() -> String {
    let release = fs::read_to_string("/proc/sys/kernel/osrelease");
    release.map_or_else(
        |_| std::env::consts::OS.to_owned(),
        |release| format!("Linux {}", release.trim()),
    )
}
