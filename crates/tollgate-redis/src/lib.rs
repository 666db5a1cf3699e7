#![doc = include_str!("../README.md")]

mod arguments;
mod builder;
mod cluster;
mod config;
mod connection;
mod error;
mod eviction;
mod failure;
mod heartbeats;
mod journal;
mod lane;
mod login;
mod map;
mod node;
mod pauses;
mod redirect;
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

pub use self::{
    builder::RedisStoreBuilder,
    error::ConnectError,
    heartbeats::Heartbeats,
    settings::{RedisSettings, SentinelSettings, TlsSettings},
    store::RedisStore,
};
