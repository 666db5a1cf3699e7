//! Stages that spare Redis calls, each in several processes against the plain store.

use std::{
    collections::BTreeMap,
    convert::Infallible,
    io::{BufRead, BufReader, Write},
    process::{Child, ChildStdin, ChildStdout, Command, Stdio},
    thread,
    time::Duration,
};

use axum::{
    body::Body,
    http::{Request, Response, StatusCode},
};
use tokio::time::Instant;
use tollgate::{
    FailurePolicy, Limiter, Quota, Quotas, RateLimitLayer, RedisStore, RouteCosts, Tenant,
};
use tollgate_tests::{RedisServer, traffic};
use tower::{Layer, ServiceExt, service_fn};

const PROCESSES: u64 = 3;

/// Tokens of each tenant in the replayed traffic. Each shard of four has a multiple of each cost, so that
/// nothing is left over in one.
const CAPACITY: u64 = 240;

/// Refill does not disturb a count.
const HOURLY: &str = "1/h";

/// A process of the fleet. It shuts down when dropped.
struct Replica {
    process: Child,
    commands: Option<ChildStdin>,
    answers: BufReader<ChildStdout>,
}

impl Replica {
    fn start(server: &RedisServer, stage: &str, quotas: &[&str]) -> Self {
        let mut process = Command::new(env!("CARGO_BIN_EXE_replica"))
            .args([&server.url(), stage])
            .args(quotas)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("a replica");
        let commands = process.stdin.take();
        let answers = BufReader::new(process.stdout.take().expect("piped"));
        Self {
            process,
            commands,
            answers,
        }
    }

    fn send(&mut self, command: &str) {
        let commands = self.commands.as_mut().expect("not shut down");
        writeln!(commands, "{command}").expect("a replica that reads");
    }

    fn answer(&mut self) -> String {
        let mut line = String::new();
        let length = self.answers.read_line(&mut line).expect("text");
        assert!(length > 0, "a replica failed; what it said stands above");
        line
    }

    fn number(&mut self, command: &str) -> u64 {
        self.send(command);
        self.answer().trim().parse().expect("a number")
    }
}

impl Drop for Replica {
    fn drop(&mut self) {
        self.commands = None;
        let ended = self.process.wait().expect("our own child");
        if !thread::panicking() {
            assert!(ended.success(), "a replica failed as it shut down");
        }
    }
}

fn fleet(server: &RedisServer, stage: &str, quotas: &[&str]) -> Vec<Replica> {
    let start = |_| Replica::start(server, stage, quotas);
    (0..PROCESSES).map(start).collect()
}

/// Replays the traffic over several processes. How many requests of each tenant were admitted, and how many
/// checks the store was asked for: one call may bring several.
fn replay(server: &RedisServer, stage: &str) -> (BTreeMap<u64, u64>, u64) {
    let quota = format!("{CAPACITY}:{HOURLY}");
    let mut fleet = fleet(server, stage, &[&quota]);
    let before = server.calls("get");
    for (i, replica) in fleet.iter_mut().enumerate() {
        replica.send(&format!("replay {i} {PROCESSES}"));
    }
    let mut sum = BTreeMap::new();
    for replica in &mut fleet {
        let admitted: BTreeMap<u64, u64> = serde_json::from_str(&replica.answer()).expect("JSON");
        for (tenant, admitted) in admitted {
            *sum.entry(tenant).or_default() += admitted;
        }
    }
    // So that leases go back as well.
    drop(fleet);
    (sum, server.calls("get") - before)
}

#[test]
fn exact_stages_give_each_tenant_what_the_plain_store_gives() {
    let server = RedisServer::start();
    let (plain, plain_calls) = replay(&server, "plain");
    let mut asked = BTreeMap::<u64, u64>::new();
    for tenant in traffic::recorded() {
        *asked.entry(tenant).or_default() += 1;
    }
    let expected = asked.iter().map(|(tenant, asked)| {
        let fit = CAPACITY / traffic::cost(*tenant);
        (*tenant, fit.min(*asked))
    });
    let expected: BTreeMap<_, _> = expected.collect();
    assert_eq!(plain, expected);
    assert!(plain != asked, "nobody asks for more than there is");

    for stage in ["denials", "coalesce", "both"] {
        let server = RedisServer::start();
        let (admitted, calls) = replay(&server, stage);
        assert_eq!(admitted, plain, "{stage}");
        assert!(
            calls < plain_calls,
            "{stage}: {calls} checks, {plain_calls} without"
        );
    }
    let server = RedisServer::start();
    assert_eq!(replay(&server, "shards").0, plain, "shards");
}

/// What is left of each bucket, as of the last write.
fn left(server: &RedisServer, tenant: u64) -> f64 {
    let key = format!("tg:{{tenant:{tenant}}}:default");
    let mut connection = server.connection();
    crate::support::state(&mut connection, &key).map_or(240.0, |(tokens, _)| tokens)
}

#[test]
fn leases_lose_and_invent_no_token_of_the_replayed_traffic() {
    let server = RedisServer::start();
    let (admitted, calls) = replay(&server, "leases");
    let plain = RedisServer::start();
    let (expected, plain_calls) = replay(&plain, "plain");
    for (tenant, plainly) in expected {
        let got = admitted.get(&tenant).copied().unwrap_or_default();
        assert!(got <= plainly, "tenant {tenant}: {got}, {plainly} plainly");
        // All was given back as the replicas shut down; seconds of refill at one token an hour.
        #[expect(clippy::cast_precision_loss, reason = "small numbers")]
        let sum = (got * traffic::cost(tenant)) as f64 + left(&server, tenant);
        let (least, most) = (240.0, 240.1);
        assert!(
            (least - 1e-6..most).contains(&sum),
            "tenant {tenant}: {sum}"
        );
    }
    assert!(calls < plain_calls, "{calls} checks, {plain_calls} without");
}

/// The bound of each exact stage on a bucket that refills, from above and below: what the plain store gives.
#[test]
fn exact_stages_spend_a_refilling_bucket_no_more_and_hardly_less() {
    const RATE: f64 = 200.0;
    for stage in ["denials", "coalesce", "both"] {
        let server = RedisServer::start();
        let mut fleet = fleet(&server, stage, &["100:200/s"]);
        let before = Instant::now();
        for replica in &mut fleet {
            replica.send("spend 2000");
        }
        let reports: Vec<Vec<f64>> = fleet
            .iter_mut()
            .map(|replica| {
                let answer = replica.answer();
                let numbers = answer.split_whitespace();
                numbers.map(|it| it.parse().expect("a number")).collect()
            })
            .collect();
        let span = before.elapsed().as_secs_f64();
        let admitted: f64 = reports.iter().map(|it| it[0]).sum();
        // One more millisecond, since a bucket tells time in whole ones.
        let most = 100.0 + RATE * (span + 0.001);
        assert!(admitted <= most, "{stage}: {admitted}, at most {most}");
        // What may be missing: half a second of a machine that had no time for anybody, and a token that was
        // not whole yet.
        let start = reports.iter().map(|it| it[1]).fold(f64::INFINITY, f64::min);
        let end = reports.iter().map(|it| it[2]).fold(0.0, f64::max);
        let least = 100.0 + RATE * ((end - start) / 1_000.0 - 0.5) - 1.0;
        assert!(admitted >= least, "{stage}: {admitted}, at least {least}");
    }
}

const SHARED: &str = "tg:{tenant:shared}:default";

/// Tokens that all replicas hold, when no claim is on its way.
fn hold(server: &RedisServer, fleet: &mut [Replica], capacity: u64) -> u64 {
    let mut allowed = 0;
    for replica in &mut *fleet {
        allowed += replica.number("hold 0");
    }
    let end = Instant::now() + Duration::from_secs(10);
    loop {
        let out: u64 = fleet.iter_mut().map(|it| it.number("leased")).sum();
        let state = crate::support::state(&mut server.connection(), SHARED);
        let (left, _) = state.expect("a bucket that was charged");
        #[expect(clippy::cast_precision_loss, reason = "small numbers")]
        if left.floor() == (capacity - allowed - out) as f64 {
            return out;
        }
        assert!(Instant::now() < end, "{allowed} + {out} + {left}");
        thread::sleep(Duration::from_millis(10));
    }
}

#[test]
fn leases_exceed_the_plain_bound_by_what_is_out_and_not_by_one_token_more_or_less() {
    let server = RedisServer::start();
    let mut fleet = fleet(&server, "leases", &["100:1/h"]);
    let out = hold(&server, &mut fleet, 100);
    assert!(out >= 3 * PROCESSES, "{out}");
    // The worst that can happen: the bucket fills up while they are out. No bucket is a full one.
    redis::cmd("DEL")
        .arg(SHARED)
        .exec(&mut server.connection())
        .expect("DEL");
    let mut spent = 0;
    for _ in 0..2 {
        for replica in &mut fleet {
            spent += replica.number("ask 0 150");
        }
    }
    assert_eq!(spent, 100 + out);
}

#[test]
fn a_quota_lowered_while_leases_are_out_is_not_exceeded_by_more_than_those() {
    let server = RedisServer::start();
    let mut fleet = fleet(&server, "leases", &["100:1/h", "20:1/h"]);
    let out = hold(&server, &mut fleet, 100);
    let mut spent = 0;
    for _ in 0..2 {
        for replica in &mut fleet {
            spent += replica.number("ask 1 50");
        }
    }
    assert!(
        (20..=20 + out).contains(&spent),
        "{spent} spent, {out} were leased"
    );
}

#[test]
fn a_split_tenant_of_several_processes_spends_its_capacity_and_not_one_token_more_or_less() {
    let server = RedisServer::start();
    let mut fleet = fleet(&server, "shards", &["243:1/h"]);
    for (i, replica) in fleet.iter_mut().enumerate() {
        replica.send(&format!("replay {i} {PROCESSES}"));
    }
    let mut admitted = 0;
    for replica in &mut fleet {
        let by_tenant: BTreeMap<u64, u64> = serde_json::from_str(&replica.answer()).expect("JSON");
        // This tenant's requests cost 1, and it asks for more than it has.
        admitted += by_tenant[&0];
    }
    assert_eq!(admitted, 243);
}

#[tokio::test]
async fn clones_of_a_layered_service_share_what_the_stages_know() {
    let server = RedisServer::start();
    let store = RedisStore::builder(&server.url()).strict(true);
    let limiter = Limiter::builder(store.connect().await.expect("a store"))
        .quotas(Quotas::new(Quota::new(1, "1/h").expect("a quota")))
        .deadline(Duration::from_secs(10))
        .on_store_failure(FailurePolicy::Closed)
        .build()
        .expect("a limiter");
    let layer = RateLimitLayer::new(limiter)
        .with_costs(RouteCosts::new())
        .expect("costs");
    let answer = |_: Request<Body>| async { Ok::<_, Infallible>(Response::new(Body::empty())) };
    // As a server does: one clone of the service for each connection, also of a layer that was cloned.
    let service = layer.layer(service_fn(answer));
    let connections = [
        service.clone(),
        service,
        layer.clone().layer(service_fn(answer)),
    ];
    let ask = async |connection: usize| {
        let mut request = Request::new(Body::empty());
        let tenant = Tenant::new("a", "pro").expect("an id");
        request.extensions_mut().insert(tenant);
        let answer = connections[connection].clone().oneshot(request).await;
        answer.expect("an answer").status()
    };
    let start = Instant::now();
    let before = server.calls("evalsha");
    assert_eq!(ask(0).await, StatusCode::OK);
    assert_eq!(ask(1).await, StatusCode::TOO_MANY_REQUESTS);
    for _ in 0..10 {
        for connection in 0..connections.len() {
            assert_eq!(ask(connection).await, StatusCode::TOO_MANY_REQUESTS);
        }
    }
    // A denial is known for a second; a machine may have stood still for longer.
    let seconds = start.elapsed().as_secs();
    let calls = server.calls("evalsha") - before;
    assert!((2..=2 + seconds).contains(&calls), "{calls} calls");
}
