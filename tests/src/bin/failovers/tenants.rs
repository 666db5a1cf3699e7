//! Who uses the service.

use tollgate_tests::{
    check,
    lab::{Policy, Profile},
};

use crate::topology::{Group, Servers};

/// A tenant of a round.
#[derive(Clone, Debug)]
pub(crate) struct Tenant {
    pub(crate) profile: Profile,
    /// The primary of its bucket at the start.
    pub(crate) group: usize,
    /// Stays within its quota; the others spend all of theirs, some seconds after the first fault.
    pub(crate) steady: bool,
}

/// Of each group.
const KINDS: [(&str, u64, f64, u32); 3] = [
    ("steady-a", 1_000, 100.0, 30),
    ("steady-b", 1_000, 100.0, 30),
    // Hardly refills, so that what is granted again shows.
    ("spender", 300, 1.0, 40),
];

/// The tenants of the replicas with this policy.
pub(crate) fn of(policy: Policy, primaries: usize, servers: &dyn Servers) -> Vec<Tenant> {
    let mut tenants = Vec::new();
    for group in 0..primaries {
        for (kind, capacity, rate, sends) in KINDS {
            let profile = |number: u32| Profile {
                name: format!("{kind}-{}-{number}", policy.as_str()).into(),
                capacity,
                rate,
                sends,
            };
            let mut candidates = (0..).map(profile);
            let own = |it: &Profile| {
                let taken = |other: &Tenant| other.profile.name == it.name;
                servers.primary_of(&key(it)) == group && !tenants.iter().any(taken)
            };
            let profile = candidates.find(own).expect("there are many names");
            tenants.push(Tenant {
                profile,
                group,
                steady: kind.starts_with("steady"),
            });
        }
    }
    tenants
}

/// The groups, with the keys of all their tenants.
pub(crate) fn groups<'a>(
    tenants: impl Iterator<Item = &'a Tenant>,
    primaries: usize,
) -> Vec<Group> {
    let mut groups = vec![Group { keys: Vec::new() }; primaries];
    for tenant in tenants {
        groups[tenant.group].keys.push(key(&tenant.profile));
    }
    groups
}

fn key(profile: &Profile) -> String {
    let check = check(&profile.name, profile.quota(), 1);
    check.charges()[0].key.to_string()
}
