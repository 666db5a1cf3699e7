//! What a check costs this process through each client library, on one Redis of its own.
//!
//! ```text
//! cargo bench -p tollgate-tests --bench clients
//! ```
//!
//! Rounds of the two take turns, since a machine is rarely as fast a minute later. Prints the medians, and those of
//! each round's ratio.

use std::{fs, time::Duration};

use tokio::{task::JoinSet, time::Instant};
use tollgate_core::Store;
use tollgate_redis::{RedisRsStore, RedisStore};
use tollgate_tests::{RedisClient, RedisServer, check, quota};

const ROUNDS: usize = 15;
const IN_FLIGHT: [u32; 3] = [1, 16, 64];
/// Of one round.
const SPAN: Duration = Duration::from_millis(600);

/// What one round has measured.
#[derive(Clone, Copy)]
struct Round {
    per_second: f64,
    /// Microseconds of this process, in user and system mode, for each check.
    client_cpu: f64,
    /// The same of the server.
    server_cpu: f64,
}

#[tokio::main(flavor = "multi_thread", worker_threads = 2)]
async fn main() {
    let server = RedisServer::start();
    let (fred, redis_rs) = (
        connect::<RedisStore>(&server).await,
        connect::<RedisRsStore>(&server).await,
    );
    // For caches, and for processors that clock up.
    round(&fred, 16, &server).await;
    round(&redis_rs, 16, &server).await;
    println!("medians of {ROUNDS} rounds of {SPAN:?} each, taking turns; CPU in µs per check\n");
    println!("in flight  client    checks/s  client CPU  server CPU");
    for in_flight in IN_FLIGHT {
        let mut rounds = Vec::with_capacity(ROUNDS);
        for _ in 0..ROUNDS {
            let by_fred = round(&fred, in_flight, &server).await;
            rounds.push((by_fred, round(&redis_rs, in_flight, &server).await));
        }
        let median = |value: &dyn Fn(&(Round, Round)) -> f64| median(rounds.iter().map(value));
        let row = |name: &str, pick: fn(&(Round, Round)) -> Round| {
            println!(
                "{in_flight:>9}  {name:<8}{:>10.0}{:>12.2}{:>12.2}",
                median(&|pair| pick(pair).per_second),
                median(&|pair| pick(pair).client_cpu),
                median(&|pair| pick(pair).server_cpu),
            );
        };
        row("fred", |pair| pair.0);
        row("redis-rs", |pair| pair.1);
        println!(
            "{in_flight:>9}  {:<8}{:>10.2}{:>12.2}{:>12.2}\n",
            "ratio",
            median(&|(fred, redis_rs)| redis_rs.per_second / fred.per_second),
            median(&|(fred, redis_rs)| redis_rs.client_cpu / fred.client_cpu),
            median(&|(fred, redis_rs)| redis_rs.server_cpu / fred.server_cpu),
        );
    }
}

async fn connect<S: RedisClient>(server: &RedisServer) -> S {
    let builder = S::builder(&server.url()).strict(true);
    let store = S::open(builder.deadline(Duration::from_secs(5))).await;
    store.expect("a store on our own Redis")
}

async fn round<S: Store + Clone>(store: &S, in_flight: u32, server: &RedisServer) -> Round {
    let (cpu, served, start) = (own_cpu(), server.cpu(), Instant::now());
    let mut tasks = JoinSet::new();
    for i in 0..in_flight {
        let store = store.clone();
        tasks.spawn(async move {
            let check = check(&i.to_string(), quota(1_000_000_000, "1000000/s"), 1);
            let mut checks = 0_u32;
            while start.elapsed() < SPAN {
                store.check(check.clone()).await.expect("a decision");
                checks += 1;
            }
            checks
        });
    }
    let checks = f64::from(tasks.join_all().await.into_iter().sum::<u32>());
    let elapsed = start.elapsed();
    let micros = |time: Duration| time.as_secs_f64() * 1e6;
    Round {
        per_second: checks / elapsed.as_secs_f64(),
        client_cpu: micros(own_cpu() - cpu) / checks,
        server_cpu: micros(server.cpu() - served) / checks,
    }
}

/// What the threads of this process have run for; to the nanosecond, where `stat` counts ticks of 10 ms.
fn own_cpu() -> Duration {
    let threads = fs::read_dir("/proc/self/task").expect("Linux");
    let nanos = threads.filter_map(|thread| {
        // One that has ended meanwhile has run before.
        let stat = fs::read_to_string(thread.ok()?.path().join("schedstat")).ok()?;
        stat.split(' ').next()?.parse::<u64>().ok()
    });
    Duration::from_nanos(nanos.sum())
}

fn median(values: impl Iterator<Item = f64>) -> f64 {
    let mut values: Vec<_> = values.collect();
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}
