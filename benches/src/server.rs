//! A Redis of the benchmark's own, and what it says of itself.

use std::{
    net::{Ipv4Addr, TcpListener},
    process::{Command, Stdio},
    thread,
    time::Duration,
};

use redis::{Connection, FromRedisValue};
use tempfile::TempDir;

use crate::{BoxError, Process};

/// A `redis-server` on a free port of loopback, without persistence; killed when dropped.
pub struct Server {
    process: Process,
    port: u16,
    connection: Option<Connection>,
    _folder: TempDir,
}

/// Sums since the server was started.
#[derive(Clone, Copy)]
pub struct Usage {
    /// Calls of scripts.
    pub calls: f64,
    pub cpu: Duration,
}

impl Server {
    /// Starts one with further command-line arguments.
    ///
    /// # Errors
    ///
    /// If there is no `redis-server`, or it does not answer within 10 s.
    pub fn start(args: &[&str]) -> Result<Self, BoxError> {
        let folder = tempfile::tempdir()?;
        let port = free_port()?;
        let mut command = Command::new("redis-server");
        command
            .args(["--port", &port.to_string(), "--bind", "127.0.0.1"])
            .args(["--save", "", "--appendonly", "no", "--loglevel", "warning"])
            // What is appended is then written at once, and its size known.
            .args(["--appendfsync", "no"])
            .args(args)
            .current_dir(folder.path())
            .stdout(Stdio::null());
        let process = Process::start(&mut command).map_err(|error| {
            format!("`redis-server` (Debian, Ubuntu: apt-get install redis-server): {error}")
        })?;
        let mut server = Self {
            process,
            port,
            connection: None,
            _folder: folder,
        };
        for _ in 0..1_000 {
            if let Some(status) = server.process.child().try_wait()? {
                return Err(format!("redis-server did not start on port {port}: {status}").into());
            }
            if let Ok(connection) = redis::Client::open(server.url())?.get_connection() {
                server.connection = Some(connection);
                return server.checked();
            }
            thread::sleep(Duration::from_millis(10));
        }
        Err("redis-server does not answer".into())
    }

    /// Whoever came first to the port may be another one, whose data is not ours to delete.
    fn checked(mut self) -> Result<Self, BoxError> {
        let answers = self.info("server", "process_id")?;
        if answers != self.process.id().to_string() {
            return Err(format!("another Redis has taken port {}", self.port).into());
        }
        Ok(self)
    }

    #[must_use]
    pub const fn port(&self) -> u16 {
        self.port
    }

    #[must_use]
    pub fn url(&self) -> String {
        format!("redis://127.0.0.1:{}", self.port)
    }

    /// # Panics
    ///
    /// Never: a server that was started has one.
    pub fn connection(&mut self) -> &mut Connection {
        self.connection.as_mut().expect("connected at the start")
    }

    /// Runs a command.
    ///
    /// # Errors
    ///
    /// If the server refuses it.
    pub fn run<T: FromRedisValue>(&mut self, command: &[&str]) -> Result<T, BoxError> {
        let mut cmd = redis::cmd(command[0]);
        cmd.arg(&command[1..]);
        Ok(cmd.query(self.connection())?)
    }

    /// The answer to `SCRIPT LOAD`.
    ///
    /// # Errors
    ///
    /// If the script does not compile.
    pub fn load(&mut self, script: &str) -> Result<String, BoxError> {
        self.run(&["SCRIPT", "LOAD", script])
    }

    /// One field of a section of `INFO`.
    ///
    /// # Errors
    ///
    /// If it is not there.
    pub fn info(&mut self, section: &str, field: &str) -> Result<String, BoxError> {
        let info: String = self.run(&["INFO", section])?;
        let line = info
            .lines()
            .find_map(|line| line.strip_prefix(field)?.strip_prefix(':'));
        Ok(line
            .ok_or_else(|| format!("{field} of INFO"))?
            .trim()
            .to_owned())
    }

    /// # Errors
    ///
    /// If the server does not answer.
    pub fn usage(&mut self) -> Result<Usage, BoxError> {
        Ok(Usage {
            calls: self.sum_of("evalsha", "calls")?,
            cpu: self.process.cpu()?,
        })
    }

    /// The microseconds that all calls of a command have taken, without reading and writing.
    ///
    /// # Errors
    ///
    /// If the server does not answer.
    pub fn spent(&mut self, command: &str) -> Result<f64, BoxError> {
        self.sum_of(command, "usec")
    }

    fn sum_of(&mut self, command: &str, field: &str) -> Result<f64, BoxError> {
        // It is not listed before the first call.
        let stats = self.info("commandstats", &format!("cmdstat_{command}"));
        let stats = stats.unwrap_or_default();
        let mut fields = stats.split(',');
        let value = fields.find_map(|it| it.strip_prefix(field)?.strip_prefix('='));
        Ok(value.map_or(Ok(0.0), str::parse)?)
    }

    /// Turns the append-only file on or off. What is written to it, a replica would be sent as well.
    ///
    /// # Errors
    ///
    /// If the server does not answer.
    pub fn append(&mut self, on: bool) -> Result<(), BoxError> {
        let () = self.run(&["CONFIG", "SET", "appendonly", if on { "yes" } else { "no" }])?;
        for field in ["aof_rewrite_scheduled", "aof_rewrite_in_progress"] {
            while self.info("persistence", field)? != "0" {
                thread::sleep(Duration::from_millis(5));
            }
        }
        Ok(())
    }

    /// The bytes in the append-only file.
    ///
    /// # Errors
    ///
    /// If it is off.
    pub fn appended(&mut self) -> Result<f64, BoxError> {
        Ok(self.info("persistence", "aof_current_size")?.parse()?)
    }
}

/// A port of loopback that was free a moment ago.
///
/// # Errors
///
/// If there is none.
pub fn free_port() -> Result<u16, BoxError> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
    Ok(listener.local_addr()?.port())
}
