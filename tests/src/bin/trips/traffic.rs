//! Who asks how often.

use std::time::Duration;

use fastrand::Rng;
use tollgate::Quota;

use crate::BoxError;

/// Requests of some tenants, from clients that ask again when they have their answer.
pub(crate) struct Traffic {
    pub(crate) name: &'static str,
    pub(crate) about: &'static str,
    pub(crate) quota: Quota,
    pub(crate) tenants: usize,
    pub(crate) clients: u64,
    pub(crate) amount: Amount,
    /// Whether each tenant has spent its capacity before.
    pub(crate) drained: bool,
    /// How often each client asks; without it, as often as it can.
    pub(crate) every: Option<Duration>,
    /// Tenant `i` is asked for with a probability like `1 / (i + 1)`, instead of each like the others.
    zipf: bool,
}

/// When a round ends.
#[derive(Clone, Copy)]
pub(crate) enum Amount {
    /// After the usual length of a round.
    Time,
    /// After so many requests, however long they take.
    Requests(u64),
}

pub(crate) const HOT: &str = "one hot tenant";
pub(crate) const ATTACK: &str = "attack";
pub(crate) const ALONE: &str = "one request at a time";

impl Traffic {
    pub(crate) fn all() -> Result<[Self; 6], BoxError> {
        let base = |name, about, quota| Self {
            name,
            about,
            quota,
            tenants: 1,
            clients: 64,
            amount: Amount::Time,
            drained: false,
            every: None,
            zipf: false,
        };
        Ok([
            base(
                HOT,
                "64 requests at a time, nearly none rejected",
                Quota::new(100_000, "1000000/s")?,
            ),
            Self {
                tenants: 1_000,
                ..base(
                    "1 000 even tenants",
                    "64 requests at a time, nearly none rejected",
                    Quota::new(1_000, "1000/s")?,
                )
            },
            Self {
                tenants: 1_000,
                zipf: true,
                ..base(
                    "1 000 Zipf tenants",
                    "64 requests at a time; tenant i has a share of 1/i, and 200 tokens and 200 per second",
                    Quota::new(200, "200/s")?,
                )
            },
            Self {
                tenants: 4,
                amount: Amount::Requests(20_000),
                ..base(
                    ATTACK,
                    "4 tenants ask for 5 000 each, as fast as they can, 16 at a time, and have 500",
                    Quota::new(500, "1/s")?,
                )
            },
            Self {
                tenants: 32,
                drained: true,
                every: Some(Duration::from_millis(10)),
                ..base(
                    "steady attack",
                    "32 drained tenants ask 200 times a second each, evenly, and get 20",
                    Quota::new(20, "20/s")?,
                )
            },
            Self {
                clients: 1,
                ..base(
                    ALONE,
                    "one tenant, none rejected",
                    Quota::new(100_000, "1000000/s")?,
                )
            },
        ])
    }

    /// Draws tenants for a client.
    pub(crate) fn draw(&self) -> impl Fn(&mut Rng) -> usize + Clone + Send + 'static {
        let mut sum = 0.0;
        let weights = (1..=self.tenants).map(|i| {
            #[expect(clippy::cast_precision_loss, reason = "at most a thousand")]
            let weight = if self.zipf { 1.0 / i as f64 } else { 1.0 };
            sum += weight;
            sum
        });
        let sums: Vec<f64> = weights.collect();
        move |rng| {
            let drawn = rng.f64() * sum;
            sums.partition_point(|it| *it <= drawn).min(sums.len() - 1)
        }
    }
}
