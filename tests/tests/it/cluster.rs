//! A cluster: each tenant's buckets on one primary, and what becomes of them when primaries change.

use std::{
    collections::{HashMap, HashSet},
    num::NonZeroU8,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use tokio::{
    task::{JoinHandle, JoinSet},
    time::{Instant, sleep},
};
use tollgate::{Cost, FailurePolicy, Limiter, Quotas, Source, Tenant};
use tollgate_core::{
    Adjustment, ChargeState, Check, Decision, ErrorKind, KeySpace, LimitName, ReplicaCount, Store,
    StoreError, conformance,
};
use tollgate_limiter::Shards;
use tollgate_tests::{Cluster, Login, RedisClient, change, charge, check, quota, with_each_client};

use crate::{
    conformance::{OnServer, on},
    support::{decide, remaining, until},
};

/// After the cluster is whole again.
const BACK_WITHIN: Duration = Duration::from_secs(7);

/// Much longer than a limiter's, so that a busy machine does not fail a test.
const DEADLINE: Duration = Duration::from_secs(2);

async fn store<S: RedisClient>(cluster: &Cluster) -> S {
    let builder = S::builder(&cluster.url()).strict(true);
    let connected = S::open(builder.deadline(DEADLINE)).await;
    connected.expect("a store on the test's own cluster")
}

fn hourly(tenant: &str) -> Check {
    check(tenant, quota(1_000, "1/h"), 1)
}

fn key(tenant: &str) -> String {
    hourly(tenant).charges()[0].key.to_string()
}

/// A tenant whose buckets are on this node.
fn tenant_on(cluster: &Cluster, node: usize) -> String {
    let mut tenants = (0..).map(|i| format!("tenant-{i}"));
    let found = tenants.find(|tenant| cluster.owner_of(&key(tenant)) == node);
    found.expect("there are many")
}

/// Asks one after the other, until it is stopped.
struct Load<T> {
    stop: Arc<AtomicBool>,
    task: JoinHandle<Vec<T>>,
}

impl Load<Result<Decision, StoreError>> {
    fn start(store: &impl RedisClient, check: Check) -> Self {
        let store = store.clone();
        Self::of(move || store.check(check.clone()))
    }
}

impl Load<Decision> {
    /// Through all stages of a limiter.
    fn through(limiter: &Limiter, tenant: &str) -> Self {
        let (limiter, tenant) = (limiter.clone(), Tenant::new(tenant, "pro").expect("an id"));
        Self::of(move || limiter.check(&tenant, Cost::ONE))
    }

    /// How many were decided without the store, because it failed. Denials that are known already are no failure.
    async fn undecided(self) -> usize {
        let decisions = self.stop().await.into_iter();
        decisions.filter(|it| it.source == Source::Fallback).count()
    }
}

impl<T: Send + 'static> Load<T> {
    fn of<F>(ask: impl Fn() -> F + Send + 'static) -> Self
    where
        F: Future<Output = T> + Send,
    {
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = stop.clone();
        let task = tokio::spawn(async move {
            let mut answers = Vec::new();
            while !stopped.load(Ordering::Relaxed) {
                answers.push(ask().await);
                sleep(Duration::from_millis(2)).await;
            }
            answers
        });
        Self { stop, task }
    }

    async fn stop(self) -> Vec<T> {
        self.stop.store(true, Ordering::Relaxed);
        self.task.await.expect("no panic")
    }
}

/// Waits until the store decides again for a tenant.
async fn is_back(store: &impl Store, tenant: &str) {
    let since = Instant::now();
    while let Err(error) = store.check(hourly(tenant)).await {
        assert!(since.elapsed() < BACK_WITHIN, "{tenant}: {error}");
        sleep(Duration::from_millis(10)).await;
    }
}

/// In a thread of its own: the harness waits for processes.
async fn meanwhile<T: Send + 'static>(
    cluster: Cluster,
    work: impl FnOnce(&mut Cluster) -> T + Send + 'static,
) -> (Cluster, T) {
    let done = tokio::task::spawn_blocking(move || {
        let mut cluster = cluster;
        let outcome = work(&mut cluster);
        (cluster, outcome)
    });
    done.await.expect("no panic")
}

async fn each_tenant_has_its_tokens_on_the_primary_of_its_slot<S: RedisClient>() {
    let cluster = Cluster::start();
    let store = store::<S>(&cluster).await;

    // All limits of a check are decided together, and given back together.
    let limits = ["default", "reports", "search"];
    let both = |tenant: &str| {
        let charges = limits.map(|limit| charge(tenant, limit, quota(2, "1/h"), 1));
        Check::new(charges.to_vec()).expect("a check")
    };
    let mut nodes = HashMap::<_, u32>::new();
    for tenant in (0..300).map(|i| format!("{{same}}-{i}")) {
        for allowed in [true, true, false] {
            let decision = decide(&store, both(&tenant)).await;
            assert_eq!(decision.is_allowed(), allowed, "{tenant}");
        }
        *nodes.entry(store.node(both(&tenant).tag())).or_default() += 1;
    }
    // A third of 300 each; less than 60 for one happens once in ten million runs.
    assert_eq!(nodes.len(), 3, "{nodes:?}");
    assert!(nodes.values().all(|&tenants| tenants > 60), "{nodes:?}");

    let back = change("{same}-0", "reports", quota(2, "1/h"), 1, 0);
    let adjusted = store.adjust(Adjustment::new(vec![back]).expect("an adjustment"));
    assert_eq!(adjusted.await.expect("carried out"), [1]);

    // Names that look like tags, or like each other.
    for tenant in [
        "{",
        "}",
        "{}",
        "a}{b",
        "x{y}z",
        "t:shard:1",
        "ACME",
        "acme",
        "é",
        "e\u{301}",
    ] {
        for allowed in [true, true, false] {
            let decision = decide(&store, check(tenant, quota(2, "1/h"), 1)).await;
            assert_eq!(decision.is_allowed(), allowed, "{tenant}");
        }
    }

    // Scripts flushed on one node only, under load.
    let tenant = tenant_on(&cluster, 1);
    decide(&store, hourly(&tenant)).await;
    let loads = || (0..3).map(|node| cluster.node(node).calls("script|load"));
    let before: Vec<_> = loads().collect();
    cluster.flush_scripts(1);
    let mut tasks = JoinSet::new();
    for _ in 0..100 {
        let (store, check) = (store.clone(), hourly(&tenant));
        tasks.spawn(async move { decide(&store, check).await.is_allowed() });
    }
    assert!(tasks.join_all().await.into_iter().all(|allowed| allowed));
    let last = decide(&store, hourly(&tenant)).await;
    assert_eq!(remaining(&last.limits[0]), 898, "102 charged, each once");
    let new: Vec<_> = loads().zip(before).map(|(now, then)| now - then).collect();
    assert_eq!((new[0], new[2]), (0, 0), "{new:?}");
    assert!((1..=5).contains(&new[1]), "{new:?} loads for 100 calls");
}

async fn slots_that_move_under_load_are_followed<S: RedisClient>() {
    let cluster = Cluster::start();
    let store = store::<S>(&cluster).await;
    let tenant = "moving";
    let slot = cluster.slot(&key(tenant));
    let from = cluster.owner(slot);
    let to = (from + 1) % 3;

    // A bucket that is there moves with its tokens, and nobody's check fails.
    decide(&store, hourly(tenant)).await;
    let load = Load::start(&store, hourly(tenant));
    let (cluster, ()) = meanwhile(cluster, move |cluster| {
        cluster.move_slot(slot, to);
        cluster.wait();
    })
    .await;
    sleep(Duration::from_millis(50)).await;
    let answers = load.stop().await;
    let checks = u64::try_from(answers.len()).expect("a number");
    for answer in answers {
        // Waiting for a key that is on its way blocks in Redis, within the deadline.
        answer.expect("decided by the store");
    }
    let last = decide(&store, hourly(tenant)).await;
    assert_eq!(
        remaining(&last.limits[0]),
        1_000 - checks - 2,
        "each charged once"
    );

    // Half-way, what is not there yet is asked for at the target: `ASK`.
    let (cluster, ()) = meanwhile(cluster, move |cluster| {
        assert_eq!(cluster.begin_move(slot, from), to);
    })
    .await;
    // Another limit of the same tenant: no such key, so the source sends us on.
    let other = || Check::single(charge(tenant, "other", quota(1_000, "1/h"), 1));
    for left in [999, 998, 997] {
        let decision = decide(&store, other()).await;
        assert_eq!(remaining(&decision.limits[0]), left);
    }
    // One limit here and one there cannot be decided together.
    let both = vec![
        charge(tenant, "default", quota(1_000, "1/h"), 1),
        charge(tenant, "other", quota(1_000, "1/h"), 1),
    ];
    let both = Check::new(both).expect("a check");
    let error = store.check(both.clone()).await.expect_err("TRYAGAIN");
    assert_eq!(
        (error.kind(), error.charge()),
        (ErrorKind::Cluster, ChargeState::NotCharged),
        "{error}"
    );
    let load = Load::start(&store, both.clone());
    let (_cluster, ()) = meanwhile(cluster, move |cluster| {
        cluster.finish_move(slot, to, from);
        cluster.wait();
    })
    .await;
    for answer in load.stop().await {
        if let Err(error) = answer {
            assert_eq!(error.kind(), ErrorKind::Cluster, "{error}");
        }
    }
    assert!(decide(&store, both).await.is_allowed());
}

async fn a_new_primary_is_used_as_soon_as_a_slot_is_there<S: RedisClient>() {
    let cluster = Cluster::start();
    let store = store::<S>(&cluster).await;
    let tenant = "settler";
    decide(&store, hourly(tenant)).await;
    let slot = cluster.slot(&key(tenant));
    let (cluster, new) = meanwhile(cluster, move |cluster| {
        let new = cluster.add_node();
        cluster.move_slot(slot, new);
        new
    })
    .await;
    let decision = decide(&store, hourly(tenant)).await;
    assert_eq!(remaining(&decision.limits[0]), 998);
    assert_eq!(cluster.node(new).calls("script|load"), 1);
}

async fn a_node_that_is_added_under_load_costs_nobody_a_decision<S: RedisClient>() {
    let cluster = Cluster::start();
    let store = store::<S>(&cluster).await;
    let tenants: Vec<_> = (0..3).map(|node| tenant_on(&cluster, node)).collect();
    let loads = tenants.iter();
    let loads: Vec<_> = loads
        .map(|tenant| Load::start(&store, hourly(tenant)))
        .collect();
    let moved = tenants.clone();
    let (cluster, new) = meanwhile(cluster, move |cluster| {
        let new = cluster.add_node();
        for tenant in &moved {
            let slot = cluster.slot(&key(tenant));
            cluster.move_slot(slot, new);
        }
        cluster.wait();
        new
    })
    .await;
    // On the new node.
    sleep(Duration::from_millis(50)).await;
    for (tenant, load) in tenants.iter().zip(loads) {
        let answers = load.stop().await;
        let mut charged = 0;
        for answer in answers {
            charged += u64::from(answer.expect("decided by the store").is_allowed());
        }
        let last = decide(&store, check(tenant, quota(1_000, "1/h"), 0)).await;
        let left = remaining(&last.limits[0]);
        assert_eq!(left, 1_000 - charged, "{tenant}: each charged once");
        assert_eq!(cluster.owner_of(&key(tenant)), new);
    }
    assert!(cluster.node(new).calls("evalsha") > 0);
}

async fn a_password_is_rotated_under_load<S: RedisClient>() {
    let (cluster, mut login) = (Cluster::start(), Login::new());
    for node in cluster.nodes() {
        login.allow(node);
    }
    let builder = S::builder(&cluster.url()).strict(true).deadline(DEADLINE);
    let builder = builder.username(Login::USER).password_file(login.file());
    let store = S::open(builder).await;
    let store = store.expect("a store");
    let tenants: Vec<_> = (0..3).map(|node| tenant_on(&cluster, node)).collect();
    let loads = tenants.iter();
    let loads: Vec<_> = loads
        .map(|tenant| Load::start(&store, hourly(tenant)))
        .collect();
    for tenant in &tenants {
        decide(&store, hourly(tenant)).await;
    }
    // The file stays, for the connections to come.
    let (_cluster, _login) = meanwhile(cluster, move |cluster| {
        login.rotate(cluster.nodes());
        login
    })
    .await;
    for (tenant, load) in tenants.iter().zip(loads) {
        is_back(&store, tenant).await;
        let answers = load.stop().await;
        assert!(answers.iter().any(Result::is_ok), "{tenant}");
        // Connections end, and none is made with the old password.
        for error in answers.into_iter().filter_map(Result::err) {
            assert_eq!(error.kind(), ErrorKind::Io, "{error}");
        }
    }
}

/// Does something to a primary, and waits until another one has its slots.
async fn replaced(
    cluster: Cluster,
    primary: usize,
    key: String,
    fault: impl FnOnce(&mut Cluster) + Send + 'static,
) -> Cluster {
    let (cluster, ()) = meanwhile(cluster, move |cluster| {
        fault(cluster);
        while cluster.owner_of(&key) == primary {
            std::thread::sleep(Duration::from_millis(50));
        }
    })
    .await;
    cluster
}

async fn primaries_that_fail_concern_nobody_else_and_are_replaced<S: RedisClient>() {
    let cluster = Cluster::start();
    let store = store::<S>(&cluster).await;
    let tenants: Vec<_> = (0..3).map(|node| tenant_on(&cluster, node)).collect();
    for tenant in &tenants {
        decide(&store, hourly(tenant)).await;
    }

    let limiter = Limiter::builder(store.clone())
        .quotas(Quotas::new(quota(1_000_000, "1/s")))
        .on_store_failure(FailurePolicy::Closed)
        .deadline(DEADLINE)
        .build()
        .expect("a limiter");
    // Many for the one whose primary fails: in a row, their failures would open a breaker that all share.
    let loads = |failing: usize| {
        let mut loads = Vec::new();
        for (primary, tenant) in tenants.iter().enumerate() {
            let crowd = if primary == failing { 30 } else { 1 };
            loads.extend((0..crowd).map(|_| (primary, Load::through(&limiter, tenant))));
        }
        loads
    };
    let undecided = async |loads: Vec<(usize, Load<Decision>)>| {
        let mut undecided = [0; 3];
        for (primary, load) in loads {
            undecided[primary] += load.undecided().await;
        }
        undecided
    };

    // Frozen: its tenant waits in vain, until its replica takes over.
    let running = loads(0);
    let cluster = replaced(cluster, 0, key(&tenants[0]), |cluster| {
        cluster.node(0).pause()
    })
    .await;
    is_back(&store, &tenants[0]).await;
    cluster.node(0).resume();
    let failed = undecided(running).await;
    assert!(failed[0] > 0, "{failed:?}");
    assert_eq!((failed[1], failed[2]), (0, 0), "{failed:?}");

    // Killed.
    let running = loads(1);
    let cluster = replaced(cluster, 1, key(&tenants[1]), |cluster| {
        cluster.node_mut(1).kill()
    })
    .await;
    is_back(&store, &tenants[1]).await;
    let failed = undecided(running).await;
    assert!(failed[1] > 0, "{failed:?}");
    assert_eq!((failed[0], failed[2]), (0, 0), "{failed:?}");

    // In good order: the replica has all, and nobody is refused.
    let (cluster, replica) = meanwhile(cluster, |cluster| {
        let replica = cluster.replica_of(2);
        cluster.run(replica, &["CLUSTER", "FAILOVER"]);
        while !cluster.is_primary(replica) {
            std::thread::sleep(Duration::from_millis(20));
        }
        replica
    })
    .await;
    is_back(&store, &tenants[2]).await;
    assert!(cluster.node(replica).calls("evalsha") > 0);
}

async fn the_documented_user_suffices_on_a_cluster<S: RedisClient>() {
    let cluster = Cluster::start();
    let rights = "on >secret resetkeys ~tg:* resetchannels -@all +evalsha +script|load +get +pttl +set \
                  +cluster|slots +asking";
    for node in 0..6 {
        let mut command = vec!["ACL", "SETUSER", "tollgate"];
        command.extend(rights.split_whitespace().chain(S::ASKS.iter().copied()));
        cluster.run(node, &command);
    }
    let url = format!("redis-cluster://tollgate:secret@{}", cluster.addresses());
    for resp in [2, 3] {
        let store = on::<S>(&url, |it| it.resp(resp)).await;
        for node in 0..3 {
            let decision = decide(&store, hourly(&tenant_on(&cluster, node))).await;
            assert!(decision.is_allowed());
        }
        // Nothing that a store does needs more.
        conformance::run(&OnServer(store)).await;
    }
    for node in 0..3 {
        let mut connection = cluster.node(node).connection();
        let denials: Vec<redis::Value> = redis::cmd("ACL")
            .arg("LOG")
            .query(&mut connection)
            .expect("ACL LOG");
        assert!(denials.is_empty(), "{denials:?}");
    }
}

async fn replicas_are_counted_on_a_cluster<S: RedisClient>() {
    let cluster = Cluster::start();
    let (one, two) = (store::<S>(&cluster).await, store::<S>(&cluster).await);
    let group = LimitName::new("shop").expect("a name");
    let count = |store: &S| store.count_replicas(&group, Duration::from_millis(200));
    let (a, b) = (count(&one), count(&two));
    until(async || [&a, &b].iter().all(|it| it.replicas() == 2)).await;

    // Its primary is lost; the last number is kept, and counted on by the next one.
    let key = KeySpace::default().replicas(&group);
    let primary = cluster.owner_of(&key);
    let _cluster = replaced(cluster, primary, key, move |cluster| {
        cluster.node_mut(primary).kill();
    })
    .await;
    assert_eq!((a.replicas(), b.replicas()), (2, 2));
    let c = count(&one);
    until(async || [&a, &b, &c].iter().all(|it| it.replicas() == 3)).await;
    drop(c);
    until(async || [&a, &b].iter().all(|it| it.replicas() == 2)).await;
}

/// What one primary cannot decide alone is decided by all.
async fn shards_of_a_tenant_are_on_different_primaries<S: RedisClient>() {
    let cluster = Cluster::start();
    let store = store::<S>(&cluster).await;
    let key = &hourly("hot").charges()[0].key.clone();
    let nodes: HashSet<_> = (0..8).map(|i| store.node(key.shard(i).tag())).collect();
    assert_eq!(nodes.len(), 3, "eight shards are on all primaries");

    let calls = || [0, 1, 2].map(|node| cluster.node(node).calls("evalsha"));
    let before = calls();
    let shards = Shards::new(store);
    let eight = NonZeroU8::new(8).expect("not 0");
    let check = check("hot", quota(240, "240/d"), 1).with_shards(eight);
    let mut granted = 0;
    while decide(&shards, check.clone()).await.is_allowed() {
        granted += 1;
    }
    assert_eq!(granted, 240, "together as many as one bucket has");
    for (node, (now, then)) in calls().into_iter().zip(before).enumerate() {
        assert!(now > then, "primary {node} was not asked");
    }
}

async fn a_cluster_that_is_not_there_is_named_and_awaited<S: RedisClient>() {
    let port = tollgate_tests::free_port();
    let url = format!("redis-cluster://:hunter2@127.0.0.1:{port}");
    let refused = S::open(S::builder(&url).strict(true)).await;
    let error = refused.expect_err("nobody is there");
    let text = format!("{error} {error:?}");
    assert!(
        text.contains(&port.to_string()) && !text.contains("hunter2"),
        "{text}"
    );

    let store = S::open(S::builder(&url)).await;
    let store = store.expect("it starts all the same");
    let error = store.check(hourly("a")).await.expect_err("no cluster");
    assert_eq!(
        (error.kind(), error.charge()),
        (ErrorKind::Io, ChargeState::NotCharged)
    );
}

with_each_client! {
    #[tokio::test(flavor = "multi_thread", worker_threads = 2)] each_tenant_has_its_tokens_on_the_primary_of_its_slot
    #[tokio::test(flavor = "multi_thread", worker_threads = 2)] slots_that_move_under_load_are_followed
    #[tokio::test(flavor = "multi_thread", worker_threads = 2)] a_new_primary_is_used_as_soon_as_a_slot_is_there
    #[tokio::test(flavor = "multi_thread", worker_threads = 2)] a_node_that_is_added_under_load_costs_nobody_a_decision
    #[tokio::test(flavor = "multi_thread", worker_threads = 2)] a_password_is_rotated_under_load
    #[tokio::test(flavor = "multi_thread", worker_threads = 2)] primaries_that_fail_concern_nobody_else_and_are_replaced
    #[tokio::test(flavor = "multi_thread", worker_threads = 2)] the_documented_user_suffices_on_a_cluster
    #[tokio::test(flavor = "multi_thread", worker_threads = 2)] replicas_are_counted_on_a_cluster
    #[tokio::test(flavor = "multi_thread", worker_threads = 2)] shards_of_a_tenant_are_on_different_primaries
    #[tokio::test] a_cluster_that_is_not_there_is_named_and_awaited
}
