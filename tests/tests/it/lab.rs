//! The labs themselves, on their quickest faults.

use std::{
    fs,
    io::{BufRead, BufReader},
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use crate::support::{sh, until_gone};

const FAULTS: &str = env!("CARGO_BIN_EXE_faults");
const FAILOVERS: &str = env!("CARGO_BIN_EXE_failovers");

#[test]
fn the_lab_finds_every_promise_kept_where_memory_is_full() {
    finds_every_promise_kept("fred");
}

#[test]
fn the_lab_tries_the_other_client_as_well() {
    finds_every_promise_kept("redis-rs");
}

fn finds_every_promise_kept(client: &str) {
    let output = Command::new(FAULTS)
        .args([
            "--fault",
            "full",
            "--policy",
            "local",
            "--seconds",
            "2",
            "--json",
            "--client",
            client,
        ])
        .output()
        .expect("the lab");
    let told = String::from_utf8_lossy(&output.stdout);
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{told}\n{said}");
    let report: serde_json::Value = serde_json::from_slice(&output.stdout).expect("JSON");
    assert!(report.to_string().contains("\"full\""), "{told}");
}

#[test]
fn the_labs_say_what_is_wrong_with_their_options() {
    for (program, args) in [
        (FAULTS, &["--fault", "nonsense"][..]),
        (FAULTS, &["--policy", "nonsense"]),
        (FAULTS, &["--client", "nonsense"]),
        (FAULTS, &["--seconds", "0"]),
        (FAULTS, &["--nonsense"]),
        (FAILOVERS, &["--only", "nonsense"]),
        (FAILOVERS, &["--client", "nonsense"]),
        (FAILOVERS, &["--soak", "10"]),
        (FAILOVERS, &["--soak", "0s"]),
        (FAILOVERS, &["--soak=0m"]),
        (FAILOVERS, &["--seed", "x"]),
        (FAILOVERS, &["--nonsense"]),
    ] {
        let output = Command::new(program).args(args).output().expect("the lab");
        assert_eq!(output.status.code(), Some(2), "{program} {args:?}");
        assert!(!output.stderr.is_empty(), "{program} {args:?}");
    }
}

#[test]
fn the_failovers_find_every_promise_kept_where_a_certificate_expires() {
    let output = Command::new(FAILOVERS)
        .args(["--only", "tls: certificate", "--client", "redis-rs"])
        .output()
        .expect("the lab");
    let told = String::from_utf8_lossy(&output.stdout);
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{told}\n{said}");
    let row = told.lines().last().expect("a row");
    assert!(row.starts_with("| tls: certificate expired"), "{told}");
    // The same table as in the document.
    let header = told.lines().find(|line| line.starts_with("| what"));
    let page = include_str!("../../../docs/topologies.md");
    assert!(page.contains(header.expect("a header")), "{told}");
}

/// A program to be started in place of `redis-server`: the same, but `pids` tells the processes.
fn recorded(dir: &Path) -> PathBuf {
    let program = dir.join("server");
    let pids = dir.join("pids");
    let text = format!(
        "#!/bin/sh\necho $$ >>'{}'\nexec redis-server \"$@\"\n",
        pids.display()
    );
    fs::write(&program, text).expect("written");
    sh(&format!("chmod +x '{}'", program.display()));
    program
}

/// Whether a process is there. One that has ended may still be waiting for a parent to notice.
fn is_running(pid: &str) -> bool {
    let look = format!("! grep -q ') Z ' /proc/{pid}/stat && kill -s 0 {pid}");
    let look = Command::new("sh")
        .args(["-c", &look])
        .stderr(Stdio::null())
        .status();
    look.expect("a shell").success()
}

#[test]
fn the_failovers_take_everything_with_them_however_they_end() {
    for (signal, only, servers, code) in [
        ("TERM", "cluster: none", 6, Some(2)),
        ("INT", "sentinel: none", 6, Some(2)),
        ("HUP", "tls: none", 1, None),
        ("KILL", "cluster: primary frozen", 6, None),
    ] {
        let dir = tempfile::tempdir().expect("a temporary folder");
        let files = dir.path().join("files");
        fs::create_dir(&files).expect("a folder");
        // Whoever runs the tests may ignore SIGHUP, as under nohup.
        let mut lab = Command::new("env")
            .arg("--default-signal=HUP")
            .arg(FAILOVERS)
            .args(["--only", only])
            .env("TOLLGATE_TEST_SERVER", recorded(dir.path()))
            .env("TMPDIR", &files)
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .expect("the lab");
        let said = BufReader::new(lab.stderr.take().expect("its progress"));
        let mut lines = said.lines().map(|line| line.expect("UTF-8"));
        let last = if signal == "KILL" {
            "  primary frozen"
        } else {
            "  calm"
        };
        assert!(lines.any(|line| line == last), "{only}: it ended");
        sh(&format!("kill -s {signal} {}", lab.id()));
        let status = lab.wait().expect("our own child");
        assert_eq!(status.code(), code, "{signal}");
        let pids = fs::read_to_string(dir.path().join("pids")).expect("the processes");
        // The first one was asked for its version.
        assert!(pids.lines().count() > servers, "{only}: {pids}");
        for pid in pids.lines() {
            until_gone(pid, || is_running(pid));
        }
        until_gone("a file", || {
            fs::read_dir(&files).expect("the folder").next().is_some()
        });
    }
}

#[test]
fn the_regions_say_what_is_wrong_with_their_options() {
    for (args, code, expected) in [
        (&["--help"][..], 0, "Usage: "),
        (&["--bogus"], 2, "--bogus"),
        (&["bogus"], 2, "see --help"),
    ] {
        let output = Command::new(env!("CARGO_BIN_EXE_regions"))
            .args(args)
            .output()
            .expect("the simulation");
        assert_eq!(output.status.code(), Some(code), "{args:?}");
        let said = if code == 0 {
            output.stdout
        } else {
            output.stderr
        };
        let said = String::from_utf8_lossy(&said);
        assert!(said.contains(expected), "{args:?}: {said}");
    }
}
