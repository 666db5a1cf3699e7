//! The rounds of one load, and what follows from them.

use serde::Serialize;
use tollgate_benches::{Figure, Spread};

use crate::{
    loads::{EXACT_PEERS, FLOOR, RAW},
    round::Sample,
};

/// All rounds of one load.
#[derive(Serialize)]
pub(crate) struct Measured {
    pub(crate) load: &'static str,
    pub(crate) about: &'static str,
    pub(crate) variants: Vec<Row>,
}

/// All rounds of one variant.
#[derive(Serialize)]
pub(crate) struct Row {
    pub(crate) variant: &'static str,
    /// Why there are none: it cannot do what the load asks.
    pub(crate) unable: Option<String>,
    /// Why they do not count: it failed.
    pub(crate) broke: Option<String>,
    /// Bytes per request, where that was measured.
    pub(crate) appended: Option<f64>,
    pub(crate) samples: Vec<Sample>,
}

impl Measured {
    pub(crate) fn row(&self, variant: &str) -> Option<&Row> {
        let mut rows = self.variants.iter();
        rows.find(|row| row.variant == variant && row.broke.is_none() && !row.samples.is_empty())
    }

    pub(crate) fn has_broken(&self, variant: &str) -> bool {
        let mut rows = self.variants.iter();
        rows.any(|row| row.variant == variant && row.broke.is_some())
    }

    /// A figure of `variant`, as a ratio to that of `against` in the same round, or as it is. `best-exact-peer`
    /// stands for the exact limiter of others with the most requests per second.
    pub(crate) fn figure(
        &self,
        figure: Figure,
        variant: &str,
        against: Option<&str>,
    ) -> Option<Spread> {
        let own = self.values(figure, variant)?;
        let Some(against) = against else {
            return Spread::of(own);
        };
        let other = match against {
            "best-exact-peer" => self.best_exact_peer()?,
            other => other,
        };
        let other = self.values(figure, other)?;
        Spread::of(own.into_iter().zip(other).map(|(own, other)| own / other))
    }

    pub(crate) fn best_exact_peer(&self) -> Option<&'static str> {
        let median = |peer: &str| {
            let spread = self.figure(Figure::Throughput, peer, None);
            spread.map_or(0.0, |it| it.median)
        };
        let peers = EXACT_PEERS.into_iter();
        let measured = peers.filter(|peer| self.row(peer).is_some());
        measured.max_by(|a, b| median(a).total_cmp(&median(b)))
    }

    fn values(&self, figure: Figure, variant: &str) -> Option<Vec<f64>> {
        let samples = &self.row(variant)?.samples;
        let each = |of: fn(&Sample) -> f64| samples.iter().map(of).collect();
        let added = |of: fn(&Sample) -> f64| {
            if variant == RAW {
                return Some(each(of));
            }
            let floor = self.row(FLOOR)?.samples.iter();
            Some(
                samples
                    .iter()
                    .zip(floor)
                    .map(|(it, floor)| of(it) - of(floor))
                    .collect(),
            )
        };
        Some(match figure {
            Figure::Throughput => each(Sample::per_second),
            Figure::AppCpu => each(|it| it.app_cpu),
            Figure::RedisCpu => each(|it| it.redis_cpu),
            Figure::Calls => each(|it| it.calls),
            Figure::AddedP50 => added(|it| it.p50)?,
            Figure::AddedP99 => added(|it| it.p99)?,
        })
    }
}
