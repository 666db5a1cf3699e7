//! One request on its way through the limiter.

use std::{
    fmt, mem,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, Waker, ready},
    time::Duration,
};

use tokio::time::Instant;
use tollgate_core::{
    Adjustment, Check, Decision, LimitDecision, Source, Store, StoreError, Tenant, Verdict,
};
use tollgate_quota::{Account, Loading, Quotas};

use crate::{
    FailurePolicy, Limiter,
    limiter::Stages,
    plan::{Part, Plan, Takes},
    plans::KeptPlan,
    policy::{Answer, PolicyFuture},
};

/// What is given back is of no use after this time: the bucket has refilled, or nobody answers.
const GIVE_BACK_DEADLINE: Duration = Duration::from_secs(1);

/// A check that has begun, from [`Limiter::begin`].
#[derive(Debug)]
pub enum Begun {
    /// Whoever was to be asked has answered already.
    Decided(Decision),
    /// The decision is to be waited for.
    Waiting(Checking),
}

/// The decision to come, from [`Limiter::check`] and [`Limiter::check_on`].
#[must_use = "futures do nothing unless polled"]
pub struct Checking {
    limiter: Limiter,
    state: State,
    /// The policy of this request, if it is another than the limiter's.
    on_failure: Option<FailurePolicy>,
    /// When it began: the deadline runs from then.
    started: Option<Instant>,
}

enum State {
    /// The tenant's account is being loaded.
    Loading(Box<Unplanned>),
    /// All is known, and nobody was asked yet.
    Planned(Arc<KeptPlan>),
    /// One of the parts of the plan is being decided.
    Asking(Round),
    Done,
}

/// What a plan is made from once the account is there.
struct Unplanned {
    loading: Loading,
    quotas: Arc<Quotas>,
    tenant: Tenant,
    takes: Takes,
}

/// A request, part of which is decided.
struct Round {
    plan: Arc<KeptPlan>,
    /// What was granted by the parts that were asked before.
    granted: Vec<Decision>,
    asking: PolicyFuture<Stages>,
}

/// Where a request is after a step.
enum Step {
    Decided(Decision),
    Asking(Round),
}

/// Whose parts are asked, one after the other.
struct Asker<'a> {
    limiter: &'a Limiter,
    plan: Arc<KeptPlan>,
    on_failure: Option<&'a FailurePolicy>,
    started: Instant,
}

impl Checking {
    pub(crate) const fn planned(limiter: Limiter, plan: Arc<KeptPlan>) -> Self {
        Self::new(limiter, State::Planned(plan))
    }

    pub(crate) fn loading(
        limiter: Limiter,
        loading: Loading,
        quotas: Arc<Quotas>,
        tenant: &Tenant,
        takes: Takes,
    ) -> Self {
        let unplanned = Unplanned {
            loading,
            quotas,
            tenant: tenant.clone(),
            takes,
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
}

/// Begins to carry out a plan.
pub(crate) fn begin(
    limiter: &Limiter,
    plan: Arc<KeptPlan>,
    on_failure: Option<&FailurePolicy>,
) -> Begun {
    let started = Instant::now();
    let asker = Asker {
        limiter,
        plan,
        on_failure,
        started,
    };
    match asker.start() {
        Step::Decided(decision) => Begun::Decided(decision),
        Step::Asking(round) => Begun::Waiting(Checking {
            limiter: limiter.clone(),
            state: State::Asking(round),
            on_failure: on_failure.cloned(),
            started: Some(started),
        }),
    }
}

impl Asker<'_> {
    /// Asks the first part, or decides where no store is needed.
    fn start(self) -> Step {
        let Plan { parts, blocked, .. } = &**self.plan;
        if blocked.iter().any(|limit| !limit.shadow) {
            let limits = blocked.iter().cloned().chain(unasked(parts)).collect();
            return self.conclude(Decision::without_store(Verdict::Denied, limits));
        }
        // Nothing is charged for a request that a later part is known to refuse: it would only be given back.
        let mut later = parts.iter().enumerate().skip(1);
        let known = |(i, part): (usize, &Part)| Some((i, self.limiter.known_denial(&part.check)?));
        if let Some((i, mut denial)) = later.find_map(known) {
            let mut limits: Vec<_> = unasked(&parts[..i]).collect();
            limits.append(&mut denial.limits);
            limits.extend(unasked(&parts[i + 1..]));
            limits.extend_from_slice(blocked);
            denial.limits = limits;
            return self.conclude(denial);
        }
        let Some(part) = parts.first() else {
            let limits = blocked.clone();
            return self.conclude(Decision::without_store(Verdict::Allowed, limits));
        };
        match self.ask(part, self.started) {
            Answer::Now(decision) => self.proceed(Vec::new(), decision),
            Answer::Later(asking) => Step::Asking(Round {
                plan: self.plan,
                granted: Vec::new(),
                asking,
            }),
        }
    }

    fn ask(&self, part: &Part, now: Instant) -> Answer<Stages> {
        let policy = match self.on_failure {
            None => part.policy.clone(),
            Some(_) => self.limiter.failure_policy(part.failure, self.on_failure),
        };
        self.limiter
            .policy()
            .check(&part.check, policy, self.started, now)
    }

    /// Takes in the answer to one part. The next one, or the end.
    fn proceed(self, mut granted: Vec<Decision>, mut decision: Decision) -> Step {
        while decision.is_allowed()
            && let Some(part) = self.plan.parts.get(granted.len() + 1)
        {
            granted.push(decision);
            match self.ask(part, Instant::now()) {
                Answer::Now(next) => decision = next,
                Answer::Later(asking) => {
                    let plan = self.plan;
                    return Step::Asking(Round {
                        plan,
                        granted,
                        asking,
                    });
                }
            }
        }
        let asked = granted.len() + 1;
        let mut decision = self.combine(granted, decision);
        decision.limits.extend(unasked(&self.plan.parts[asked..]));
        decision.limits.extend_from_slice(&self.plan.blocked);
        self.conclude(decision)
    }

    fn conclude(self, decision: Decision) -> Step {
        let observer = self.limiter.observer();
        observer.decided(&self.plan.label, &decision);
        Step::Decided(decision)
    }

    /// One decision of all parts: the last of them allowed the request as the others did, or else they are
    /// given back what they granted.
    fn combine(&self, granted: Vec<Decision>, mut last: Decision) -> Decision {
        if granted.is_empty() {
            return last;
        }
        let mut limits = Vec::new();
        for (part, mut decision) in self.plan.parts.iter().zip(granted) {
            if last.is_allowed() {
                if decision.source == Source::Fallback {
                    last.source = Source::Fallback;
                }
            } else if self.give_back(&part.check, &decision) {
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

/// Limits that were not asked because another has refused: clients are told that they are there.
fn unasked(parts: &[Part]) -> impl Iterator<Item = LimitDecision> {
    parts
        .iter()
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
        if let State::Loading(unplanned) = &mut this.state {
            let account = ready!(Pin::new(&mut unplanned.loading).poll(cx));
            let plan = unplanned.plan(&this.limiter, account.as_ref());
            this.state = State::Planned(plan);
        }
        let mut answer = None;
        loop {
            if let State::Asking(round) = &mut this.state {
                answer = Some(ready!(Pin::new(&mut round.asking).poll(cx)));
            }
            let asker = |plan| Asker {
                limiter: &this.limiter,
                plan,
                on_failure: this.on_failure.as_ref(),
                started,
            };
            let step = match (mem::replace(&mut this.state, State::Done), answer.take()) {
                (State::Planned(plan), _) => asker(plan).start(),
                (State::Asking(round), Some(decision)) => {
                    asker(round.plan).proceed(round.granted, decision)
                }
                _ => panic!("Checking polled after completion"),
            };
            match step {
                Step::Decided(decision) => return Poll::Ready(decision),
                Step::Asking(round) => this.state = State::Asking(round),
            }
        }
    }
}

impl Unplanned {
    fn plan(&self, limiter: &Limiter, account: Option<&Arc<Account>>) -> Arc<KeptPlan> {
        limiter.plan(&self.quotas, &self.tenant, account, self.takes.clone())
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
