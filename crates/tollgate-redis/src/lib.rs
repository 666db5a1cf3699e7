#![doc = include_str!("../README.md")]
#![cfg_attr(docsrs, feature(doc_cfg))]

mod arguments;
mod builder;
mod config;
mod connection;
mod engine;
mod error;
mod failure;
mod fred_failure;
mod fred_lane;
mod heartbeats;
mod journal;
mod lane;
mod pauses;
#[cfg(feature = "redis-rs")]
mod redis_rs;
mod reply;
mod run_out;
mod script;
mod single_flight;
mod store;
mod supervisor;

#[cfg(feature = "redis-rs")]
#[cfg_attr(docsrs, doc(cfg(feature = "redis-rs")))]
pub use self::redis_rs::RedisRsStore;
pub use self::{
    builder::RedisStoreBuilder, error::ConnectError, heartbeats::Heartbeats, store::RedisStore,
};
