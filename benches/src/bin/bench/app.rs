//! The service under load, in a process of its own.

use std::{
    env,
    io::{BufRead, BufReader, Read, Write},
    net::{Ipv4Addr, TcpStream},
    process::{Child, Command, Stdio},
    time::Duration,
};

use tollgate_benches::{BoxError, cpu};

use crate::loads::{Load, limits_of};

pub(crate) struct App {
    process: Child,
    port: u16,
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
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut process = command.spawn()?;
        let mut port = String::new();
        let stdout = process.stdout.take().ok_or("its output")?;
        BufReader::new(stdout).read_line(&mut port)?;
        if let Ok(port) = port.trim().parse() {
            return Ok(Ok(Self { process, port }));
        }
        let output = process.wait_with_output()?;
        let words = String::from_utf8_lossy(&output.stderr).trim().to_owned();
        match output.status.code() {
            Some(3) => Ok(Err(words)),
            _ => Err(format!("{variant} did not start: {words}").into()),
        }
    }

    pub(crate) const fn port(&self) -> u16 {
        self.port
    }

    pub(crate) fn cpu(&self) -> Result<Duration, BoxError> {
        Ok(cpu(self.process.id())?)
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

impl Drop for App {
    fn drop(&mut self) {
        // An error means that it has ended already.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}
