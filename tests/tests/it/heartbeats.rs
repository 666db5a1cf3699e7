//! Replicas that count each other by heartbeats in Redis.

use std::time::Duration;

use tokio::time::{sleep, timeout};
use tollgate_core::{LimitName, ReplicaCount};
use tollgate_redis::Heartbeats;
use tollgate_tests::{RedisClient, RedisServer, with_each_client};

use crate::support::{pttl, store_of};

const KEY: &str = "tg:{replicas}:shop";
const INTERVAL: Duration = Duration::from_millis(200);

fn join(store: &impl RedisClient) -> Heartbeats {
    let group = LimitName::new("shop").expect("a name");
    store.count_replicas(&group, INTERVAL)
}

async fn all_say(replicas: &[&Heartbeats], expected: u32) {
    let all = async {
        while !replicas.iter().all(|it| it.replicas() == expected) {
            sleep(Duration::from_millis(10)).await;
        }
    };
    let said = timeout(Duration::from_secs(8), all).await;
    said.unwrap_or_else(|_| panic!("{expected} expected: {replicas:?}"));
}

async fn members_are_counted_and_the_last_number_outlives_redis<S: RedisClient>() {
    let mut server = RedisServer::start();
    let (one, two) = (store_of::<S>(&server).await, store_of::<S>(&server).await);
    let a = join(&one);
    assert_eq!(a.replicas(), 1, "nothing known yet");
    let (b, c) = (join(&two), join(&two));
    all_say(&[&a, &b, &c], 3).await;
    drop(c);
    all_say(&[&a, &b], 2).await;

    server.kill();
    sleep(5 * INTERVAL).await;
    all_say(&[&a, &b], 2).await;
    let d = join(&two);
    assert_eq!(d.replicas(), 1, "it cannot know better");
    server.restart();
    all_say(&[&a, &b, &d], 3).await;
}

async fn a_member_that_crashed_is_forgotten_and_so_is_an_empty_fleet<S: RedisClient>() {
    let server = RedisServer::start();
    let store = store_of::<S>(&server).await;
    let mut connection = server.connection();
    let crashed = redis::cmd("EVAL")
        .arg(include_str!("../../../lua/replicas.lua"))
        .arg(1)
        .arg(KEY)
        .arg("crashed")
        .arg(1_000)
        .query::<u32>(&mut connection);
    assert_eq!(crashed.expect("the script"), 1);
    let replica = join(&store);
    all_say(&[&replica], 2).await;
    all_say(&[&replica], 1).await;
    assert!(pttl(&mut connection, KEY) > 0);
    drop(replica);
    timeout(Duration::from_secs(5), async {
        while pttl(&mut connection, KEY) != -2 {
            sleep(Duration::from_millis(10)).await;
        }
    })
    .await
    .expect("no key without members");
}

#[tokio::test]
async fn bad_arguments_are_refused_and_write_nothing() {
    let server = RedisServer::start();
    let mut connection = server.connection();
    for (member, life) in [
        ("", "1000"),
        ("a", "-1"),
        ("a", "1.5"),
        ("a", "nan"),
        ("a", "x"),
        ("a", "86400001"),
    ] {
        let mut eval = redis::cmd("EVAL");
        eval.arg(include_str!("../../../lua/replicas.lua"))
            .arg(1)
            .arg(KEY);
        let refused = eval.arg(member).arg(life).query::<u32>(&mut connection);
        assert!(refused.is_err(), "{member} {life}");
    }
    assert_eq!(pttl(&mut connection, KEY), -2);
}

async fn the_documented_rights_suffice_and_without_them_the_number_stays<S: RedisClient>() {
    let server = RedisServer::start();
    let set_user = |rights: &[&str]| {
        let user = [
            "SETUSER",
            "limiter",
            "reset",
            "on",
            ">secret",
            "~tg:*",
            "+evalsha",
            "+script|load",
        ];
        let mut set = redis::cmd("ACL");
        set.arg(&user[..]).arg(rights);
        set.query::<()>(&mut server.connection())
            .expect("ACL SETUSER");
    };
    set_user(&[]);
    let url = format!("redis://limiter:secret@127.0.0.1:{}", server.port());
    let store = S::open(S::builder(&url)).await.expect("a store");
    let (a, b) = (join(&store), join(&store));
    sleep(3 * INTERVAL).await;
    all_say(&[&a, &b], 1).await;
    set_user(&[
        "+time",
        "+zadd",
        "+zrem",
        "+zremrangebyscore",
        "+zcard",
        "+pexpire",
    ]);
    all_say(&[&a, &b], 2).await;
    drop(a);
    all_say(&[&b], 1).await;
}

with_each_client! {
    #[tokio::test] members_are_counted_and_the_last_number_outlives_redis
    #[tokio::test] a_member_that_crashed_is_forgotten_and_so_is_an_empty_fleet
    #[tokio::test] the_documented_rights_suffice_and_without_them_the_number_stays
}
