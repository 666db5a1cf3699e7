//! What Linux says of other processes.

use std::{fs, io, process::Command, time::Duration};

/// The processor time that all threads of a process have used; to the nanosecond, where `stat` counts ticks.
///
/// # Errors
///
/// If there is no such process.
pub fn cpu(process: u32) -> io::Result<Duration> {
    let threads = fs::read_dir(format!("/proc/{process}/task"))?;
    let nanos = threads.filter_map(|thread| {
        let stat = fs::read_to_string(thread.ok()?.path().join("schedstat")).ok()?;
        stat.split(' ').next()?.parse::<u64>().ok()
    });
    Ok(Duration::from_nanos(nanos.sum()))
}

/// Sends SIGINT. That takes `unsafe` or another program; every shell has `kill`.
///
/// # Errors
///
/// If there is no shell.
pub fn interrupt(process: u32) -> io::Result<()> {
    let kill = format!("kill -s INT {process}");
    Command::new("sh").args(["-c", &kill]).status().map(drop)
}
