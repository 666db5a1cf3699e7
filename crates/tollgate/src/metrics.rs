//! What a limiter does, counted for Prometheus.

use std::{fmt, sync::Arc};

use prometheus::{
    Gauge, Histogram, HistogramOpts, HistogramVec, IntCounter, IntCounterVec, IntGauge,
    IntGaugeVec, Opts, Registry, TextEncoder, core::Collector,
};
use tokio::time::Instant;
use tollgate_core::{Decision, ErrorKind, StoreError};
use tollgate_limiter::{BreakerState, FailurePolicy, Observer, SavedBy};
use tollgate_quota::{DEFAULT_CLASS, QuotaEvent, Quotas};

mod classes;
mod sharing;

use self::classes::{Classes, OUTCOMES};

/// The label `key_class` of a request that has no identity.
const NO_CLASS: &str = "none";

/// Seconds, from 100 µs to 250 ms.
const LATENCY_BUCKETS: [f64; 11] = [
    0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25,
];

/// Counts what limiters do in a Prometheus registry. An [`Observer`]; clones count together.
///
/// | name | type | labels |
/// |---|---|---|
/// | `ratelimit_decisions_total` | counter, one per request | `outcome`: `allowed`, `rejected`, `fallback_allowed`, `fallback_rejected`, `unidentified`; `key_class` |
/// | `ratelimit_limit_rejections_total` | counter, one per limit that lacked tokens | `limit`, `key_class`, `mode`: `enforce`, `shadow` |
/// | `ratelimit_store_latency_seconds` | histogram | `outcome`: `ok`, `error` |
/// | `ratelimit_store_errors_total` | counter | `kind`, see [`ErrorKind`]; `policy`: `open`, `closed`, `local` |
/// | `ratelimit_breaker_state` | gauge | none: 0 closed, 1 half-open, 2 open |
/// | `ratelimit_store_calls_saved_total` | counter, checks that needed no call of their own | `by`: `denial_cache`, `coalesce`, `lease` |
/// | `ratelimit_leased_tokens` | gauge, tokens claimed by this process and not spent | `key_class` |
/// | `ratelimit_quota_loads_total` | counter, accounts asked of a source | `source`; `outcome`: `ok`, `error` |
/// | `ratelimit_quota_unknown_total` | counter, requests decided by tier or default since no source had answered yet | none |
/// | `ratelimit_quota_stale_seconds` | gauge, seconds since a source of quotas that fails now was last heard; 0 when all answer | none |
/// | `ratelimit_limits_reloads_total` | counter, changed limits files | `outcome`: `ok`, `error` |
/// | `ratelimit_limits_file_valid` | gauge: 1 if the limits file is in force as it stands, 0 if an older one is | none |
/// | `ratelimit_replicas` | gauge, the number that the local policy divides by | none |
///
/// No label has a tenant, a path or a key. `key_class` is the tier that applied, `default`, or `none`.
///
/// ```
/// use tollgate::{FailurePolicy, Limiter, MemoryStore, Metrics, Quota, Quotas};
///
/// let metrics = Metrics::new();
/// let limiter = Limiter::builder(MemoryStore::new())
///     .quotas(Quotas::new(Quota::new(20, "2/s")?))
///     .on_store_failure(FailurePolicy::Open)
///     .observer(metrics.clone())
///     .build()?;
/// assert!(metrics.render().contains("ratelimit_decisions_total"));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone)]
pub struct Metrics {
    registry: Registry,
    families: Arc<Families>,
}

struct Families {
    decisions: IntCounterVec,
    rejections: IntCounterVec,
    /// What the two above count.
    classes: Classes,
    latency: HistogramVec,
    /// Of an answer, and of a failure.
    latencies: [Histogram; 2],
    errors: IntCounterVec,
    breaker: IntGauge,
    replicas: IntGauge,
    saved: IntCounterVec,
    leased: IntGaugeVec,
    loads: IntCounterVec,
    unknown: IntCounter,
    stale: Gauge,
    reloads: IntCounterVec,
    file_valid: IntGauge,
}

impl Metrics {
    /// Counts in a registry of its own.
    #[must_use]
    pub fn new() -> Self {
        let registry = Registry::new();
        let families = sharing::in_new(&registry).expect("nothing else is in a new registry");
        Self { registry, families }
    }

    /// Counts in a registry that the service has already, such as `prometheus::default_registry()`.
    ///
    /// A registry has each family once: whoever comes later counts in the families that are there.
    ///
    /// # Errors
    ///
    /// If the registry has another metric by one of the names.
    pub fn in_registry(registry: &Registry) -> Result<Self, prometheus::Error> {
        let families = sharing::in_registry(registry)?;
        Ok(Self {
            registry: registry.clone(),
            families,
        })
    }

    /// The registry.
    #[must_use]
    pub const fn registry(&self) -> &Registry {
        &self.registry
    }

    /// Everything in the registry, in Prometheus's text format.
    #[must_use]
    pub fn render(&self) -> String {
        let mut text = String::new();
        // Only a family without a name or a metric cannot be written, and a registry gathers none.
        let _ = TextEncoder::new().encode_utf8(&self.registry.gather(), &mut text);
        text
    }

    /// A `GET /metrics` route for Axum.
    ///
    /// ```
    /// # use tollgate::Metrics;
    /// # let metrics = Metrics::new();
    /// let app: axum::Router = axum::Router::new().route("/metrics", metrics.route());
    /// ```
    #[cfg(feature = "axum")]
    #[cfg_attr(docsrs, doc(cfg(feature = "axum")))]
    pub fn route<S>(&self) -> axum::routing::MethodRouter<S>
    where
        S: Clone + Send + Sync + 'static,
    {
        let metrics = self.clone();
        axum::routing::get(move || {
            let content_type = [(http::header::CONTENT_TYPE, prometheus::TEXT_FORMAT)];
            std::future::ready((content_type, metrics.render()))
        })
    }
}

impl Families {
    fn new() -> Result<Self, prometheus::Error> {
        let counter =
            |name, help, labels: &[&str]| IntCounterVec::new(Opts::new(name, help), labels);
        let latency = HistogramOpts::new(
            "ratelimit_store_latency_seconds",
            "Time until the store answered or failed",
        );
        let file_valid = IntGauge::new(
            "ratelimit_limits_file_valid",
            "1 if the limits file is in force as it stands, 0 if an older version of it is",
        )?;
        // Nothing is wrong with a file that nobody has.
        file_valid.set(1);
        let decisions = counter(
            "ratelimit_decisions_total",
            "Requests by what was decided of them",
            &["outcome", "key_class"],
        )?;
        let rejections = counter(
            "ratelimit_limit_rejections_total",
            "Limits that lacked tokens for a request",
            &["limit", "key_class", "mode"],
        )?;
        let latency = HistogramVec::new(latency.buckets(LATENCY_BUCKETS.to_vec()), &["outcome"])?;
        Ok(Self {
            file_valid,
            classes: Classes::new(decisions.clone(), rejections.clone()),
            decisions,
            rejections,
            latencies: ["ok", "error"].map(|outcome| latency.with_label_values(&[outcome])),
            latency,
            errors: counter(
                "ratelimit_store_errors_total",
                "Checks that the store failed to answer, by the policy that decided instead",
                &["kind", "policy"],
            )?,
            breaker: IntGauge::new(
                "ratelimit_breaker_state",
                "The circuit breaker before the store: 0 closed, 1 half-open, 2 open",
            )?,
            replicas: IntGauge::new(
                "ratelimit_replicas",
                "The number of replicas that the local policy divides limits by",
            )?,
            saved: counter(
                "ratelimit_store_calls_saved_total",
                "Checks that were answered without a call of their own to the store",
                &["by"],
            )?,
            leased: IntGaugeVec::new(
                Opts::new(
                    "ratelimit_leased_tokens",
                    "Tokens that this process has claimed and not spent yet",
                ),
                &["key_class"],
            )?,
            loads: counter(
                "ratelimit_quota_loads_total",
                "Accounts of tenants that a source of quotas was asked for",
                &["source", "outcome"],
            )?,
            unknown: IntCounter::new(
                "ratelimit_quota_unknown_total",
                "Requests decided by tier or default because no source of quotas had answered yet",
            )?,
            stale: Gauge::new(
                "ratelimit_quota_stale_seconds",
                "Seconds since a source of quotas that fails now was last heard; 0 when all answer",
            )?,
            reloads: counter(
                "ratelimit_limits_reloads_total",
                "Changed limits files, by whether they could be taken over",
                &["outcome"],
            )?,
        })
    }

    fn collectors(&self) -> [Box<dyn Collector>; 13] {
        [
            Box::new(self.decisions.clone()),
            Box::new(self.rejections.clone()),
            Box::new(self.latency.clone()),
            Box::new(self.errors.clone()),
            Box::new(self.breaker.clone()),
            Box::new(self.replicas.clone()),
            Box::new(self.saved.clone()),
            Box::new(self.leased.clone()),
            Box::new(self.loads.clone()),
            Box::new(self.unknown.clone()),
            Box::new(self.stale.clone()),
            Box::new(self.reloads.clone()),
            Box::new(self.file_valid.clone()),
        ]
    }
}

// === impl Metrics ===

impl Observer for Metrics {
    fn built(&self, quotas: &Quotas, policy: &FailurePolicy) {
        let families = &self.families;
        for by in SavedBy::ALL {
            families.saved.with_label_values(&[by.as_str()]);
        }
        for class in quotas.tiers().chain([DEFAULT_CLASS]) {
            families.leased.with_label_values(&[class]);
            for outcome in OUTCOMES {
                families.decisions.with_label_values(&[outcome, class]);
            }
            for limit in quotas.limits() {
                families
                    .rejections
                    .with_label_values(&[limit.name().as_str(), class, "enforce"]);
            }
        }
        families
            .decisions
            .with_label_values(&["unidentified", NO_CLASS]);
        for kind in ErrorKind::LABELS {
            families
                .errors
                .with_label_values(&[kind.as_str(), policy.as_str()]);
        }
    }

    fn quotas(&self, event: QuotaEvent) {
        let outcome = |ok| if ok { "ok" } else { "error" };
        let families = &self.families;
        match event {
            QuotaEvent::Loaded { source, ok } => {
                families
                    .loads
                    .with_label_values(&[source, outcome(ok)])
                    .inc();
            }
            QuotaEvent::Unknown => families.unknown.inc(),
            QuotaEvent::Stale(age) => families.stale.set(age.as_secs_f64()),
            QuotaEvent::Reloaded { ok } => {
                families.reloads.with_label_values(&[outcome(ok)]).inc();
                families.file_valid.set(ok.into());
            }
            // What is new there is counted once it has a family.
            _ => {}
        }
    }

    fn call_saved(&self, by: SavedBy) {
        self.families.saved.with_label_values(&[by.as_str()]).inc();
    }

    fn leased(&self, key_class: &str, tokens: i64) {
        let gauge = self.families.leased.with_label_values(&[key_class]);
        gauge.add(tokens);
    }

    fn decided(&self, key_class: &str, decision: &Decision) {
        self.families.classes.count(key_class, decision);
    }

    fn unidentified(&self) {
        self.families
            .decisions
            .with_label_values(&["unidentified", NO_CLASS])
            .inc();
    }

    fn store_answered(&self, asked: Instant, answer: &Result<Decision, StoreError>) {
        let of_outcome = &self.families.latencies[usize::from(answer.is_err())];
        of_outcome.observe(asked.elapsed().as_secs_f64());
    }

    fn breaker_changed(&self, state: BreakerState) {
        self.families.breaker.set(state as i64);
    }

    fn replicas_used(&self, replicas: u32) {
        self.families.replicas.set(replicas.into());
    }

    fn store_failed(&self, error: &StoreError, policy: &FailurePolicy) {
        self.families
            .errors
            .with_label_values(&[error.kind().as_str(), policy.as_str()])
            .inc();
    }
}

impl Default for Metrics {
    fn default() -> Self {
        Self::new()
    }
}

impl fmt::Debug for Metrics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Metrics").finish_non_exhaustive()
    }
}
