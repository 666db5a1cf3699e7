//! One variant under one load for a second or two.

use std::{
    net::Ipv4Addr,
    thread,
    time::{Duration, Instant},
};

use serde::Serialize;
use tokio::{
    io::{AsyncBufReadExt, AsyncWriteExt, BufReader},
    net::TcpStream,
    runtime,
};
use tollgate_benches::{BoxError, Server, TOKEN_BUCKET};

use crate::{
    app::App,
    loads::{Load, excess, holds_bound},
    wrk::{self, Seen},
};

/// How long things last.
#[derive(Clone, Copy)]
pub(crate) struct Lengths {
    pub(crate) warm_up: Duration,
    pub(crate) round: Duration,
}

/// What one round has shown.
#[derive(Clone, Copy, Serialize)]
pub(crate) struct Sample {
    pub(crate) requests: f64,
    pub(crate) seconds: f64,
    /// The share that was answered with something else than 200.
    pub(crate) rejected: f64,
    /// Latencies in microseconds.
    pub(crate) p50: f64,
    pub(crate) p90: f64,
    pub(crate) p99: f64,
    pub(crate) p999: f64,
    /// Processor time of the app and of Redis, in microseconds per request.
    pub(crate) app_cpu: f64,
    pub(crate) redis_cpu: f64,
    /// Calls of Redis per request.
    pub(crate) calls: f64,
    /// What the tenant with the most requests was admitted, of what the bound lets it.
    pub(crate) of_bound: f64,
}

impl Sample {
    pub(crate) fn per_second(&self) -> f64 {
        self.requests / self.seconds
    }
}

/// Fails if requests fail, or a bound is exceeded by one that promises to hold it.
pub(crate) fn round(
    server: &mut Server,
    load: &Load,
    variant: &str,
    app: &App,
    lengths: Lengths,
) -> Result<Sample, BoxError> {
    let start = Instant::now();
    let () = server.run(&["FLUSHALL"])?;
    app.reset()?;
    wrk::run(load, app.port(), lengths.warm_up)?;
    let (usage, cpu) = (server.usage()?, app.cpu()?);
    let seen = wrk::run(load, app.port(), lengths.round)?;
    let (cpu, after) = (app.cpu()? - cpu, server.usage()?);
    // What is still on its way has been decided, too.
    thread::sleep(Duration::from_millis(10));
    let (_, most) = app.counted()?;
    if seen.failed > 0.0 || seen.requests == 0.0 {
        let (failed, answered) = (seen.failed, seen.requests);
        return Err(format!("{failed} requests failed, and {answered} were answered").into());
    }
    let bound = load.capacity as f64
        + load.rate as f64 * start.elapsed().as_secs_f64()
        + excess(variant, load.capacity);
    let of_bound = most as f64 / bound;
    if of_bound > 1.0 && variant.starts_with("tollgate") && holds_bound(variant) {
        return Err(format!("{most} admitted, and the bound is {bound:.0}").into());
    }
    let served = served(load, &seen);
    let per_request = |time: Duration| time.as_secs_f64() * 1e6 / served;
    Ok(Sample {
        requests: seen.requests,
        seconds: seen.micros / 1e6,
        rejected: seen.not_ok / seen.requests,
        p50: seen.p50,
        p90: seen.p90,
        p99: seen.p99,
        p999: seen.p999,
        app_cpu: per_request(cpu),
        redis_cpu: per_request(after.cpu - usage.cpu),
        calls: (after.calls - usage.calls) / served,
        of_bound,
    })
}

/// The requests that were paid for: when wrk stops, each connection waits for one more answer.
fn served(load: &Load, seen: &Seen) -> f64 {
    seen.requests + f64::from(load.connections)
}

/// The same of single calls without a service.
pub(crate) fn raw(server: &mut Server, load: &Load, lengths: Lengths) -> Result<Sample, BoxError> {
    times(server, load, lengths.warm_up)?;
    let usage = server.usage()?;
    let times = times(server, load, lengths.round)?;
    let cpu = server.usage()?.cpu - usage.cpu;
    let requests = times.len() as f64;
    let percentile = |share: f64| times[((requests - 1.0) * share) as usize];
    Ok(Sample {
        requests,
        seconds: times.iter().sum::<f64>() / 1e6,
        rejected: 0.0,
        p50: percentile(0.5),
        p90: percentile(0.9),
        p99: percentile(0.99),
        p999: percentile(0.999),
        app_cpu: 0.0,
        redis_cpu: cpu.as_secs_f64() * 1e6 / requests,
        calls: 1.0,
        of_bound: 0.0,
    })
}

/// The times of calls one after the other on one socket, in microseconds, sorted. Through the runtime that the
/// services have, which also sleeps until an answer comes.
fn times(server: &mut Server, load: &Load, length: Duration) -> Result<Vec<f64>, BoxError> {
    let sha = server.load(TOKEN_BUCKET)?;
    let mut command = redis::cmd("EVALSHA");
    command.arg(sha).arg(1).arg("tg:{tenant:raw}:default");
    command.arg(load.capacity).arg(load.rate).arg(1);
    let (command, port) = (command.get_packed_command(), server.port());
    let runtime = runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    runtime.block_on(async {
        let mut stream = BufReader::new(TcpStream::connect((Ipv4Addr::LOCALHOST, port)).await?);
        let (start, mut times, mut line) = (Instant::now(), Vec::new(), String::new());
        while start.elapsed() < length {
            let called = Instant::now();
            stream.write_all(&command).await?;
            // How many there are, and three numbers.
            for _ in 0..4 {
                line.clear();
                stream.read_line(&mut line).await?;
            }
            times.push(called.elapsed().as_secs_f64() * 1e6);
        }
        times.sort_by(f64::total_cmp);
        Ok(times)
    })
}

/// Bytes that Redis writes for each request, to its append-only file or to a replica.
pub(crate) fn appended(server: &mut Server, load: &Load, app: &App) -> Result<f64, BoxError> {
    let () = server.run(&["FLUSHALL"])?;
    let before = server.appended()?;
    let seen = wrk::run(load, app.port(), Duration::from_millis(300))?;
    let bytes = server.appended()? - before;
    Ok(bytes / served(load, &seen))
}
