//! The Redis of the benchmark, and what it says of itself.

use redis::Connection;
use tollgate::RedisStore;
use tollgate_tests::RedisServer;

use crate::BoxError;

pub(crate) struct Server {
    redis: RedisServer,
    connection: Connection,
}

/// Sums since the server was started.
#[derive(Clone, Copy)]
pub(crate) struct Usage {
    /// Calls of scripts.
    pub(crate) calls: u64,
    /// Processor time, in microseconds.
    pub(crate) cpu: f64,
}

impl Server {
    pub(crate) fn start() -> Self {
        let redis = RedisServer::start();
        let connection = redis.connection();
        Self { redis, connection }
    }

    pub(crate) async fn store(&self) -> Result<RedisStore, BoxError> {
        let builder = RedisStore::builder(&self.redis.url()).strict(true);
        Ok(builder.connect().await?)
    }

    pub(crate) fn version(&mut self) -> Result<String, BoxError> {
        let info = self.info("server")?;
        let version = field(&info, "redis_version:").ok_or("a version")?;
        Ok(version.to_owned())
    }

    pub(crate) fn usage(&mut self) -> Result<Usage, BoxError> {
        let calls = field(&self.info("commandstats")?, "cmdstat_evalsha:calls=")
            .and_then(|rest| rest.split(',').next()?.parse().ok());
        let cpu = self.info("cpu")?;
        let seconds = |name| -> Result<f64, BoxError> {
            let number = field(&cpu, name).ok_or("processor time in INFO")?;
            Ok(number.parse()?)
        };
        let cpu = seconds("used_cpu_user:")? + seconds("used_cpu_sys:")?;
        Ok(Usage {
            // It is not listed before the first call.
            calls: calls.unwrap_or(0),
            cpu: cpu * 1e6,
        })
    }

    /// Forgets all buckets, whose tenants do not come back.
    pub(crate) fn clear(&mut self) -> Result<(), BoxError> {
        redis::cmd("FLUSHALL").exec(&mut self.connection)?;
        Ok(())
    }

    fn info(&mut self, section: &str) -> Result<String, BoxError> {
        Ok(redis::cmd("INFO")
            .arg(section)
            .query(&mut self.connection)?)
    }
}

fn field<'a>(info: &'a str, start: &str) -> Option<&'a str> {
    let line = info.lines().find_map(|line| line.strip_prefix(start))?;
    Some(line.trim())
}
