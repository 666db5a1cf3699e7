//! Where a benchmark ran.

use std::{env, fs};

/// Processor, cores and kernel, in one line.
#[must_use]
pub fn machine() -> String {
    let info = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let mut models = info
        .lines()
        .filter_map(|line| line.strip_prefix("model name")?.split_once(':'))
        .map(|(_, name)| name.trim());
    let name = models.next().unwrap_or("an unknown processor").to_owned();
    let release = fs::read_to_string("/proc/sys/kernel/osrelease");
    let release = release.unwrap_or_else(|_| env::consts::OS.to_owned());
    format!(
        "{name}, {} cores; Linux {}",
        models.count() + 1,
        release.trim()
    )
}
