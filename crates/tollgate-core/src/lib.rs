#![doc = include_str!("../README.md")]
#![cfg_attr(docsrs, feature(doc_cfg))]

mod adjustment;
pub mod bucket;
mod check;
mod clock;
#[cfg(feature = "conformance")]
#[cfg_attr(docsrs, doc(cfg(feature = "conformance")))]
pub mod conformance;
mod cost;
mod decision;
mod ipv6_prefix;
mod key;
mod limit;
mod memory;
mod quota;
mod replicas;
mod store;
mod tenant;

pub use self::{
    adjustment::{Adjustment, Change, InvalidAdjustment},
    bucket::Bucket,
    check::{Charge, Check, InvalidCheck, MAX_CHARGES},
    clock::{Clock, ManualClock, MonotonicClock},
    cost::{Cost, CostTooLarge},
    decision::{Decision, LimitDecision, Source, Verdict, Wait},
    ipv6_prefix::{InvalidIpv6Prefix, Ipv6Prefix},
    key::{BucketKey, InvalidPrefix, InvalidTagScope, KeySpace},
    limit::{InvalidName, Limit, LimitName},
    memory::MemoryStore,
    quota::{InvalidQuota, MAX_TOKENS, Quota, Rate},
    replicas::ReplicaCount,
    store::{AdjustFuture, ChargeState, CheckFuture, ErrorKind, Store, StoreError, StoreFuture},
    tenant::{ANONYMOUS, EmptyId, Tenant},
};
