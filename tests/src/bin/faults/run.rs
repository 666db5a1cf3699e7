//! One fault under one policy.

use std::{
    collections::BTreeSet,
    sync::{Mutex, PoisonError},
    thread,
    time::Duration,
};

use tokio::{runtime::Handle, time::Instant};
use tollgate_tests::lab::{Client, Load, Outcome, Policy, Sample, back};

use crate::{
    BoxError,
    bench::{Bench, STEP},
    fault::Fault,
    tenants::TENANTS,
};

/// Long enough for the tenants that send more than their quota to have spent their burst.
const CALM: Duration = Duration::from_millis(2_500);
/// Longer than the promise, to see how much it was missed by.
const PATIENCE: Duration = Duration::from_secs(12);

/// What a run looks like at the moment.
pub(crate) type Progress = Mutex<String>;

/// All that was seen in a run.
pub(crate) struct Observed {
    pub(crate) samples: Vec<Sample>,
    pub(crate) fault_began: Instant,
    pub(crate) fault_ended: Instant,
    /// How long after its end the last replica shared its limits again.
    pub(crate) back: Option<Duration>,
    /// How long the slowest replica took to listen.
    pub(crate) start: Duration,
    pub(crate) error_kinds: BTreeSet<String>,
    /// Tokens taken from the audited tenant, if they can be told.
    pub(crate) charged: Option<f64>,
    /// The most that a replica has grown since before the fault, in KiB.
    pub(crate) grown: u64,
    pub(crate) log: String,
}

pub(crate) fn run(
    fault: &Fault,
    policy: Policy,
    client: Client,
    length: Duration,
    runtime: &Handle,
    progress: &Progress,
) -> Result<Observed, BoxError> {
    let say = |phase: &str, load: Option<&Load>| {
        let counts = load.map(|load| counts(&load.samples())).unwrap_or_default();
        *progress.lock().unwrap_or_else(PoisonError::into_inner) =
            format!("{}: {phase}{counts}", policy.as_str());
    };
    say("starting", None);
    let starting = Instant::now();
    let mut bench = Bench::start(fault.kind, policy, client)?;
    let start = starting.elapsed();
    let addresses = bench.replicas.iter().map(|replica| replica.address());
    let load = Load::start(runtime, addresses.collect(), &TENANTS);

    if !fault.kind.is_at_start() {
        let end = Instant::now() + CALM;
        while Instant::now() < end {
            say("calm", Some(&load));
            thread::sleep(STEP);
        }
    }
    let before: Vec<_> = bench
        .replicas
        .iter()
        .map(|replica| replica.memory())
        .collect();

    let fault_began = Instant::now();
    bench.begin()?;
    while fault_began.elapsed() < length {
        bench.step()?;
        say("fault", Some(&load));
        thread::sleep(STEP);
    }
    let error_kinds = load.error_kinds();
    bench.end()?;
    let fault_ended = Instant::now();

    let back = loop {
        say("recovery", Some(&load));
        if let Some(back) = back(&load.samples(), fault_ended, |_| true) {
            break Some(back);
        }
        if fault_ended.elapsed() > PATIENCE {
            break None;
        }
        thread::sleep(STEP);
    };
    say("after", Some(&load));
    thread::sleep(Duration::from_secs(1));
    let memory = bench.replicas.iter().map(|replica| replica.memory());
    let grown = memory
        .zip(before)
        .map(|(after, before)| after.saturating_sub(before));
    let grown = grown.max().unwrap_or(0);
    say("last answers", Some(&load));
    let samples = load.stop();
    say("done", None);
    Ok(Observed {
        samples,
        fault_began,
        fault_ended,
        back,
        start,
        error_kinds,
        charged: bench.charged()?,
        grown,
        log: bench.replicas.iter().map(|replica| replica.log()).collect(),
    })
}

fn counts(samples: &[Sample]) -> String {
    let failed = samples
        .iter()
        .filter(|sample| matches!(sample.outcome, Outcome::Failed(_)));
    format!(", {} requests, {} failed", samples.len(), failed.count())
}
