//! Leases on a real Redis: too many, too few, stranded.

use std::{
    sync::{
        Arc,
        atomic::{AtomicI64, AtomicU64, Ordering::SeqCst},
    },
    time::Duration,
};

use tokio::{
    task::JoinSet,
    time::{Instant, sleep, timeout},
};
use tollgate::{LeaseSettings, Observer, RedisStore, SavedBy, Source};
use tollgate_core::{Check, Store};
use tollgate_limiter::Leases;
use tollgate_tests::{Fault, FaultProxy, RedisServer, check, quota};

use crate::support::{decide, remaining, store};

const LIFE: Duration = Duration::from_secs(2);

/// Longer than a lease lives, and what is left of it takes to go back.
const LATER: Duration = Duration::from_secs(3);

#[derive(Default)]
struct Watch {
    leased: AtomicI64,
    saved: AtomicU64,
}

impl Observer for Watch {
    fn leased(&self, _: &str, tokens: i64) {
        self.leased.fetch_add(tokens, SeqCst);
    }

    fn call_saved(&self, by: SavedBy) {
        assert_eq!(by, SavedBy::Lease);
        self.saved.fetch_add(1, SeqCst);
    }
}

struct Replica {
    leases: Arc<Leases<RedisStore>>,
    watch: Arc<Watch>,
}

impl Replica {
    fn new(store: RedisStore) -> Self {
        let mut settings = LeaseSettings::default();
        settings.life = LIFE;
        settings.largest_batch = 10;
        settings.share = 0.2;
        let watch = Arc::new(Watch::default());
        let leases = Arc::new(Leases::new(store, settings, watch.clone()));
        Self { leases, watch }
    }

    /// Asks so many times, one after the other. Returns how many were allowed; those that failed were not.
    async fn ask(&self, check: &Check, times: usize) -> u64 {
        let mut allowed = 0;
        for _ in 0..times {
            let answer = self.leases.check(check.clone()).await;
            allowed += u64::from(answer.is_ok_and(|decision| decision.is_allowed()));
        }
        allowed
    }

    /// Asks until it holds unspent tokens. Returns how many were allowed on the way.
    async fn hold(&self, check: &Check) -> u64 {
        let mut allowed = 0;
        while self.leased() < 3 {
            allowed += self.ask(check, 1).await;
        }
        allowed
    }

    fn leased(&self) -> u64 {
        u64::try_from(self.watch.leased.load(SeqCst)).expect("not negative")
    }
}

fn hundred() -> Check {
    leased(100)
}

fn leased(capacity: u64) -> Check {
    check("a", quota(capacity, "1/h"), 1).with_lease(true)
}

async fn left(store: &RedisStore) -> u64 {
    let read = check("a", quota(100, "1/h"), 0);
    remaining(&decide(store, read).await.limits[0])
}

async fn fleet(server: &RedisServer) -> [Replica; 4] {
    let connect = || async { Replica::new(store(server).await) };
    [
        connect().await,
        connect().await,
        connect().await,
        connect().await,
    ]
}

fn outstanding(fleet: &[Replica]) -> u64 {
    fleet.iter().map(Replica::leased).sum()
}

#[tokio::test]
async fn all_replicas_together_spend_one_bucket() {
    let server = RedisServer::start();
    let fleet = Arc::new(fleet(&server).await);
    let mut asking = JoinSet::new();
    for i in 0..fleet.len() {
        let fleet = fleet.clone();
        asking.spawn(async move { fleet[i].ask(&hundred(), 50).await });
    }
    let at_once: u64 = asking.join_all().await.iter().sum();
    assert!((70..=100).contains(&at_once), "{at_once}");
    sleep(LATER).await;
    let mut later = 0;
    for replica in &*fleet {
        later += replica.ask(&hundred(), 50).await;
    }
    assert_eq!(at_once + later, 100);
    assert!(fleet.iter().any(|it| it.watch.saved.load(SeqCst) > 0));
    assert_eq!(outstanding(&*fleet), 0);
}

#[tokio::test]
async fn idle_replicas_do_not_starve_a_busy_one() {
    let server = RedisServer::start();
    let fleet = fleet(&server).await;
    for idle in &fleet[..3] {
        assert_eq!(idle.ask(&hundred(), 1).await, 1);
    }
    let at_once = fleet[3].ask(&hundred(), 200).await;
    assert!((70..=97).contains(&at_once), "{at_once}");
    sleep(LATER).await;
    assert_eq!(at_once + fleet[3].ask(&hundred(), 200).await, 97);
}

#[tokio::test]
async fn what_idle_replicas_hold_comes_back() {
    let server = RedisServer::start();
    let fleet = fleet(&server).await;
    let mut allowed = 0;
    for idle in &fleet[..3] {
        allowed += idle.hold(&hundred()).await;
    }
    let held = outstanding(&fleet);
    assert!(held >= 9, "{held}");
    let at_once = fleet[3].ask(&hundred(), 200).await;
    assert!(at_once <= 100 - allowed);
    sleep(LATER).await;
    assert_eq!(allowed + at_once + fleet[3].ask(&hundred(), 200).await, 100);
    assert_eq!(outstanding(&fleet), 0);
}

#[tokio::test]
async fn a_quota_lowered_while_leases_are_out_is_exceeded_by_them_at_most() {
    let server = RedisServer::start();
    let fleet = fleet(&server).await;
    for replica in &fleet {
        replica.hold(&hundred()).await;
    }
    let out = outstanding(&fleet);
    let mut spent = 0;
    for _ in 0..2 {
        for replica in &fleet {
            spent += replica.ask(&leased(20), 50).await;
        }
        sleep(LATER).await;
    }
    assert!(
        (20..=20 + out).contains(&spent),
        "{spent} spent, {out} were leased"
    );
    assert_eq!(outstanding(&fleet), 0);
}

#[tokio::test]
async fn a_cut_while_leases_are_out_is_followed_by_no_lump_charge() {
    let server = RedisServer::start();
    let proxy = FaultProxy::start(server.port());
    let direct = store(&server).await;
    let replica = Replica::new(RedisStore::connect(&proxy.url()).await.expect("a store"));
    let mut allowed = replica.hold(&hundred()).await;
    // Until the last claim has been answered.
    sleep(Duration::from_millis(100)).await;
    let before = left(&direct).await;
    let held = replica.leased();
    assert_eq!(allowed + held + before, 100);

    proxy.set(Fault::Refuse);
    let end = Instant::now() + Duration::from_secs(5);
    while Instant::now() < end {
        allowed += replica.ask(&hundred(), 1).await;
        sleep(Duration::from_millis(20)).await;
    }
    assert_eq!(
        allowed + before,
        100,
        "all that was held was spent while it lived"
    );
    proxy.set(Fault::None);
    sleep(LATER).await;
    assert_eq!(left(&direct).await, before);
    assert_eq!(replica.leased(), 0);
}

#[tokio::test]
async fn shutdown_gives_back_what_is_held() {
    let server = RedisServer::start();
    let replica = Replica::new(store(&server).await);
    let direct = store(&server).await;
    let allowed = replica.hold(&hundred()).await;
    replica.leases.shutdown().await;
    assert_eq!(replica.leased(), 0);
    assert_eq!(left(&direct).await, 100 - allowed);
    for _ in 0..20 {
        let decision = replica.leases.check(hundred()).await.expect("an answer");
        assert_eq!(decision.source, Source::Store);
    }
}

#[tokio::test]
async fn shutdown_ends_in_time_when_redis_is_silent() {
    let server = RedisServer::start();
    let proxy = FaultProxy::start(server.port());
    let replica = Replica::new(RedisStore::connect(&proxy.url()).await.expect("a store"));
    replica.hold(&hundred()).await;
    proxy.set(Fault::BlackHole);
    let ended = timeout(Duration::from_secs(2), replica.leases.shutdown()).await;
    ended.expect("within 2 s");
    sleep(LATER).await;
    assert_eq!(replica.leased(), 0, "lost until the bucket refills");
}
