//! The service under load, in a process of its own.

use std::{
    env,
    fs::File,
    io::{BufRead, BufReader, Read, Seek, Write},
    net::{Ipv4Addr, TcpStream},
    process::{Command, Stdio},
    sync::mpsc,
    thread,
    time::Duration,
};

use tollgate_benches::{BoxError, Process};

use crate::loads::{Load, limits_of};

/// How long it may take to start, and to answer what is not load.
const PATIENCE: Duration = Duration::from_secs(30);

pub(crate) struct App {
    process: Process,
    port: u16,
    /// What it complains of. A pipe that nobody reads would hold it up.
    stderr: File,
}

impl App {
    /// Starts `variant` on the Redis at `redis`. Without an error, but with words, if it cannot do what the
    /// load asks.
    pub(crate) fn start(
        load: &Load,
        variant: &str,
        redis: &str,
        threads: usize,
    ) -> Result<Result<Self, String>, BoxError> {
        let (name, limits) = limits_of(variant);
        let mut command = Command::new(env::current_exe()?.with_file_name("bench-app"));
        command.arg(name).args(["--redis", redis]);
        for (option, value) in [
            ("--capacity", load.capacity),
            ("--rate", load.rate),
            ("--limits", limits as u64),
            ("--tenants", load.tenants.into()),
            ("--threads", threads as u64),
        ] {
            command.args([option, &value.to_string()]);
        }
        if load.has_accounts {
            command.arg("--accounts");
        }
        let stderr = tempfile::tempfile()?;
        command.stdout(Stdio::piped()).stderr(stderr.try_clone()?);
        let mut process = Process::start(&mut command)?;
        let stdout = process.child().stdout.take().ok_or("its output")?;
        let (sender, line) = mpsc::channel();
        thread::spawn(move || {
            let mut line = String::new();
            let _ = BufReader::new(stdout).read_line(&mut line);
            let _ = sender.send(line);
        });
        let Ok(line) = line.recv_timeout(PATIENCE) else {
            return Err(format!("it did not start within {PATIENCE:?}").into());
        };
        let mut app = Self {
            process,
            port: 0,
            stderr,
        };
        if let Ok(port) = line.trim().parse() {
            app.port = port;
            return Ok(Ok(app));
        }
        let status = app.process.child().wait()?;
        let words = app.complaints()?;
        match status.code() {
            Some(3) => Ok(Err(words)),
            _ => Err(format!("it did not start: {status}: {words}").into()),
        }
    }

    /// The first line that it has written to stderr, and how it ended, if it has.
    pub(crate) fn last_words(&mut self) -> String {
        let ended = self.process.child().try_wait().ok().flatten();
        let ended = ended.map(|status| format!("it ended with {status}"));
        let words = self.complaints().unwrap_or_default();
        let words = words.lines().next().unwrap_or_default().to_owned();
        let all = ended.into_iter().chain([words]).filter(|it| !it.is_empty());
        all.collect::<Vec<_>>().join(": ")
    }

    fn complaints(&mut self) -> Result<String, BoxError> {
        let mut words = String::new();
        self.stderr.rewind()?;
        self.stderr.read_to_string(&mut words)?;
        Ok(words.trim().to_owned())
    }

    pub(crate) const fn port(&self) -> u16 {
        self.port
    }

    pub(crate) fn cpu(&self) -> Result<Duration, BoxError> {
        Ok(self.process.cpu()?)
    }

    /// Counts anew what is admitted.
    pub(crate) fn reset(&self) -> Result<(), BoxError> {
        self.get("/reset").map(drop)
    }

    /// How many requests were admitted, of all tenants and of the one with the most.
    pub(crate) fn counted(&self) -> Result<(u64, u64), BoxError> {
        let counted = self.get("/counted")?;
        let (sum, most) = counted.split_once(' ').ok_or("two numbers")?;
        Ok((sum.parse()?, most.parse()?))
    }

    fn get(&self, path: &str) -> Result<String, BoxError> {
        let mut stream = TcpStream::connect((Ipv4Addr::LOCALHOST, self.port))?;
        stream.set_read_timeout(Some(PATIENCE))?;
        write!(
            stream,
            "GET {path} HTTP/1.1\r\nhost: app\r\nconnection: close\r\n\r\n"
        )?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer)?;
        let (_, body) = answer.split_once("\r\n\r\n").ok_or("an answer")?;
        Ok(body.to_owned())
    }
}
