//! The examples do what they print.

use std::{
    io::{BufRead, BufReader},
    path::PathBuf,
    process::{Child, Command, Stdio},
};

use tollgate_tests::RedisServer;

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

/// Starts the quickstart and returns the `curl` lines that it prints, free tier first.
fn quickstart(redis: Option<&str>) -> (Running, Vec<String>) {
    let mut command = example("quickstart");
    command
        .env("LISTEN_ADDR", "127.0.0.1:0")
        .env_remove("REDIS_URL")
        .env_remove("JWT_SECRET");
    command.envs(redis.map(|url| ("REDIS_URL", url)));
    let mut child = command
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

fn sh(line: &str) -> String {
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

#[test]
fn the_printed_curl_lines_show_200s_and_then_a_429() {
    let (_quickstart, curls) = quickstart(None);
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
    let (_one, one) = quickstart(Some(&redis.url()));
    let (_two, two) = quickstart(Some(&redis.url()));
    // 20 tokens, 10 a time, 2 a second back: the third within 5 s does not fit.
    let statuses: Vec<_> = [&one, &two, &one]
        .iter()
        .map(|curls| sh(&curls[0])[9..12].to_owned())
        .collect();
    assert_eq!(statuses, ["200", "200", "429"]);
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

#[test]
fn the_fleet_says_what_is_wrong_with_its_options() {
    for (args, expected) in [
        (&["--replicas", "0"][..], "--replicas must be from 1 to 100"),
        (&["--seconds", "x"], "x"),
        (&["--frobnicate"], "see --help"),
    ] {
        let output = example("fleet").args(args).output().expect("the fleet");
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{said}");
        assert!(said.contains(expected), "{said}");
    }
}
