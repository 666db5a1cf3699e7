//! The store through the client library redis-rs.

mod failure;
mod lane;
mod store;
mod stream;

pub use self::store::RedisRsStore;
