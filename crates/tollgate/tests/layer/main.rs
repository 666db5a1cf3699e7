//! Tests of the layer without a server: with tower's mocks, and time that is set.

mod answers;
mod contract;
mod identity;
mod limits;
mod log;
#[cfg(feature = "prometheus")]
mod metrics;
#[cfg(feature = "axum")]
mod routes;
mod support;
