//! A topology, replicas under load, and one fault after another.

use std::{thread, time::Duration};

use tokio::{runtime::Handle, time::Instant};
use tollgate_tests::lab::{self, By, Client, Load, Outcome, Policy, Role, Sample, back};

use crate::{
    BoxError,
    fault::Fault,
    tenants::{self, Tenant},
    topology::Topology,
};

/// The replicas of one policy stand beside those of the other, on the same servers.
pub(crate) const POLICIES: [Policy; 2] = [Policy::Open, Policy::Local];

/// Until connections are made and programs are in memory.
const WARM_UP: Duration = Duration::from_secs(1);
/// Long enough to tell a 99th percentile.
const CALM: Duration = Duration::from_secs(5);
/// A fault that is over at once shows in the requests of so long.
const SHORTEST: Duration = Duration::from_secs(3);
/// Longer than the promise, to see how much it was missed by.
const PATIENCE: Duration = Duration::from_secs(20);
/// As many answers tell whether a tenant has tokens left.
const LATEST: usize = 3;
const STEP: Duration = Duration::from_millis(50);

/// What is to be done.
#[derive(Clone, Debug)]
pub(crate) struct Round {
    pub(crate) topology: Topology,
    /// Each on the primary of a group.
    pub(crate) faults: Vec<(Fault, usize)>,
    pub(crate) client: Client,
}

/// A fault that was brought about.
#[derive(Clone, Debug)]
pub(crate) struct Window {
    pub(crate) group: usize,
    pub(crate) began: Instant,
    /// When shared limits were back, or the last moment in which its effects are looked for.
    pub(crate) ended: Instant,
    /// How long after the topology had healed all replicas shared limits again; `None` if they did not.
    pub(crate) back: Option<Duration>,
}

/// All that was seen.
#[derive(Debug)]
pub(crate) struct Seen {
    pub(crate) calm_from: Instant,
    pub(crate) windows: Vec<Window>,
    /// By policy.
    pub(crate) answers: Vec<Answers>,
}

/// What the tenants of one policy got.
#[derive(Debug)]
pub(crate) struct Answers {
    pub(crate) tenants: Vec<Tenant>,
    pub(crate) samples: Vec<Sample>,
}

impl Round {
    pub(crate) fn name(&self) -> String {
        let faults: Vec<_> = self.faults.iter().map(|(fault, _)| fault.name()).collect();
        format!("{}: {}", self.topology.name(), faults.join("; "))
    }

    /// Carries it out. Errors if the replicas cannot be started.
    pub(crate) fn run(&self, runtime: &Handle) -> Result<Seen, BoxError> {
        let say = |what: &str| eprintln!("  {what}");
        say("starting");
        let mut servers = self.topology.start();
        let primaries = self.topology.primaries();
        let tenants = POLICIES.map(|policy| tenants::of(policy, primaries, &*servers));
        let groups = tenants::groups(tenants.iter().flatten(), primaries);
        for (fault, group) in &self.faults {
            servers.prepare(*fault, &groups[*group]);
        }
        let logs = tempfile::tempdir()?;
        let mut replicas = Vec::new();
        let mut loads = Vec::new();
        for (policy, tenants) in POLICIES.iter().zip(&tenants) {
            let profiles: Vec<_> = tenants.iter().map(|it| it.profile.clone()).collect();
            let role = Role {
                redis: servers.settings(),
                policy: *policy,
                client: self.client,
                tenants: profiles.clone(),
            };
            let started = lab::start(&role, logs.path())?;
            let addresses = started.iter().map(lab::Replica::address).collect();
            replicas.push(started);
            loads.push(Load::start(runtime, addresses, &profiles));
        }
        say("calm");
        thread::sleep(WARM_UP);
        let calm_from = Instant::now();
        thread::sleep(CALM);
        let mut windows = Vec::new();
        for &(fault, group) in &self.faults {
            say(fault.name());
            let began = Instant::now();
            servers.strike(fault, &groups[group]);
            let healed = Instant::now();
            let affected = |tenants: &[Tenant], sample: &Sample| {
                let tenant = &tenants[sample.tenant];
                tenant.steady && tenant.group == group
            };
            let back = loop {
                let backs = loads.iter().zip(&tenants).map(|(load, tenants)| {
                    back(&load.samples(), healed, |it| affected(tenants, it))
                });
                let backs: Vec<_> = backs.collect();
                if let Some(all) = backs.into_iter().collect::<Option<Vec<_>>>() {
                    break all.into_iter().max();
                }
                if healed.elapsed() > PATIENCE {
                    break None;
                }
                thread::sleep(STEP);
            };
            let ended = healed + back.unwrap_or(PATIENCE);
            thread::sleep((began + SHORTEST).saturating_duration_since(Instant::now()));
            windows.push(Window {
                group,
                began,
                ended: ended.max(began + SHORTEST),
                back,
            });
            say("making whole what is broken");
            servers.mend();
        }
        say("until all is spent");
        let since = Instant::now();
        while !loads.iter().zip(&tenants).all(|it| is_spent(it.0, it.1)) {
            if since.elapsed() > PATIENCE {
                break;
            }
            thread::sleep(STEP);
        }
        let samples = loads.into_iter().map(Load::stop);
        let answers = tenants.into_iter().zip(samples);
        let answers = answers.map(|(tenants, samples)| Answers { tenants, samples });
        Ok(Seen {
            calm_from,
            windows,
            answers: answers.collect(),
        })
    }
}

/// Whether the store has lately denied something to each tenant that spends what it has.
fn is_spent(load: &Load, tenants: &[Tenant]) -> bool {
    let samples = load.samples();
    tenants.iter().enumerate().all(|(number, tenant)| {
        let latest = samples.iter().rev().filter(|it| it.tenant == number);
        let denied = |it: &Sample| it.outcome == Outcome::Denied(By::Store);
        tenant.steady || latest.take(LATEST).any(denied)
    })
}
