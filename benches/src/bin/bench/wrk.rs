//! The load, from a process of its own.

use std::{
    io::{BufRead, BufReader, ErrorKind, Read},
    process::{Command, Stdio},
    thread,
    time::Duration,
};

use serde::Deserialize;
use tollgate_benches::{BoxError, Process};

use crate::loads::Load;

/// What wrk has seen. Latencies in microseconds.
#[derive(Deserialize)]
pub(crate) struct Seen {
    pub(crate) requests: f64,
    pub(crate) micros: f64,
    /// Answers with another status than 2xx and 3xx.
    pub(crate) not_ok: f64,
    /// Requests without an answer.
    pub(crate) failed: f64,
    pub(crate) p50: f64,
    pub(crate) p90: f64,
    pub(crate) p99: f64,
    pub(crate) p999: f64,
}

const MISSING: &str = "`wrk` makes the load and is not in the PATH (Debian, Ubuntu: apt-get install wrk; macOS: brew install wrk)";

/// What it calls itself.
pub(crate) fn version() -> Result<String, BoxError> {
    // It has no way to ask for the version that succeeds.
    let output = Command::new("wrk").arg("-v").output().map_err(explain)?;
    let words = [output.stdout, output.stderr].concat();
    let words = String::from_utf8_lossy(&words).into_owned();
    let line = words.lines().next().unwrap_or("wrk");
    Ok(line.split(" Copyright").next().unwrap_or(line).to_owned())
}

/// For so long from its first request on.
pub(crate) fn run(load: &Load, port: u16, length: Duration) -> Result<Seen, BoxError> {
    let url = format!("http://127.0.0.1:{port}/");
    let (connections, tenants) = (load.connections.to_string(), load.tenants.to_string());
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/load.lua");
    // It counts in whole seconds; it is interrupted when its time is over.
    let mut command = Command::new("wrk");
    command
        .args(["-t1", "-d60s", "-c", &connections, "-s", script, &url, "--"])
        .args([load.shape, &tenants, "0.99"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    let mut process = Process::start(&mut command).map_err(explain)?;
    let stdout = process.child().stdout.take().ok_or("its output")?;
    let (mut output, mut said) = (BufReader::new(stdout), String::new());
    while !said.ends_with("ready\n") {
        if output.read_line(&mut said)? == 0 {
            let mut why = String::new();
            if let Some(mut stderr) = process.child().stderr.take() {
                stderr.read_to_string(&mut why)?;
            }
            return Err(format!("wrk did not start: {}", why.trim()).into());
        }
    }
    thread::sleep(length);
    process.interrupt()?;
    output.read_to_string(&mut said)?;
    let line = said.lines().find(|line| line.starts_with('{'));
    let line = line.ok_or_else(|| format!("wrk has no result: {}", said.trim()))?;
    Ok(serde_json::from_str(line)?)
}

fn explain(error: std::io::Error) -> BoxError {
    match error.kind() {
        ErrorKind::NotFound => MISSING.into(),
        _ => error.into(),
    }
}
