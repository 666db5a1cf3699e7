//! Tenant and cost in, decision out.

use std::{
    fmt,
    num::{NonZeroU8, NonZeroU32},
    sync::Arc,
    time::Duration,
};

use tokio::time::Instant;
use tollgate_core::{
    Adjustment, Change, Charge, Check, Cost, Decision, KeySpace, Limit, LimitDecision, MAX_CHARGES,
    MAX_TOKENS, Store, StoreError, Tenant,
};
use tollgate_quota::{
    Account, Allowance, Directory, FailureMode, InvalidQuotas, Lookup, QuotaBook, Quotas, Route,
    RoutePrice,
};

use crate::{
    Begun, BreakerSettings, Checking, Coalesce, DenialCache, FailurePolicy, LeaseSettings, Leases,
    Observer, Shards,
    breaker::Breaker,
    checking,
    plan::{Failure, Plan, Takes},
    plans::{KeptPlan, Plans},
    policy::Policy,
};

/// Slightly more than a Redis in the same zone needs at its worst, and less than anyone notices.
const DEFAULT_DEADLINE: Duration = Duration::from_millis(25);

/// How long a reset may take.
const RESET_DEADLINE: Duration = Duration::from_secs(2);

/// A request that waits longer than this is not waiting for a limiter.
const LONGEST_DEADLINE: Duration = Duration::from_secs(60);

/// The stages of a limiter, from the outermost to the store.
pub(crate) type Stages = Arc<Leases<Box<dyn Store>>>;

/// Decides requests: looks up what the tenant may spend, asks the store, and falls back to the policy if the
/// store gives no answer.
///
/// Clones are cheap and share everything.
#[derive(Clone)]
pub struct Limiter {
    inner: Arc<Inner>,
}

struct Inner {
    policy: Arc<Policy<Stages>>,
    /// One of the stages of the policy.
    denials: Option<Arc<DenialCache<Box<dyn Store>>>>,
    directory: Directory,
    keys: KeySpace,
    plans: Plans,
    /// Whether the program says how many replicas there are: it knows better than what is written down.
    counts_replicas: bool,
}

/// What is needed to ask about a request, or the wait for it.
enum Prepared {
    Plan(Arc<KeptPlan>),
    Loading(Box<Checking>),
}

/// All that a tenant has of its own, whatever routes it covers.
struct OwnBuckets {
    /// A charge of nothing for each bucket, and whether its limit denies.
    buckets: Vec<(Charge, bool)>,
    blocked: Vec<LimitDecision>,
    shards: NonZeroU8,
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
            denial_cache: true,
            coalescing: true,
            leases: LeaseSettings::default(),
            keys: None,
            observer: Arc::new(()),
        }
    }

    /// Charges `tenant` with `cost`, if it has the tokens, in all limits that cover every route: for messages,
    /// jobs, and whatever else is not a request with a route.
    ///
    /// Never fails: if the store does, the [`FailurePolicy`] decides.
    ///
    /// Nothing is charged, and no deadline runs, before the future is polled first.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped before it is ready, the tenant may or may not have been charged, and nothing
    /// is counted.
    ///
    /// # Panics
    ///
    /// Outside of a Tokio runtime, unless the store answers at once.
    pub fn check(&self, tenant: &Tenant, cost: Cost) -> Checking {
        self.start(tenant, cost, None)
    }

    /// Charges `tenant` for a request of `route`, which costs `cost` unless a limit has costs of its own, in
    /// all limits that cover it. Otherwise as [`check`](Self::check).
    pub fn check_on(&self, tenant: &Tenant, cost: Cost, route: &Route<'_>) -> Checking {
        self.start(tenant, cost, Some(route))
    }

    /// As [`check_on`](Self::check_on), but begins at once, not when it is first waited for: whatever needs no
    /// waiting, such as a denial known already, is decided right here. `on_failure` is as that of
    /// [`Checking::on_store_failure`].
    #[must_use]
    pub fn begin(
        &self,
        tenant: &Tenant,
        cost: Cost,
        route: &Route<'_>,
        on_failure: Option<&FailurePolicy>,
    ) -> Begun {
        match self.prepare(tenant, cost, Some(route)) {
            Prepared::Plan(plan) => checking::begin(self, plan, on_failure),
            Prepared::Loading(checking) => Begun::Waiting(match on_failure {
                Some(policy) => checking.on_store_failure(policy.clone()),
                None => *checking,
            }),
        }
    }

    fn start(&self, tenant: &Tenant, cost: Cost, route: Option<&Route<'_>>) -> Checking {
        match self.prepare(tenant, cost, route) {
            Prepared::Plan(plan) => Checking::planned(self.clone(), plan),
            Prepared::Loading(checking) => *checking,
        }
    }

    fn prepare(&self, tenant: &Tenant, cost: Cost, route: Option<&Route<'_>>) -> Prepared {
        let quotas = self.inner.directory.quotas();
        let takes = Takes::new(&quotas, route, cost);
        match self.inner.directory.look_up(tenant) {
            Lookup::Known(account) => {
                Prepared::Plan(self.plan(&quotas, tenant, account.as_ref(), takes))
            }
            Lookup::Loading(loading) => {
                let (limiter, quotas) = (self.clone(), Arc::clone(&quotas));
                let checking = Checking::loading(limiter, loading, quotas, tenant, takes);
                Prepared::Loading(Box::new(checking))
            }
        }
    }

    pub(crate) fn plan(
        &self,
        quotas: &Arc<Quotas>,
        tenant: &Tenant,
        account: Option<&Arc<Account>>,
        takes: Takes,
    ) -> Arc<KeptPlan> {
        let make = |takes: &Takes| {
            let account = account.map(|account| &**account);
            let mut plan = Plan::new(&self.inner.keys, quotas, tenant, account, takes);
            for part in &mut plan.parts {
                part.policy = self.failure_policy_of(part.failure, None, quotas);
                self.inner.policy.note_costs(&part.check);
            }
            plan
        };
        self.inner.plans.get(quotas, tenant, account, takes, make)
    }

    /// Where `tenant` stands in each limit of its own, whatever routes it covers: nothing is charged or
    /// counted. Limits that block the tenant come last; those that do not bound it or are off, and those of
    /// members that it does not name, are left out.
    ///
    /// # Errors
    ///
    /// If the store gives no answer. No policy stands in for it.
    pub async fn peek(&self, tenant: &Tenant) -> Result<Vec<LimitDecision>, StoreError> {
        let own = self.own_buckets(tenant).await;
        let mut states = Vec::new();
        for buckets in own.buckets.chunks(MAX_CHARGES) {
            let charges = buckets.iter().map(|(charge, _)| charge.clone()).collect();
            let check = Check::new(charges).expect("distinct buckets of one tenant");
            let deadline = (Instant::now() + self.inner.policy.deadline()).into_std();
            let check = check.with_shards(own.shards).with_deadline(deadline);
            let decision = self.inner.policy.store().check(check).await?;
            for (mut limit, (_, enforced)) in decision.limits.into_iter().zip(buckets) {
                limit.shadow = !enforced;
                states.push(limit);
            }
        }
        states.extend(own.blocked);
        Ok(states)
    }

    /// Fills every bucket of `tenant`'s own. Replicas that have denied it know within a second.
    ///
    /// # Errors
    ///
    /// If the store gives no answer. Some buckets may be full then and others not.
    pub async fn reset(&self, tenant: &Tenant) -> Result<(), StoreError> {
        let own = self.own_buckets(tenant).await;
        for buckets in own.buckets.chunks(MAX_CHARGES) {
            let fill = |(charge, _): &(Charge, bool)| Change {
                key: charge.key.clone(),
                quota: charge.limit.quota,
                delta: MAX_TOKENS.cast_signed(),
                floor: 0,
            };
            let adjustment = Adjustment::new(buckets.iter().map(fill).collect());
            let adjustment = adjustment.expect("distinct buckets of one tenant");
            let deadline = (Instant::now() + RESET_DEADLINE).into_std();
            let adjustment = adjustment.with_shards(own.shards).with_deadline(deadline);
            self.inner.policy.store().adjust(adjustment).await?;
        }
        Ok(())
    }

    async fn own_buckets(&self, tenant: &Tenant) -> OwnBuckets {
        let quotas = Arc::clone(&self.inner.directory.quotas());
        let account = match self.inner.directory.look_up(tenant) {
            Lookup::Known(account) => account,
            Lookup::Loading(loading) => loading.await,
        };
        let terms = quotas.terms(tenant, account.as_deref());
        let mut own = OwnBuckets {
            buckets: Vec::new(),
            blocked: Vec::new(),
            shards: terms.shards(),
        };
        for rule in quotas.limits().iter().filter(|rule| !rule.is_off()) {
            let Some(key) = crate::plan::own_key(&self.inner.keys, tenant, rule) else {
                continue;
            };
            let (name, cost) = (rule.name().clone(), Cost::FREE);
            let enforced = rule.is_enforced_for(tenant);
            match terms.allowance(rule) {
                Allowance::Unlimited => {}
                Allowance::Blocked => {
                    let blocked = LimitDecision::blocked(name, cost, !enforced);
                    own.blocked.push(blocked);
                }
                Allowance::Limited(quota) => {
                    let limit = Limit { name, quota };
                    own.buckets.push((Charge { key, limit, cost }, enforced));
                }
            }
        }
        own
    }

    /// Gives back what is leased and not spent, and leases nothing from then on. For the end of a service, after
    /// its last request; later ones are decided all the same. Takes at most 2 seconds, also when the store is
    /// silent.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, tokens are given back in the background, as far as the runtime lives on.
    pub async fn shutdown(&self) {
        self.inner.policy.store().shutdown().await;
    }

    /// The largest cost of a route that any tenant could ever pay: a route that costs more can never be served.
    #[must_use]
    pub fn largest_capacity(&self) -> u64 {
        self.inner.directory.largest_capacity()
    }

    /// What the routes table of the quotas says that a request costs.
    #[must_use]
    pub fn price_of(&self, route: &Route<'_>) -> Option<RoutePrice> {
        self.inner.directory.quotas().price_of(route)
    }

    /// The quotas as they are now.
    #[must_use]
    pub fn quotas(&self) -> Arc<Quotas> {
        Arc::clone(&self.inner.directory.quotas())
    }

    pub(crate) fn policy(&self) -> &Arc<Policy<Stages>> {
        &self.inner.policy
    }

    /// The denial of `check`, if it is known without asking the store.
    pub(crate) fn known_denial(&self, check: &Check) -> Option<Decision> {
        self.inner.denials.as_ref()?.known(check)
    }

    /// What a check gets if the store gives no answer, unless it is the limiter's own policy: the strictest
    /// of what its limits say, and for those that say nothing, of `default`.
    pub(crate) fn failure_policy(
        &self,
        failure: Failure,
        default: Option<&FailurePolicy>,
    ) -> Option<FailurePolicy> {
        self.failure_policy_of(failure, default, &self.inner.directory.quotas())
    }

    fn failure_policy_of(
        &self,
        failure: Failure,
        default: Option<&FailurePolicy>,
        quotas: &Quotas,
    ) -> Option<FailurePolicy> {
        let default = default.cloned().or_else(|| {
            let mode = quotas.failure_mode()?;
            Some(self.policy_of(mode, quotas))
        });
        let own = failure.strictest.map(|mode| self.policy_of(mode, quotas));
        if !failure.default_too {
            // A check of limits that only watch has none, and refuses nobody.
            return Some(own.unwrap_or(FailurePolicy::Open));
        }
        let Some(own) = own else {
            return default;
        };
        let default = default.unwrap_or_else(|| self.inner.policy.on_failure().clone());
        Some(if own.mode() > default.mode() {
            own
        } else {
            default
        })
    }

    fn policy_of(&self, mode: FailureMode, quotas: &Quotas) -> FailurePolicy {
        if mode == FailureMode::Local && self.inner.counts_replicas {
            self.inner.policy.on_failure().clone()
        } else {
            written(mode, quotas)
        }
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
            .field("policy", &self.inner.policy)
            .field("directory", &self.inner.directory)
            .finish_non_exhaustive()
    }
}

fn written(mode: FailureMode, quotas: &Quotas) -> FailurePolicy {
    match mode {
        FailureMode::Open => FailurePolicy::Open,
        FailureMode::Closed => FailurePolicy::Closed,
        FailureMode::Local => {
            // Quotas with a local policy and without a number do not pass their check.
            FailurePolicy::local(quotas.replicas().map_or(1, NonZeroU32::get))
        }
    }
}

/// Puts a [`Limiter`] together. [`quotas`](Self::quotas) must be given, and
/// [`on_store_failure`](Self::on_store_failure) unless they say it.
#[must_use]
pub struct LimiterBuilder {
    store: Box<dyn Store>,
    quotas: Option<QuotaBook>,
    on_store_failure: Option<FailurePolicy>,
    deadline: Duration,
    breaker: BreakerSettings,
    denial_cache: bool,
    coalescing: bool,
    leases: LeaseSettings,
    keys: Option<KeySpace>,
    observer: Arc<dyn Observer>,
}

impl LimiterBuilder {
    /// Who may spend how much: [`Quotas`], or a [`QuotaBook`] that takes them from a file and other sources.
    pub fn quotas(mut self, quotas: impl Into<QuotaBook>) -> Self {
        self.quotas = Some(quotas.into());
        self
    }

    /// What a request gets when the store gives no answer. What a limits file says about that goes before it.
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

    /// Whether denials are remembered until their wait has passed, for at most a second; by default they are.
    ///
    /// It denies nothing that the store would not, except that tokens which come back early (by a reset, a
    /// give-back, a failover) are seen up to a second later. Without it, each request of a denied tenant costs
    /// the store a call.
    pub fn denial_cache(mut self, on: bool) -> Self {
        self.denial_cache = on;
        self
    }

    /// Whether requests for the same buckets share a call while another one is on its way; by default they do.
    /// The decisions are the same.
    pub fn coalescing(mut self, on: bool) -> Self {
        self.coalescing = on;
        self
    }

    /// How tokens are claimed ahead for limits that ask for it: see [`LimitRule::leased`](tollgate_quota::LimitRule::leased).
    pub fn leases(mut self, settings: LeaseSettings) -> Self {
        self.leases = settings;
        self
    }

    /// How buckets are named in the store, by default as [`Store::keys`] says.
    pub fn keys(mut self, keys: KeySpace) -> Self {
        self.keys = Some(keys);
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
    /// If the quotas are missing or contradict themselves, if nothing says what happens when the store fails,
    /// or if a setting is out of range.
    ///
    /// # Panics
    ///
    /// Outside of a Tokio runtime, if a source of quotas tells of changes.
    pub fn build(self) -> Result<Limiter, BuildError> {
        let book = self.quotas.ok_or(BuildError::NoQuotas)?;
        let quotas = book.quotas();
        let counts_replicas = matches!(self.on_store_failure, Some(FailurePolicy::Local { .. }));
        if counts_replicas {
            // Nothing needs to be written down that the program knows.
            let counted = Quotas::clone(&quotas).with_replicas(NonZeroU32::MIN);
            counted.check().map_err(BuildError::Quotas)?;
        } else {
            quotas.check().map_err(BuildError::Quotas)?;
        }
        let on_failure = self
            .on_store_failure
            .or_else(|| Some(written(quotas.failure_mode()?, &quotas)));
        let on_failure = on_failure.ok_or(BuildError::NoFailurePolicy)?;
        if self.deadline.is_zero() || self.deadline > LONGEST_DEADLINE {
            return Err(BuildError::Deadline(self.deadline));
        }
        if let Some(fault) = self.breaker.fault() {
            return Err(BuildError::Breaker(fault));
        }
        if let Some(fault) = self.leases.fault() {
            return Err(BuildError::Leases(fault));
        }
        for warning in quotas.warnings() {
            tracing::warn!("{warning}");
        }
        self.observer.built(&quotas, &on_failure);
        let keys = self.keys.unwrap_or_else(|| self.store.keys());
        let observer = || self.observer.clone();
        let mut store = self.store;
        let mut denials = None;
        if !store.is_local() {
            let mut shards = Shards::new(Breaker::new(store, self.breaker, observer()));
            if self.denial_cache {
                shards = shards.with_denial_cache(observer());
            }
            store = if self.coalescing {
                Box::new(Coalesce::new(shards, observer()))
            } else {
                Box::new(shards)
            };
            if self.denial_cache {
                let cache = Arc::new(DenialCache::new(store, observer()));
                store = Box::new(cache.clone());
                denials = Some(cache);
            }
        }
        let stages = Arc::new(Leases::new(store, self.leases, observer()));
        let observer = observer();
        let directory = book
            .with_patience_up_to(self.deadline / 2)
            .open(move |event| observer.quotas(event));
        let policy = Arc::new(Policy::new(
            stages,
            on_failure,
            self.deadline,
            self.observer,
        ));
        Ok(Limiter {
            inner: Arc::new(Inner {
                policy,
                denials,
                plans: Plans::new(directory.max_tenants()),
                directory,
                keys,
                counts_replicas,
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
            .field("denial_cache", &self.denial_cache)
            .field("coalescing", &self.coalescing)
            .field("leases", &self.leases)
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
    /// What is wrong with the settings given to [`LimiterBuilder::leases`].
    Leases(&'static str),
    /// What is wrong with the quotas.
    Quotas(InvalidQuotas),
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
            Self::Leases(fault) => write!(f, "leases: {fault}"),
            Self::Quotas(error) => write!(f, "quotas: {error}"),
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

    use tollgate_core::{Decision, LimitName};
    use tollgate_quota::LimitRule;

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

    #[tokio::test]
    async fn a_costly_request_fits_the_local_share_from_its_first_check_on() {
        let quota = Quota::new(100, 1).expect("a quota");
        let builder = Limiter::builder(Broken).quotas(Quotas::new(quota));
        let builder = builder.on_store_failure(FailurePolicy::local(10));
        let limiter = builder.build().expect("a limiter");
        let decision = limiter.check(&tenant(), Cost::new(60)).await;
        assert_eq!(decision.source, Source::Fallback);
        assert!(
            decision.is_allowed(),
            "a tenth of the quota has room for 10"
        );
    }

    #[test]
    fn quotas_and_policy_must_be_chosen() {
        let bare = || Limiter::builder(MemoryStore::new());
        assert_eq!(bare().build().err(), Some(BuildError::NoQuotas));
        assert_eq!(
            bare().quotas(quotas()).build().err(),
            Some(BuildError::NoFailurePolicy)
        );
        let doubled = quotas().limit(LimitRule::new(
            LimitName::default(),
            Quota::new(1, 1).expect("a quota"),
        ));
        let doubled = bare().quotas(doubled);
        let error = doubled.on_store_failure(FailurePolicy::Open).build();
        assert!(matches!(error.err(), Some(BuildError::Quotas(_))));
        let written = quotas().on_store_failure(FailureMode::Closed, None);
        assert!(bare().quotas(written).build().is_ok());
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

    /// Has a server for each length of a tag, and keys of its own.
    struct Elsewhere(MemoryStore<ManualClock>);

    impl Store for Elsewhere {
        fn check(&self, check: Check) -> CheckFuture {
            let key = check.charges()[0].key.to_string();
            assert!(key.starts_with("shop:{user:42}:"), "{key}");
            self.0.check(check)
        }

        fn adjust(&self, adjustment: Adjustment) -> AdjustFuture {
            self.0.adjust(adjustment)
        }

        fn node(&self, tag: &str) -> usize {
            tag.len()
        }

        fn keys(&self) -> KeySpace {
            let keys = KeySpace::new("shop").expect("a prefix");
            keys.with_tag_scope("user").expect("a word")
        }
    }

    fn elsewhere() -> Elsewhere {
        Elsewhere(MemoryStore::with_clock(ManualClock::default()))
    }

    #[test]
    fn every_stage_tells_where_buckets_are_and_how_they_are_named() {
        let nobody = || Arc::new(());
        let stages: [Box<dyn Store>; 7] = [
            Box::new(Arc::new(elsewhere())),
            Box::new(Breaker::new(
                elsewhere(),
                BreakerSettings::default(),
                nobody(),
            )),
            Box::new(Shards::new(elsewhere())),
            Box::new(Shards::new(elsewhere()).with_denial_cache(nobody())),
            Box::new(Coalesce::new(elsewhere(), nobody())),
            Box::new(DenialCache::new(elsewhere(), nobody())),
            Box::new(Leases::new(elsewhere(), LeaseSettings::default(), nobody())),
        ];
        for (i, stage) in stages.iter().enumerate() {
            assert_eq!(stage.node("four"), 4, "stage {i}");
            let key = stage.keys().bucket(&tenant(), &LimitName::default());
            assert_eq!(key.as_str(), "shop:{user:42}:default", "stage {i}");
        }
    }

    #[tokio::test]
    async fn buckets_are_named_as_the_store_says_unless_the_limiter_is_told_otherwise() {
        let bare = |store: Box<dyn Store>| {
            let builder = Limiter::builder(store).quotas(quotas());
            builder.on_store_failure(FailurePolicy::Closed)
        };
        let limiter = bare(Box::new(elsewhere())).build().expect("a limiter");
        // The store looks.
        assert!(limiter.check(&tenant(), Cost::ONE).await.is_allowed());
        let told = bare(Box::new(MemoryStore::new())).keys(elsewhere().keys());
        let told = told.build().expect("a limiter");
        let key = told.inner.keys.bucket(&tenant(), &LimitName::default());
        assert_eq!(key.as_str(), "shop:{user:42}:default");
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
