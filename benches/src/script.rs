//! What the script costs Redis, beside the textbook's and plain commands.

use std::{fmt::Write, thread, time::Duration};

use redis::Cmd;
use serde::{Deserialize, Serialize};

use crate::{BoxError, Server, Spread, TEXTBOOK, TOKEN_BUCKET, Verdict, number, show};

/// Tenants, and calls of one batch: so few that it seldom has to share its core.
const TENANTS: usize = 100;

/// Buckets whose memory is looked at. The tables of keys and expiries have 131 072 slots then.
const BUCKETS: usize = 100_000;

/// Keys as those of buckets, with a value and what else SET takes.
const FILL: &str = "for i = 0, ARGV[1] - 1 do \
    redis.call('SET', string.format('tg:{tenant:%06d}:default', i), unpack(ARGV, 2)) \
    end";

/// All that was measured.
#[derive(Serialize)]
pub struct Costs {
    /// The server's version.
    pub redis: String,
    rows: Vec<Row>,
    buckets: Vec<Bucket>,
    parts: Parts,
}

/// One kind of call.
#[derive(Serialize)]
struct Row {
    name: &'static str,
    keys: usize,
    /// Microseconds of the server for one call, by round.
    times: Vec<f64>,
    /// Bytes in the append-only file, or to a replica, for one call.
    appended: f64,
}

/// What a bucket takes.
#[derive(Serialize)]
struct Bucket {
    name: &'static str,
    /// By `MEMORY USAGE`.
    usage: f64,
    /// By what the server's memory grew, tables of keys and expiries included.
    growth: f64,
}

/// Where the bytes of a bucket go. Tables double when they are full, so that a slot costs 8 to 16 B, here 10.5 B.
#[derive(Serialize)]
struct Parts {
    /// The key, its entry in the table of keys, and a slot of that.
    key: f64,
    value: f64,
    /// The entry in the table of expiries, and a slot of that.
    expiry: f64,
    /// Which allocator, and the steps that its small sizes go up by, if it says so.
    allocator: String,
}

/// The section `script` of `targets.toml`.
#[derive(Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct Targets {
    allowed_at_most: f64,
    denied_at_most: f64,
    bucket_at_most: f64,
}

const ALLOWED: &str = "token_bucket.lua, allowed";
const DENIED: &str = "token_bucket.lua, denied";
const TEXTBOOK_ALLOWED: &str = "textbook, allowed";
const TEXTBOOK_DENIED: &str = "textbook, denied";
const TOLLGATE_BUCKET: &str = "token_bucket.lua";

impl Costs {
    /// Takes turns, so many times.
    ///
    /// # Errors
    ///
    /// If the server fails.
    pub fn measure(rounds: usize) -> Result<Self, BoxError> {
        let mut server = Server::start(&[])?;
        let [own, textbook] = [server.load(TOKEN_BUCKET)?, server.load(TEXTBOOK)?];
        let nothing = server.load("return 1")?;
        let mut batches = Vec::new();
        for keys in [1, 2, 4, 8] {
            for (name, sha, quota) in [
                (ALLOWED, &own, ["1000000", "0.1"]),
                (TEXTBOOK_ALLOWED, &textbook, ["1000000", "0.1"]),
                (DENIED, &own, ["1", "0.0001"]),
                (TEXTBOOK_DENIED, &textbook, ["1", "0.0001"]),
                ("return 1", &nothing, ["1", "1"]),
            ] {
                let call = |tenant| evalsha(sha, name, tenant, keys, quota);
                batches.push((
                    name,
                    keys,
                    "evalsha",
                    (0..TENANTS).map(call).collect::<Vec<_>>(),
                ));
            }
        }
        for (name, command) in [("GET", "get"), ("SET … PX", "set")] {
            let call = |tenant| plain(command, tenant);
            batches.push((name, 1, command, (0..TENANTS).map(call).collect()));
        }
        let mut rows = Vec::new();
        server.append(true)?;
        for (name, keys, _, calls) in &batches {
            // Drains what is to be denied.
            batch(&mut server, calls)?;
            let before = server.appended()?;
            batch(&mut server, calls)?;
            let bytes = server.appended()? - before;
            rows.push(Row {
                name,
                keys: *keys,
                times: Vec::new(),
                appended: bytes / TENANTS as f64,
            });
        }
        server.append(false)?;
        for number in 1..=rounds {
            show(&format!("script, round {number} of {rounds}"));
            for ((_, _, command, calls), row) in batches.iter().zip(&mut rows) {
                let before = server.spent(command)?;
                batch(&mut server, calls)?;
                let spent = server.spent(command)? - before;
                row.times.push(spent / TENANTS as f64);
            }
        }
        let buckets = [(TOLLGATE_BUCKET, TOKEN_BUCKET), ("textbook", TEXTBOOK)];
        let buckets = buckets.map(|(name, script)| bucket(name, script));
        let buckets = buckets.into_iter().collect::<Result<_, _>>()?;
        let parts = Parts::measure(&mut server)?;
        show("");
        Ok(Self {
            redis: server.info("server", "redis_version")?,
            rows,
            buckets,
            parts,
        })
    }

    #[must_use]
    pub fn markdown(&self) -> String {
        let mut text = "\n| call | keys | server time µs | of the textbook | bytes per call |\n|---|---:|---:|---:|---:|\n".to_owned();
        for row in &self.rows {
            let time = Spread::of(row.times.iter().copied());
            let _ = writeln!(
                text,
                "| {} | {} | {} | {} | {} |",
                row.name,
                row.keys,
                time.map_or_else(String::new, |it| it.to_string()),
                self.of_textbook(row)
                    .map_or_else(String::new, |it| it.to_string()),
                number(row.appended),
            );
        }
        text += "\n| bucket | MEMORY USAGE | memory of the server |\n|---|---:|---:|\n";
        for bucket in &self.buckets {
            let (usage, growth) = (number(bucket.usage), number(bucket.growth));
            let _ = writeln!(text, "| {} | {usage} B | {growth} B |", bucket.name);
        }
        let Parts {
            key,
            value,
            expiry,
            allocator,
        } = &self.parts;
        let [key, value, expiry] = [key, value, expiry].map(|it| number(*it));
        let _ = writeln!(
            text,
            "\nOf a bucket of token_bucket.lua, {key} B are the key with its entry and slot in the table of keys, {value} B \
             the value, and {expiry} B its entry and slot in the table of expiries; by {allocator}."
        );
        text
    }

    /// # Panics
    ///
    /// Never: what is judged has been measured.
    #[must_use]
    pub fn judge(&self, targets: &Targets, again: bool) -> Vec<Verdict> {
        let ratio = |name| {
            let row = self
                .rows
                .iter()
                .find(|row| row.name == name && row.keys == 1);
            self.of_textbook(row?)
        };
        let bucket = self.buckets.iter().find(|it| it.name == TOLLGATE_BUCKET);
        let bytes = Spread::of(bucket.map(|it| it.growth));
        let verdict = |target: &str, measured: Option<Spread>, most| {
            Verdict::at_most(target.to_owned(), measured, most, again)
        };
        vec![
            verdict(
                "script: server time, allowed, of textbook",
                ratio(ALLOWED),
                targets.allowed_at_most,
            ),
            verdict(
                "script: server time, denied, of textbook",
                ratio(DENIED),
                targets.denied_at_most,
            ),
            verdict(
                "script: memory of a bucket, bytes",
                bytes,
                targets.bucket_at_most,
            ),
        ]
    }

    fn of_textbook(&self, row: &Row) -> Option<Spread> {
        let other = match row.name {
            ALLOWED => TEXTBOOK_ALLOWED,
            DENIED => TEXTBOOK_DENIED,
            _ => return None,
        };
        let other = self
            .rows
            .iter()
            .find(|it| it.name == other && it.keys == row.keys)?;
        let pairs = row.times.iter().zip(&other.times);
        Spread::of(pairs.map(|(own, other)| own / other))
    }
}

fn evalsha(sha: &str, name: &str, tenant: usize, keys: usize, quota: [&str; 2]) -> Cmd {
    let mut command = redis::cmd("EVALSHA");
    command.arg(sha).arg(keys);
    for key in 0..keys {
        command.arg(format!("{name}{keys}:{{tenant:{tenant}}}:{key}"));
    }
    for _ in 0..keys {
        command.arg(&quota).arg(1);
    }
    command
}

fn plain(command: &str, tenant: usize) -> Cmd {
    let mut cmd = redis::cmd(command);
    cmd.arg(format!("plain:{{tenant:{tenant}}}"));
    if command == "set" {
        cmd.arg("sixteen bytes ok").arg("PX").arg(100_000);
    }
    cmd
}

fn batch(server: &mut Server, calls: &[Cmd]) -> Result<(), BoxError> {
    let mut pipeline = redis::pipe();
    for call in calls {
        pipeline.add_command(call.clone()).ignore();
    }
    Ok(pipeline.exec(server.connection())?)
}

fn bucket(name: &'static str, script: &str) -> Result<Bucket, BoxError> {
    let mut server = Server::start(&[])?;
    let sha = server.load(script)?;
    let key = |tenant| format!("tg:{{tenant:{tenant:06}}}:default");
    let growth = growth(&mut server, |server| {
        let mut tenants = 0..BUCKETS;
        loop {
            let calls = tenants.by_ref().take(TENANTS).map(|tenant| {
                let mut command = redis::cmd("EVALSHA");
                command
                    .arg(&sha)
                    .arg(1)
                    .arg(key(tenant))
                    .arg(&["60000", "0.1", "1"]);
                command
            });
            let calls: Vec<_> = calls.collect();
            if calls.is_empty() {
                return Ok(());
            }
            batch(server, &calls)?;
        }
    })?;
    Ok(Bucket {
        name,
        usage: server.run(&["MEMORY", "USAGE", &key(1)])?,
        growth,
    })
}

/// By what the memory of an empty server grows for each bucket.
fn growth(
    server: &mut Server,
    fill: impl FnOnce(&mut Server) -> Result<(), BoxError>,
) -> Result<f64, BoxError> {
    let before = settled(server)?;
    fill(server)?;
    Ok((settled(server)? - before) / BUCKETS as f64)
}

/// The memory in use once it stays the same: a table that has grown is moved bit by bit.
fn settled(server: &mut Server) -> Result<f64, BoxError> {
    let mut last = f64::NAN;
    for _ in 0..50 {
        thread::sleep(Duration::from_millis(200));
        let used = server.info("memory", "used_memory")?.parse()?;
        if used == last {
            break;
        }
        last = used;
    }
    Ok(last)
}

// === impl Parts ===

impl Parts {
    fn measure(server: &mut Server) -> Result<Self, BoxError> {
        let mut with = |args: &[&str]| {
            let () = server.run(&["FLUSHALL", "SYNC"])?;
            growth(server, |server| {
                let buckets = BUCKETS.to_string();
                let fill = [&["EVAL", FILL, "0", &buckets], args].concat();
                server.run(&fill)
            })
        };
        // Of a small number, all keys share one object.
        let key = with(&["1"])?;
        let value = with(&["sixteen bytes ok"])? - key;
        let expiry = with(&["sixteen bytes ok", "PX", "36000000"])? - key - value;
        let mut allocator = server.info("memory", "mem_allocator")?;
        let stats: String = server.run(&["MEMORY", "MALLOC-STATS"])?;
        let steps = stats
            .lines()
            .find_map(|it| it.strip_prefix("Quantum size:"));
        if let Some(steps) = steps {
            let _ = write!(allocator, " in steps of {} B", steps.trim());
        }
        Ok(Self {
            key,
            value,
            expiry,
            allocator,
        })
    }
}
