#![doc = include_str!("../README.md")]
#![cfg_attr(docsrs, feature(doc_cfg))]

mod arguments;
mod builder;
mod cluster;
mod config;
mod connections;
mod engine;
mod error;
mod eviction;
mod failure;
mod fred_failure;
mod fred_lane;
mod gather;
mod heartbeats;
mod journal;
mod lane;
mod login;
mod map;
mod node;
mod pauses;
mod redirect;
#[cfg(feature = "redis-rs")]
mod redis_rs;
mod reply;
mod run_out;
mod script;
mod sentinel;
mod settings;
mod single_flight;
mod slots;
mod store;
mod supervisor;
mod target;
#[cfg(feature = "tls")]
mod tls;
mod url;

#[cfg(feature = "redis-rs")]
#[cfg_attr(docsrs, doc(cfg(feature = "redis-rs")))]
pub use self::redis_rs::RedisRsStore;
pub use self::{
    builder::RedisStoreBuilder,
    error::ConnectError,
    heartbeats::Heartbeats,
    settings::{RedisSettings, SentinelSettings, TlsSettings},
    store::RedisStore,
};
