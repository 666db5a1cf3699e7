//! The scripts, called without the store.

use redis::{Cmd, RedisResult};
use tollgate_core::Check;

/// A script and its hash on a server.
#[derive(Debug)]
pub struct Script {
    sha: String,
}

impl Script {
    /// `lua/token_bucket.lua`.
    pub const TOKEN_BUCKET: &str = include_str!("../../lua/token_bucket.lua");
    /// The token bucket as it is usually written.
    pub const TEXTBOOK: &str = include_str!("../lua/textbook.lua");

    /// Loads `source` on the server behind `connection`.
    ///
    /// # Panics
    ///
    /// If the server refuses it.
    #[must_use]
    pub fn load(connection: &mut redis::Connection, source: &str) -> Self {
        let loaded = redis::cmd("SCRIPT")
            .arg("LOAD")
            .arg(source)
            .query(connection);
        Self {
            sha: loaded.expect("a script that compiles"),
        }
    }

    /// The `EVALSHA` with these keys and arguments.
    #[must_use]
    pub fn command(&self, keys: &[&str], args: &[String]) -> Cmd {
        let mut command = redis::cmd("EVALSHA");
        command.arg(&self.sha).arg(keys.len()).arg(keys).arg(args);
        command
    }

    /// Calls it.
    ///
    /// # Errors
    ///
    /// If the server answers with an error.
    pub fn call(
        &self,
        connection: &mut redis::Connection,
        keys: &[&str],
        args: &[&str],
    ) -> RedisResult<Vec<i64>> {
        let args: Vec<_> = args.iter().copied().map(String::from).collect();
        self.command(keys, &args).query(connection)
    }
}

/// The arguments of the script for `check`.
#[must_use]
pub fn argv(check: &Check) -> Vec<String> {
    let numbers = check.charges().iter().flat_map(|charge| {
        let quota = &charge.limit.quota;
        [
            quota.capacity().to_string(),
            quota.rate().per_second().to_string(),
            charge.cost.tokens().to_string(),
        ]
    });
    let rest = [check.count().to_string(), check.shadow().to_string()];
    numbers.chain(rest).collect()
}
