//! What a check takes from which buckets, hashed once for stages that look several times.

use std::hash::{BuildHasher, Hash, Hasher};

use foldhash::quality::RandomState;
use tollgate_core::Check;

/// The same for all checks that take as much from the same buckets.
pub(crate) fn hash_of_taken(check: &Check, hasher: &RandomState) -> u64 {
    let mut state = hasher.build_hasher();
    for charge in check.charges() {
        charge.key.hash(&mut state);
        charge.cost.hash(&mut state);
    }
    state.finish()
}
