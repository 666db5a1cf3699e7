//! The Redis that the fleet shares.

use std::{
    env,
    net::{Ipv4Addr, TcpListener, TcpStream},
    process::{Child, Command, Stdio},
    thread,
    time::Duration,
};

use crate::BoxError;

/// The Redis of `REDIS_URL`, or one of our own, which ends with this value.
#[derive(Debug)]
pub(crate) struct Redis {
    url: String,
    process: Option<Child>,
}

impl Redis {
    pub(crate) fn find_or_start() -> Result<Self, BoxError> {
        match env::var("REDIS_URL") {
            Ok(url) => Ok(Self { url, process: None }),
            Err(_) => Self::start(),
        }
    }

    pub(crate) fn url(&self) -> &str {
        &self.url
    }

    pub(crate) fn url_without_password(&self) -> &str {
        self.url
            .rsplit_once('@')
            .map_or(&*self.url, |(_, host)| host)
    }

    fn start() -> Result<Self, BoxError> {
        let port = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?
            .local_addr()?
            .port();
        let process = Command::new("redis-server")
            .args(["--port", &port.to_string(), "--bind", "127.0.0.1", "--save", "", "--appendonly", "no"])
            .stdout(Stdio::null())
            .spawn()
            .map_err(|error| {
                format!(
                    "cannot start `redis-server`: {error}\nInstall it (Debian and Ubuntu: apt-get install \
                     redis-server; macOS: brew install redis), or set REDIS_URL to one that runs."
                )
            })?;
        let redis = Self {
            url: format!("redis://127.0.0.1:{port}"),
            process: Some(process),
        };
        for _ in 0..500 {
            if TcpStream::connect((Ipv4Addr::LOCALHOST, port)).is_ok() {
                return Ok(redis);
            }
            thread::sleep(Duration::from_millis(10));
        }
        Err("redis-server does not answer within 5 s".into())
    }
}

impl Drop for Redis {
    fn drop(&mut self) {
        if let Some(process) = &mut self.process {
            // An error means that it has ended already.
            let _ = process.kill();
            let _ = process.wait();
        }
    }
}
