//! The fault lab itself, on its quickest fault.

use std::process::Command;

#[test]
fn the_lab_finds_every_promise_kept_where_memory_is_full() {
    finds_every_promise_kept("fred");
}

#[test]
fn the_lab_tries_the_other_client_as_well() {
    finds_every_promise_kept("redis-rs");
}

fn finds_every_promise_kept(client: &str) {
    let output = Command::new(env!("CARGO_BIN_EXE_faults"))
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
fn the_lab_says_what_is_wrong_with_its_options() {
    for args in [
        &["--fault", "nonsense"][..],
        &["--policy", "nonsense"],
        &["--client", "nonsense"],
        &["--seconds", "0"],
        &["--nonsense"],
    ] {
        let output = Command::new(env!("CARGO_BIN_EXE_faults"))
            .args(args)
            .output()
            .expect("the lab");
        assert_eq!(output.status.code(), Some(2), "{args:?}");
        assert!(!output.stderr.is_empty(), "{args:?}");
    }
}

#[test]
fn the_failovers_say_what_is_wrong_with_their_options() {
    for args in [
        &["--only", "nonsense"][..],
        &["--client", "nonsense"],
        &["--soak", "10"],
        &["--seed", "x"],
        &["--nonsense"],
    ] {
        let output = Command::new(env!("CARGO_BIN_EXE_failovers"))
            .args(args)
            .output()
            .expect("the lab");
        assert_eq!(output.status.code(), Some(2), "{args:?}");
        assert!(!output.stderr.is_empty(), "{args:?}");
    }
}

#[test]
fn the_failovers_find_every_promise_kept_where_a_certificate_expires() {
    let output = Command::new(env!("CARGO_BIN_EXE_failovers"))
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
