//! `targets.toml`.

use serde::Deserialize;

use crate::{BoxError, ScriptTargets};

/// All of it.
#[derive(Deserialize)]
pub struct Targets {
    pub script: ScriptTargets,
    #[serde(rename = "target")]
    pub loads: Vec<Target>,
}

/// A figure of one load, which is wanted to be at least or at most so much.
#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct Target {
    pub load: String,
    pub variant: String,
    pub figure: Figure,
    pub against: Option<String>,
    #[serde(flatten)]
    pub bound: Bound,
}

/// Which way.
#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Bound {
    AtLeast(f64),
    AtMost(f64),
}

/// What is compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Figure {
    /// Requests per second.
    Throughput,
    AppCpu,
    RedisCpu,
    /// Calls of Redis per request.
    Calls,
    /// What the limiter adds to the floor's latency, in microseconds. Of the raw call, all of it.
    AddedP50,
    AddedP99,
}

impl Targets {
    /// As they are in this folder.
    ///
    /// # Errors
    ///
    /// If a line makes no sense.
    pub fn read() -> Result<Self, BoxError> {
        Ok(toml::from_str(include_str!("../targets.toml"))?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_targets_make_sense() {
        let targets = Targets::read().expect("targets");
        assert!(targets.loads.len() > 20);
    }
}
