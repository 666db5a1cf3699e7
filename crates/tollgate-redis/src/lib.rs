#![doc = include_str!("../README.md")]

mod arguments;
mod builder;
mod config;
mod connection;
mod error;
mod failure;
mod heartbeats;
mod journal;
mod lane;
mod pauses;
mod reply;
mod run_out;
mod script;
mod single_flight;
mod store;
mod supervisor;

pub use self::{
    builder::RedisStoreBuilder, error::ConnectError, heartbeats::Heartbeats, store::RedisStore,
};
