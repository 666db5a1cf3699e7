//! One request on its way through the limiter.

use std::{
    fmt,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, Waker, ready},
    time::Duration,
};

use tokio::time::Instant;
use tollgate_core::{
    Adjustment, Check, Cost, Decision, LimitDecision, Source, Store, StoreError, Tenant, Verdict,
};
use tollgate_quota::{Loading, Quotas, Route};

use crate::{
    FailurePolicy, Limiter,
    limiter::Stages,
    plan::{Part, Plan},
    policy::PolicyFuture,
};

/// What is given back is of no use after this time: the bucket has refilled, or nobody answers.
const GIVE_BACK_DEADLINE: Duration = Duration::from_secs(1);

/// The decision to come, from [`Limiter::check`] and [`Limiter::check_on`].
#[must_use = "futures do nothing unless polled"]
pub struct Checking {
    limiter: Limiter,
    state: State,
    /// The policy of this request, if it is another than the limiter's.
    on_failure: Option<FailurePolicy>,
    /// When the first poll was.
    started: Option<Instant>,
}

#[expect(
    clippy::large_enum_variant,
    reason = "nearly every request comes to the large one"
)]
enum State {
    /// The tenant's account is being loaded.
    Loading(Box<Unplanned>),
    /// All is known, and nobody was asked yet.
    Planned(Plan),
    /// One of the parts of the plan is being decided.
    Asking(Round),
    Done,
}

/// What a plan is made from once the account is there.
struct Unplanned {
    loading: Loading,
    quotas: Arc<Quotas>,
    tenant: Tenant,
    cost: Cost,
    /// Method, path and template.
    route: Option<(String, String, Option<String>)>,
}

/// A request, part of which is decided.
struct Round {
    label: Arc<str>,
    /// Limits in shadow that would have blocked the tenant.
    blocked: Vec<LimitDecision>,
    asking: PolicyFuture<Stages>,
    /// The checks to make yet.
    parts: std::vec::IntoIter<Part>,
    check: Check,
    granted: Vec<(Check, Decision)>,
}

impl Checking {
    pub(crate) const fn planned(limiter: Limiter, plan: Plan) -> Self {
        Self::new(limiter, State::Planned(plan))
    }

    pub(crate) fn loading(
        limiter: Limiter,
        loading: Loading,
        quotas: Arc<Quotas>,
        tenant: &Tenant,
        route: Option<&Route<'_>>,
        cost: Cost,
    ) -> Self {
        let owned = |route: &Route<'_>| {
            let template = route.template.map(str::to_owned);
            (route.method.to_owned(), route.path.to_owned(), template)
        };
        let unplanned = Unplanned {
            loading,
            quotas,
            tenant: tenant.clone(),
            cost,
            route: route.map(owned),
        };
        Self::new(limiter, State::Loading(Box::new(unplanned)))
    }

    const fn new(limiter: Limiter, state: State) -> Self {
        Self {
            limiter,
            state,
            on_failure: None,
            started: None,
        }
    }

    /// Decides by another policy than the limiter's if the store gives no answer. Limits with a policy of
    /// their own keep it, and the strictest wins.
    pub fn on_store_failure(mut self, policy: FailurePolicy) -> Self {
        self.on_failure = Some(policy);
        self
    }

    /// Starts on a plan, or decides at once where no store is needed.
    fn start(&self, plan: Plan, started: Instant) -> Result<State, Decision> {
        let Plan {
            parts,
            mut blocked,
            label,
        } = plan;
        if blocked.iter().any(|limit| !limit.shadow) {
            blocked.extend(unasked(parts));
            let decision = Decision::without_store(Verdict::Denied, blocked);
            self.limiter.observer().decided(&label, &decision);
            return Err(decision);
        }
        // Nothing is charged for a request that a later part is known to refuse: it would only be given back.
        let mut later = parts.iter().enumerate().skip(1);
        let known = |(i, part): (usize, &Part)| Some((i, self.limiter.known_denial(&part.check)?));
        if let Some((i, denial)) = later.find_map(known) {
            let decision = refuse_unasked(parts, i, denial, blocked);
            self.limiter.observer().decided(&label, &decision);
            return Err(decision);
        }
        let mut parts = parts.into_iter();
        let Some(part) = parts.next() else {
            let decision = Decision::without_store(Verdict::Allowed, blocked);
            self.limiter.observer().decided(&label, &decision);
            return Err(decision);
        };
        let check = part.check.clone();
        let asking = self.ask(part, started);
        Ok(State::Asking(Round {
            label,
            blocked,
            asking,
            parts,
            check,
            granted: Vec::new(),
        }))
    }

    fn ask(&self, part: Part, started: Instant) -> PolicyFuture<Stages> {
        let Part { check, failure } = part;
        let mut future = self.limiter.policy().check(check, started);
        if let Some(policy) = self
            .limiter
            .failure_policy(failure, self.on_failure.as_ref())
        {
            future.on_failure(policy);
        }
        future
    }

    /// Takes in the answer to one part. The next one, or the end.
    fn proceed(
        &self,
        mut round: Round,
        decision: Decision,
        started: Instant,
    ) -> Result<State, Decision> {
        if decision.is_allowed()
            && let Some(part) = round.parts.next()
        {
            let check = part.check.clone();
            round.asking = self.ask(part, started);
            let granted = std::mem::replace(&mut round.check, check);
            round.granted.push((granted, decision));
            return Ok(State::Asking(round));
        }
        let mut decision = self.combine(round.granted, decision);
        decision.limits.extend(unasked(round.parts));
        decision.limits.append(&mut round.blocked);
        self.limiter.observer().decided(&round.label, &decision);
        Err(decision)
    }

    /// One decision of all parts: the last of them allowed the request as the others did, or else they are
    /// given back what they granted.
    fn combine(&self, granted: Vec<(Check, Decision)>, mut last: Decision) -> Decision {
        if granted.is_empty() {
            return last;
        }
        let mut limits = Vec::new();
        for (check, mut decision) in granted {
            if last.is_allowed() {
                if decision.source == Source::Fallback {
                    last.source = Source::Fallback;
                }
            } else if self.give_back(&check, &decision) {
                decision.limits.iter_mut().for_each(uncharge);
            }
            limits.append(&mut decision.limits);
        }
        limits.append(&mut last.limits);
        last.limits = limits;
        last
    }

    /// Whether there is anything to give back. It happens also when the caller leaves.
    fn give_back(&self, check: &Check, decision: &Decision) -> bool {
        // What the policy let through was charged to nobody, or to a bucket in this process, which stands
        // for the missing answer.
        let Some(adjustment) = Adjustment::give_back(check, decision, 1) else {
            return false;
        };
        let deadline = Instant::now() + GIVE_BACK_DEADLINE;
        let mut adjusting = self
            .limiter
            .policy()
            .store()
            .adjust(adjustment.with_deadline(deadline.into_std()));
        // A store that answers at once needs no task, and no runtime.
        let now = Pin::new(&mut adjusting).poll(&mut Context::from_waker(Waker::noop()));
        match now {
            Poll::Ready(answer) => note_give_back(answer),
            Poll::Pending => {
                tokio::spawn(async move { note_give_back(adjusting.await) });
            }
        }
        true
    }
}

fn note_give_back(answer: Result<Vec<i64>, StoreError>) {
    if let Err(error) = answer {
        tracing::debug!(%error, "tokens of a refused request could not be given back");
    }
}

/// The denial of part `i`, before any part was asked.
fn refuse_unasked(
    mut parts: Vec<Part>,
    i: usize,
    mut denial: Decision,
    mut blocked: Vec<LimitDecision>,
) -> Decision {
    let after = parts.split_off(i + 1);
    parts.truncate(i);
    let mut limits: Vec<_> = unasked(parts).collect();
    limits.append(&mut denial.limits);
    limits.extend(unasked(after));
    limits.append(&mut blocked);
    denial.limits = limits;
    denial
}

/// Limits that were not asked because another has refused: clients are told that they are there.
fn unasked(parts: impl IntoIterator<Item = Part>) -> impl Iterator<Item = LimitDecision> {
    parts
        .into_iter()
        .flat_map(|part| part.check.decide_blindly(Verdict::Denied).limits)
}

/// As it is once the charge is given back.
pub(crate) fn uncharge(limit: &mut LimitDecision) {
    if !(limit.shadow && limit.lacked_tokens())
        && let Some(remaining) = &mut limit.remaining
    {
        let capacity = limit.quota.map_or(u64::MAX, |quota| quota.capacity());
        *remaining = remaining.saturating_add(limit.cost.tokens()).min(capacity);
    }
}

// === impl Checking ===

impl Future for Checking {
    type Output = Decision;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Decision> {
        let this = &mut *self;
        let started = *this.started.get_or_insert_with(Instant::now);
        loop {
            let answer = match &mut this.state {
                State::Loading(unplanned) => {
                    let account = ready!(Pin::new(&mut unplanned.loading).poll(cx));
                    let plan = unplanned.plan(&this.limiter, account.as_deref());
                    this.state = State::Planned(plan);
                    None
                }
                State::Asking(round) => Some(ready!(Pin::new(&mut round.asking).poll(cx))),
                State::Planned(_) | State::Done => None,
            };
            let next = match (std::mem::replace(&mut this.state, State::Done), answer) {
                (State::Planned(plan), _) => this.start(plan, started),
                (State::Asking(round), Some(decision)) => this.proceed(round, decision, started),
                _ => panic!("Checking polled after completion"),
            };
            match next {
                Ok(state) => this.state = state,
                Err(decision) => return Poll::Ready(decision),
            }
        }
    }
}

impl Unplanned {
    fn plan(&self, limiter: &Limiter, account: Option<&tollgate_quota::Account>) -> Plan {
        let route = self.route.as_ref().map(|(method, path, template)| Route {
            method,
            path,
            template: template.as_deref(),
        });
        let (quotas, tenant) = (&self.quotas, &self.tenant);
        Plan::new(
            limiter.keys(),
            quotas,
            tenant,
            account,
            route.as_ref(),
            self.cost,
        )
    }
}

impl fmt::Debug for Checking {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Checking")
            .field("limiter", &self.limiter)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests;
