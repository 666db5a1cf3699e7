//! Where the buckets of a tenant are.

use tollgate_core::{Quota, Tenant};
use tollgate_quota::{Allowance, FailureMode, Quotas, Regions};

use crate::world::{EU, REGIONS, quota};

pub(crate) struct Topology {
    pub(crate) name: &'static str,
    pub(crate) kind: Kind,
}

#[derive(Clone, Copy)]
pub(crate) enum Kind {
    /// One store in `eu`, and what a region does that gets no answer from it.
    OneStore(FailureMode),
    /// A store in each region, and a third of each quota.
    Split,
    /// A store in each region. The tenant's home is `eu`, and each other region keeps this part of its quota.
    Home(f64),
}

pub(crate) const USUAL: [Topology; 4] = [
    ONE_STORE,
    SPLIT,
    Topology {
        name: "home `eu`",
        kind: Kind::Home(0.0),
    },
    HOME,
];

pub(crate) const CUT_OFF: [Topology; 5] = [
    Topology {
        name: "one store, `open`",
        kind: Kind::OneStore(FailureMode::Open),
    },
    Topology {
        name: "one store, `closed`",
        kind: Kind::OneStore(FailureMode::Closed),
    },
    Topology {
        name: "one store, `local`",
        kind: Kind::OneStore(FailureMode::Local),
    },
    SPLIT,
    HOME,
];

const ONE_STORE: Topology = Topology {
    name: "one store",
    kind: Kind::OneStore(FailureMode::Closed),
};
const SPLIT: Topology = Topology {
    name: "split",
    kind: Kind::Split,
};
const HOME: Topology = Topology {
    name: "home `eu`, `away = 0.1`",
    kind: Kind::Home(0.1),
};

impl Topology {
    /// What the tenant may spend in each region, by the library's own rules. `None` where it is blocked.
    pub(crate) fn parts(&self) -> [Option<Quota>; 3] {
        let tenant = Tenant::new("acme", "").expect("an id");
        REGIONS.map(|own| {
            let quotas = self.quotas(own);
            quotas.check().expect("no faults");
            match quotas.terms(&tenant, None).allowance(&quotas.limits()[0]) {
                Allowance::Limited(quota) => Some(quota),
                _ => None,
            }
        })
    }

    fn quotas(&self, own: &str) -> Quotas {
        let quotas = Quotas::new(quota());
        let regions = |away| {
            REGIONS.iter().fold(Regions::new(own), |regions, name| {
                regions.region(*name, 1.0 / 3.0).away(*name, away)
            })
        };
        match self.kind {
            Kind::OneStore(_) => quotas,
            Kind::Split => quotas.in_regions(regions(0.0)),
            Kind::Home(away) => quotas
                .in_regions(regions(away))
                .home_of("acme", REGIONS[EU]),
        }
    }
}
