//! All tests that need real servers or the real scripts, in one binary: it links once.

mod acl;
mod adjust;
mod agreement;
mod arguments;
mod breaker;
mod buckets;
mod client;
mod conformance;
mod connection;
mod docs;
mod error_kinds;
mod examples;
mod faults;
mod fleet;
mod heartbeats;
mod http;
mod identities;
mod lab;
mod logs;
mod outage;
mod recovery;
mod redis_rs;
mod script_cache;
mod shards;
mod simulation;
mod support;
