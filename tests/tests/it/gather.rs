//! Checks of several tenants that go to the server in one call.

use std::{num::NonZeroU64, time::Duration};

use tollgate_core::{
    ChargeState, Check, Decision, ErrorKind, KeySpace, ManualClock, MemoryStore, Store, StoreError,
    Wait,
};
use tollgate_tests::{RedisClient, RedisServer, Script, charge, check, quota, with_each_client};

use crate::support::{state, store_of};

/// All at once, so that most of them find calls in flight.
async fn ask_together(store: &impl Store, checks: Vec<Check>) -> Vec<Result<Decision, StoreError>> {
    let asked: Vec<_> = checks.into_iter().map(|check| store.check(check)).collect();
    let mut answers = Vec::new();
    for asked in asked {
        answers.push(asked.await);
    }
    answers
}

/// Refills so slowly that nothing comes back during a test.
fn of_tenant(tenant: usize) -> Check {
    check(&tenant.to_string(), quota(3, "1/d"), 2)
}

/// Of any shape: several limits, costs that do not fit, several requests at once, limits in shadow.
fn random(tenant: usize) -> Check {
    let charges = (0..fastrand::usize(1..=4)).map(|limit| {
        let quota = quota(fastrand::u64(1..20), "1/d");
        let limit = format!("l{limit}");
        charge(&tenant.to_string(), &limit, quota, fastrand::u64(0..12))
    });
    let check = Check::new(charges.collect()).expect("a check");
    let shadow = fastrand::usize(0..=check.charges().len());
    let count = NonZeroU64::new(fastrand::u64(1..4)).expect("from 1");
    check
        .with_count(count)
        .with_shadow(shadow)
        .expect("at most all")
}

async fn each_is_decided_as_if_it_came_alone<S: RedisClient>() {
    let server = RedisServer::start();
    let store = store_of::<S>(&server).await;
    let seed = fastrand::u64(..);
    fastrand::seed(seed);
    let alone = MemoryStore::with_clock(ManualClock::default());
    let before = server.calls("evalsha");
    let rounds: u64 = 20;
    for round in 0..rounds {
        let checks: Vec<_> = (0..100).map(random).collect();
        let together = ask_together(&store, checks.clone()).await;
        for (check, together) in checks.into_iter().zip(together) {
            let mut together = together.expect("a decision");
            let mut alone = alone.decide(&check).expect("a decision");
            if round > 0 {
                // The server's clock has gone on.
                for limit in together.limits.iter_mut().chain(&mut alone.limits) {
                    limit.wait = if limit.lacked_tokens() {
                        Wait::Never
                    } else {
                        Wait::None
                    };
                }
            }
            assert_eq!(together, alone, "round {round} of seed {seed}");
        }
    }
    let calls = server.calls("evalsha") - before;
    assert!(
        calls <= rounds * 15,
        "{calls} calls for {rounds} times 100 checks"
    );
}

async fn what_one_is_refused_for_is_not_the_others_concern<S: RedisClient>() {
    let server = RedisServer::start();
    let store = store_of::<S>(&server).await;
    let mut connection = server.connection();
    let mut spoil = |tenant: usize, command: &str, value: &[&str]| {
        let spoilt = of_tenant(tenant);
        let mut command = redis::cmd(command);
        command.arg(spoilt.charges()[0].key.as_str()).arg(value);
        command.exec(&mut connection).expect("a foreign value");
    };
    spoil(20, "SET", &["text"]);
    spoil(40, "RPUSH", &["a", "list"]);
    let answers = ask_together(&store, (0..60).map(of_tenant).collect()).await;
    for (tenant, answer) in answers.into_iter().enumerate() {
        if tenant == 20 || tenant == 40 {
            let error = answer.expect_err("no bucket");
            let outcome = (error.kind(), error.charge());
            assert_eq!(
                outcome,
                (ErrorKind::NotABucket, ChargeState::NotCharged),
                "{error}"
            );
        } else {
            assert!(answer.expect("a decision").is_allowed(), "{tenant}");
        }
    }
}

async fn a_key_out_of_reach_fails_alone<S: RedisClient>() {
    let server = RedisServer::start();
    let user = [
        "SETUSER",
        "tollgate",
        "on",
        ">secret",
        "~tg:*",
        "-@all",
        "+@scripting",
        "+get",
        "+pttl",
        "+set",
    ];
    let set = redis::cmd("ACL").arg(&user).exec(&mut server.connection());
    set.expect("ACL SETUSER");
    let url = format!("redis://tollgate:secret@127.0.0.1:{}", server.port());
    let builder = S::builder(&url)
        .strict(true)
        .deadline(Duration::from_secs(10));
    let store = S::open(builder).await.expect("a store");
    let mut checks: Vec<_> = (0..60).map(of_tenant).collect();
    let mut elsewhere = checks[30].charges()[0].clone();
    let keys = KeySpace::new("elsewhere").expect("a prefix");
    elsewhere.key = keys.global_bucket(&elsewhere.limit.name);
    checks[30] = Check::single(elsewhere);
    for (tenant, answer) in ask_together(&store, checks).await.into_iter().enumerate() {
        match answer {
            Ok(decision) => assert!(decision.is_allowed() && tenant != 30),
            Err(error) => assert_eq!((tenant, error.kind()), (30, ErrorKind::Auth), "{error}"),
        }
    }
    // Nobody was charged twice.
    for answer in ask_together(&store, (0..60).map(of_tenant).collect())
        .await
        .into_iter()
        .skip(31)
    {
        assert_eq!(answer.expect("a decision").limits[0].remaining, Some(1));
    }
}

async fn a_replica_charges_none_of_them_and_is_left<S: RedisClient>() {
    let server = RedisServer::start();
    let store = store_of::<S>(&server).await;
    let demoted = redis::cmd("REPLICAOF")
        .arg(&["127.0.0.1", "1"])
        .exec(&mut server.connection());
    demoted.expect("REPLICAOF");
    let before = server.info("stats", "total_connections_received");
    for answer in ask_together(&store, (0..60).map(of_tenant).collect()).await {
        let error = answer.expect_err("a replica takes no writes");
        let outcome = (error.kind(), error.charge());
        assert_eq!(
            outcome,
            (ErrorKind::ReadOnly, ChargeState::NotCharged),
            "{error}"
        );
    }
    // Another connection might lead to the new primary.
    crate::support::until(async || server.info("stats", "total_connections_received") > before + 1)
        .await;
}

/// Such as a managed one with a single shard.
async fn a_cluster_behind_a_plain_address_is_noticed<S: RedisClient>() {
    let server = RedisServer::start_with(&["--cluster-enabled", "yes"]);
    let slots = redis::cmd("CLUSTER")
        .arg(&["ADDSLOTSRANGE", "0", "16383"])
        .exec(&mut server.connection());
    slots.expect("CLUSTER ADDSLOTSRANGE");
    crate::support::until(async || {
        server.info("cluster", "cluster_enabled") == 1 && is_whole(&server)
    })
    .await;
    let store = store_of::<S>(&server).await;
    let mut seen = (0, 0);
    for round in 0..2 {
        for answer in ask_together(&store, (0..60).map(of_tenant).collect()).await {
            assert_eq!(answer.expect("a decision").is_allowed(), round == 0);
        }
        let now = (server.calls("evalsha"), crossslot(&server));
        if round == 0 {
            assert!(now.1 > 0, "some went together");
        } else {
            // One by one, without another try.
            assert_eq!((now.0 - seen.0, now.1 - seen.1), (60, 0));
        }
        seen = now;
    }
}

/// How often the server refused keys of several tags, which is not among its calls.
fn crossslot(server: &RedisServer) -> u64 {
    let stats: String = redis::cmd("INFO")
        .arg("errorstats")
        .query(&mut server.connection())
        .expect("INFO");
    let mut lines = stats.lines();
    let count = lines.find_map(|line| line.strip_prefix("errorstat_CROSSSLOT:count="));
    count.map_or(0, |count| count.parse().expect("a number"))
}

fn is_whole(server: &RedisServer) -> bool {
    let info: String = redis::cmd("CLUSTER")
        .arg("INFO")
        .query(&mut server.connection())
        .expect("CLUSTER INFO");
    info.contains("cluster_state:ok")
}

async fn who_leaves_before_the_call_is_not_charged<S: RedisClient>() {
    let server = RedisServer::start();
    let store = store_of::<S>(&server).await;
    let checks = (0..60).map(of_tenant);
    // Nothing is sent before this task waits for something.
    let mut asked: Vec<_> = checks.map(|check| store.check(check)).collect();
    asked.truncate(30);
    for asked in asked {
        assert!(asked.await.expect("a decision").is_allowed());
    }
    let charged = |tenant: usize| {
        let key = of_tenant(tenant).charges()[0].key.to_string();
        state(&mut server.connection(), &key).is_some()
    };
    assert_eq!((0..60).filter(|tenant| charged(*tenant)).count(), 30);
}

/// What the server was not asked for since it forgot all scripts is not loaded again.
async fn a_lone_check_is_a_plain_call<S: RedisClient>() {
    let server = RedisServer::start();
    let store = store_of::<S>(&server).await;
    let mut connection = server.connection();
    let flushed = redis::cmd("SCRIPT").arg("FLUSH").exec(&mut connection);
    flushed.expect("SCRIPT FLUSH");
    store.check(of_tenant(1)).await.expect("a decision");
    let before = server.calls("evalsha");
    for _ in 0..3 {
        store.check(of_tenant(1)).await.expect("a decision");
    }
    assert_eq!(server.calls("evalsha") - before, 3);
    let loaded = || server.info("memory", "number_of_cached_scripts");
    assert_eq!(loaded(), 1);
    let _known = Script::load(&mut connection, Script::TOKEN_BUCKET);
    assert_eq!(loaded(), 1, "it was another one");
}

with_each_client! {
    #[tokio::test] each_is_decided_as_if_it_came_alone
    #[tokio::test] what_one_is_refused_for_is_not_the_others_concern
    #[tokio::test] a_key_out_of_reach_fails_alone
    #[tokio::test] a_replica_charges_none_of_them_and_is_left
    #[tokio::test] a_cluster_behind_a_plain_address_is_noticed
    #[tokio::test] who_leaves_before_the_call_is_not_charged
    #[tokio::test] a_lone_check_is_a_plain_call
}
