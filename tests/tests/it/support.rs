//! What several modules share.

use std::{process::Command, thread, time::Duration};

use tokio::time::{sleep, timeout};
use tollgate::Metrics;
use tollgate_core::{Check, Decision, LimitDecision, Store, Wait};
use tollgate_redis::RedisStore;
use tollgate_tests::{RedisClient, RedisServer};

/// A store with a deadline that a busy machine meets as well.
pub(crate) async fn store(server: &RedisServer) -> RedisStore {
    store_of(server).await
}

/// The same, through any library.
pub(crate) async fn store_of<S: RedisClient>(server: &RedisServer) -> S {
    let builder = S::builder(&server.url()).strict(true);
    let builder = builder.deadline(Duration::from_secs(10));
    S::open(builder)
        .await
        .expect("a store on the test's own Redis")
}

pub(crate) async fn decide(store: &impl Store, check: Check) -> Decision {
    store.check(check).await.expect("a decision")
}

pub(crate) fn remaining(limit: &LimitDecision) -> u64 {
    limit.remaining.expect("the store knows")
}

/// The script's number for a wait.
pub(crate) fn retry_ms(wait: Wait) -> i64 {
    match wait {
        Wait::None => 0,
        Wait::For(wait) => i64::try_from(wait.as_millis()).expect("at most ten years"),
        Wait::Never => -1,
    }
}

pub(crate) fn pttl(connection: &mut redis::Connection, key: &str) -> i64 {
    redis::cmd("PTTL").arg(key).query(connection).expect("PTTL")
}

/// Tokens and TTL of the last write.
pub(crate) fn state(connection: &mut redis::Connection, key: &str) -> Option<(f64, f64)> {
    let value: Option<Vec<u8>> = redis::cmd("GET").arg(key).query(connection).expect("GET");
    value.map(|value| unpack(&value))
}

pub(crate) fn unpack(value: &[u8]) -> (f64, f64) {
    let (tokens, px) = value.split_at(8);
    let double = |bytes: &[u8]| f64::from_le_bytes(bytes.try_into().expect("16 bytes"));
    (double(tokens), double(px))
}

/// Lets `millis` pass for one bucket, as its state tells time: by its TTL. Forgets it if it is full by then.
pub(crate) fn pass(connection: &mut redis::Connection, key: &str, millis: i64) {
    let left = pttl(connection, key) - millis;
    let (command, left) = if left > 0 {
        ("PEXPIRE", Some(left))
    } else {
        ("DEL", None)
    };
    let moved = redis::cmd(command)
        .arg(key)
        .arg(left)
        .query::<i64>(connection);
    moved.expect(command);
}

/// Waits until something holds that others bring about.
pub(crate) async fn until(mut holds: impl AsyncFnMut() -> bool) {
    let held = async {
        while !holds().await {
            sleep(Duration::from_millis(5)).await;
        }
    };
    let held = timeout(Duration::from_secs(20), held).await;
    held.expect("it comes to hold");
}

/// The value of one series, such as `name{label="value"}`; 0 if there is none yet.
pub(crate) fn metric(metrics: &Metrics, series: &str) -> f64 {
    let text = metrics.render();
    let mut lines = text.lines();
    let found = lines.find_map(|line| line.strip_prefix(series)?.strip_prefix(' '));
    found.map_or(0.0, |value| value.parse().expect("a number"))
}

/// What a line of shell prints, in small letters.
pub(crate) fn sh(line: &str) -> String {
    let output = Command::new("sh")
        .args(["-c", line])
        .output()
        .expect("a shell");
    assert!(
        output.status.success(),
        "{line}: {}",
        String::from_utf8_lossy(&output.stderr)
    );
    String::from_utf8(output.stdout)
        .expect("UTF-8")
        .to_ascii_lowercase()
}

/// Waits until something is no longer there.
#[track_caller]
pub(crate) fn until_gone(what: &str, mut is_there: impl FnMut() -> bool) {
    for _ in 0..1_000 {
        if !is_there() {
            return;
        }
        thread::sleep(Duration::from_millis(10));
    }
    panic!("still there: {what}");
}
