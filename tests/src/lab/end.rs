//! How a lab ends before its time: without leaving anything.

use std::{
    io,
    process::{Child, Command, Stdio},
};

use tempfile::TempDir;
use tokio::{
    runtime::{Handle, Runtime},
    signal::unix::{SignalKind, signal},
};

use super::BoxError;

/// Removes a folder when standard input ends. Servers that are being killed may still write.
const REMOVE: &str = r#"
trap "" HUP INT TERM
read -r _
until rm -rf -- "$0"; do sleep 1; done
"#;

/// A folder that is removed with the value, or else when this program ends, however it does.
struct Folder {
    dir: TempDir,
    _watcher: Child,
}

// === impl Folder ===

impl Folder {
    fn new() -> io::Result<Self> {
        let dir = tempfile::tempdir()?;
        let watcher = Command::new("sh")
            .args(["-c", REMOVE])
            .arg(dir.path())
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()?;
        Ok(Self {
            dir,
            _watcher: watcher,
        })
    }
}

/// Does the work of a lab, once in a program, with all its temporary files in a folder of their own. SIGINT and
/// SIGTERM end it at once; the servers and replicas that it has started end with this program, and the folder is removed.
///
/// # Errors
///
/// Those of the work; and if it was interrupted, or panicked.
pub fn carry_out<T: Send + 'static>(
    work: impl FnOnce(&Handle) -> Result<T, BoxError> + Send + 'static,
) -> Result<T, BoxError> {
    let folder = Folder::new()?;
    tempfile::env::override_temp_dir(folder.dir.path()).map_err(|_| "a second lab")?;
    let runtime = Runtime::new()?;
    let handle = runtime.handle().clone();
    let work = runtime.spawn_blocking(move || work(&handle));
    let outcome = runtime.block_on(async {
        tokio::select! {
            outcome = work => outcome?,
            interrupted = interrupted() => Err(interrupted),
        }
    });
    // Work that was interrupted is not waited for.
    runtime.shutdown_background();
    outcome
}

async fn interrupted() -> BoxError {
    let signals = [SignalKind::interrupt(), SignalKind::terminate()].map(signal);
    let [Ok(mut interrupt), Ok(mut terminate)] = signals else {
        return "cannot wait for signals".into();
    };
    tokio::select! {
        _ = interrupt.recv() => {}
        _ = terminate.recv() => {}
    }
    "interrupted".into()
}
