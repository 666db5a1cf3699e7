//! How far it goes: 1 to 30 replicas on one Redis and on a cluster of three, and 10³ to 10⁷ buckets.
//!
//! Ends with 1 if the tenant that all replicas share was admitted more than its bound, or if a check with 10⁷
//! buckets takes the server more than twice what it takes with 10³.

use std::{
    env,
    io::{BufRead, BufReader, Write},
    process::{ChildStdout, Command, ExitCode, Stdio},
    thread,
    time::{Duration, Instant},
};

use tollgate_benches::{
    BoxError, Process, SHARED_CAPACITY, SHARED_RATE, Server, Spread, TOKEN_BUCKET, end_on_signals,
    machine, number, show,
};

const REPLICAS: [usize; 4] = [1, 3, 10, 30];
const LENGTH: Duration = Duration::from_secs(3);

const BUCKETS: [u64; 5] = [1_000, 10_000, 100_000, 1_000_000, 10_000_000];
/// Calls of one batch.
const CALLS: u64 = 10_000;
const BATCHES: usize = 15;

/// Buckets as `token_bucket.lua` leaves them, from ARGV[1] on and below ARGV[2]. They last for hours.
const FILL: &str = "for i = ARGV[1], ARGV[2] - 1 do \
    redis.call('SET', string.format('tg:{tenant:%d}:default', i), struct.pack('<dd', 59999, 36000000), 'PX', 36000000) \
    end";

fn main() -> ExitCode {
    match measure() {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("bench-scale: {error}");
            ExitCode::from(2)
        }
    }
}

fn measure() -> Result<bool, BoxError> {
    end_on_signals()?;
    println!("Measured on {}; all on one machine.", machine());
    println!(
        "\nReplicas are processes with 8 checks in flight each, over 1 000 tenants that are all allowed, and one that all of them \
         share and that is over its limit of {SHARED_RATE} per second; {LENGTH:?} each.\n"
    );
    println!(
        "| Redis | replicas | checks/s | of the replica with the least…most | Redis CPU µs per check | the shared tenant, of its bound | its replicas with the least…most |"
    );
    println!("|---|---:|---:|---:|---:|---:|---:|");
    let mut holds = true;
    for primaries in [1, 3] {
        let mut servers = servers(primaries)?;
        for replicas in REPLICAS {
            holds &= fleet(&mut servers, replicas)?;
        }
    }
    println!(
        "\nThe server's time for a check, in pipelines of {CALLS} of as many tenants drawn at random.\n"
    );
    println!(
        "| buckets | server time µs | `return 1` µs | memory of Redis |\n|---:|---:|---:|---:|"
    );
    Ok(buckets()? && holds)
}

/// One server, or a cluster of primaries.
fn servers(primaries: usize) -> Result<Vec<Server>, BoxError> {
    if primaries == 1 {
        return Ok(vec![Server::start(&[])?]);
    }
    let cluster = ["--cluster-enabled", "yes"];
    let servers: Vec<_> = (0..primaries)
        .map(|_| Server::start(&cluster))
        .collect::<Result<_, _>>()?;
    let addresses = servers.iter().map(|it| format!("127.0.0.1:{}", it.port()));
    let mut create = Command::new("redis-cli");
    create
        .args(["--cluster", "create"])
        .args(addresses)
        .arg("--cluster-yes");
    let output = create.output()?;
    if !output.status.success() {
        return Err(String::from_utf8_lossy(&output.stdout).into_owned().into());
    }
    Ok(servers)
}

struct Replica(Process, BufReader<ChildStdout>);

impl Replica {
    fn start(url: &str) -> Result<Self, BoxError> {
        let mut command = Command::new(env::current_exe()?.with_file_name("bench-replica"));
        command.args([url, &LENGTH.as_millis().to_string()]);
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut process = Process::start(&mut command)?;
        let stdout = process.child().stdout.take().ok_or("its output")?;
        let mut replica = Self(process, BufReader::new(stdout));
        replica.line()?;
        Ok(replica)
    }

    fn line(&mut self) -> Result<String, BoxError> {
        let mut line = String::new();
        self.1.read_line(&mut line)?;
        Ok(line.trim().to_owned())
    }
}

/// Whether the shared tenant was held.
fn fleet(servers: &mut [Server], count: usize) -> Result<bool, BoxError> {
    let primaries = servers.len();
    show(&format!("{primaries} primaries, {count} replicas"));
    let ports: Vec<_> = servers
        .iter()
        .map(|it| format!("127.0.0.1:{}", it.port()))
        .collect();
    let scheme = if primaries == 1 {
        "redis"
    } else {
        "redis-cluster"
    };
    let url = format!("{scheme}://{}", ports.join(","));
    for server in &mut *servers {
        let () = server.run(&["FLUSHALL"])?;
    }
    let mut replicas: Vec<_> = (0..count)
        .map(|_| Replica::start(&url))
        .collect::<Result<_, _>>()?;
    let before = cpu(servers)?;
    let start = Instant::now();
    for replica in &mut replicas {
        replica
            .0
            .child()
            .stdin
            .as_mut()
            .ok_or("its input")?
            .write_all(b"\n")?;
    }
    let mut checks = Vec::new();
    let mut shared = Vec::new();
    for replica in &mut replicas {
        let line = replica.line()?;
        let (own, of_shared) = line.split_once(' ').ok_or("two numbers")?;
        checks.push(own.parse::<f64>()?);
        shared.push(of_shared.parse::<f64>()?);
    }
    let elapsed = start.elapsed().as_secs_f64();
    let spent = cpu(servers)? - before;
    let (all, all_shared): (f64, f64) = (checks.iter().sum(), shared.iter().sum());
    let bound = SHARED_CAPACITY as f64 + f64::from(SHARED_RATE) * elapsed;
    let spread = |numbers: Vec<f64>| {
        let spread = Spread::of(numbers).expect("replicas");
        format!("{:.0}…{:.0}", spread.least, spread.most)
    };
    show("");
    println!(
        "| {} | {count} | {:.0} | {} | {} | {:.0} % | {} |",
        if primaries == 1 {
            "one".to_owned()
        } else {
            format!("cluster of {primaries}")
        },
        all / LENGTH.as_secs_f64(),
        spread(checks),
        number(spent.as_secs_f64() * 1e6 / all),
        100.0 * all_shared / bound,
        spread(shared),
    );
    Ok(all_shared <= bound)
}

fn cpu(servers: &mut [Server]) -> Result<Duration, BoxError> {
    servers
        .iter_mut()
        .map(|server| Ok(server.usage()?.cpu))
        .sum()
}

/// Whether the time stays what it is.
fn buckets() -> Result<bool, BoxError> {
    let mut server = Server::start(&[])?;
    let [sha, nothing] = [server.load(TOKEN_BUCKET)?, server.load("return 1")?];
    let (mut filled, mut medians) = (0, Vec::new());
    for buckets in BUCKETS {
        show(&format!("{buckets} buckets"));
        while filled < buckets {
            let next = buckets.min(filled + 50_000);
            let () = server.run(&["EVAL", FILL, "0", &filled.to_string(), &next.to_string()])?;
            filled = next;
        }
        // What a table that has grown is still moving would count as the price of a check.
        thread::sleep(Duration::from_millis(500));
        let (mut times, mut bare, mut turn) = (Vec::new(), Vec::new(), 1_u64);
        for _ in 0..BATCHES {
            let mut tenants = Vec::new();
            for _ in 0..CALLS {
                turn = turn
                    .wrapping_mul(6_364_136_223_846_793_005)
                    .wrapping_add(1_442_695_040_888_963_407);
                tenants.push((turn >> 20) % buckets);
            }
            for (sha, times) in [(&sha, &mut times), (&nothing, &mut bare)] {
                let before = server.spent("evalsha")?;
                let mut pipeline = redis::pipe();
                for tenant in &tenants {
                    let key = format!("tg:{{tenant:{tenant}}}:default");
                    let call = pipeline.cmd("EVALSHA").arg(sha).arg(1).arg(key);
                    call.arg(&["60000", "0.001", "1"]).ignore();
                }
                pipeline.exec(server.connection())?;
                times.push((server.spent("evalsha")? - before) / CALLS as f64);
            }
        }
        let [times, bare] = [times, bare].map(|it| Spread::of(it).expect("batches"));
        let memory = server.info("memory", "used_memory_human")?;
        show("");
        println!("| {buckets} | {times} | {bare} | {memory} |");
        medians.push(times.median);
    }
    Ok(medians[medians.len() - 1] <= 2.0 * medians[0])
}
