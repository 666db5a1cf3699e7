//! Finding the families that a registry has already.
//!
//! A registry refuses a second collector by a name, but does not hand out the first one, and registries
//! cannot be compared. So each set of families leaves a marker in its registry: a collector without output,
//! whose description is of this set alone. A registry that refuses a marker a second time is its own.

use std::sync::{Arc, Mutex, PoisonError, Weak};

use prometheus::{
    Error, Registry,
    core::{Collector, Desc},
    proto::MetricFamily,
};

use super::Families;

/// Every set of families that lives in a registry, with the number of its marker.
static SETS: Mutex<Sets> = Mutex::new(Sets {
    next: 0,
    alive: Vec::new(),
});

struct Sets {
    next: u64,
    alive: Vec<(u64, Weak<Families>)>,
}

/// The families of `registry`, registered now if it has none.
pub(super) fn in_registry(registry: &Registry) -> Result<Arc<Families>, Error> {
    let mut sets = SETS.lock().unwrap_or_else(PoisonError::into_inner);
    sets.alive
        .retain(|(_, families)| families.strong_count() > 0);
    for (number, families) in &sets.alive {
        if let Some(families) = families.upgrade()
            && has_marker(registry, *number, &families)?
        {
            return Ok(families);
        }
    }
    sets.add_to(registry)
}

/// The families of a registry that has none yet.
pub(super) fn in_new(registry: &Registry) -> Result<Arc<Families>, Error> {
    SETS.lock()
        .unwrap_or_else(PoisonError::into_inner)
        .add_to(registry)
}

impl Sets {
    fn add_to(&mut self, registry: &Registry) -> Result<Arc<Families>, Error> {
        let families = Arc::new(Families::new()?);
        register_all(registry, &families)?;
        registry.register(Box::new(Marker::new(self.next, &families)?))?;
        self.alive.push((self.next, Arc::downgrade(&families)));
        self.next += 1;
        Ok(families)
    }
}

fn has_marker(registry: &Registry, number: u64, families: &Arc<Families>) -> Result<bool, Error> {
    let marker = || Marker::new(number, families).map(Box::new);
    match registry.register(marker()?) {
        Ok(()) => registry.unregister(marker()?).map(|()| false),
        Err(Error::AlreadyReg) => Ok(true),
        Err(error) => Err(error),
    }
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

struct Marker {
    desc: Desc,
    /// The set lives as long as its registry.
    _families: Arc<Families>,
}

impl Marker {
    fn new(number: u64, families: &Arc<Families>) -> Result<Self, Error> {
        let name = format!("ratelimit_marker_{number}");
        let desc = Desc::new(name, "Never shown".to_owned(), vec![], Default::default())?;
        Ok(Self {
            desc,
            _families: families.clone(),
        })
    }
}

impl Collector for Marker {
    fn desc(&self) -> Vec<&Desc> {
        vec![&self.desc]
    }

    fn collect(&self) -> Vec<MetricFamily> {
        vec![]
    }
}
