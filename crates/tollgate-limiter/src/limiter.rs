//! Tenant and cost in, decision out.

use std::{
    fmt,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
    time::Duration,
};

use tollgate_core::{
    Charge, Check, Cost, Decision, InvalidName, KeySpace, Limit, LimitName, Store, Tenant,
};

use crate::{
    BreakerSettings, FailurePolicy, Observer, Quotas,
    breaker::Breaker,
    policy::{Policy, PolicyFuture},
};

/// Slightly more than a Redis in the same zone needs at its worst, and less than anyone notices.
const DEFAULT_DEADLINE: Duration = Duration::from_millis(25);

/// A request that waits longer than this is not waiting for a limiter.
const LONGEST_DEADLINE: Duration = Duration::from_secs(60);

/// The stages of a limiter, from the outermost to the store.
type Stages = Breaker<Box<dyn Store>>;

/// Decides requests: looks up the tenant's quota, asks the store, and falls back to the policy if the store
/// gives no answer.
///
/// Clones are cheap and share everything.
#[derive(Clone)]
pub struct Limiter {
    inner: Arc<Inner>,
}

struct Inner {
    policy: Arc<Policy<Stages>>,
    quotas: Quotas,
    limit: LimitName,
    keys: KeySpace,
}

impl Limiter {
    /// Starts a limiter over `store`.
    pub fn builder(store: impl Store) -> LimiterBuilder {
        LimiterBuilder {
            store: Box::new(store),
            quotas: None,
            on_store_failure: None,
            deadline: DEFAULT_DEADLINE,
            breaker: BreakerSettings::default(),
            limit: None,
            keys: KeySpace::default(),
            observer: Arc::new(()),
        }
    }

    /// Charges `tenant` with `cost`, if it has the tokens.
    ///
    /// Never fails: if the store does, the [`FailurePolicy`] decides.
    ///
    /// It starts, and its deadline runs, when the future is polled first.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped before it is ready, the tenant may or may not have been charged, and nothing
    /// is counted.
    pub fn check(&self, tenant: &Tenant, cost: Cost) -> Checking {
        let inner = &self.inner;
        let limit = Limit {
            name: inner.limit.clone(),
            quota: inner.quotas.of(tenant),
        };
        let key = inner.keys.bucket(tenant, &limit.name);
        let check = Check::single(Charge { key, limit, cost });
        Checking {
            limiter: self.clone(),
            tenant: tenant.clone(),
            future: inner.policy.check(check),
        }
    }

    /// The quotas it was built with.
    pub fn quotas(&self) -> &Quotas {
        &self.inner.quotas
    }

    /// The name of its limit.
    #[must_use]
    pub fn limit(&self) -> &LimitName {
        &self.inner.limit
    }

    /// Who is told what happens.
    #[must_use]
    pub fn observer(&self) -> &dyn Observer {
        self.inner.policy.observer()
    }

    /// Whether `other` is a clone of this limiter.
    #[must_use]
    pub fn is_same(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.inner, &other.inner)
    }
}

// === impl Limiter ===

impl fmt::Debug for Limiter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Limiter")
            .field("limit", &self.inner.limit)
            .field("policy", &self.inner.policy)
            .finish_non_exhaustive()
    }
}

/// The decision to come, from [`Limiter::check`].
#[derive(Debug)]
#[must_use = "futures do nothing unless polled"]
pub struct Checking {
    limiter: Limiter,
    tenant: Tenant,
    future: PolicyFuture<Stages>,
}

impl Checking {
    /// Decides by another policy than the limiter's if the store gives no answer.
    pub fn on_store_failure(mut self, policy: FailurePolicy) -> Self {
        self.future.on_failure(policy);
        self
    }
}

// === impl Checking ===

impl Future for Checking {
    type Output = Decision;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Decision> {
        let decision = ready!(Pin::new(&mut self.future).poll(cx));
        let inner = &self.limiter.inner;
        inner
            .policy
            .observer()
            .decided(inner.quotas.label(&self.tenant), &decision);
        Poll::Ready(decision)
    }
}

/// Puts a [`Limiter`] together. [`quotas`](Self::quotas) and [`on_store_failure`](Self::on_store_failure)
/// must be given.
#[must_use]
pub struct LimiterBuilder {
    store: Box<dyn Store>,
    quotas: Option<Quotas>,
    on_store_failure: Option<FailurePolicy>,
    deadline: Duration,
    breaker: BreakerSettings,
    limit: Option<Result<LimitName, InvalidName>>,
    keys: KeySpace,
    observer: Arc<dyn Observer>,
}

impl LimiterBuilder {
    /// Who may spend how much.
    pub fn quotas(mut self, quotas: Quotas) -> Self {
        self.quotas = Some(quotas);
        self
    }

    /// What a request gets when the store gives no answer.
    pub fn on_store_failure(mut self, policy: FailurePolicy) -> Self {
        self.on_store_failure = Some(policy);
        self
    }

    /// How long one check may take, from the call to the decision, through all that it waits for; by default
    /// 25 ms. A check that takes longer is decided by the failure policy.
    ///
    /// Choose it slightly above the p99 of `ratelimit_store_latency_seconds` on a normal day: a deadline
    /// below that turns a busy moment into an outage, one far above makes each request of a real outage wait
    /// for it until the breaker opens.
    pub fn deadline(mut self, deadline: Duration) -> Self {
        self.deadline = deadline;
        self
    }

    /// When the circuit breaker before the store opens, and for how long.
    pub fn breaker(mut self, settings: BreakerSettings) -> Self {
        self.breaker = settings;
        self
    }

    /// Names the limit, by default `default`. Limiters that share a store and a prefix and are to have
    /// buckets of their own need different names, and so do stacked ones, whose names stand side by side in
    /// the headers.
    pub fn limit(mut self, name: &str) -> Self {
        self.limit = Some(LimitName::new(name));
        self
    }

    /// How buckets are named in the store, by default with the prefix `tg`.
    pub fn keys(mut self, keys: KeySpace) -> Self {
        self.keys = keys;
        self
    }

    /// Who is told what happens.
    pub fn observer(mut self, observer: impl Observer) -> Self {
        self.observer = Arc::new(observer);
        self
    }

    /// The limiter.
    ///
    /// # Errors
    ///
    /// If quotas or the failure policy are missing, or the limit's name is not a valid one.
    pub fn build(self) -> Result<Limiter, BuildError> {
        let quotas = self.quotas.ok_or(BuildError::NoQuotas)?;
        let on_failure = self.on_store_failure.ok_or(BuildError::NoFailurePolicy)?;
        let limit = self
            .limit
            .transpose()
            .map_err(BuildError::LimitName)?
            .unwrap_or_default();
        if self.deadline.is_zero() || self.deadline > LONGEST_DEADLINE {
            return Err(BuildError::Deadline(self.deadline));
        }
        if let Some(fault) = self.breaker.fault() {
            return Err(BuildError::Breaker(fault));
        }
        self.observer
            .built(&limit, &mut quotas.labels(), &on_failure);
        let breaker = Breaker::new(self.store, self.breaker, self.observer.clone());
        let policy = Arc::new(Policy::new(
            breaker,
            on_failure,
            self.deadline,
            self.observer,
        ));
        Ok(Limiter {
            inner: Arc::new(Inner {
                policy,
                quotas,
                limit,
                keys: self.keys,
            }),
        })
    }
}

// === impl LimiterBuilder ===

impl fmt::Debug for LimiterBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LimiterBuilder")
            .field("quotas", &self.quotas)
            .field("on_store_failure", &self.on_store_failure)
            .field("deadline", &self.deadline)
            .field("breaker", &self.breaker)
            .field("limit", &self.limit)
            .field("keys", &self.keys)
            .finish_non_exhaustive()
    }
}

/// A limiter that cannot be built.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum BuildError {
    /// [`LimiterBuilder::quotas`] was not called.
    NoQuotas,
    /// [`LimiterBuilder::on_store_failure`] was not called.
    NoFailurePolicy,
    /// The span given to [`LimiterBuilder::deadline`] is zero, or longer than a minute.
    Deadline(Duration),
    /// What is wrong with the settings given to [`LimiterBuilder::breaker`].
    Breaker(&'static str),
    /// The name given to [`LimiterBuilder::limit`].
    LimitName(InvalidName),
}

impl fmt::Display for BuildError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoQuotas => f.write_str("the limiter has no quotas; give them with `quotas`"),
            Self::NoFailurePolicy => f.write_str(
                "what happens when the store gives no answer must be chosen beforehand, with `on_store_failure`",
            ),
            Self::Deadline(given) => {
                write!(f, "the deadline is {given:?}; it must be above zero and at most a minute")
            }
            Self::Breaker(fault) => write!(f, "circuit breaker: {fault}"),
            Self::LimitName(error) => error.fmt(f),
        }
    }
}

impl std::error::Error for BuildError {}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use tollgate_core::{
        AdjustFuture, Adjustment, ChargeState, CheckFuture, ErrorKind, ManualClock, MemoryStore,
        Quota, Source, StoreError, Verdict,
    };

    use super::*;

    struct Broken;

    impl Store for Broken {
        fn check(&self, _: Check) -> CheckFuture {
            CheckFuture::new(async {
                tokio::task::yield_now().await;
                Err(StoreError::new(
                    ErrorKind::Io,
                    ChargeState::Unknown,
                    "connection reset",
                ))
            })
        }

        fn adjust(&self, _: Adjustment) -> AdjustFuture {
            unreachable!("nothing is given back here")
        }
    }

    fn quotas() -> Quotas {
        Quotas::new(Quota::new(2, 1).expect("a quota"))
    }

    fn tenant() -> Tenant {
        Tenant::new("42", "pro").expect("an id")
    }

    #[tokio::test]
    async fn one_bucket_per_tenant() {
        let store = MemoryStore::with_clock(ManualClock::default());
        let builder = Limiter::builder(store)
            .quotas(quotas())
            .on_store_failure(FailurePolicy::Closed);
        let limiter = builder.build().expect("a limiter");
        for expected in [Verdict::Allowed, Verdict::Allowed, Verdict::Denied] {
            assert_eq!(limiter.check(&tenant(), Cost::ONE).await.verdict, expected);
        }
        let other = Tenant::new("43", "pro").expect("an id");
        assert!(limiter.clone().check(&other, Cost::ONE).await.is_allowed());
    }

    #[tokio::test]
    async fn a_broken_store_is_answered_by_the_policy() {
        for (policy, verdict) in [
            (FailurePolicy::Open, Verdict::Allowed),
            (FailurePolicy::Closed, Verdict::Unavailable),
        ] {
            let builder = Limiter::builder(Broken)
                .quotas(quotas())
                .on_store_failure(policy);
            let decision = builder
                .build()
                .expect("a limiter")
                .check(&tenant(), Cost::ONE)
                .await;
            assert_eq!(
                (decision.verdict, decision.source),
                (verdict, Source::Fallback)
            );
            assert_eq!(
                decision.limits[0].remaining, None,
                "nothing is known of the bucket"
            );
        }
    }

    #[test]
    fn quotas_and_policy_must_be_chosen() {
        let bare = || Limiter::builder(MemoryStore::new());
        assert_eq!(bare().build().err(), Some(BuildError::NoQuotas));
        assert_eq!(
            bare().quotas(quotas()).build().err(),
            Some(BuildError::NoFailurePolicy)
        );
        let named = bare()
            .quotas(quotas())
            .on_store_failure(FailurePolicy::Open)
            .limit("naïve");
        assert!(matches!(
            named.build().err(),
            Some(BuildError::LimitName(_))
        ));
    }

    #[test]
    fn spans_and_rates_that_make_no_sense_are_refused_by_name() {
        let bare = || {
            let builder = Limiter::builder(MemoryStore::new()).quotas(quotas());
            builder.on_store_failure(FailurePolicy::Open)
        };
        for deadline in [Duration::ZERO, Duration::MAX] {
            let error = bare().deadline(deadline).build().err();
            assert_eq!(error, Some(BuildError::Deadline(deadline)));
        }
        type Change = (&'static str, fn(&mut BreakerSettings));
        let changes: [Change; 6] = [
            ("failures_in_a_row", |it| it.failures_in_a_row = 0),
            ("failure_rate", |it| it.failure_rate = f64::NAN),
            ("failure_rate", |it| it.failure_rate = 0.0),
            ("window", |it| it.window = Duration::ZERO),
            ("cool_down", |it| it.cool_down = Duration::MAX),
            ("longest_cool_down", |it| {
                it.longest_cool_down = Duration::ZERO
            }),
        ];
        for (field, change) in changes {
            let mut settings = BreakerSettings::default();
            change(&mut settings);
            let error = bare()
                .breaker(settings)
                .build()
                .expect_err("refused")
                .to_string();
            assert!(error.contains(field), "{error}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_check_starts_when_it_is_waited_for() {
        let builder = Limiter::builder(MemoryStore::new()).quotas(quotas());
        let limiter = builder
            .on_store_failure(FailurePolicy::Closed)
            .build()
            .expect("a limiter");
        let checks: Vec<_> = (0..3)
            .map(|_| limiter.check(&tenant(), Cost::ONE))
            .collect();
        tokio::time::advance(Duration::from_secs(1)).await;
        drop(limiter.check(&tenant(), Cost::ONE));
        let mut verdicts = Vec::new();
        for check in checks {
            verdicts.push(check.await.verdict);
        }
        // Neither late, nor charged for the one that was dropped.
        assert_eq!(
            verdicts,
            [Verdict::Allowed, Verdict::Allowed, Verdict::Denied]
        );
    }

    #[derive(Default)]
    struct Log(Mutex<Vec<String>>);

    impl Observer for Log {
        fn decided(&self, key_class: &str, decision: &Decision) {
            let line = format!("{key_class} {:?}", decision.verdict);
            self.0.lock().expect("no panic").push(line);
        }

        fn store_failed(&self, error: &StoreError, policy: &FailurePolicy) {
            let line = format!("{} {}", error.kind().as_str(), policy.as_str());
            self.0.lock().expect("no panic").push(line);
        }
    }

    #[tokio::test]
    async fn the_observer_hears_of_every_decision_and_failure() {
        let log = Arc::new(Log::default());
        let builder = Limiter::builder(Broken)
            .quotas(quotas().tier("pro", Quota::new(1, 1).expect("a quota")));
        let builder = builder
            .on_store_failure(FailurePolicy::Open)
            .observer(log.clone());
        let _ = builder
            .build()
            .expect("a limiter")
            .check(&tenant(), Cost::ONE)
            .await;
        assert_eq!(*log.0.lock().expect("no panic"), ["io open", "pro Allowed"]);
    }
}
