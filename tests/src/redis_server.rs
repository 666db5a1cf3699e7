//! A Redis of the test's own.

use std::{
    net::{Ipv4Addr, TcpListener},
    process::{Child, Command, Stdio},
    thread,
    time::Duration,
};

use tempfile::TempDir;

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
        for _ in 0..10 {
            let port = free_port();
            let dir = tempfile::tempdir().expect("a temporary folder");
            let process = spawn(port, &args, &dir);
            let mut server = Self {
                process,
                port,
                args: args.clone(),
                dir,
            };
            if server.answers() {
                return server;
            }
        }
        panic!("redis-server did not start; what it said stands above");
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

fn spawn(port: u16, args: &[String], dir: &TempDir) -> Child {
    Command::new("redis-server")
        .args(["--port", &port.to_string(), "--bind", "127.0.0.1"])
        .args(["--save", "", "--appendonly", "no", "--loglevel", "warning"])
        .args(args)
        .current_dir(dir.path())
        .stdout(Stdio::null())
        .spawn()
        .expect("`redis-server` in the PATH (Debian: apt-get install redis-server)")
}
