//! The denial cache before a real Redis: two replicas, each with its own.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use tokio::{task::yield_now, time::Instant};
use tollgate::{Observer, SavedBy};
use tollgate_core::{Bucket, Check, Decision, Quota, Source, Store, bucket};
use tollgate_limiter::DenialCache;
use tollgate_redis::RedisStore;
use tollgate_tests::{RedisServer, check, quota};

use crate::support::{store, unpack};

const KEY: &str = "tg:{tenant:a}:default";

#[derive(Default)]
struct Saved(AtomicU64);

impl Observer for Saved {
    fn call_saved(&self, _: SavedBy) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

struct Replica {
    cache: DenialCache<RedisStore>,
    saved: Arc<Saved>,
}

impl Replica {
    async fn start(server: &RedisServer) -> Self {
        let saved = Arc::new(Saved::default());
        Self {
            cache: DenialCache::new(store(server).await, saved.clone()),
            saved,
        }
    }

    async fn ask(&self, check: Check) -> Decision {
        self.cache.check(check).await.expect("a decision")
    }

    fn saved(&self) -> u64 {
        self.saved.0.load(Ordering::Relaxed)
    }
}

#[tokio::test]
async fn a_drained_tenant_costs_redis_about_one_call_a_second() {
    let server = RedisServer::start();
    let replicas = [Replica::start(&server).await, Replica::start(&server).await];
    let quota = quota(10, "1/h");
    let (start, calls) = (Instant::now(), server.calls("evalsha"));
    let (mut admitted, mut asked) = (0, 0);
    while start.elapsed() < Duration::from_millis(2_500) {
        for replica in &replicas {
            admitted += replica.ask(check("a", quota, 1)).await.granted;
            asked += 1;
        }
        // An answer from memory leaves the client's own tasks no time.
        yield_now().await;
    }
    // Measured afterwards, so that a machine which stood still is forgiven.
    let seconds = start.elapsed().as_secs() + 1;
    let made = server.calls("evalsha") - calls;
    assert_eq!(admitted, 10);
    assert!(made <= 10 + 2 * seconds, "{made} calls in {seconds} s");
    let saved: u64 = replicas.iter().map(Replica::saved).sum();
    assert_eq!(saved, asked - made);
}

/// The bucket as it was last written, with the time of Redis's clock at which it is full.
fn written(connection: &mut redis::Connection) -> Bucket {
    let mut pipeline = redis::pipe();
    pipeline.cmd("GET").arg(KEY).cmd("PEXPIRETIME").arg(KEY);
    let (value, expires_at): (Vec<u8>, u64) = pipeline.query(connection).expect("a bucket");
    let (tokens, px) = unpack(&value);
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "whole milliseconds"
    )]
    let px = px as u64;
    Bucket {
        tokens,
        px,
        expires_at,
    }
}

/// Milliseconds of Redis's clock, which is this machine's.
fn now() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    let since = since.expect("a clock set to this century");
    u64::try_from(since.as_millis()).expect("not that long")
}

/// Nobody else spends between a denial from memory and the look at the bucket, and a denial writes nothing:
/// so what Redis would have said to the same request at the same moment is known exactly.
#[expect(clippy::cast_precision_loss, reason = "small numbers")]
async fn each_denial_is_the_stores_own(quota: Quota, costs: &[u64]) {
    let server = RedisServer::start();
    let mut connection = server.connection();
    let replicas = [Replica::start(&server).await, Replica::start(&server).await];
    // Drained, it takes seconds to fill: also a test that stands still for a while finds it there.
    let mut spent = quota.capacity();
    let drain = replicas[0].ask(check("a", quota, spent)).await;
    assert!(drain.is_allowed());
    let (first, start) = (written(&mut connection), Instant::now());
    let (mut known, mut i) = (0, 0_usize);
    while start.elapsed() < Duration::from_secs(3) {
        let check = check("a", quota, costs[i / 2 % costs.len()]);
        let before = now();
        let decision = replicas[i % 2].ask(check.clone()).await;
        i += 1;
        spent += decision.granted * check.charges()[0].cost.tokens();
        if decision.source == Source::DenialCache {
            known += 1;
            let bucket = written(&mut connection);
            let truth = bucket::decide(&check, &mut [Some(bucket)], before);
            assert!(
                !truth.is_allowed(),
                "{decision:?}, but {truth:?} of {bucket:?}"
            );
        }
    }
    assert!(known > 0, "nothing of {i} was known");

    // All that there was to spend was spent, but for what is left.
    let last = written(&mut connection);
    let span = (last.expires_at - last.px) - (first.expires_at - first.px);
    let bound = quota.capacity() as f64 + quota.rate().per_second() * span as f64 / 1_000.0;
    let total = spent as f64 + last.tokens;
    // Redis before 7.2 reads its clock again to write: now and then that is the next millisecond.
    let lost = quota.rate().per_second() * 0.001 * spent as f64;
    assert!(
        total <= bound + 1e-6 && total >= bound - lost,
        "{total} of {bound}"
    );
}

#[tokio::test]
async fn a_denial_from_memory_is_one_that_redis_would_have_given() {
    each_denial_is_the_stores_own(quota(100, "20/s"), &[1, 1, 3, 2]).await;
    each_denial_is_the_stores_own(quota(100, "7/3s"), &[1, 2]).await;
}
