//! The harness for tests that need real servers. Everything listens on loopback, on free ports, and ends
//! with the value that started it.

mod checks;
mod redis_server;
mod script;

pub use self::{
    checks::{charge, check, quota},
    redis_server::{RedisServer, free_port},
    script::{Script, argv},
};
