//! Who uses the service, and how.

use tollgate::{Quota, Tenant};

/// A tenant of the lab: its quota, and the load that it sends.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Profile {
    pub(crate) name: &'static str,
    pub(crate) capacity: u64,
    /// Tokens per second.
    pub(crate) rate: f64,
    /// Requests per second that it sends, over all replicas.
    pub(crate) sends: u32,
}

/// Stays within its quota: never to be denied.
pub(crate) const STEADY: usize = 0;
/// Has spent its burst before the fault begins: must not get another one.
pub(crate) const DRAINED: usize = 1;
/// Sends much more than its quota.
pub(crate) const HEAVY: usize = 2;
/// Hardly refills, so that what Redis has charged can be read from the bucket.
pub(crate) const AUDITED: usize = 3;

pub(crate) const TENANTS: [Profile; 4] = [
    Profile {
        name: "steady",
        capacity: 60,
        rate: 30.0,
        sends: 15,
    },
    Profile {
        name: "drained",
        capacity: 60,
        rate: 6.0,
        sends: 45,
    },
    Profile {
        name: "heavy",
        capacity: 120,
        rate: 60.0,
        sends: 220,
    },
    Profile {
        name: "audited",
        capacity: 100_000,
        rate: 0.01,
        sends: 20,
    },
];

impl Profile {
    pub(crate) fn quota(&self) -> Quota {
        Quota::new(self.capacity, self.rate).expect("a valid quota")
    }

    /// The capacity that one of `replicas` enforces by itself.
    pub(crate) fn local_capacity(&self, replicas: u32) -> u64 {
        self.quota().share(replicas, 1).capacity()
    }

    /// The tenant whose key this is. A real service would verify a signature or look into a database.
    pub(crate) fn authenticate(key: &str) -> Option<Tenant> {
        let profile = TENANTS.iter().find(|profile| profile.name == key)?;
        Tenant::new(profile.name, "lab").ok()
    }
}
