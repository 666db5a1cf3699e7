#![doc = include_str!("../README.md")]
#![cfg_attr(docsrs, feature(doc_cfg))]

mod account;
mod allowance;
mod backoff;
mod book;
mod directory;
mod event;
mod fault;
#[cfg(feature = "file")]
mod file;
mod health;
#[cfg(feature = "http-source")]
mod http;
mod limit;
#[cfg(feature = "postgres")]
mod postgres;
mod quotas;
mod regions;
mod route;
mod slot;
mod source;
mod sparse;
mod terms;
#[cfg(any(feature = "http-source", feature = "postgres"))]
mod wire;

#[cfg(feature = "file")]
#[cfg_attr(docsrs, doc(cfg(feature = "file")))]
pub use self::file::{LimitsError, LimitsFile, ParsedLimits, Place, PlacedFault};
#[cfg(feature = "http-source")]
#[cfg_attr(docsrs, doc(cfg(feature = "http-source")))]
pub use self::http::{HttpSource, HttpSourceBuilder};
#[cfg(feature = "postgres")]
#[cfg_attr(docsrs, doc(cfg(feature = "postgres")))]
pub use self::postgres::{PostgresSource, PostgresSourceBuilder};
pub use self::{
    account::Account,
    allowance::Allowance,
    book::{CacheSettings, QuotaBook},
    directory::{Directory, Loading, Lookup},
    event::QuotaEvent,
    fault::{Fault, InvalidQuotas},
    limit::{FailureMode, LimitRule, Mode, Scope},
    quotas::{DEFAULT_CLASS, Quotas, RoutePrice},
    regions::Regions,
    route::{InvalidPattern, Route, RoutePattern},
    source::{Change, LoadFuture, QuotaSource, SourceError},
    terms::Terms,
};
