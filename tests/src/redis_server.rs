//! A Redis of the test's own.

use std::{
    env,
    ffi::OsString,
    fs, io,
    net::{Ipv4Addr, TcpListener},
    process::{Child, Command, Stdio},
    thread,
    time::Duration,
};

use tempfile::TempDir;

/// What is started in place of `redis-server`.
const PROGRAM: &str = "TOLLGATE_TEST_SERVER";

/// Becomes the server, and leaves one behind that kills it when standard input ends: so no server outlives the
/// program that started it, even if that is killed. A closed terminal, or Ctrl-C, is not to end the watcher first.
const TIED: &str = r#"
exec 3<&0
{ trap "" HUP INT TERM; read -r _ <&3; kill -9 $$; } >/dev/null 2>&1 &
exec "$@" 3<&- </dev/null
"#;

const NOT_STARTED: &str =
    "redis-server did not start; what it said stands above (Debian: apt-get install redis-server)";

/// A `redis-server` on a free port of loopback, without persistence; killed when dropped.
#[derive(Debug)]
pub struct RedisServer {
    process: Child,
    port: u16,
    args: Vec<String>,
    dir: TempDir,
}

impl RedisServer {
    /// Starts a server with default settings.
    #[must_use]
    pub fn start() -> Self {
        Self::start_with(&[])
    }

    /// Starts a server with further command-line arguments, such as `["--maxmemory", "2mb"]`.
    ///
    /// # Panics
    ///
    /// If there is no `redis-server` to start, or it does not answer within 10 s.
    #[must_use]
    pub fn start_with(args: &[&str]) -> Self {
        let args: Vec<_> = args.iter().copied().map(String::from).collect();
        // Another process may take the port between our look and the server's bind; then try another.
        (0..10)
            .find_map(|_| Self::try_start(free_port(), &args))
            .expect(NOT_STARTED)
    }

    /// Starts a server with default settings on `port`.
    ///
    /// # Panics
    ///
    /// If there is no `redis-server` to start, the port is taken, or it does not answer within 10 s.
    #[must_use]
    pub fn start_on(port: u16) -> Self {
        Self::try_start(port, &[]).expect(NOT_STARTED)
    }

    fn try_start(port: u16, args: &[String]) -> Option<Self> {
        let dir = tempfile::tempdir().expect("a temporary folder");
        let mut server = Self {
            process: spawn(port, args, &dir),
            port,
            args: args.to_vec(),
            dir,
        };
        server.answers().then_some(server)
    }

    /// The port it listens on.
    #[must_use]
    pub const fn port(&self) -> u16 {
        self.port
    }

    /// `redis://127.0.0.1:<port>`.
    #[must_use]
    pub fn url(&self) -> String {
        format!("redis://127.0.0.1:{}", self.port)
    }

    /// A new connection for the test's own commands.
    ///
    /// # Panics
    ///
    /// If the server does not accept it.
    #[must_use]
    pub fn connection(&self) -> redis::Connection {
        self.try_connection()
            .expect("a connection to the test's own Redis")
    }

    /// Ends the server as `kill -9` does. The port is free afterwards.
    ///
    /// # Panics
    ///
    /// If the process cannot be waited for.
    pub fn kill(&mut self) {
        // An error means that it has ended already.
        let _ = self.process.kill();
        self.process.wait().expect("our own child");
    }

    /// Starts it again, empty, on the same port, after [`kill`](Self::kill).
    ///
    /// # Panics
    ///
    /// If it does not answer within 10 s.
    pub fn restart(&mut self) {
        self.kill();
        self.process = spawn(self.port, &self.args, &self.dir);
        assert!(self.answers(), "redis-server did not come back");
    }

    /// Stops it as it stands, as `kill -STOP` does: its connections stay open and nobody answers.
    ///
    /// # Panics
    ///
    /// If it has ended.
    pub fn pause(&self) {
        self.signal("STOP");
    }

    /// Lets it go on after [`pause`](Self::pause).
    ///
    /// # Panics
    ///
    /// If it has ended.
    pub fn resume(&self) {
        self.signal("CONT");
    }

    fn signal(&self, signal: &str) {
        // Sending a signal takes `unsafe` or another program; every shell has `kill`.
        let sent = Command::new("sh")
            .args(["-c", &format!("kill -s {signal} {}", self.process.id())])
            .status();
        assert!(sent.expect("a shell").success(), "no process to signal");
    }

    /// One number of `INFO section`, such as `total_connections_received` of `stats`; 0 if it is not there.
    ///
    /// # Panics
    ///
    /// If the server does not answer.
    #[must_use]
    pub fn info(&self, section: &str, field: &str) -> u64 {
        let info: String = redis::cmd("INFO")
            .arg(section)
            .query(&mut self.connection())
            .expect("INFO");
        let line = info
            .lines()
            .find_map(|line| line.strip_prefix(field)?.strip_prefix(':'));
        line.map_or(0, |number| number.trim().parse().expect("a number"))
    }

    /// The processor time that it has used.
    ///
    /// # Panics
    ///
    /// If the server has ended, or the system is not Linux.
    #[must_use]
    pub fn cpu(&self) -> Duration {
        let path = format!("/proc/{}/schedstat", self.process.id());
        let stat = fs::read_to_string(path).expect("a running process");
        let nanos = stat.split(' ').next().and_then(|it| it.parse().ok());
        Duration::from_nanos(nanos.expect("a number"))
    }

    /// How often a command was called, such as `"set"` or `"script|load"`, inside of scripts included.
    ///
    /// # Panics
    ///
    /// If the server does not answer.
    #[must_use]
    pub fn calls(&self, command: &str) -> u64 {
        let info: String = redis::cmd("INFO")
            .arg("commandstats")
            .query(&mut self.connection())
            .expect("INFO");
        let start = format!("cmdstat_{command}:calls=");
        let line = info
            .lines()
            .find_map(|line| line.strip_prefix(&start)?.split(',').next());
        line.map_or(0, |calls| calls.parse().expect("a number"))
    }

    /// Keeps its replicas from hearing of any more writes until it ends: they are cut off, and nobody may ask for
    /// its data again.
    ///
    /// # Panics
    ///
    /// If the server does not answer.
    pub fn cut_off_replicas(&self) {
        let mut connection = self.connection();
        redis::cmd("ACL")
            .arg(&["SETUSER", "default", "-psync", "-sync"])
            .query::<()>(&mut connection)
            .expect("ACL SETUSER");
        redis::cmd("CLIENT")
            .arg(&["KILL", "TYPE", "replica"])
            .query::<u64>(&mut connection)
            .expect("CLIENT KILL");
    }

    fn try_connection(&self) -> redis::RedisResult<redis::Connection> {
        redis::Client::open(self.url())?.get_connection()
    }

    /// Waits for the first answer; false if the process ended instead.
    fn answers(&mut self) -> bool {
        for _ in 0..1_000 {
            if self.process.try_wait().expect("our own child").is_some() {
                return false;
            }
            if self.try_connection().is_ok() {
                return true;
            }
            thread::sleep(Duration::from_millis(10));
        }
        false
    }
}

impl Drop for RedisServer {
    fn drop(&mut self) {
        self.kill();
    }
}

/// A port of loopback that was free a moment ago.
///
/// # Panics
///
/// If the machine has no free port left.
#[must_use]
pub fn free_port() -> u16 {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a free port");
    listener.local_addr().expect("its address").port()
}

/// The server's program: `redis-server`, or what the environment variable `TOLLGATE_TEST_SERVER` names, such as
/// `valkey-server`. It has to take the arguments of `redis-server`, `--sentinel` included.
fn program() -> OsString {
    env::var_os(PROGRAM).unwrap_or_else(|| "redis-server".into())
}

/// Starts the server's program; it ends when the child's standard input does.
pub(crate) fn server_command() -> Command {
    let mut command = Command::new("sh");
    command.args(["-c", TIED, "sh"]).arg(program());
    command.stdin(Stdio::piped());
    command
}

/// The version of the server's program, such as `7.0.15`.
///
/// # Errors
///
/// If it cannot be started.
pub fn server_version() -> io::Result<String> {
    let output = Command::new(program()).arg("--version").output()?;
    let text = String::from_utf8_lossy(&output.stdout);
    let version = text.split("v=").nth(1).and_then(|it| it.split(' ').next());
    Ok(version.unwrap_or("of unknown version").trim().into())
}

fn spawn(port: u16, args: &[String], dir: &TempDir) -> Child {
    server_command()
        .args(["--port", &port.to_string(), "--bind", "127.0.0.1"])
        .args(["--save", "", "--appendonly", "no", "--loglevel", "warning"])
        .args(args)
        .current_dir(dir.path())
        .stdout(Stdio::null())
        .spawn()
        .expect("a shell")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_paused_server_answers_after_the_pause() {
        let server = RedisServer::start();
        let mut connection = server.connection();
        let mut ping = |millis| {
            connection
                .set_read_timeout(Some(Duration::from_millis(millis)))
                .expect("a socket option");
            redis::cmd("PING").query::<String>(&mut connection)
        };
        assert!(ping(10_000).is_ok());
        server.pause();
        assert!(ping(200).is_err());
        server.resume();
        drop(connection);
        assert_eq!(
            server.calls("ping"),
            2,
            "also the one that nobody waited for"
        );
    }
}
