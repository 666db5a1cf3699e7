//! The scripts, called without the store.

use redis::{Cmd, RedisResult};
use tollgate_core::{Adjustment, Check, Quota};

/// A script and its hash on a server.
#[derive(Debug)]
pub struct Script {
    sha: String,
}

impl Script {
    /// `lua/token_bucket.lua`.
    pub const TOKEN_BUCKET: &str = include_str!("../../lua/token_bucket.lua");
    /// `lua/adjust.lua`.
    pub const ADJUST: &str = include_str!("../../lua/adjust.lua");
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

/// The arguments of `token_bucket.lua` for `check`.
#[must_use]
pub fn argv(check: &Check) -> Vec<String> {
    let numbers = check.charges().iter().flat_map(|charge| {
        let [capacity, rate] = of_quota(&charge.limit.quota);
        [capacity, rate, charge.cost.tokens().to_string()]
    });
    let rest = [check.count().to_string(), check.shadow().to_string()];
    numbers.chain(rest).collect()
}

/// The arguments of `adjust.lua` for `adjustment`.
#[must_use]
pub fn adjust_argv(adjustment: &Adjustment) -> Vec<String> {
    let numbers = adjustment.changes().iter().flat_map(|change| {
        let [capacity, rate] = of_quota(&change.quota);
        [
            capacity,
            rate,
            change.delta.to_string(),
            change.floor.to_string(),
        ]
    });
    numbers.collect()
}

fn of_quota(quota: &Quota) -> [String; 2] {
    [
        quota.capacity().to_string(),
        quota.rate().per_second().to_string(),
    ]
}
