//! What the service runs on.

use std::time::Duration;

use serde_json::Value;

use crate::{cluster, fault::Fault, sentinel, tls};

/// How far a primary gets ahead of replicas that were cut off.
pub(crate) const AHEAD: Duration = Duration::from_secs(2);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Topology {
    Cluster,
    Sentinel,
    Tls,
}

impl Topology {
    pub(crate) const ALL: [Self; 3] = [Self::Cluster, Self::Sentinel, Self::Tls];

    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Cluster => "cluster",
            Self::Sentinel => "sentinel",
            Self::Tls => "tls",
        }
    }

    pub(crate) const fn faults(self) -> &'static [Fault] {
        match self {
            Self::Cluster => &[
                Fault::None,
                Fault::Frozen,
                Fault::Killed,
                Fault::KilledAhead,
                Fault::BroughtBack,
                Fault::FailedOver,
                Fault::SlotsMoved,
                Fault::ScriptsFlushed,
                Fault::PasswordRotated,
            ],
            Self::Sentinel => &[
                Fault::None,
                Fault::Frozen,
                Fault::Killed,
                Fault::KilledAhead,
                Fault::FailedOver,
                Fault::PasswordRotated,
            ],
            Self::Tls => &[
                Fault::None,
                Fault::CertificateExpired,
                Fault::PasswordRotated,
            ],
        }
    }

    /// How many primaries there are.
    pub(crate) const fn primaries(self) -> usize {
        match self {
            Self::Cluster => 3,
            Self::Sentinel | Self::Tls => 1,
        }
    }

    pub(crate) fn start(self) -> Box<dyn Servers> {
        match self {
            Self::Cluster => Box::new(cluster::Nodes::start()),
            Self::Sentinel => Box::new(sentinel::Watched::start()),
            Self::Tls => Box::new(tls::Encrypted::start()),
        }
    }
}

/// The tenants whose buckets are on the same primary.
#[derive(Clone, Debug)]
pub(crate) struct Group {
    /// Of each tenant, one.
    pub(crate) keys: Vec<String>,
}

/// The servers of a topology; they end with the value.
pub(crate) trait Servers {
    /// What the replicas are told of them.
    fn settings(&self) -> Value;

    /// The primary of a bucket, by number from 0, at the start.
    fn primary_of(&self, _key: &str) -> usize {
        0
    }

    /// Does what has to precede a fault, before there is load.
    fn prepare(&mut self, _fault: Fault, _group: &Group) {}

    /// Brings a fault about, on the primary of this group, and returns when the topology has healed.
    fn strike(&mut self, fault: Fault, group: &Group);

    /// Makes whole what is still frozen or gone.
    fn mend(&mut self) {}
}

/// What is not as it was at the start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Broken {
    Frozen(usize),
    Killed(usize),
}
