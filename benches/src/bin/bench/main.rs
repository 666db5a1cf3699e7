//! Tollgate beside bare Axum, a limiter by hand, and other limiters.
//!
//! Three processes of their own take part: wrk, which makes the load, the service (`bench-app`), and Redis. Variants
//! take turns round by round, so that whatever else the machine does meets all of them.

use std::{path::PathBuf, process::ExitCode, time::Duration};

use tollgate_benches::{
    BoxError, Costs, DelayProxy, Server, Target, Targets, Verdict, end_on_signals, free_port,
    machine, show,
};

mod app;
mod entrant;
mod loads;
mod measured;
mod report;
mod round;
mod targets;
mod wrk;

use self::{
    entrant::Entrant,
    loads::{EXACT_PEERS, FLOOR, LOADS, Load, Redis},
    measured::Measured,
    report::Report,
    round::Lengths,
    targets::{judge, takes},
};

const HELP: &str = "\
Measures the service behind each limiter, on loopback, with a Redis of its own, in about 15 minutes.
Shows where it is on stderr, prints tables in Markdown, and writes them with the figures of each round and charts to a
folder. Ends with 1 if a target of benches/targets.toml is missed twice in a row or a variant of Tollgate breaks, and with
2 if it cannot measure. Needs `wrk` and `redis-server`.

  --quick        short rounds, two of each: a look, in about 3 minutes; misses are shown and not tried again
  --only WORDS   only loads and variants whose LOAD/VARIANT contains one of these, separated by commas; the floor is
                 always there, and what a target compares with
  --rounds N     rounds of each variant (5)
  --threads N    worker threads of the service (1)
  --out DIR      where the files go (benches/target/bench)
";

struct Options {
    quick: bool,
    only: Vec<String>,
    rounds: usize,
    threads: usize,
    out: PathBuf,
}

fn main() -> ExitCode {
    let done = options().and_then(|options| match options {
        Some(options) => measure(&options),
        None => Ok(true),
    });
    match done {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("bench: {error}");
            ExitCode::from(2)
        }
    }
}

/// `None` if only help is wanted.
fn options() -> Result<Option<Options>, BoxError> {
    use lexopt::prelude::{Long, ValueExt};

    let mut options = Options {
        quick: false,
        only: Vec::new(),
        rounds: 5,
        threads: 1,
        out: concat!(env!("CARGO_MANIFEST_DIR"), "/target/bench").into(),
    };
    let mut args = lexopt::Parser::from_env();
    while let Some(arg) = args.next()? {
        match arg {
            Long("quick") => {
                options.quick = true;
                options.rounds = 2;
            }
            Long("only") => {
                let words = args.value()?.string()?;
                options.only = words.split(',').map(str::to_owned).collect();
            }
            Long("rounds") => options.rounds = args.value()?.parse()?,
            Long("threads") => options.threads = args.value()?.parse()?,
            Long("out") => options.out = args.value()?.into(),
            Long("help") => {
                print!("{HELP}");
                return Ok(None);
            }
            other => return Err(format!("{}; see --help", other.unexpected()).into()),
        }
    }
    if options.rounds == 0 || options.threads == 0 {
        return Err("--rounds and --threads are from 1".into());
    }
    Ok(Some(options))
}

impl Options {
    fn lengths(&self) -> Lengths {
        let [warm_up, round] = if self.quick { [200, 500] } else { [300, 1_000] };
        Lengths {
            warm_up: Duration::from_millis(warm_up),
            round: Duration::from_millis(round),
        }
    }

    fn asks_for(&self, name: &str) -> bool {
        self.only.is_empty() || self.only.iter().any(|word| name.contains(word))
    }

    /// The variants of a load that were asked for, and those that they are compared with.
    fn variants(&self, load: &Load, targets: &[Target]) -> Vec<&'static str> {
        let asked = |variant: &str| self.asks_for(&format!("{}/{variant}", load.name));
        if !load.variants.iter().any(|variant| asked(variant)) {
            return Vec::new();
        }
        let compared = |variant: &str| {
            let is_asked = |target: &&Target| target.load == load.name && asked(&target.variant);
            targets
                .iter()
                .filter(is_asked)
                .any(|target| match target.against.as_deref() {
                    Some("best-exact-peer") => EXACT_PEERS.contains(&variant),
                    against => against == Some(variant),
                })
        };
        let wanted =
            |variant: &&'static str| *variant == FLOOR || asked(variant) || compared(variant);
        load.variants.iter().copied().filter(wanted).collect()
    }
}

/// Whether all targets were met.
fn measure(options: &Options) -> Result<bool, BoxError> {
    end_on_signals()?;
    let wrk = wrk::version()?;
    let Targets {
        loads: targets,
        script,
    } = Targets::read()?;
    let mut place = Place::start()?;
    let mut report = Report {
        about: format!(
            "Measured on {}; Redis {}; {wrk}, 1 thread; the service in {} worker thread(s); all on one machine. \
             Medians of {} rounds of {:?} each, in turns (least…most).",
            machine(),
            place.server.info("server", "redis_version")?,
            options.threads,
            options.rounds,
            options.lengths().round,
        ),
        loads: Vec::new(),
        script: None,
        targets: Vec::new(),
    };
    // What cannot be written then is known now.
    report.write(&options.out)?;
    for load in LOADS {
        let variants = options.variants(load, &targets);
        if variants.is_empty() {
            continue;
        }
        let measured = run(&mut place, load, &variants, options)?;
        let targets: Vec<_> = targets.iter().filter(|it| it.load == load.name).collect();
        let mut verdicts: Vec<_> = targets
            .iter()
            .map(|it| judge(it, &measured, false))
            .collect();
        let missed: Vec<_> = targets
            .into_iter()
            .zip(&mut verdicts)
            .filter(|(_, it)| !it.is_met)
            .collect();
        if !options.quick && !missed.is_empty() {
            show(&format!("{}: again what was missed", load.name));
            let is_taken = |it: &&str| {
                missed
                    .iter()
                    .any(|(target, _)| takes(target, it, &measured))
            };
            let again: Vec<_> = variants.iter().copied().filter(is_taken).collect();
            let again = run(&mut place, load, &again, options)?;
            for (target, verdict) in missed {
                *verdict = judge(target, &again, true);
            }
        }
        report.targets.extend(verdicts);
        report.loads.push(measured);
        // So that what there is outlives a run that is broken off.
        if let Err(error) = report.write(&options.out) {
            eprintln!("\nbench: {error}");
        }
    }
    if options.asks_for("script") {
        let rounds = if options.quick { 31 } else { 151 };
        let costs = Costs::measure(rounds)?;
        let mut verdicts = costs.judge(&script, false);
        if !options.quick && verdicts.iter().any(|it| !it.is_met) {
            let again = Costs::measure(rounds)?.judge(&script, true);
            Verdict::replace_missed(&mut verdicts, again);
        }
        report.targets.extend(verdicts);
        report.script = Some(costs);
    }
    if report.loads.is_empty() && report.script.is_none() {
        return Err("no load and variant has such a name".into());
    }
    show("");
    print!("{}", report.markdown());
    report.write(&options.out)?;
    eprintln!("written to {}", options.out.display());
    Ok(!report.has_broken() && (options.quick || report.meets_all()))
}

/// Redis, near, far and gone.
struct Place {
    server: Server,
    far: DelayProxy,
    /// Nobody listens here.
    gone: u16,
}

impl Place {
    fn start() -> Result<Self, BoxError> {
        let server = Server::start(&[])?;
        Ok(Self {
            far: DelayProxy::start(server.port(), Duration::from_millis(2))?,
            gone: free_port()?,
            server,
        })
    }

    fn url(&self, which: Redis) -> String {
        let port = match which {
            Redis::Near => self.server.port(),
            Redis::Far => self.far.port(),
            Redis::Gone => self.gone,
        };
        format!("redis://127.0.0.1:{port}")
    }
}

/// Takes turns. Who breaks is out, and the others go on.
fn run(
    place: &mut Place,
    load: &Load,
    variants: &[&'static str],
    options: &Options,
) -> Result<Measured, BoxError> {
    let mut entrants = Vec::new();
    for &variant in variants {
        let mut entrant = Entrant::new(variant);
        show(&format!("{}: {variant} starts", load.name));
        let url = place.url(load.redis);
        entrant.attempt(place, |_, it| it.start(load, &url, options))?;
        entrants.push(entrant);
    }
    if load.redis == Redis::Near {
        place.server.append(true)?;
        for entrant in &mut entrants {
            show(&format!(
                "{}: what {} writes",
                load.name, entrant.row.variant
            ));
            entrant.attempt(place, |place, it| it.append(place, load))?;
        }
        place.server.append(false)?;
    }
    for number in 1..=options.rounds {
        for entrant in &mut entrants {
            show(&format!(
                "{}, round {number} of {}: {}",
                load.name, options.rounds, entrant.row.variant
            ));
            entrant.attempt(place, |place, it| it.round(place, load, options))?;
        }
    }
    Ok(Measured {
        load: load.name,
        about: load.about,
        variants: entrants.into_iter().map(|it| it.row).collect(),
    })
}
