#![doc = include_str!("../README.md")]

mod limiter;
mod observer;
mod policy;
mod quotas;

pub use self::{
    limiter::{BuildError, Checking, Limiter, LimiterBuilder},
    observer::Observer,
    policy::FailurePolicy,
    quotas::{DEFAULT_CLASS, Quotas},
};
