//! A day of one tenant.

use std::{ops::Range, slice};

use tollgate_core::{Bucket, Check, Quota, bucket};
use tollgate_quota::FailureMode;
use tollgate_tests::charge;

use crate::{
    meter::Meter,
    topology::{Kind, Topology},
    world::{EU, REGIONS, ROUND_TRIPS, Request, US, quota},
};

/// Replicas in each region, which the policy `local` divides by.
const REPLICAS: usize = 2;

/// When `us` is cut off from the other regions.
pub(crate) struct Cut(Range<u64>);

impl Cut {
    /// An hour from the middle of a day, or as much of a shorter one.
    pub(crate) const fn at_noon(length: u64) -> Self {
        Self(length / 2..length / 2 + length / 24)
    }
}

#[derive(Clone, Copy, Default)]
pub(crate) struct Count {
    pub(crate) asked: u32,
    pub(crate) admitted: u32,
}

pub(crate) struct Outcome {
    pub(crate) all: Count,
    /// In the region that is cut off, while it is.
    pub(crate) cut: Count,
    /// What one bucket without any way to it would have admitted.
    pub(crate) entitled: u32,
    /// See [`Meter::excess`].
    pub(crate) excess: f64,
    /// Round trips of the requests that asked a store, in milliseconds.
    pub(crate) round_trips: Vec<u64>,
}

/// A bucket in some store or process. `None` spends nothing.
struct Holder {
    quota: Option<Quota>,
    bucket: Option<Bucket>,
}

impl Holder {
    const fn new(quota: Option<Quota>) -> Self {
        Self {
            quota,
            bucket: None,
        }
    }

    /// Whether a token is granted, and how many are left.
    fn take(&mut self, now: u64) -> (bool, u64) {
        let Some(quota) = self.quota else {
            return (false, 0);
        };
        let check = Check::single(charge("acme", "default", quota, 1));
        let decision = bucket::decide(&check, slice::from_mut(&mut self.bucket), now);
        let remaining = decision.limits[0].remaining.unwrap_or(0);
        (decision.is_allowed(), remaining)
    }
}

pub(crate) fn run(topology: &Topology, requests: &[Request], cut: Option<&Cut>) -> Outcome {
    let mut outcome = Outcome {
        all: Count::default(),
        cut: Count::default(),
        entitled: entitled(requests),
        excess: 0.0,
        round_trips: Vec::new(),
    };
    let mut stores = topology.parts().map(Holder::new);
    let mut fallback = Fallback::new();
    let mut meter = Meter::new(quota());
    let store_of = |region: usize| match topology.kind {
        Kind::OneStore(_) => EU,
        Kind::Split | Kind::Home(_) => region,
    };
    // Stores see requests in the order in which they arrive there.
    let arrivals = requests.iter().map(|request| {
        let trip = ROUND_TRIPS[request.region][store_of(request.region)];
        (request.at + trip / 2, trip, request)
    });
    let mut arrivals: Vec<_> = arrivals.collect();
    arrivals.sort_by_key(|(at, _, _)| *at);
    for (at, trip, request) in arrivals {
        let store = store_of(request.region);
        let is_cut = cut.is_some_and(|Cut(span)| span.contains(&at)) && request.region == US;
        let admitted = match topology.kind {
            Kind::OneStore(policy) if is_cut && store != US => fallback.decide(policy, at),
            _ => {
                let (admitted, remaining) = stores[store].take(at);
                if request.region == US {
                    fallback.last_known = remaining;
                }
                if stores[store].quota.is_some() {
                    outcome.round_trips.push(trip);
                }
                admitted
            }
        };
        outcome.all.add(admitted);
        if is_cut {
            outcome.cut.add(admitted);
        }
        if admitted {
            meter.spent(at);
        }
    }
    outcome.excess = meter.excess();
    outcome
}

fn entitled(requests: &[Request]) -> u32 {
    let mut ideal = Holder::new(Some(quota()));
    let granted = requests.iter().filter(|request| ideal.take(request.at).0);
    u32::try_from(granted.count()).expect("requests of a day")
}

impl Count {
    fn add(&mut self, admitted: bool) {
        self.asked += 1;
        self.admitted += u32::from(admitted);
    }
}

/// What replicas do whose store does not answer.
struct Fallback {
    replicas: [Holder; REPLICAS],
    next: usize,
    /// What the store had left when it was last heard.
    last_known: u64,
    is_started: bool,
}

impl Fallback {
    fn new() -> Self {
        let all = u32::try_from(REPLICAS * REGIONS.len()).expect("a few");
        Self {
            replicas: [(); REPLICAS].map(|()| Holder::new(Some(quota().share(all, 1)))),
            next: 0,
            last_known: quota().capacity(),
            is_started: false,
        }
    }

    #[expect(clippy::cast_precision_loss, reason = "a small capacity")]
    fn decide(&mut self, policy: FailureMode, now: u64) -> bool {
        match policy {
            FailureMode::Open => true,
            FailureMode::Closed => false,
            FailureMode::Local => {
                if !self.is_started {
                    self.is_started = true;
                    let known = self.last_known as f64 / (REPLICAS * REGIONS.len()) as f64;
                    for Holder { quota, bucket } in &mut self.replicas {
                        bucket::lower(bucket, &quota.expect("a share"), known, now);
                    }
                }
                self.next = (self.next + 1) % REPLICAS;
                self.replicas[self.next].take(now).0
            }
        }
    }
}
