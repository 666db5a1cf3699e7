//! Processes of `redis-server`.

use std::{
    fs,
    io::{BufRead, BufReader, Read, Write},
    net::{Ipv4Addr, TcpListener, TcpStream},
    path::PathBuf,
    process::{Child, Command, Stdio},
    thread,
    time::Duration,
};

use tempfile::TempDir;

use crate::BoxError;

/// Becomes the server, and leaves one behind that kills it when standard input ends: so no server outlives the
/// demonstration, even if that is killed. A closed terminal, or Ctrl-C, is not to end the watcher first.
const TIED: &str = r#"
exec 3<&0
{ trap "" HUP INT TERM; read -r _ <&3; kill -9 $$; } >/dev/null 2>&1 &
exec "$@" 3<&- </dev/null
"#;

/// Servers of our own on free ports, and a folder for their files; all of it ends with this value.
#[derive(Debug)]
pub(crate) struct Servers {
    processes: Vec<Child>,
    dir: TempDir,
}

impl Servers {
    pub(crate) fn new() -> Result<Self, BoxError> {
        let version = Command::new("redis-server").arg("--version").output();
        version.map_err(|error| {
            format!(
                "cannot start `redis-server`: {error}\nInstall it (Debian and Ubuntu: apt-get install redis-server; \
                 macOS: brew install redis), or set REDIS_URL to one that runs."
            )
        })?;
        Ok(Self {
            processes: Vec::new(),
            dir: tempfile::tempdir()?,
        })
    }

    /// A file in the folder.
    pub(crate) fn file(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// Writes such a file.
    pub(crate) fn write(&self, name: &str, text: &str) -> Result<(), BoxError> {
        Ok(fs::write(self.file(name), text)?)
    }

    /// Starts a server that listens on `port`.
    pub(crate) fn start(&mut self, port: u16, args: &[&str]) -> Result<(), BoxError> {
        let process = Command::new("sh")
            .args(["-c", TIED, "sh", "redis-server"])
            .args(args)
            .current_dir(self.dir.path())
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .spawn()?;
        self.processes.push(process);
        until("redis-server answers", || {
            TcpStream::connect((Ipv4Addr::LOCALHOST, port)).is_ok()
        })
    }
}

impl Drop for Servers {
    fn drop(&mut self) {
        for process in &mut self.processes {
            // An error means that it has ended already.
            let _ = process.kill();
            let _ = process.wait();
        }
    }
}

/// What a server answers to a command, if that is a text or a status.
pub(crate) fn ask(port: u16, command: &str) -> Result<String, BoxError> {
    let mut stream = TcpStream::connect((Ipv4Addr::LOCALHOST, port))?;
    stream.set_read_timeout(Some(Duration::from_secs(5)))?;
    write!(stream, "{command}\r\n")?;
    let mut reader = BufReader::new(stream);
    let mut answer = String::new();
    reader.read_line(&mut answer)?;
    if let Some(error) = answer.strip_prefix('-') {
        return Err(format!("redis-server refuses {command}: {error}").into());
    }
    if let Some(length) = answer.strip_prefix('$') {
        let mut bytes = vec![0; length.trim().parse()?];
        reader.read_exact(&mut bytes)?;
        answer = String::from_utf8(bytes)?;
    }
    Ok(answer)
}

/// Waits for what takes others a moment.
pub(crate) fn until(what: &str, mut holds: impl FnMut() -> bool) -> Result<(), BoxError> {
    for _ in 0..1_000 {
        if holds() {
            return Ok(());
        }
        thread::sleep(Duration::from_millis(10));
    }
    Err(format!("not within 10 s: {what}").into())
}

pub(crate) fn free_port() -> Result<u16, BoxError> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
    Ok(listener.local_addr()?.port())
}
