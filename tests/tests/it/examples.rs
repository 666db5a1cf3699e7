//! The examples do what they print.

use std::{
    fs,
    io::{BufRead, BufReader},
    net::TcpStream,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    thread::sleep,
    time::Duration,
};

use tempfile::TempDir;
use tollgate_tests::{PostgresServer, RedisServer};

use crate::support::{sh, until_gone};

/// An example, built by the same `cargo test` that built this test.
fn example(name: &str) -> Command {
    let test = std::env::current_exe().expect("this program");
    let target = test
        .parent()
        .and_then(|deps| deps.parent())
        .expect("target/<profile>/deps");
    let path: PathBuf = target.join("examples").join(name);
    assert!(
        path.exists(),
        "{} is not built: run `cargo build --examples`, or `cargo test --workspace`",
        path.display()
    );
    Command::new(path)
}

/// A process that does not outlive its test.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// The quickstart with these variables, and no others that it knows.
fn command(variables: &[(&str, &str)]) -> Command {
    let mut command = example("quickstart");
    for name in ["REDIS_URL", "LIMITS_FILE", "DATABASE_URL", "JWT_SECRET"] {
        command.env_remove(name);
    }
    command.env("LISTEN_ADDR", "127.0.0.1:0");
    command.envs(variables.iter().copied());
    command
}

/// Starts the quickstart and returns the `curl` lines that it prints, free tier first.
fn quickstart(variables: &[(&str, &str)]) -> (Running, Vec<String>) {
    let mut child = command(variables)
        .stdout(Stdio::piped())
        .spawn()
        .expect("the quickstart");
    let output = BufReader::new(child.stdout.take().expect("its output"));
    let running = Running(child);
    let lines = output.lines().map(|line| line.expect("UTF-8"));
    let curls = lines
        .filter(|line| line.starts_with("curl "))
        .take(2)
        .collect();
    (running, curls)
}

#[test]
fn the_printed_curl_lines_show_200s_and_then_a_429() {
    let (_quickstart, curls) = quickstart(&[]);
    for (curl, capacity) in curls.iter().zip([20, 200]) {
        // Each takes 10 of the capacity.
        for _ in 0..capacity / 10 {
            let answer = sh(curl);
            assert!(answer.starts_with("http/1.1 200 ok"), "{answer}");
            assert!(
                answer.contains(&format!("x-ratelimit-limit: {capacity}")),
                "{answer}"
            );
            assert!(answer.contains("ratelimit: \"default\";r="), "{answer}");
        }
        let mut answers = (0..capacity).map(|_| sh(curl));
        let denied = answers
            .find(|answer| answer.starts_with("http/1.1 429"))
            .expect("a 429");
        assert!(
            denied.contains("retry-after: ")
                && denied.contains("\"violated-policies\":[\"default\"]"),
            "{denied}"
        );
    }

    let plain = curls[0]
        .split("http://")
        .nth(1)
        .expect("an address")
        .split('/')
        .next()
        .expect("an address");
    assert!(sh(&format!("curl -si http://{plain}/items")).starts_with("http/1.1 401"));
    assert!(
        sh(&format!(
            "curl -si -H 'Authorization: Bearer x' http://{plain}/items"
        ))
        .starts_with("http/1.1 401")
    );
    assert!(sh(&format!("curl -si http://{plain}/healthz")).starts_with("http/1.1 200"));
    let metrics = sh(&format!("curl -s http://{plain}/metrics"));
    assert!(
        metrics.contains(r#"ratelimit_decisions_total{key_class="free",outcome="allowed"}"#),
        "{metrics}"
    );
}

#[test]
fn two_quickstarts_on_one_redis_share_the_limit() {
    let redis = RedisServer::start();
    let (_one, one) = quickstart(&[("REDIS_URL", &redis.url())]);
    let (_two, two) = quickstart(&[("REDIS_URL", &redis.url())]);
    // 20 tokens, 10 a time, 2 a second back: the third within 5 s does not fit.
    let statuses: Vec<_> = [&one, &two, &one]
        .iter()
        .map(|curls| sh(&curls[0])[9..12].to_owned())
        .collect();
    assert_eq!(statuses, ["200", "200", "429"]);
}

/// Asks until the answer is from a bucket of this capacity.
fn wait_for_capacity(curl: &str, capacity: u64) {
    let header = format!("x-ratelimit-limit: {capacity}\r\n");
    for _ in 0..400 {
        if sh(curl).contains(&header) {
            return;
        }
        sleep(Duration::from_millis(50));
    }
    panic!("still not {header}: {}", sh(curl));
}

#[test]
fn the_quickstart_takes_limits_from_a_file_and_sees_it_change() {
    let dir = tempfile::tempdir().expect("a temporary folder");
    let file = dir.path().join("limits.toml");
    let write = |capacity: u64| {
        let text = format!(
            "[limits.default]\nquota = \"30/s\"\n[tiers.pro]\ndefault = {{ capacity = {capacity}, rate = \"30/s\" }}\n"
        );
        fs::write(&file, text).expect("written");
    };
    write(300);
    let (_quickstart, curls) = quickstart(&[("LIMITS_FILE", file.to_str().expect("UTF-8"))]);
    for (curl, capacity) in curls.iter().zip([30, 300]) {
        let answer = sh(curl);
        assert!(
            answer.contains(&format!("x-ratelimit-limit: {capacity}\r\n")),
            "{answer}"
        );
    }
    write(400);
    wait_for_capacity(&curls[1], 400);
}

#[test]
fn the_quickstart_runs_with_the_file_that_shows_every_field() {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../examples/limits.toml");
    let (_quickstart, curls) = quickstart(&[("LIMITS_FILE", file.to_str().expect("UTF-8"))]);
    let answer = sh(&curls[1]);
    // Of the 200 of the tier, this region has 0.4.
    assert!(
        answer.contains("ratelimit-policy: \"default\";q=80;w=4"),
        "{answer}"
    );
}

#[test]
fn the_quickstart_asks_a_database() {
    let postgres = PostgresServer::start();
    let schema = "../crates/tollgate-quota/migrations/0001_tollgate.sql";
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(schema);
    postgres.run_file(&path).expect("the schema applies");
    let (_quickstart, curls) = quickstart(&[("DATABASE_URL", &postgres.url())]);
    wait_for_capacity(&curls[0], 20);
    postgres
        .run("INSERT INTO tollgate_tenants (tenant, tier) VALUES ('acme-free', 'pro')")
        .expect("a row");
    wait_for_capacity(&curls[0], 200);
}

#[test]
fn the_quickstart_says_in_one_line_what_is_wrong_with_its_variables() {
    let dir = tempfile::tempdir().expect("a temporary folder");
    let bad = dir.path().join("bad.toml");
    fs::write(&bad, "[limits.default]\nquota = \"0/s\"\n").expect("written");
    let missing = dir.path().join("missing.toml");
    let text = |path: &Path| path.to_str().expect("UTF-8").to_owned();
    for (name, value, expected) in [
        (
            "LIMITS_FILE",
            text(&bad),
            "bad.toml:2:9: limits.default.quota: ",
        ),
        (
            "LIMITS_FILE",
            text(&missing),
            "missing.toml: cannot be read: ",
        ),
        ("DATABASE_URL", "mysql://x".to_owned(), "postgres://"),
        ("REDIS_URL", "http://x".to_owned(), "redis://"),
        (
            "LISTEN_ADDR",
            "nowhere".to_owned(),
            "cannot listen on nowhere",
        ),
    ] {
        let output = command(&[(name, &value)]).output().expect("the quickstart");
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{said}");
        let lines: Vec<_> = said.lines().collect();
        let [line] = lines[..] else {
            panic!("one line: {said}");
        };
        assert!(
            line.starts_with("quickstart: ") && line.contains(name) && line.contains(expected),
            "{line}"
        );
    }
}

#[test]
fn the_quickstart_stops_by_itself_when_it_is_told_to() {
    for signal in ["TERM", "INT"] {
        let (mut quickstart, curls) = quickstart(&[]);
        assert!(sh(&curls[0]).starts_with("http/1.1 200"));
        sh(&format!("kill -s {signal} {}", quickstart.0.id()));
        let status = quickstart.0.wait().expect("our own child");
        assert_eq!(status.code(), Some(0), "{signal}");
    }
}

#[test]
fn the_fleet_holds_every_bound() {
    let output = example("fleet")
        .args(["--replicas", "5", "--seconds", "4", "--json"])
        .env_remove("REDIS_URL")
        .output()
        .expect("the fleet");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(
        output.status.success(),
        "{said}\n{}",
        String::from_utf8_lossy(&output.stdout)
    );
    let report: serde_json::Value = serde_json::from_slice(&output.stdout).expect("JSON");
    let tenants = report["tenants"].as_array().expect("rows");
    assert_eq!(tenants.len(), 3);
    for row in tenants {
        assert_eq!(row["held"], true, "{row}");
        assert!(row["admitted"].as_u64().expect("a number") > 0, "{row}");
    }
    assert!(said.contains("5 replicas"), "it shows progress: {said}");
}

/// The demonstration on a topology that it starts itself, with its files in `dir`.
fn fleet_on(topology: &str, seconds: &str, dir: &TempDir) -> Child {
    // Whoever runs the tests may ignore SIGHUP, as under nohup.
    let mut command = Command::new("env");
    command
        .arg("--default-signal=HUP")
        .arg(example("fleet").get_program())
        .args(["--topology", topology, "--replicas", "3"])
        .args(["--seconds", seconds, "--json"])
        .env_remove("REDIS_URL")
        .env("TMPDIR", dir.path())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    command.spawn().expect("the fleet")
}

/// Its first line tells where Redis is.
fn addresses(said: &str) -> impl Iterator<Item = &str> {
    let (_, rest) = said.split_once("://").expect("a URL");
    let addresses = rest.split([' ', '/']).next().expect("addresses");
    addresses.trim_end_matches(',').split(',')
}

/// Nobody listens there any more, and no file is left.
fn assert_nothing_is_left(said: &str, dir: &TempDir) {
    for address in addresses(said) {
        assert!(TcpStream::connect(address).is_err(), "{address} is left");
    }
    let mut files = fs::read_dir(dir.path()).expect("the folder");
    assert!(files.next().is_none(), "a file is left");
}

#[test]
fn the_fleet_holds_every_bound_on_every_topology() {
    for (topology, scheme) in [
        ("cluster", "redis-cluster://"),
        ("sentinel", "redis-sentinel://"),
        ("tls", "rediss://"),
    ] {
        let dir = tempfile::tempdir().expect("a temporary folder");
        let fleet = fleet_on(topology, "2", &dir);
        let output = fleet.wait_with_output().expect("our own child");
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{topology}: {said}");
        assert!(said.contains(scheme), "{said}");
        let report: serde_json::Value = serde_json::from_slice(&output.stdout).expect("JSON");
        for row in report["tenants"].as_array().expect("rows") {
            assert_eq!(row["held"], true, "{topology}: {row}");
        }
        assert_nothing_is_left(&said, &dir);
    }
}

/// What a fleet says once it is complete, and what it goes on to say.
fn first_line(fleet: &mut Running) -> (String, impl Iterator<Item = String> + use<>) {
    let output = BufReader::new(fleet.0.stderr.take().expect("its progress"));
    let mut lines = output.lines().map(|line| line.expect("UTF-8"));
    let first = lines.find(|line| line.starts_with("Redis at "));
    (first.expect("it goes on"), lines)
}

#[test]
fn the_fleet_takes_its_servers_with_it_when_it_is_told_to_stop() {
    for (topology, signal) in [("cluster", "INT"), ("sentinel", "TERM")] {
        let dir = tempfile::tempdir().expect("a temporary folder");
        let mut fleet = Running(fleet_on(topology, "60", &dir));
        let (said, _more) = first_line(&mut fleet);
        sh(&format!("kill -s {signal} {}", fleet.0.id()));
        let status = fleet.0.wait().expect("our own child");
        assert_eq!(status.code(), Some(2), "{topology}");
        assert_nothing_is_left(&said, &dir);
    }
}

#[test]
fn no_server_outlives_a_fleet_that_is_killed() {
    for signal in ["KILL", "HUP"] {
        let dir = tempfile::tempdir().expect("a temporary folder");
        let mut fleet = Running(fleet_on("cluster", "60", &dir));
        let (said, _more) = first_line(&mut fleet);
        sh(&format!("kill -s {signal} {}", fleet.0.id()));
        fleet.0.wait().expect("our own child");
        for address in addresses(&said) {
            until_gone(address, || TcpStream::connect(address).is_ok());
        }
    }
}

#[test]
fn the_fleet_says_what_to_install() {
    let output = example("fleet")
        .args(["--topology", "sentinel"])
        .env_remove("REDIS_URL")
        .env("PATH", "/nowhere")
        .output()
        .expect("the fleet");
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{said}");
    assert!(said.contains("apt-get install redis-server"), "{said}");
}

#[test]
fn the_fleet_says_what_is_wrong_with_its_options() {
    for (args, expected) in [
        (&["--replicas", "0"][..], "--replicas must be from 1 to 100"),
        (&["--seconds", "x"], "x"),
        (&["--topology", "ring"], "single, cluster, sentinel and tls"),
        (&["--frobnicate"], "see --help"),
    ] {
        let output = example("fleet").args(args).output().expect("the fleet");
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{said}");
        assert!(said.contains(expected), "{said}");
    }
}
