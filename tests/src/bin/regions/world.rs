//! Regions, what lies between them, and where a tenant's requests come from.

use std::f64::consts::TAU;

use fastrand::Rng;
use tollgate_core::Quota;

pub(crate) const REGIONS: [&str; 3] = ["eu", "us", "ap"];

/// Milliseconds from a service to a store and back, by their regions.
pub(crate) const ROUND_TRIPS: [[u64; 3]; 3] = [[1, 80, 220], [80, 1, 160], [220, 160, 1]];

/// The region of the one store, and the home of the tenant that has one.
pub(crate) const EU: usize = 0;
/// The region that is cut off.
pub(crate) const US: usize = 1;

/// A day, in milliseconds.
pub(crate) const DAY: u64 = 86_400_000;

/// Another seed gives other requests, and the same figures but for the last digit.
const SEED: u64 = 7;

/// What the tenant may spend over all regions.
pub(crate) fn quota() -> Quota {
    Quota::new(60, "1/s").expect("a quota")
}

/// Where the requests of a tenant come from.
pub(crate) struct Spread {
    pub(crate) name: &'static str,
    /// How many come from each region, at this part of the day.
    weights: fn(f64) -> [f64; 3],
}

pub(crate) const SPREADS: [Spread; 4] = [
    Spread {
        name: "a third from each",
        weights: |_| [1.0, 1.0, 1.0],
    },
    Spread {
        name: "80, 15, 5 %",
        weights: |_| [80.0, 15.0, 5.0],
    },
    Spread {
        name: "with the sun",
        weights: |day| {
            [0.0, 1.0, 2.0].map(|third| 0.1 + (TAU * (day - third / 3.0)).cos().max(0.0))
        },
    },
    Spread {
        name: "all from `eu`",
        weights: |_| [1.0, 0.0, 0.0],
    },
];

#[derive(Clone, Copy)]
pub(crate) struct Request {
    /// When, in milliseconds from the start of the day.
    pub(crate) at: u64,
    /// Where, of [`REGIONS`].
    pub(crate) region: usize,
}

/// The requests of a day of `length` milliseconds, at random times, `load` times as many as the quota refills.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_precision_loss,
    clippy::cast_sign_loss,
    reason = "milliseconds of a day"
)]
pub(crate) fn requests(spread: &Spread, length: u64, load: f64) -> Vec<Request> {
    let mut random = Rng::with_seed(SEED);
    let (per_milli, length) = (quota().rate().per_second() * load / 1_000.0, length as f64);
    let mut requests = Vec::new();
    let mut at = 0.0;
    loop {
        at -= (1.0 - random.f64()).ln() / per_milli;
        if at >= length {
            return requests;
        }
        let weights = (spread.weights)(at / length);
        let mut place = random.f64() * weights.iter().sum::<f64>();
        let region = weights.iter().position(|weight| {
            place -= weight;
            place < 0.0
        });
        requests.push(Request {
            at: at as u64,
            region: region.unwrap_or(EU),
        });
    }
}
