//! `hammer URL CAPACITY RATE MILLISECONDS`: one of several processes that ask for one bucket as fast as it
//! refills. Prints the number of requests admitted, and when it started and stopped asking, in milliseconds
//! of the machine's clock.

use std::{
    env,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use tokio::{
    task::JoinSet,
    time::{Instant, sleep},
};
use tollgate_core::{Quota, Store};
use tollgate_redis::RedisStore;

const TASKS: usize = 4;

#[tokio::main(flavor = "current_thread")]
async fn main() {
    let args: Vec<_> = env::args().skip(1).collect();
    let [url, capacity, rate, millis] = args.as_slice() else {
        panic!("usage: hammer URL CAPACITY RATE MILLISECONDS");
    };
    let capacity = capacity.parse().expect("a whole capacity");
    let quota = Quota::new(capacity, rate.as_str()).expect("a quota");
    let span = Duration::from_millis(millis.parse().expect("whole milliseconds"));

    let builder = RedisStore::builder(url).strict(true);
    let builder = builder.deadline(Duration::from_secs(10));
    let store = builder.connect().await.expect("a store");
    let (start, end) = (now(), Instant::now() + span);
    let mut tasks = JoinSet::new();
    for _ in 0..TASKS {
        tasks.spawn(ask(store.clone(), quota, end));
    }
    let admitted: u64 = tasks.join_all().await.into_iter().sum();
    println!("{admitted} {start} {}", now());
}

async fn ask(store: RedisStore, quota: Quota, end: Instant) -> u64 {
    let mut admitted = 0;
    while Instant::now() < end {
        let check = tollgate_tests::check("shared", quota, 1);
        if store.check(check).await.expect("a decision").is_allowed() {
            admitted += 1;
        } else {
            sleep(Duration::from_millis(1)).await;
        }
    }
    admitted
}

fn now() -> u128 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.expect("a clock after 1970").as_millis()
}
