//! Several connections to each server.

use std::{collections::HashMap, time::Duration};

use tokio::{task::JoinSet, time::sleep};
use tollgate_core::Check;
use tollgate_tests::{
    Cluster, FaultProxy, RedisClient, RedisServer, Sentinels, check, quota, with_each_client,
};

use crate::support::{decide, until};

async fn connect<S: RedisClient>(url: &str, connections: u8) -> S {
    let builder = S::builder(url).strict(true).connections(connections);
    let store = S::open(builder.deadline(Duration::from_secs(10))).await;
    store.expect("a store on the test's own Redis")
}

fn hourly() -> Check {
    check("a", quota(1_000, "1/h"), 1)
}

/// The ids of the store's connections, and what was asked last on each: all but our own.
fn clients(connection: &mut redis::Connection) -> HashMap<u64, String> {
    let own: u64 = run(connection, "CLIENT ID");
    let list: String = run(connection, "CLIENT LIST TYPE normal");
    let client = |line: &str| {
        let fields = line.split(' ').filter_map(|field| field.split_once('='));
        let fields: HashMap<_, _> = fields.collect();
        let id = fields["id"].parse().expect("a number");
        (id != own).then(|| (id, fields["cmd"].to_owned()))
    };
    list.lines().filter_map(client).collect()
}

fn run<T: redis::FromRedisValue>(connection: &mut redis::Connection, command: &str) -> T {
    let mut words = command.split(' ');
    let mut cmd = redis::cmd(words.next().expect("a word"));
    cmd.arg(words.collect::<Vec<_>>());
    cmd.query(connection).expect(command)
}

async fn calls_take_turns_and_a_lost_connection_is_passed_over<S: RedisClient>() {
    let mut server = RedisServer::start();
    let mut connection = server.connection();
    let store = connect::<S>(&server.url(), 4).await;
    for _ in 0..8 {
        decide(&store, hourly()).await;
    }
    let all = clients(&mut connection);
    assert_eq!(all.len(), 4, "{all:?}");
    assert!(all.values().all(|last| last == "evalsha"), "{all:?}");
    assert_eq!(
        server.calls("script|load"),
        2,
        "one server, so each script once"
    );

    // No other takes its place: ours and three of the store's are as many as the server takes.
    run::<()>(&mut connection, "CONFIG SET maxclients 4");
    let lost = *all.keys().next().expect("one of four");
    run::<u64>(&mut connection, &format!("CLIENT KILL ID {lost}"));
    // What is on its way over it is lost with it; those who ask once that is known have others.
    sleep(Duration::from_millis(100)).await;
    for _ in 0..100 {
        decide(&store, hourly()).await;
    }
    let mut crowd = JoinSet::new();
    for _ in 0..100 {
        crowd.spawn(store.check(hourly()));
    }
    assert!(crowd.join_all().await.iter().all(Result::is_ok));
    assert_eq!(clients(&mut connection).len(), 3, "nobody else was let in");

    run::<()>(&mut connection, "CONFIG SET maxclients 100");
    until(async || clients(&mut connection).len() == 4).await;

    server.restart();
    until(async || store.check(hourly()).await.is_ok()).await;
    let mut connection = server.connection();
    until(async || clients(&mut connection).len() == 4).await;
}

/// A server that became a replica answers all of them; each is made anew.
async fn all_leave_a_former_primary<S: RedisClient>() {
    let (former, primary) = (RedisServer::start(), RedisServer::start());
    let proxy = FaultProxy::start(former.port());
    let store = connect::<S>(&proxy.url(), 3).await;
    decide(&store, hourly()).await;
    proxy.retarget(primary.port());
    let demote = format!("REPLICAOF 127.0.0.1 {}", primary.port());
    run::<()>(&mut former.connection(), &demote);
    // Each is told by a check of its own.
    let mut connection = former.connection();
    until(async || {
        let _ = store.check(hourly()).await;
        clients(&mut connection).is_empty()
    })
    .await;
    assert_eq!(clients(&mut primary.connection()).len(), 3);
    for _ in 0..6 {
        decide(&store, hourly()).await;
    }
}

async fn each_primary_of_a_cluster_has_as_many<S: RedisClient>() {
    let cluster = Cluster::start();
    let _store = connect::<S>(&cluster.url(), 2).await;
    for node in 0..3 {
        let mut connection = cluster.node(node).connection();
        until(async || clients(&mut connection).len() == 2).await;
    }
}

async fn all_follow_the_sentinels<S: RedisClient>() {
    let group = tokio::task::spawn_blocking(Sentinels::start).await;
    let group = group.expect("a group");
    let store = connect::<S>(&group.url(), 3).await;
    decide(&store, hourly()).await;
    let roles = |group: &Sentinels| [0, 1, 2].map(|server| group.server(server).calls("role"));
    let before = roles(&group);
    let (group, new) = tokio::task::spawn_blocking(|| {
        group.fail_over();
        let new = group.primary_by(0);
        (group, new)
    })
    .await
    .expect("no panic");
    // Nobody asks: it is for the store to look, once for all, and for each to come.
    until(async || roles(&group)[new] >= before[new] + 3).await;
    for _ in 0..6 {
        decide(&store, hourly()).await;
    }
}

with_each_client! {
    #[tokio::test] calls_take_turns_and_a_lost_connection_is_passed_over
    #[tokio::test] all_leave_a_former_primary
    #[tokio::test(flavor = "multi_thread", worker_threads = 2)] each_primary_of_a_cluster_has_as_many
    #[tokio::test(flavor = "multi_thread", worker_threads = 2)] all_follow_the_sentinels
}
