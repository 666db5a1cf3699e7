//! The harness for tests that need real servers. Everything listens on loopback, on free ports, and ends
//! with the value that started it.

mod background;
mod checks;
mod client;
mod cluster;
mod fault_proxy;
pub mod lab;
mod login;
mod postgres_server;
mod redis_server;
mod resp;
mod script;
mod sentinel;
mod stub_server;
mod tls;
pub mod traffic;

pub use self::{
    checks::{change, charge, check, quota},
    client::RedisClient,
    cluster::Cluster,
    fault_proxy::{Fault, FaultProxy},
    login::Login,
    postgres_server::PostgresServer,
    redis_server::{RedisServer, free_port, server_version},
    script::{Script, adjust_argv, argv},
    sentinel::{Sentinel, Sentinels},
    stub_server::{Answer, StubServer},
    tls::{Authority, Pair, TlsServer, Validity},
};

/// Its programs compile.
#[cfg(doctest)]
#[doc = include_str!("../../docs/quotas.md")]
struct QuotasPage;

/// Its programs compile.
#[cfg(doctest)]
#[doc = include_str!("../../docs/topologies.md")]
struct TopologiesPage;
