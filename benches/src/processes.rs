//! Processes that a benchmark starts, and what Linux says of them.

use std::{
    fs, io,
    process::{self, Child, Command},
    sync::{Mutex, PoisonError},
    thread,
    time::Duration,
};

use tokio::{
    runtime,
    signal::unix::{SignalKind, signal},
};

/// Those that still run.
static STARTED: Mutex<Vec<u32>> = Mutex::new(Vec::new());

/// One that is killed when dropped.
#[derive(Debug)]
pub struct Process(Child);

impl Process {
    /// # Errors
    ///
    /// If there is no such program.
    pub fn start(command: &mut Command) -> io::Result<Self> {
        let mut started = STARTED.lock().unwrap_or_else(PoisonError::into_inner);
        let child = command.spawn()?;
        started.push(child.id());
        Ok(Self(child))
    }

    /// Itself, for its pipes and how it ended.
    pub const fn child(&mut self) -> &mut Child {
        &mut self.0
    }

    #[must_use]
    pub fn id(&self) -> u32 {
        self.0.id()
    }

    /// The processor time that all its threads have used; to the nanosecond, where `stat` counts ticks.
    ///
    /// # Errors
    ///
    /// If it has ended.
    pub fn cpu(&self) -> io::Result<Duration> {
        let threads = fs::read_dir(format!("/proc/{}/task", self.id()))?;
        let nanos = threads.filter_map(|thread| {
            let stat = fs::read_to_string(thread.ok()?.path().join("schedstat")).ok()?;
            stat.split(' ').next()?.parse::<u64>().ok()
        });
        Ok(Duration::from_nanos(nanos.sum()))
    }

    /// Sends SIGINT.
    ///
    /// # Errors
    ///
    /// If there is no shell.
    pub fn interrupt(&self) -> io::Result<()> {
        send("INT", &[self.id()])
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // Errors mean that it has ended already.
        let _ = self.0.kill();
        let _ = self.0.wait();
        let mut started = STARTED.lock().unwrap_or_else(PoisonError::into_inner);
        started.retain(|id| *id != self.0.id());
    }
}

/// From now on, SIGINT, SIGTERM and SIGHUP end this process, with 130, and all that it has started.
///
/// # Errors
///
/// If signals cannot be waited for.
pub fn end_on_signals() -> io::Result<()> {
    let runtime = runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    let guard = runtime.enter();
    let mut interrupt = signal(SignalKind::interrupt())?;
    let mut terminate = signal(SignalKind::terminate())?;
    let mut hangup = signal(SignalKind::hangup())?;
    drop(guard);
    thread::spawn(move || {
        runtime.block_on(async {
            tokio::select! {
                _ = interrupt.recv() => (),
                _ = terminate.recv() => (),
                _ = hangup.recv() => (),
            }
        });
        // Held to the end, so that none is started any more.
        let started = STARTED.lock().unwrap_or_else(PoisonError::into_inner);
        if !started.is_empty() {
            let _ = send("KILL", &started);
        }
        process::exit(130);
    });
    Ok(())
}

/// Takes `unsafe` or another program, and every shell has `kill`.
fn send(signal: &str, ids: &[u32]) -> io::Result<()> {
    let ids: Vec<_> = ids.iter().map(ToString::to_string).collect();
    let kill = format!("kill -s {signal} {}", ids.join(" "));
    Command::new("sh").args(["-c", &kill]).status().map(drop)
}
