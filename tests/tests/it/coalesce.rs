//! Calls shared by checks that come at the same time, on a real Redis.

use std::{
    collections::BTreeMap,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use tokio::{task::JoinSet, time::sleep};
use tollgate_core::{
    AdjustFuture, Adjustment, ChargeState, Check, CheckFuture, Decision, ErrorKind, Store,
    StoreError,
};
use tollgate_limiter::{Coalesce, Observer, SavedBy};
use tollgate_redis::RedisStore;
use tollgate_tests::{Fault, FaultProxy, RedisServer, check, quota};

use crate::support::store;

#[derive(Default)]
struct Saved(AtomicU64);

impl Observer for Saved {
    fn call_saved(&self, _: SavedBy) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }
}

/// So many clients, each of which asks again as soon as it has its answer.
const CLIENTS: u64 = 64;
const REQUESTS: u64 = 50 * CLIENTS;

#[tokio::test(flavor = "multi_thread")]
async fn a_hot_tenant_costs_a_tenth_of_a_call_per_request_and_gets_all_its_tokens() {
    let server = RedisServer::start();
    let saved = Arc::new(Saved::default());
    let store = Coalesce::new(store(&server).await, saved.clone());
    let quota = quota(1_000, "1/d");
    let before = server.calls("get");
    let mut clients = JoinSet::new();
    for _ in 0..CLIENTS {
        let store = store.clone();
        clients.spawn(async move {
            let mut admitted = 0;
            for _ in 0..REQUESTS / CLIENTS {
                let decision = store.check(check("hot", quota, 1)).await;
                admitted += decision.expect("a decision").granted;
            }
            admitted
        });
    }
    let admitted: u64 = clients.join_all().await.into_iter().sum();
    assert_eq!(admitted, 1_000);
    let calls = server.calls("get") - before;
    assert!(calls * 10 <= REQUESTS, "{calls} calls");
    assert_eq!(calls + saved.0.load(Ordering::SeqCst), REQUESTS);
}

/// The tenants of some traffic as it was recorded: few ask often, many ask seldom.
fn traffic() -> Vec<u64> {
    let mut random = 42_u64;
    let tenant = || {
        random = random
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        // Each is half as likely as the one before.
        u64::from(random.leading_zeros())
    };
    std::iter::repeat_with(tenant).take(3_000).collect()
}

/// Each of these stores takes every so-manieth request, up to 32 at a time. How many each tenant gets.
async fn replay<S: Store + Clone>(stores: &[S]) -> BTreeMap<u64, u64> {
    let mut workers = JoinSet::new();
    let traffic = Arc::new(traffic());
    let all = 32 * stores.len();
    for worker in 0..all {
        let store = stores[worker % stores.len()].clone();
        let traffic = traffic.clone();
        workers.spawn(async move {
            let mut admitted = BTreeMap::<u64, u64>::new();
            for tenant in traffic.iter().skip(worker).step_by(all) {
                let check = check(&tenant.to_string(), quota(200, "1/d"), 1 + tenant % 3);
                let decision = store.check(check).await.expect("a decision");
                *admitted.entry(*tenant).or_default() += decision.granted;
            }
            admitted
        });
    }
    let mut sum = BTreeMap::<u64, u64>::new();
    for (tenant, admitted) in workers.join_all().await.into_iter().flatten() {
        *sum.entry(tenant).or_default() += admitted;
    }
    sum
}

#[tokio::test(flavor = "multi_thread")]
async fn the_same_traffic_gets_the_same_with_and_without() {
    let (plain, shared) = (RedisServer::start(), RedisServer::start());
    let (mut without, mut with) = (Vec::new(), Vec::new());
    for _ in 0..3 {
        without.push(store(&plain).await);
        with.push(Coalesce::new(store(&shared).await, Arc::new(())));
    }
    let plainly = replay(&without).await;
    // Some tenants ask for more than they have, and others for less.
    assert!(plainly.values().any(|admitted| *admitted >= 66));
    assert!(plainly.values().any(|admitted| *admitted < 10));
    assert_eq!(replay(&with).await, plainly);
    let (with, without) = (shared.calls("get"), plain.calls("get"));
    assert!(with < without, "{with} calls, {without} without sharing");
}

type Answer = Result<Decision, StoreError>;

/// Asks again while there is no connection, as long as nothing was charged.
#[derive(Clone)]
struct Patient(RedisStore);

impl Store for Patient {
    fn check(&self, check: Check) -> CheckFuture {
        let store = self.0.clone();
        CheckFuture::new(async move {
            loop {
                match store.check(check.clone()).await {
                    Err(error) if error.charge() == ChargeState::NotCharged => {
                        sleep(Duration::from_millis(1)).await;
                    }
                    answer => return answer,
                }
            }
        })
    }

    fn adjust(&self, adjustment: Adjustment) -> AdjustFuture {
        self.0.adjust(adjustment)
    }
}

fn ask(store: &Coalesce<Patient>, requests: usize) -> JoinSet<Answer> {
    let mut asked = JoinSet::new();
    for _ in 0..requests {
        asked.spawn(store.check(check("42", quota(100, "1/d"), 1)));
    }
    asked
}

async fn has_seen(proxy: &FaultProxy, calls: u64) {
    while proxy.commands("EVALSHA") < calls {
        sleep(Duration::from_millis(1)).await;
    }
}

#[tokio::test]
async fn a_redis_killed_under_way_fails_those_of_that_call_and_nobody_else() {
    let mut server = RedisServer::start();
    let proxy = FaultProxy::start(server.port());
    let builder = RedisStore::builder(&proxy.url()).deadline(Duration::from_secs(10));
    let store = builder.connect().await.expect("a store");
    let store = Coalesce::new(Patient(store), Arc::new(()));
    // The script is known, and that the network is slow: nothing is overdue soon.
    proxy.set(Fault::DelayReplies(Duration::from_millis(500)));
    assert!(store.check(check("warm", quota(1, "1/d"), 1)).await.is_ok());
    let calls = proxy.commands("EVALSHA");

    proxy.set(Fault::HoldReplies);
    let mut first = ask(&store, 1);
    has_seen(&proxy, calls + 1).await;
    let shared = ask(&store, 5);
    first.abort_all();
    has_seen(&proxy, calls + 2).await;
    let behind = ask(&store, 3);
    server.restart();
    proxy.set(Fault::None);

    for answer in shared.join_all().await {
        assert_eq!(answer.expect_err("lost").kind(), ErrorKind::Io);
    }
    let mut remaining = Vec::new();
    for answer in behind.join_all().await {
        remaining.extend(answer.expect("a decision").limits[0].remaining);
    }
    remaining.sort_unstable();
    assert_eq!(remaining, [97, 98, 99], "from the Redis that came back");
}
