use std::{
    collections::HashMap,
    num::{NonZeroU8, NonZeroU64},
    sync::{Mutex, MutexGuard, PoisonError},
};

use tokio::{
    task::JoinSet,
    time::{sleep, sleep_until},
};
use tollgate_core::{
    Charge, ChargeState, Clock, Cost, ErrorKind, KeySpace, Limit, LimitName, MemoryStore, Quota,
    StoreError, Tenant,
};

use super::*;

mod failures;
mod fleet;
mod life;
mod model;
mod schedules;

/// Tokio's time, which tests pause, for the store.
struct PausedClock(Instant);

impl Clock for PausedClock {
    fn now(&self) -> u64 {
        u64::try_from(self.0.elapsed().as_millis()).expect("not that long")
    }
}

/// What the network or the store does to calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fault {
    None,
    /// An error that says that nothing was written.
    Refuse,
    /// They are carried out, and the answers are lost.
    LoseReplies,
    /// They never arrive, and nothing is heard of them.
    Silence,
}

/// What happened, for all replicas together.
#[derive(Default)]
struct Log {
    /// Counts of the checks that were sent to the store.
    checks: Vec<u64>,
    /// When claims were sent.
    claimed: Vec<Instant>,
    adjustments: usize,
    saved: usize,
    /// How often the number of leased tokens has changed.
    moves: usize,
    /// By key class.
    leased: HashMap<String, i64>,
    /// Tokens that requests took, and when: from the store on its own, or from a lease.
    spent: Vec<(Instant, u64)>,
}

impl Log {
    fn outstanding(&self) -> i64 {
        self.leased.values().sum()
    }

    fn claims(&self) -> usize {
        self.checks.iter().filter(|&&count| count > 1).count()
    }

    fn sorted_checks(&self) -> Vec<u64> {
        let mut checks = self.checks.clone();
        checks.sort_unstable();
        checks
    }

    fn spent(&self) -> u64 {
        self.spent.iter().map(|(_, tokens)| tokens).sum()
    }
}

/// One store, and the network to it.
#[derive(Clone)]
struct Link {
    store: Arc<MemoryStore<PausedClock>>,
    log: Arc<Mutex<Log>>,
    /// The fault, and how long a request and its answer take each.
    weather: Arc<Mutex<(Fault, Duration)>>,
}

impl Link {
    fn new() -> Self {
        Self {
            store: Arc::new(MemoryStore::with_clock(PausedClock(Instant::now()))),
            log: Arc::default(),
            weather: Arc::new(Mutex::new((Fault::None, Duration::from_millis(2)))),
        }
    }

    fn log(&self) -> MutexGuard<'_, Log> {
        lock(&self.log)
    }

    fn set(&self, fault: Fault) {
        self.weather.lock().expect("no panic").0 = fault;
    }

    fn replica(&self, settings: LeaseSettings) -> Arc<Leases<Self>> {
        Arc::new(Leases::new(
            self.clone(),
            settings,
            Arc::new(Watch(self.log.clone())),
        ))
    }

    async fn call<T>(
        self,
        carry_out: impl FnOnce(&Self) -> Result<T, StoreError>,
    ) -> Result<T, StoreError> {
        let (fault, trip) = *self.weather.lock().expect("no panic");
        let error = |charge| Err(StoreError::new(ErrorKind::Io, charge, "cut"));
        if fault == Fault::Silence {
            return std::future::pending().await;
        }
        sleep(trip).await;
        if fault == Fault::Refuse {
            return error(ChargeState::NotCharged);
        }
        let answer = carry_out(&self);
        sleep(trip).await;
        if fault == Fault::LoseReplies {
            return error(ChargeState::Unknown);
        }
        answer
    }

    /// Tokens that the bucket of `check` has.
    fn remaining(&self, check: &Check) -> u64 {
        let read = check.map_charges(|it| Charge {
            cost: Cost::FREE,
            ..it.clone()
        });
        let decision = self.store.decide(&read).expect("an answer");
        decision.limits[0].remaining.expect("known")
    }
}

impl Store for Link {
    fn check(&self, check: Check) -> CheckFuture {
        let mut log = self.log();
        log.checks.push(check.count());
        if check.count() > 1 {
            log.claimed.push(Instant::now());
        }
        drop(log);
        CheckFuture::new(self.clone().call(move |link| {
            let is_single = check.count() == 1;
            let cost = check.charges()[0].cost.tokens();
            let answer = link.store.decide(&check);
            if is_single && answer.as_ref().is_ok_and(Decision::is_allowed) {
                link.log().spent.push((Instant::now(), cost));
            }
            answer
        }))
    }

    fn adjust(&self, adjustment: Adjustment) -> AdjustFuture {
        self.log().adjustments += 1;
        let link = self.clone();
        AdjustFuture::new(async move {
            let store = link.store.clone();
            link.call(|_| Ok(store.adjust(adjustment))).await?.await
        })
    }
}

/// Also after a panic, which is the test's own.
fn lock(log: &Mutex<Log>) -> MutexGuard<'_, Log> {
    log.lock().unwrap_or_else(PoisonError::into_inner)
}

struct Watch(Arc<Mutex<Log>>);

impl Observer for Watch {
    fn call_saved(&self, by: SavedBy) {
        assert_eq!(by, SavedBy::Lease);
        lock(&self.0).saved += 1;
    }

    fn leased(&self, key_class: &str, tokens: i64) {
        let mut log = lock(&self.0);
        log.moves += 1;
        let leased = log.leased.entry(key_class.to_owned()).or_default();
        *leased += tokens;
        assert!(*leased >= 0, "less than nothing is leased");
    }
}

fn quota(capacity: u64, rate: &str) -> Quota {
    Quota::new(capacity, rate).expect("a quota")
}

fn charge(limit: &str, quota: Quota, cost: u32) -> Charge {
    let name = LimitName::new(limit).expect("a name");
    let tenant = Tenant::new("42", "pro").expect("an id");
    Charge {
        key: KeySpace::default().bucket(&tenant, &name),
        limit: Limit { name, quota },
        cost: Cost::new(cost),
    }
}

/// A check that may be leased.
fn check(quota: Quota, cost: u32) -> Check {
    let check = Check::single(charge("default", quota, cost));
    check.with_lease(true).with_key_class("pro".into())
}

/// Asks, and takes note of what is spent from a lease.
async fn ask(replica: &Leases<Link>, check: Check) -> Result<Decision, StoreError> {
    let cost = check.charges()[0].cost.tokens();
    let answer = replica.check(check).await;
    if answer.as_ref().is_ok_and(|it| it.source == Source::Lease) {
        let spent = (Instant::now(), cost);
        replica.shared.store.log().spent.push(spent);
    }
    answer
}

/// Asks so many times, one after the other, with pauses of `pause`. Returns how many were allowed.
async fn ask_often(replica: &Leases<Link>, check: &Check, times: usize, pause: Duration) -> u64 {
    let mut allowed = 0;
    for _ in 0..times {
        let decision = ask(replica, check.clone()).await.expect("an answer");
        allowed += u64::from(decision.is_allowed());
        sleep(pause).await;
    }
    allowed
}

/// Asks so many times at once. Returns how many were allowed.
async fn ask_at_once(replica: &Arc<Leases<Link>>, check: &Check, times: usize) -> u64 {
    let mut asking = JoinSet::new();
    for _ in 0..times {
        let (replica, check) = (replica.clone(), check.clone());
        asking.spawn(async move { ask(&replica, check).await });
    }
    let answers = asking.join_all().await;
    let allowed =
        |answer: &&Result<Decision, StoreError>| answer.as_ref().expect("an answer").is_allowed();
    answers.iter().filter(allowed).count() as u64
}

const MS: Duration = Duration::from_millis(1);
const SECOND: Duration = Duration::from_secs(1);
