//! Who uses the service, and how.

use tollgate::{Quota, Tenant};

/// A tenant of the demonstration: its quota, and the load that it sends.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Profile {
    pub(crate) name: &'static str,
    /// The secret that it authenticates with.
    pub(crate) key: &'static str,
    pub(crate) capacity: u64,
    pub(crate) rate: u32,
    /// Requests per second that it sends.
    pub(crate) sends: u32,
    /// Whether all its requests go to the first replica, as with a load balancer that keeps connections.
    pub(crate) sticky: bool,
}

pub(crate) const TENANTS: [Profile; 3] = [
    Profile {
        name: "heavy",
        key: "key-of-heavy",
        capacity: 40,
        rate: 20,
        sends: 240,
        sticky: false,
    },
    Profile {
        name: "sticky",
        key: "key-of-sticky",
        capacity: 40,
        rate: 20,
        sends: 60,
        sticky: true,
    },
    Profile {
        name: "polite",
        key: "key-of-polite",
        capacity: 40,
        rate: 20,
        sends: 10,
        sticky: false,
    },
];

impl Profile {
    pub(crate) fn quota(&self) -> Quota {
        Quota::new(self.capacity, f64::from(self.rate)).expect("a valid quota")
    }

    /// The tenant whose key this is. A real service would verify a signature or look into a database.
    pub(crate) fn authenticate(key: &str) -> Option<Tenant> {
        let profile = TENANTS.iter().find(|profile| profile.key == key)?;
        Tenant::new(profile.name, "demo").ok()
    }
}
