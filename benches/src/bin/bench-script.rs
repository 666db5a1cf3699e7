//! What the script costs Redis: server time by `INFO commandstats`, bytes that are replicated, and memory.
//!
//! Ends with 1 if a target of `targets.toml` is missed twice in a row.

use std::process::ExitCode;

use tollgate_benches::{BoxError, Costs, Targets, Verdict, end_on_signals, machine};

const ROUNDS: usize = 151;

fn main() -> ExitCode {
    match measure() {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("bench-script: {error}");
            ExitCode::from(2)
        }
    }
}

/// Whether all targets were met.
fn measure() -> Result<bool, BoxError> {
    end_on_signals()?;
    let targets = Targets::read()?;
    let costs = Costs::measure(ROUNDS)?;
    println!(
        "Measured on {}; Redis {}. Medians of {ROUNDS} rounds of 100 pipelined calls each, in turns (least…most).",
        machine(),
        costs.redis
    );
    print!("{}", costs.markdown());
    let mut verdicts = costs.judge(&targets.script, false);
    if verdicts.iter().any(|it| !it.is_met) {
        let again = Costs::measure(ROUNDS)?.judge(&targets.script, true);
        Verdict::replace_missed(&mut verdicts, again);
    }
    print!("{}", Verdict::table(&verdicts));
    Ok(verdicts.iter().all(|it| it.is_met))
}
