//! Who uses the service, and how.

use std::borrow::Cow;

use tollgate_tests::lab::Profile;

/// Stays within its quota: never to be denied.
pub(crate) const STEADY: usize = 0;
/// Has spent its burst before the fault begins: must not get another one.
pub(crate) const DRAINED: usize = 1;
/// Sends much more than its quota.
pub(crate) const HEAVY: usize = 2;
/// Hardly refills, so that what Redis has charged can be read from the bucket.
pub(crate) const AUDITED: usize = 3;

pub(crate) static TENANTS: [Profile; 4] = [
    Profile {
        name: Cow::Borrowed("steady"),
        capacity: 60,
        rate: 30.0,
        sends: 15,
    },
    Profile {
        name: Cow::Borrowed("drained"),
        capacity: 60,
        rate: 6.0,
        sends: 45,
    },
    Profile {
        name: Cow::Borrowed("heavy"),
        capacity: 120,
        rate: 60.0,
        sends: 220,
    },
    Profile {
        name: Cow::Borrowed("audited"),
        capacity: 100_000,
        rate: 0.01,
        sends: 20,
    },
];
