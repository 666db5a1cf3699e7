#![doc = include_str!("../README.md")]

mod breaker;
mod checking;
mod coalesce;
mod denials;
mod leases;
mod limiter;
mod local;
mod observer;
mod plan;
mod plans;
mod policy;
mod replicas;
mod shards;
mod taken;

pub use self::{
    breaker::{BreakerSettings, BreakerState},
    checking::{Begun, Checking},
    coalesce::Coalesce,
    denials::DenialCache,
    leases::{LeaseSettings, Leases},
    limiter::{BuildError, Limiter, LimiterBuilder},
    observer::{Observer, SavedBy},
    policy::FailurePolicy,
    replicas::{DnsReplicas, InvalidReplicas, ReplicaCount, env_replicas},
    shards::Shards,
};
