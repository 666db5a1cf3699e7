//! `failovers`: what failovers of a cluster and of a primary under Sentinel cost, measured under load, as rows
//! of a table: who was not decided by the store, how long checks took, what was granted again, and when shared
//! limits were back.

mod load;

use std::{thread, time::Duration};

use tokio::time::{Instant, sleep};
use tollgate::{FailurePolicy, Limiter, Quotas, RedisStore};
use tollgate_tests::{Cluster, Sentinels, check, quota};

use self::load::{Load, Outcome};

/// Long enough to see what is normal.
const CALM: Duration = Duration::from_secs(4);

/// After a fault has ended.
const AFTER: Duration = Duration::from_secs(3);

const TENANTS: usize = 24;

#[tokio::main(flavor = "multi_thread", worker_threads = 2)]
async fn main() {
    println!(
        "| topology | fault | checks | not decided by the store | p99 ms (longest) | granted again | back after the fault, s |"
    );
    println!("|---|---|---|---|---|---|---|");
    for fault in [
        "none",
        "primary frozen",
        "primary killed",
        "failover in good order",
        "100 slots moved",
        "scripts flushed on a primary",
    ] {
        cluster(fault).await;
    }
    for fault in [
        "none",
        "primary frozen",
        "primary killed",
        "failover in good order",
    ] {
        sentinel(fault).await;
    }
}

async fn limiter(url: &str) -> Limiter {
    let store = RedisStore::builder(url).strict(true).connect().await;
    Limiter::builder(store.expect("a store"))
        .quotas(Quotas::new(quota(100_000, "0.001/s")))
        .on_store_failure(FailurePolicy::Open)
        .build()
        .expect("a limiter")
}

/// The tenants whose buckets are on node 0 are the affected ones.
async fn cluster(fault: &'static str) {
    let cluster = blocking(Cluster::start).await;
    let limiter = limiter(&cluster.url()).await;
    let slots: Vec<_> = (0..TENANTS)
        .map(|tenant| cluster.slot(&key(tenant)))
        .collect();
    let affected: Vec<_> = slots.iter().map(|slot| *slot <= 5_460).collect();
    let loads: Vec<_> = (0..TENANTS)
        .map(|tenant| Load::start(&limiter, &name(tenant)))
        .collect();
    sleep(CALM).await;
    let (cluster, over) = blocking(move || {
        let mut cluster = cluster;
        match fault {
            "primary frozen" => cluster.node(0).pause(),
            "primary killed" => cluster.node_mut(0).kill(),
            "failover in good order" => {
                let replica = cluster.replica_of(0);
                cluster.run(replica, &["CLUSTER", "FAILOVER"]);
            }
            "100 slots moved" => {
                // Those of the tenants among them.
                let own = slots.iter().copied().filter(|slot| *slot <= 5_460);
                for slot in own.chain(0..100) {
                    if cluster.owner(slot) == 0 {
                        cluster.move_slot(slot, 1);
                    }
                }
            }
            "scripts flushed on a primary" => cluster.flush_scripts(0),
            _ => {}
        }
        if fault.starts_with("primary") {
            while cluster.owner(0) == 0 {
                thread::sleep(Duration::from_millis(20));
            }
        }
        (cluster, Instant::now())
    })
    .await;
    sleep(AFTER).await;
    let mut groups = [Outcome::default(), Outcome::default()];
    for (tenant, load) in loads.into_iter().enumerate() {
        let seen = load.stop().await;
        let owner = cluster.owner_of(&key(tenant));
        let left = tokens(&mut cluster.node(owner).connection(), tenant);
        groups[usize::from(affected[tenant])].add(&seen, left, over);
    }
    for (group, outcome) in ["on other primaries", "on this primary"].iter().zip(groups) {
        println!("| cluster, tenants {group} | {fault} {outcome}");
    }
}

async fn sentinel(fault: &'static str) {
    let group = blocking(Sentinels::start).await;
    let limiter = limiter(&group.url()).await;
    let loads: Vec<_> = (0..TENANTS)
        .map(|tenant| Load::start(&limiter, &name(tenant)))
        .collect();
    sleep(CALM).await;
    let (group, over) = blocking(move || {
        let mut group = group;
        match fault {
            "primary frozen" => group.server(0).pause(),
            "primary killed" => group.server_mut(0).kill(),
            "failover in good order" => group.fail_over(),
            _ => {}
        }
        if fault.starts_with("primary") {
            group.wait_for_another_than(0);
        }
        (group, Instant::now())
    })
    .await;
    sleep(3 * AFTER).await;
    let primary = group.primary_by(1);
    let mut outcome = Outcome::default();
    for (tenant, load) in loads.into_iter().enumerate() {
        let seen = load.stop().await;
        let left = tokens(&mut group.server(primary).connection(), tenant);
        outcome.add(&seen, left, over);
    }
    println!("| sentinel | {fault} {outcome}");
}

fn name(tenant: usize) -> String {
    format!("tenant-{tenant}")
}

fn key(tenant: usize) -> String {
    check(&name(tenant), quota(100_000, "0.001/s"), 1).charges()[0]
        .key
        .to_string()
}

/// The tokens that the last write left; `None` if the bucket is not there.
fn tokens(connection: &mut redis::Connection, tenant: usize) -> Option<f64> {
    let value: Option<Vec<u8>> = redis::cmd("GET")
        .arg(key(tenant))
        .query(connection)
        .expect("GET");
    let bytes = value?.get(..8)?.try_into().ok()?;
    Some(f64::from_le_bytes(bytes))
}

/// The harness waits for processes.
async fn blocking<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> T {
    let done = tokio::task::spawn_blocking(work).await;
    done.expect("no panic")
}
