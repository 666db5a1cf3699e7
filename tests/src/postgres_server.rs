//! A Postgres of the test's own.

use std::{
    fs,
    os::unix::{fs::chown, process::CommandExt},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    thread,
    time::Duration,
};

use tempfile::TempDir;

use crate::free_port;

/// Everybody may come, but `guarded` has to know the password `secret`.
const ACCESS: &str =
    "host all guarded 127.0.0.1/32 scram-sha-256\nhost all all 127.0.0.1/32 trust\n";

/// A `postgres` on a free port of loopback, with an empty database, that does not wait for disks; killed when
/// dropped.
#[derive(Debug)]
pub struct PostgresServer {
    process: Child,
    port: u16,
    dir: TempDir,
}

impl PostgresServer {
    /// Starts a server.
    ///
    /// # Panics
    ///
    /// If there is no Postgres to start, or it does not come up within 20 s.
    #[must_use]
    pub fn start() -> Self {
        let dir = tempfile::tempdir().expect("a temporary folder");
        if let Some(user) = other_user() {
            chown(dir.path(), Some(user), None).expect("we are root");
        }
        let made = command("initdb")
            .args([
                "--username=postgres",
                "--auth=trust",
                "--encoding=UTF8",
                "--no-locale",
                "--no-sync",
                "-D",
            ])
            .arg(data(&dir))
            .output()
            .expect("`initdb`");
        assert!(
            made.status.success(),
            "{}",
            String::from_utf8_lossy(&made.stderr)
        );
        fs::write(data(&dir).join("pg_hba.conf"), ACCESS).expect("a file");
        // Another process may take the port between our look and the server's bind; then try another.
        let port = free_port();
        let mut server = Self {
            process: spawn(port, &dir),
            port,
            dir,
        };
        for _ in 0..10 {
            if server.answers() {
                return server;
            }
            server.kill();
            server.port = free_port();
            server.process = spawn(server.port, &server.dir);
        }
        panic!("postgres did not start: {}", log(&server.dir));
    }

    /// The port it listens on.
    #[must_use]
    pub const fn port(&self) -> u16 {
        self.port
    }

    /// Where its database is, for its superuser.
    #[must_use]
    pub fn url(&self) -> String {
        Self::url_on(self.port)
    }

    /// The same behind a proxy on `port`.
    #[must_use]
    pub fn url_on(port: u16) -> String {
        format!("postgres://postgres@127.0.0.1:{port}/postgres?sslmode=disable")
    }

    /// Runs statements in one transaction, as `psql` does, and returns what they print: fields between `|`.
    ///
    /// # Errors
    ///
    /// What Postgres says against them.
    ///
    /// # Panics
    ///
    /// If there is no `psql`.
    pub fn run(&self, sql: &str) -> Result<String, String> {
        self.psql(&["-c", sql])
    }

    /// Runs a file of statements in one transaction.
    ///
    /// # Errors
    ///
    /// What Postgres says against them.
    ///
    /// # Panics
    ///
    /// If there is no `psql`.
    pub fn run_file(&self, path: &Path) -> Result<String, String> {
        self.psql(&["-f", path.to_str().expect("UTF-8")])
    }

    fn psql(&self, args: &[&str]) -> Result<String, String> {
        let done = Command::new(program("psql"))
            .arg(self.url())
            .args([
                "-X",
                "-q",
                "-A",
                "-t",
                "-v",
                "ON_ERROR_STOP=1",
                "--single-transaction",
            ])
            .args(args)
            .output()
            .expect("`psql`");
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).trim().to_owned();
        if done.status.success() {
            Ok(text(&done.stdout))
        } else {
            Err(text(&done.stderr))
        }
    }

    /// Ends the server at once, as in a crash. The port is free afterwards.
    ///
    /// # Panics
    ///
    /// If the process cannot be waited for.
    pub fn kill(&mut self) {
        // By SIGQUIT, upon which it takes its own processes along; SIGKILL would leave them.
        if matches!(self.process.try_wait(), Ok(None)) {
            let quit = format!("kill -s QUIT {}", self.process.id());
            let sent = Command::new("sh").args(["-c", &quit]).status();
            assert!(sent.expect("a shell").success(), "no process to signal");
        }
        self.process.wait().expect("our own child");
    }

    /// Starts it again on the same port with what it had, after [`kill`](Self::kill).
    ///
    /// # Panics
    ///
    /// If it does not come up within 20 s.
    pub fn restart(&mut self) {
        self.kill();
        self.process = spawn(self.port, &self.dir);
        assert!(
            self.answers(),
            "postgres did not come back: {}",
            log(&self.dir)
        );
    }

    /// Waits until it is ready; false if it ended instead.
    fn answers(&mut self) -> bool {
        for _ in 0..2_000 {
            if self.process.try_wait().expect("our own child").is_some() {
                return false;
            }
            // Its last line tells the state of the process whose id is in the first.
            let state =
                fs::read_to_string(data(&self.dir).join("postmaster.pid")).unwrap_or_default();
            let ours = state.lines().next() == Some(&self.process.id().to_string());
            if ours
                && state
                    .lines()
                    .last()
                    .is_some_and(|line| line.trim() == "ready")
            {
                return true;
            }
            thread::sleep(Duration::from_millis(10));
        }
        false
    }
}

impl Drop for PostgresServer {
    fn drop(&mut self) {
        self.kill();
    }
}

fn spawn(port: u16, dir: &TempDir) -> Child {
    let log = fs::File::create(dir.path().join("log")).expect("a file");
    command("postgres")
        .arg("-D")
        .arg(data(dir))
        .args(["-p", &port.to_string()])
        .args(["-c", "listen_addresses=127.0.0.1"])
        .args(["-c", "unix_socket_directories="])
        .args(["-c", "fsync=off", "-c", "full_page_writes=off"])
        .args(["-c", "shared_buffers=16MB", "-c", "max_connections=30"])
        .stdout(Stdio::null())
        .stderr(log)
        .spawn()
        .expect("`postgres`")
}

fn data(dir: &TempDir) -> PathBuf {
    dir.path().join("data")
}

fn log(dir: &TempDir) -> String {
    fs::read_to_string(dir.path().join("log")).unwrap_or_default()
}

/// A program of the server's, as a user that it accepts.
fn command(name: &str) -> Command {
    let mut command = Command::new(program(name));
    if let Some(user) = other_user() {
        command.uid(user);
    }
    // Whatever folder we are in, the other user need not be allowed to see it.
    command.current_dir("/");
    command
}

/// Debian keeps them out of the PATH, in a folder for each version; the newest counts.
fn program(name: &str) -> PathBuf {
    let versions = fs::read_dir("/usr/lib/postgresql")
        .into_iter()
        .flatten()
        .flatten();
    let version = |path: &Path| path.file_name()?.to_str()?.parse::<u32>().ok();
    let found = versions
        .map(|entry| entry.path())
        .filter(|path| path.join("bin").join(name).exists())
        .max_by_key(|path| version(path));
    found.map_or_else(|| name.into(), |path| path.join("bin").join(name))
}

/// Postgres refuses to run as root, so then somebody else has to: the user that its package makes.
fn other_user() -> Option<u32> {
    let id = |args: &[&str]| -> Option<u32> {
        let output = Command::new("id").args(args).output().ok()?;
        String::from_utf8(output.stdout).ok()?.trim().parse().ok()
    };
    (id(&["-u"])? == 0).then(|| {
        id(&["-u", "postgres"]).expect("a user `postgres` (Debian: apt-get install postgresql)")
    })
}
