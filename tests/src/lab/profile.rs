//! Who uses the service, and how.

use std::borrow::Cow;

use serde::{Deserialize, Serialize};
use tollgate::{Quota, Tenant};

/// A tenant of a lab: its quota, and the load that it sends.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Profile {
    /// Its id, which is also the key that it authenticates with.
    pub name: Cow<'static, str>,
    /// Tokens.
    pub capacity: u64,
    /// Tokens per second.
    pub rate: f64,
    /// Requests per second that it sends, over all replicas.
    pub sends: u32,
}

impl Profile {
    /// Its quota.
    ///
    /// # Panics
    ///
    /// If there is no such quota.
    #[must_use]
    pub fn quota(&self) -> Quota {
        Quota::new(self.capacity, self.rate).expect("a valid quota")
    }

    /// The capacity that one of `replicas` enforces by itself.
    #[must_use]
    pub fn local_capacity(&self, replicas: u32) -> u64 {
        self.quota().share(replicas, 1).capacity()
    }

    /// The tenant whose key this is. A real service would verify a signature or look into a database.
    pub(crate) fn authenticate(tenants: &[Self], key: &str) -> Option<Tenant> {
        let profile = tenants.iter().find(|profile| profile.name == key)?;
        Tenant::new(&*profile.name, "lab").ok()
    }
}
