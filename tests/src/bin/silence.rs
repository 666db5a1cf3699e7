//! `silence URL CLIENT`: asks a Redis 1 000 times a second that falls silent meanwhile, in a process of its own, so
//! that its memory can be told from anyone else's. What it prints is for the test that started it, which
//! makes the silence:
//!
//! * `ready`: a second has gone well, and Redis may fall silent;
//! * `grown N`: the KiB by which the process grew in the last 8 of 10 s of silence, which may end now;
//! * `back`: Redis answers again, and whatever was queued has been sent.

use std::{env, fs, time::Duration};

use tokio::{
    task::JoinSet,
    time::{Instant, interval, sleep},
};
use tollgate_core::Quota;
use tollgate_redis::{RedisRsStore, RedisStore};
use tollgate_tests::RedisClient;

#[tokio::main(flavor = "multi_thread", worker_threads = 2)]
async fn main() {
    let args: Vec<_> = env::args().skip(1).collect();
    match args.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        [url, "fred"] => through::<RedisStore>(url).await,
        [url, "redis-rs"] => through::<RedisRsStore>(url).await,
        _ => panic!("usage: silence URL fred|redis-rs"),
    }
}

async fn through<S: RedisClient>(url: &str) {
    // Without a breaker before it: the store alone must not queue without bound.
    let builder = S::builder(url).strict(true);
    let builder = builder.deadline(Duration::from_millis(25));
    let store = S::open(builder).await.expect("a store");
    ask_for(&store, 1).await;
    println!("ready");
    // What an outage takes at once, it takes in its first seconds.
    ask_for(&store, 2).await;
    let early = resident_kib();
    ask_for(&store, 8).await;
    println!("grown {}", resident_kib().saturating_sub(early));
    let end = Instant::now() + Duration::from_secs(5);
    while !ask(store.clone()).await {
        assert!(Instant::now() < end, "not back within 5 s");
        sleep(Duration::from_millis(10)).await;
    }
    sleep(Duration::from_millis(500)).await;
    println!("back");
}

async fn ask_for(store: &impl RedisClient, seconds: u32) {
    let mut ticks = interval(Duration::from_millis(10));
    let mut calls = JoinSet::new();
    for _ in 0..seconds * 100 {
        ticks.tick().await;
        for _ in 0..10 {
            calls.spawn(ask(store.clone()));
        }
        while calls.try_join_next().is_some() {}
    }
    calls.join_all().await;
}

async fn ask(store: impl RedisClient) -> bool {
    let quota = Quota::new(1_000_000, "36/h").expect("a quota");
    store
        .check(tollgate_tests::check("a", quota, 1))
        .await
        .is_ok()
}

fn resident_kib() -> u64 {
    let statm = fs::read_to_string("/proc/self/statm").expect("Linux");
    let pages = statm
        .split(' ')
        .nth(1)
        .and_then(|it| it.parse::<u64>().ok());
    pages.expect("the resident pages") * 4
}
