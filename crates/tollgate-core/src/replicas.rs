//! How many replicas share a limit.

use std::{fmt, sync::Arc};

/// How many replicas a tenant's limit is divided by while the store is away.
///
/// Implementations answer at once, from what they knew last, and keep that when its source goes away. The
/// number is wrong for a while when the fleet grows or shrinks: see each one for how long. Fewer than 1
/// counts as 1.
///
/// | source | choose it when | lags by |
/// |---|---|---|
/// | a `u32` | the number is fixed | until the next deploy |
/// | `env_replicas` | the deployment knows the number | until the next start |
/// | `DnsReplicas` | Kubernetes, with a headless service | its interval, plus the DNS server's TTL |
/// | `RedisStore::heartbeats` | anywhere else | one interval; four after a crash; frozen while Redis is away |
pub trait ReplicaCount: fmt::Debug + Send + Sync + 'static {
    /// The last known number.
    fn replicas(&self) -> u32;
}

impl ReplicaCount for u32 {
    fn replicas(&self) -> u32 {
        *self
    }
}

impl<R: ReplicaCount + ?Sized> ReplicaCount for Arc<R> {
    fn replicas(&self) -> u32 {
        (**self).replicas()
    }
}
