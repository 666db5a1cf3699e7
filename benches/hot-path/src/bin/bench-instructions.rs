//! Instructions of a request on each way through the layer, by callgrind, beside those of the last release.
//!
//! `--store` writes them down, for a release. Ends with 1 if one is above 1.15 of what the same compiler made then.

use std::{
    collections::BTreeMap,
    env, fs,
    process::{Command, ExitCode},
};

use tollgate_hot_path::{BoxError, COMPILER, Way};

const STORED: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../instructions.toml");
const HEAD: &str = "# Instructions of one request on each way through the layer, the service's own taken off, at the last release, or, before there was one, when this was written.\n\
                    # Written by `just bench-instructions --store`. They depend on the compiler, so only those of the same are compared.\n\n";
const AT_MOST: f64 = 1.15;

/// `benches/instructions.toml`.
#[derive(serde::Deserialize)]
struct Stored {
    compiler: String,
    instructions: BTreeMap<String, f64>,
}

fn main() -> ExitCode {
    match measure() {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("bench-instructions: {error}");
            ExitCode::from(2)
        }
    }
}

fn measure() -> Result<bool, BoxError> {
    let mut all = BTreeMap::new();
    for way in Way::ALL {
        all.insert(way.name(), instructions(way)?);
    }
    let counted: BTreeMap<_, _> = Way::ALL
        .into_iter()
        .filter_map(|way| Some((way.name(), all[way.name()] - all[way.floor()?.name()])))
        .collect();
    if env::args().any(|arg| arg == "--store") {
        let lines = counted
            .iter()
            .map(|(way, count)| format!("{way} = {count:.0}\n"));
        let lines: String = lines.collect();
        let text = format!("{HEAD}compiler = \"{COMPILER}\"\n\n[instructions]\n{lines}");
        fs::write(STORED, text)?;
    }
    let stored: Stored = toml::from_str(&fs::read_to_string(STORED)?)?;
    let is_same = stored.compiler == COMPILER;
    println!(
        "| way through the layer | instructions | of the last release | |\n|---|---:|---:|---|"
    );
    let mut all_met = true;
    for (way, count) in counted {
        let Some(before) = stored.instructions.get(way) else {
            println!("| {way} | {count:.0} | | not stored |");
            continue;
        };
        let ratio = count / before;
        let word = match (is_same, ratio <= AT_MOST) {
            (false, _) => "of another compiler",
            (true, true) => "met",
            (true, false) => "**missed**",
        };
        all_met &= !is_same || ratio <= AT_MOST;
        println!("| {way} | {count:.0} | {ratio:.2} | {word} |");
    }
    if !is_same {
        println!(
            "\nNot judged: stored by {}, and this is {COMPILER}.",
            stored.compiler
        );
    }
    Ok(all_met)
}

/// By two runs of different lengths, so that the start does not count.
fn instructions(way: Way) -> Result<f64, BoxError> {
    const REQUESTS: u32 = 5_000;
    let [short, long] = [1_000, 1_000 + REQUESTS].map(|requests| run(way, requests));
    Ok((long? - short?) / f64::from(REQUESTS))
}

fn run(way: Way, requests: u32) -> Result<f64, BoxError> {
    let mut valgrind = Command::new("valgrind");
    valgrind
        .args(["--tool=callgrind", "--callgrind-out-file=/dev/null"])
        .arg(env::current_exe()?.with_file_name("bench-hot-path"))
        .args([way.name(), &requests.to_string()]);
    let output = valgrind.output().map_err(|error| {
        format!("`valgrind` counts (Debian, Ubuntu: apt-get install valgrind): {error}")
    })?;
    let words = String::from_utf8(output.stderr)?;
    let line = words
        .lines()
        .find_map(|line| line.split_once("Collected : "));
    let (_, count) = line.ok_or_else(|| words.clone())?;
    Ok(count.trim().parse()?)
}
