#![doc = include_str!("../README.md")]

pub mod bucket;
mod check;
mod clock;
mod cost;
mod decision;
mod key;
mod limit;
mod memory;
mod quota;
mod replicas;
mod store;
mod tenant;

pub use self::{
    bucket::Bucket,
    check::{Charge, Check, InvalidCheck, MAX_CHARGES},
    clock::{Clock, ManualClock, MonotonicClock},
    cost::{Cost, CostTooLarge},
    decision::{Decision, LimitDecision, Source, Verdict, Wait},
    key::{BucketKey, InvalidPrefix, KeySpace},
    limit::{InvalidName, Limit, LimitName},
    memory::MemoryStore,
    quota::{InvalidQuota, MAX_TOKENS, Quota, Rate},
    replicas::ReplicaCount,
    store::{ChargeState, CheckFuture, ErrorKind, Store, StoreError},
    tenant::{ANONYMOUS, EmptyId, Tenant},
};
