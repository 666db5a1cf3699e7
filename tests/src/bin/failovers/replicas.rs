//! What Redis can do so that replicas miss fewer charges, and what it costs.

use std::{fmt::Write, thread, time::Duration};

use redis::Connection;
use tokio::time::Instant;
use tollgate_tests::{RedisServer, Script, argv, check, quota};

use crate::pause;

/// A table that is not about a round.
pub(crate) struct Table {
    pub(crate) name: &'static str,
    /// Gives back the table.
    pub(crate) measure: fn() -> String,
}

pub(crate) const TABLES: [Table; 2] = [
    Table {
        name: "min-replicas-to-write 1",
        measure: min_replicas,
    },
    Table {
        name: "WAIT 1",
        measure: wait,
    },
];

/// A primary with one replica.
struct Pair {
    primary: RedisServer,
    replica: RedisServer,
    script: Script,
}

impl Pair {
    fn start() -> Self {
        let primary = RedisServer::start_with(&["--repl-diskless-sync-delay", "0"]);
        let port = primary.port().to_string();
        let replica = RedisServer::start_with(&["--replicaof", "127.0.0.1", &port]);
        let script = Script::load(&mut primary.connection(), Script::TOKEN_BUCKET);
        let pair = Self {
            primary,
            replica,
            script,
        };
        pair.set("min-replicas-to-write", "1");
        pause::until(|| pair.primary.info("replication", "min_slaves_good_slaves") == 1);
        pair.set("min-replicas-to-write", "0");
        pair
    }

    fn set(&self, name: &str, value: &str) {
        let set = redis::cmd("CONFIG").arg(&["SET", name, value]).to_owned();
        let set = set.query::<()>(&mut self.primary.connection());
        set.expect("CONFIG SET");
    }

    /// One check of a tenant that never runs dry.
    fn check(&self) -> redis::Cmd {
        let check = check("a", quota(1_000_000, "1000/s"), 1);
        let key = check.charges()[0].key.to_string();
        self.script.command(&[&key], &argv(&check))
    }
}

/// How long a primary without its replica goes on, for two settings of the lag.
fn min_replicas() -> String {
    const PACE: Duration = Duration::from_millis(10);
    let mut table = "\
| `min-replicas-max-lag`, s | replica gone until `NOREPLICAS`, s | granted meanwhile at 100 checks/s | replica there until charged again, s |
|---:|---:|---:|---:|
"
    .to_owned();
    for lag in ["10", "1"] {
        let pair = Pair::start();
        pair.set("min-replicas-to-write", "1");
        pair.set("min-replicas-max-lag", lag);
        let mut connection = pair.primary.connection();
        let grants = |connection: &mut Connection| {
            thread::sleep(PACE);
            match pair.check().query::<Vec<i64>>(connection) {
                Ok(_) => true,
                Err(error) if error.code() == Some("NOREPLICAS") => false,
                Err(error) => panic!("{error}"),
            }
        };
        assert!(grants(&mut connection), "the replica is there");
        pair.replica.pause();
        let (gone, mut granted) = (Instant::now(), 0);
        while grants(&mut connection) {
            granted += 1;
        }
        let refused = gone.elapsed().as_secs_f64();
        pair.replica.resume();
        let there = Instant::now();
        while !grants(&mut connection) {}
        let back = there.elapsed().as_secs_f64();
        let _ = writeln!(table, "| {lag} | {refused:.1} | {granted} | {back:.1} |");
    }
    table
}

/// What waiting for one replica after each check would cost.
fn wait() -> String {
    let pair = Pair::start();
    let mut table = "\
| checks on one connection | `EVALSHA`: median (p99), ms | `EVALSHA` and `WAIT 1 25`: median (p99), ms |
|---|---:|---:|
"
    .to_owned();
    let mut row = |name: &str, repeat: usize, at_once: usize| {
        let plain = latencies(&pair, repeat, at_once, false);
        let waited = latencies(&pair, repeat, at_once, true);
        let _ = writeln!(table, "| {name} | {plain} | {waited} |");
    };
    row("one at a time", 2_000, 1);
    row("50 at once, until the last is answered", 200, 50);
    pair.replica.pause();
    row("one at a time, replica frozen", 200, 1);
    pair.replica.resume();
    table
}

fn latencies(pair: &Pair, repeat: usize, at_once: usize, waits: bool) -> String {
    let mut connection = pair.primary.connection();
    let mut calls = redis::pipe();
    for _ in 0..at_once {
        calls.add_command(pair.check());
        if waits {
            calls.cmd("WAIT").arg(1).arg(25);
        }
    }
    let mut took: Vec<_> = (0..repeat)
        .map(|_| {
            let since = Instant::now();
            calls
                .query::<Vec<redis::Value>>(&mut connection)
                .expect("answers");
            since.elapsed()
        })
        .collect();
    took.sort_unstable();
    let millis = |at: usize| took[at].as_secs_f64() * 1e3;
    format!(
        "{:.2} ({:.2})",
        millis(repeat / 2),
        millis(repeat * 99 / 100)
    )
}
