//! Hands on which compiler this is built by, and for what.

use std::{env, process::Command};

fn main() {
    let [rustc, target] = ["RUSTC", "TARGET"].map(|it| env::var(it).expect("set by cargo"));
    let output = Command::new(rustc).arg("--version").output();
    let version = String::from_utf8(output.expect("a compiler").stdout).expect("a text");
    println!("cargo:rustc-env=COMPILER={}, {target}", version.trim());
    println!("cargo:rerun-if-changed=build.rs");
}
