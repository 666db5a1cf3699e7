//! The store through the client library redis-rs.

mod failure;
mod lane;
mod store;

pub use self::store::RedisRsStore;
