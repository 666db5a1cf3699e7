//! The load, from a process of its own.

use std::{
    io::ErrorKind,
    process::{Command, Stdio},
    thread,
    time::Duration,
};

use serde::Deserialize;
use tollgate_benches::{BoxError, interrupt};

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

pub(crate) fn run(load: &Load, port: u16, length: Duration) -> Result<Seen, BoxError> {
    let url = format!("http://127.0.0.1:{port}/");
    let (connections, tenants) = (load.connections.to_string(), load.tenants.to_string());
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/load.lua");
    // It counts in whole seconds; it is interrupted when its time is over.
    let mut command = Command::new("wrk");
    command
        .args(["-t1", "-d60s", "-c", &connections, "-s", script, &url, "--"])
        .args([load.shape, &tenants, "0.99"])
        .stdout(Stdio::piped());
    let process = command.spawn().map_err(explain)?;
    thread::sleep(length);
    interrupt(process.id())?;
    let output = String::from_utf8(process.wait_with_output()?.stdout)?;
    let line = output.lines().find(|line| line.starts_with('{'));
    Ok(serde_json::from_str(line.ok_or("wrk has no result")?)?)
}

fn explain(error: std::io::Error) -> BoxError {
    match error.kind() {
        ErrorKind::NotFound => MISSING.into(),
        _ => error.into(),
    }
}
