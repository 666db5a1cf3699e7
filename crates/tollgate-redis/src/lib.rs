#![doc = include_str!("../README.md")]

mod builder;
mod config;
mod error;
mod failure;
mod reply;
mod run_out;
mod script;
mod single_flight;
mod store;

pub use self::{builder::RedisStoreBuilder, error::ConnectError, store::RedisStore};
