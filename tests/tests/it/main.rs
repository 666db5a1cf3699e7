//! All tests that need real servers or the real scripts, in one binary: it links once.

mod acl;
mod agreement;
mod arguments;
mod buckets;
mod connection;
mod docs;
mod examples;
mod fleet;
mod http;
mod identities;
mod script_cache;
mod simulation;
mod support;
