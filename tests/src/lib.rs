//! The harness for tests that need real servers. Everything listens on loopback, on free ports, and ends
//! with the value that started it.

mod redis_server;

pub use self::redis_server::{RedisServer, free_port};
