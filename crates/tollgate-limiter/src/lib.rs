#![doc = include_str!("../README.md")]

mod breaker;
mod leases;
mod limiter;
mod local;
mod observer;
mod policy;
mod quotas;
mod replicas;

pub use self::{
    breaker::{BreakerSettings, BreakerState},
    leases::{LeaseSettings, Leases},
    limiter::{BuildError, Checking, Limiter, LimiterBuilder},
    observer::{Observer, SavedBy},
    policy::FailurePolicy,
    quotas::{DEFAULT_CLASS, Quotas},
    replicas::{DnsReplicas, InvalidReplicas, ReplicaCount, env_replicas},
};
