//! Finding the families that a registry has already.
//!
//! A registry refuses a second collector by a name, but does not hand out the first one, and registries
//! cannot be compared. So each set of families leaves a marker in its registry: a collector without output,
//! whose description is of this set alone. A registry that refuses a marker a second time is its own.

use std::sync::{Arc, Mutex, PoisonError};

use prometheus::{
    Error, Registry,
    core::{Collector, Desc},
    proto::MetricFamily,
};

use super::Families;

/// Every set of families in this process. They are small, and a process has one or two; a registry that is
/// dropped leaves its set behind.
static SETS: Mutex<Vec<Arc<Families>>> = Mutex::new(Vec::new());

/// The families of `registry`, registered now if it has none.
pub(super) fn in_registry(registry: &Registry) -> Result<Arc<Families>, Error> {
    let mut sets = SETS.lock().unwrap_or_else(PoisonError::into_inner);
    let present = |number: usize| -> Result<bool, Error> {
        match registry.register(Box::new(Marker::new(number)?)) {
            Ok(()) => registry
                .unregister(Box::new(Marker::new(number)?))
                .map(|()| false),
            Err(Error::AlreadyReg) => Ok(true),
            Err(error) => Err(error),
        }
    };
    for (number, families) in sets.iter().enumerate() {
        if present(number)? {
            return Ok(families.clone());
        }
    }

    let families = Arc::new(Families::new()?);
    register_all(registry, &families)?;
    registry.register(Box::new(Marker::new(sets.len())?))?;
    sets.push(families.clone());
    Ok(families)
}

/// Registers every family, or none.
fn register_all(registry: &Registry, families: &Families) -> Result<(), Error> {
    for (done, family) in families.collectors().into_iter().enumerate() {
        if let Err(error) = registry.register(family) {
            for family in families.collectors().into_iter().take(done) {
                registry.unregister(family)?;
            }
            return Err(error);
        }
    }
    Ok(())
}

struct Marker(Desc);

impl Marker {
    fn new(number: usize) -> Result<Self, Error> {
        let name = format!("ratelimit_marker_{number}");
        Ok(Self(Desc::new(
            name,
            "Never shown".to_owned(),
            vec![],
            Default::default(),
        )?))
    }
}

impl Collector for Marker {
    fn desc(&self) -> Vec<&Desc> {
        vec![&self.0]
    }

    fn collect(&self) -> Vec<MetricFamily> {
        vec![]
    }
}
