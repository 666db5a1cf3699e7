//! A primary that Sentinel looks after.

use std::{
    fs,
    process::{Child, Command, Stdio},
    thread,
    time::Duration,
};

use redis::{FromRedisValue, RedisResult, Value};
use tempfile::TempDir;

use crate::{RedisServer, cluster::until, free_port, redis_server::server_command};

const ANSWER: Duration = Duration::from_millis(500);

const NOT_STARTED: &str =
    "a sentinel on a free port of loopback; install redis-server if it is missing";

/// The name under which the sentinels know the primary.
const SERVICE: &str = "tollgate";

/// A primary with two replicas, and three sentinels that replace it when it has been silent for a second.
/// All end with the value. Server 0 is the primary at the start.
#[derive(Debug)]
pub struct Sentinels {
    servers: Vec<RedisServer>,
    sentinels: Vec<Sentinel>,
}

/// A sentinel on a free port of loopback; killed when dropped.
#[derive(Debug)]
pub struct Sentinel {
    process: Child,
    port: u16,
    dir: TempDir,
}

impl Sentinels {
    /// Starts the group.
    ///
    /// # Panics
    ///
    /// If the servers do not start, or the sentinels do not know each other within half a minute.
    #[must_use]
    pub fn start() -> Self {
        let primary = RedisServer::start_with(&["--repl-diskless-sync-delay", "0"]);
        let port = primary.port().to_string();
        let mut servers = vec![primary];
        for _ in 0..2 {
            // Command-line arguments must not have spaces in values here, so the two words stand apart.
            let args = [
                "--replicaof",
                "127.0.0.1",
                &port,
                "--repl-diskless-sync-delay",
                "0",
            ];
            servers.push(RedisServer::start_with(&args));
        }
        let sentinels =
            (0..3).map(|_| Sentinel::start_with(servers[0].port(), 2, |_| String::new()));
        let group = Self {
            sentinels: sentinels.collect(),
            servers,
        };
        until("the sentinels know each other", || {
            (0..3).all(|sentinel| group.knows_all(sentinel))
        });
        group
    }

    /// `redis-sentinel://127.0.0.1:<port>,…/tollgate` with all sentinels.
    #[must_use]
    pub fn url(&self) -> String {
        self.url_of(&[0, 1, 2])
    }

    /// The same with only these sentinels, in this order.
    #[must_use]
    pub fn url_of(&self, sentinels: &[usize]) -> String {
        let hosts = sentinels
            .iter()
            .map(|&sentinel| format!("127.0.0.1:{}", self.sentinels[sentinel].port));
        let hosts: Vec<_> = hosts.collect();
        format!("redis-sentinel://{}/{SERVICE}", hosts.join(","))
    }

    /// A server, numbered as they were started, whatever they have become.
    #[must_use]
    pub fn server(&self, server: usize) -> &RedisServer {
        &self.servers[server]
    }

    /// A server, to be killed or restarted.
    #[must_use]
    pub fn server_mut(&mut self, server: usize) -> &mut RedisServer {
        &mut self.servers[server]
    }

    /// All servers, by number.
    #[must_use]
    pub fn servers(&self) -> &[RedisServer] {
        &self.servers
    }

    /// Waits until all servers but the primary are replicas in step with it. All have to answer.
    pub fn wait(&self) {
        until("the replicas are in step", || {
            let primary = self.primary_by(0);
            let replicas = self.servers.iter().enumerate();
            let mut replicas = replicas.filter(|(number, _)| *number != primary);
            replicas.all(|(_, server)| {
                let info = redis::cmd("INFO").arg("replication").to_owned();
                let info = info.query::<String>(&mut server.connection());
                info.is_ok_and(|info| info.contains("master_link_status:up"))
            })
        });
    }

    /// Which server one sentinel takes for the primary.
    ///
    /// # Panics
    ///
    /// If it does not answer.
    #[must_use]
    pub fn primary_by(&self, sentinel: usize) -> usize {
        let command = ["SENTINEL", "GET-MASTER-ADDR-BY-NAME", SERVICE];
        let (_, port): (String, u16) = self.sentinels[sentinel].query(&command).expect("an answer");
        let server = self.servers.iter().position(|server| server.port() == port);
        server.expect("a server of this group")
    }

    /// Lets the sentinels make a replica the primary, in good order, and waits until all that answer say so.
    ///
    /// # Panics
    ///
    /// If they do not.
    pub fn fail_over(&self) {
        let before = self.primary_by(0);
        // Refused for a moment after the start, and after the last failover.
        until("a failover is accepted", || {
            self.sentinels[0]
                .query::<Value>(&["SENTINEL", "FAILOVER", SERVICE])
                .is_ok()
        });
        self.wait_for_another_than(before);
    }

    /// Waits until the sentinels that answer agree on a primary other than `former`, and it is one.
    pub fn wait_for_another_than(&self, former: usize) {
        until("another primary", || {
            let command = ["SENTINEL", "GET-MASTER-ADDR-BY-NAME", SERVICE];
            let mut answers = self
                .sentinels
                .iter()
                .filter_map(|sentinel| sentinel.query::<(String, u16)>(&command).ok());
            let Some(first) = answers.next() else {
                return false;
            };
            let port = self.servers[former].port();
            first.1 != port && answers.all(|other| other == first) && self.is_primary(first.1)
        });
    }

    fn is_primary(&self, port: u16) -> bool {
        let server = self.servers.iter().find(|server| server.port() == port);
        server.is_some_and(|server| {
            let role: RedisResult<Vec<Value>> = redis::cmd("ROLE").query(&mut server.connection());
            role.is_ok_and(
                |role| matches!(role.first(), Some(Value::BulkString(name)) if name == b"master"),
            )
        })
    }

    /// Freezes a sentinel, so that what it knows grows old.
    ///
    /// # Panics
    ///
    /// If it has ended.
    pub fn pause_sentinel(&self, sentinel: usize) {
        self.sentinels[sentinel].signal("STOP");
    }

    /// Lets it go on.
    ///
    /// # Panics
    ///
    /// If it has ended.
    pub fn resume_sentinel(&self, sentinel: usize) {
        self.sentinels[sentinel].signal("CONT");
    }

    /// Ends a sentinel as `kill -9` does.
    ///
    /// # Panics
    ///
    /// If the process cannot be waited for.
    pub fn kill_sentinel(&mut self, sentinel: usize) {
        self.sentinels[sentinel].kill();
    }

    fn knows_all(&self, sentinel: usize) -> bool {
        let info = self.sentinels[sentinel].query::<String>(&["INFO", "sentinel"]);
        info.is_ok_and(|info| info.contains("status=ok") && info.contains("slaves=2,sentinels=3"))
    }
}

impl Sentinel {
    /// Starts one that looks after the primary on this port alone, with further lines in its file of settings,
    /// which are given the port that it is to listen on.
    ///
    /// # Panics
    ///
    /// If there is no `redis-server` to start, or it does not listen within 10 s.
    #[must_use]
    pub fn start(primary: u16, settings: impl Fn(u16) -> String) -> Self {
        Self::start_with(primary, 1, settings)
    }

    /// The hosts and the path of a URL with this sentinel on `port`: `127.0.0.1:<port>/tollgate`.
    #[must_use]
    pub fn place(port: u16) -> String {
        format!("127.0.0.1:{port}/{SERVICE}")
    }

    /// The port it listens on.
    #[must_use]
    pub const fn port(&self) -> u16 {
        self.port
    }

    fn start_with(primary: u16, quorum: u8, settings: impl Fn(u16) -> String) -> Self {
        // Another process may take the port between our look and the sentinel's bind; then try another.
        let started = (0..10).find_map(|_| {
            let port = free_port();
            Self::try_start(port, primary, quorum, &settings(port))
        });
        started.expect(NOT_STARTED)
    }

    fn try_start(port: u16, primary: u16, quorum: u8, settings: &str) -> Option<Self> {
        let dir = tempfile::tempdir().expect("a temporary folder");
        let config = dir.path().join("sentinel.conf");
        let file = format!(
            "port {port}\nbind 127.0.0.1\nloglevel warning\n\
             sentinel monitor {SERVICE} 127.0.0.1 {primary} {quorum}\n\
             sentinel down-after-milliseconds {SERVICE} 1000\n\
             sentinel failover-timeout {SERVICE} 3000\n{settings}\n"
        );
        fs::write(&config, file).expect("a file");
        let process = server_command()
            .arg(&config)
            .arg("--sentinel")
            .current_dir(dir.path())
            .stdout(Stdio::null())
            .spawn();
        let mut sentinel = Self {
            process: process.expect("a shell"),
            port,
            dir,
        };
        sentinel.listens().then_some(sentinel)
    }

    /// Waits until it has given itself an identity, which it does once it has its port, or has ended.
    fn listens(&mut self) -> bool {
        let config = self.dir.path().join("sentinel.conf");
        for _ in 0..1_000 {
            if self.process.try_wait().expect("our own child").is_some() {
                return false;
            }
            if fs::read_to_string(&config).is_ok_and(|file| file.contains("sentinel myid")) {
                return true;
            }
            thread::sleep(Duration::from_millis(10));
        }
        false
    }

    fn query<T: FromRedisValue>(&self, command: &[&str]) -> RedisResult<T> {
        let client = redis::Client::open(format!("redis://127.0.0.1:{}", self.port))?;
        let mut connection = client.get_connection_with_timeout(ANSWER)?;
        connection.set_read_timeout(Some(ANSWER))?;
        redis::cmd(command[0])
            .arg(&command[1..])
            .query(&mut connection)
    }

    fn signal(&self, signal: &str) {
        let sent = Command::new("sh")
            .args(["-c", &format!("kill -s {signal} {}", self.process.id())])
            .status();
        assert!(sent.expect("a shell").success(), "no process to signal");
    }

    fn kill(&mut self) {
        // An error means that it has ended already.
        let _ = self.process.kill();
        self.process.wait().expect("our own child");
    }
}

// === impl Sentinel ===

impl Drop for Sentinel {
    fn drop(&mut self) {
        self.kill();
    }
}

#[cfg(test)]
mod tests {
    use std::net::{Ipv4Addr, TcpListener};

    use super::*;

    #[test]
    fn a_port_that_was_taken_meanwhile_is_seen() {
        let taken = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a free port");
        let port = taken.local_addr().expect("its address").port();
        assert!(Sentinel::try_start(port, port, 1, "").is_none());
        drop(taken);
        assert!(Sentinel::try_start(port, port, 1, "").is_some());
    }

    #[test]
    fn a_killed_primary_is_replaced() {
        let mut group = Sentinels::start();
        assert_eq!(group.primary_by(2), 0);
        group.server_mut(0).kill();
        group.wait_for_another_than(0);
        assert_ne!(group.primary_by(1), 0);
    }
}
