//! Tollgate beside bare Axum, a limiter by hand, and other limiters.
//!
//! Three processes of their own take part: wrk, which makes the load, the service (`bench-app`), and Redis. Variants
//! take turns round by round, so that whatever else the machine does meets all of them.

use std::{path::PathBuf, process::ExitCode, thread, time::Duration};

use tollgate_benches::{
    BoxError, Costs, DelayProxy, Server, Target, Targets, free_port, machine, show,
};

mod app;
mod loads;
mod measured;
mod report;
mod round;
mod targets;
mod wrk;

use self::{
    app::App,
    loads::{EXACT_PEERS, FLOOR, LOADS, Load, RAW, Redis, leaves_work},
    measured::{Measured, Row},
    report::Report,
    round::Lengths,
    targets::{judge, takes},
};

const HELP: &str = "\
Measures the service behind each limiter, on loopback, with a Redis of its own, in about 15 minutes.
Shows where it is on stderr, prints tables in Markdown, and writes them with the figures of each round and charts to a
folder. Ends with 1 if a target of benches/targets.toml is missed twice in a row. Needs `wrk` and `redis-server`.

  --quick        short rounds, two of each: a look, in about 2 minutes; misses are shown and not tried again
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
        report.write(&options.out)?;
    }
    if options.asks_for("script") {
        let rounds = if options.quick { 31 } else { 151 };
        let costs = Costs::measure(rounds)?;
        let mut verdicts = costs.judge(&script, false);
        if !options.quick && verdicts.iter().any(|it| !it.is_met) {
            verdicts = Costs::measure(rounds)?.judge(&script, true);
        }
        report.targets.extend(verdicts);
        report.script = Some(costs);
        report.write(&options.out)?;
    }
    if report.loads.is_empty() && report.script.is_none() {
        return Err("no load and variant has such a name".into());
    }
    show("");
    print!("{}", report.markdown());
    eprintln!("written to {}", options.out.display());
    Ok(options.quick || report.targets.iter().all(|verdict| verdict.is_met))
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

fn run(
    place: &mut Place,
    load: &Load,
    variants: &[&'static str],
    options: &Options,
) -> Result<Measured, BoxError> {
    let mut measured = Measured {
        load: load.name,
        about: load.about,
        variants: Vec::new(),
    };
    let mut apps = Vec::new();
    for &variant in variants {
        let mut row = Row {
            variant,
            unable: None,
            appended: None,
            samples: Vec::new(),
        };
        let app = if variant == RAW {
            None
        } else {
            let started = App::start(load, variant, &place.url(load.redis), options.threads)?;
            started.map_err(|why| row.unable = Some(why)).ok()
        };
        if let Some(app) = &app
            && !load.warm_up.is_zero()
        {
            show(&format!("{}: {variant} warms up", load.name));
            let share = if options.quick { 3 } else { 1 };
            wrk::run(load, app.port(), load.warm_up / share)?;
        }
        apps.push(app);
        measured.variants.push(row);
    }
    if load.redis == Redis::Near {
        place.server.append(true)?;
        for (row, app) in measured.variants.iter_mut().zip(&apps) {
            show(&format!("{}: what {} writes", load.name, row.variant));
            if let Some(app) = app {
                row.appended = Some(round::appended(&mut place.server, load, app)?);
            }
        }
        place.server.append(false)?;
    }
    for number in 1..=options.rounds {
        for (row, app) in measured.variants.iter_mut().zip(&apps) {
            let progress = format!(
                "{}, round {number} of {}: {}",
                load.name, options.rounds, row.variant
            );
            match app {
                Some(app) => {
                    show(&progress);
                    let sample =
                        round::round(&mut place.server, load, row.variant, app, options.lengths())?;
                    row.samples.push(sample);
                    if leaves_work(row.variant) {
                        // What it still owes Redis comes within a second, and is not the next one's.
                        thread::sleep(Duration::from_millis(1_100));
                    }
                }
                None if row.variant == RAW => {
                    show(&progress);
                    row.samples
                        .push(round::raw(&mut place.server, load, options.lengths())?);
                }
                None => {}
            }
        }
    }
    Ok(measured)
}
