//! All tests that need a real Redis or the real scripts, in one binary: it links once.

mod acl;
mod agreement;
mod arguments;
mod buckets;
mod connection;
mod fleet;
mod identities;
mod script_cache;
mod simulation;
mod support;
