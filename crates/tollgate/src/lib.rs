#![doc = include_str!("../README.md")]
#![cfg_attr(docsrs, feature(doc_cfg))]

mod charged;
mod client_address;
pub mod costs;
mod future;
mod headers;
mod identity;
mod layer;
mod linger;
#[cfg(feature = "prometheus")]
mod metrics;
mod refusal;
mod service;
mod settings;

#[cfg(feature = "axum")]
#[cfg_attr(docsrs, doc(cfg(feature = "axum")))]
pub use self::costs::CostRouter;
#[cfg(feature = "prometheus")]
#[cfg_attr(docsrs, doc(cfg(feature = "prometheus")))]
pub use self::metrics::Metrics;
pub use self::{
    charged::Charged,
    client_address::{ClientAddress, InvalidProxies, ProxyHeader},
    costs::{Price, RouteCosts},
    future::ResponseFuture,
    headers::{EXPOSED_HEADERS, Headers, Reset},
    identity::{Identify, MissingIdentity, PeerAddress},
    layer::RateLimitLayer,
    refusal::{EmptyBody, ProblemJson, Reason, Refusal, Rejection},
    service::RateLimit,
};
pub use bytes;
pub use http;
pub use tollgate_core::{
    ANONYMOUS, ChargeState, Clock, Cost, Decision, EmptyId, ErrorKind, InvalidIpv6Prefix,
    InvalidName, InvalidPrefix, InvalidQuota, InvalidTagScope, Ipv6Prefix, KeySpace, Limit,
    LimitDecision, LimitName, ManualClock, MemoryStore, Quota, Rate, Source, Store, StoreError,
    Tenant, Verdict, Wait,
};
pub use tollgate_limiter::{
    BreakerSettings, BreakerState, BuildError, DnsReplicas, FailurePolicy, InvalidReplicas,
    LeaseSettings, Limiter, LimiterBuilder, Observer, ReplicaCount, SavedBy, env_replicas,
};
pub use tollgate_quota::{
    Account, Allowance, CacheSettings, Change, DEFAULT_CLASS, FailureMode, Fault, InvalidPattern,
    InvalidQuotas, LimitRule, LoadFuture, Mode, QuotaBook, QuotaEvent, QuotaSource, Quotas,
    Regions, Route, RoutePattern, RoutePrice, Scope, SourceError,
};
#[cfg(feature = "http-source")]
#[cfg_attr(docsrs, doc(cfg(feature = "http-source")))]
pub use tollgate_quota::{HttpSource, HttpSourceBuilder};
#[cfg(feature = "file")]
#[cfg_attr(docsrs, doc(cfg(feature = "file")))]
pub use tollgate_quota::{LimitsError, LimitsFile, ParsedLimits, Place, PlacedFault};
#[cfg(feature = "postgres")]
#[cfg_attr(docsrs, doc(cfg(feature = "postgres")))]
pub use tollgate_quota::{PostgresSource, PostgresSourceBuilder};
#[cfg(feature = "redis-rs")]
#[cfg_attr(docsrs, doc(cfg(feature = "redis-rs")))]
pub use tollgate_redis::RedisRsStore;
#[cfg(feature = "redis")]
#[cfg_attr(docsrs, doc(cfg(feature = "redis")))]
pub use tollgate_redis::{
    ConnectError, Heartbeats, RedisSettings, RedisStore, RedisStoreBuilder, SentinelSettings,
    TlsSettings,
};
