//! Several processes, one bucket.

use std::process::{Child, Command, Stdio};

use tollgate_tests::RedisServer;

const PROCESSES: usize = 3;
const CAPACITY: f64 = 200.0;
const RATE: f64 = 500.0;

struct Report {
    admitted: f64,
    start: f64,
    end: f64,
}

fn hammer(server: &RedisServer) -> Child {
    Command::new(env!("CARGO_BIN_EXE_hammer"))
        .args([
            server.url(),
            CAPACITY.to_string(),
            format!("{RATE}/s"),
            "3000".to_owned(),
        ])
        .stdout(Stdio::piped())
        .spawn()
        .expect("the hammer")
}

fn report(process: Child) -> Report {
    let output = process.wait_with_output().expect("our own child");
    assert!(
        output.status.success(),
        "a process failed; what it said stands above"
    );
    let text = String::from_utf8(output.stdout).expect("text");
    let numbers: Vec<f64> = text
        .split_whitespace()
        .map(|number| number.parse().expect("a number"))
        .collect();
    let [admitted, start, end] = numbers[..] else {
        panic!("three numbers: {text}");
    };
    Report {
        admitted,
        start,
        end,
    }
}

/// Redis's own clock, in seconds.
fn time(connection: &mut redis::Connection) -> f64 {
    let (seconds, micros): (f64, f64) = redis::cmd("TIME").query(connection).expect("TIME");
    seconds + micros / 1e6
}

#[test]
fn many_processes_spend_one_quota_no_more_and_hardly_less() {
    let server = RedisServer::start();
    let mut connection = server.connection();
    let before = time(&mut connection);
    let processes: Vec<_> = (0..PROCESSES).map(|_| hammer(&server)).collect();
    let reports: Vec<_> = processes.into_iter().map(report).collect();
    let span = time(&mut connection) - before;

    let admitted: f64 = reports.iter().map(|report| report.admitted).sum();
    // One more millisecond, since a bucket tells time in whole ones.
    let most = CAPACITY + RATE * (span + 0.001);
    assert!(
        admitted > 0.0 && admitted <= most,
        "{admitted} admitted, at most {most}"
    );

    // While at least one process asks, each token is taken soon after it is there: the spans of all
    // processes overlap, so all of it counts. What may be missing:
    // * 1 to 2 µs of refill for each admitted call (Redis up to 7.0 reads the clock for PTTL and SET one
    //   after the other); 5 µs make room for a slow machine;
    // * once in a while the machine takes the processor away between the two, and everybody's at the end:
    //   half a second of refill in all;
    // * one token that was not whole yet.
    let start = reports
        .iter()
        .map(|report| report.start)
        .fold(f64::INFINITY, f64::min);
    let end = reports.iter().map(|report| report.end).fold(0.0, f64::max);
    let slack = RATE * (admitted * 5e-6 + 0.5) + 1.0;
    let least = CAPACITY + RATE * (end - start) / 1_000.0 - slack;
    assert!(admitted >= least, "{admitted} admitted, at least {least}");
}
