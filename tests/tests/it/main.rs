//! All tests that need real servers or the real scripts, in one binary: it links once.

mod acl;
mod agreement;
mod arguments;
mod breaker;
mod buckets;
mod client;
mod connection;
mod docs;
mod error_kinds;
mod examples;
mod faults;
mod fleet;
mod heartbeats;
mod http;
mod http_source;
mod identities;
mod lab;
mod logs;
mod outage;
mod postgres_source;
mod recovery;
mod script_cache;
mod simulation;
mod support;
