use std::sync::{
    Mutex,
    atomic::{AtomicUsize, Ordering},
};

use tokio::{sync::broadcast, time::sleep};
use tollgate_core::{
    AdjustFuture, Charge, ChargeState, CheckFuture, Cost, ErrorKind, KeySpace, Limit, LimitName,
    ManualClock, MemoryStore, Quota, Wait,
};
use tollgate_quota::{
    Account, Allowance, Change, FailureMode, LimitRule, LoadFuture, Mode, QuotaSource, Route, Scope,
};

use super::*;
use crate::plan::tests::{quota, rule};

/// A store over memory that answers late, and fails for keys with some text in them.
#[derive(Clone)]
struct Remote {
    memory: Arc<MemoryStore<ManualClock>>,
    delay: Duration,
    fails: Arc<Mutex<Option<&'static str>>>,
    checks: Arc<AtomicUsize>,
    deadlines: Arc<Mutex<Vec<Instant>>>,
}

impl Remote {
    fn new(delay: u64) -> Self {
        Self {
            memory: Arc::new(MemoryStore::with_clock(ManualClock::default())),
            delay: Duration::from_millis(delay),
            fails: Arc::default(),
            checks: Arc::default(),
            deadlines: Arc::default(),
        }
    }

    fn fail(&self, keys: impl Into<Option<&'static str>>) {
        *self.fails.lock().expect("no panic") = keys.into();
    }

    fn checks(&self) -> usize {
        self.checks.load(Ordering::SeqCst)
    }
}

impl Store for Remote {
    fn check(&self, check: Check) -> CheckFuture {
        self.checks.fetch_add(1, Ordering::SeqCst);
        let deadline = check.deadline().expect("a deadline");
        let mut deadlines = self.deadlines.lock().expect("no panic");
        deadlines.push(Instant::from_std(deadline));
        let fails = *self.fails.lock().expect("no panic");
        let answer = match fails {
            Some(text) if check.charges()[0].key.as_str().contains(text) => Err(StoreError::new(
                ErrorKind::NotABucket,
                ChargeState::NotCharged,
                "broken for a test",
            )),
            _ => self.memory.decide(&check),
        };
        let delay = self.delay;
        if delay.is_zero() {
            return CheckFuture::ready(answer);
        }
        CheckFuture::new(async move {
            sleep(delay).await;
            answer
        })
    }

    fn adjust(&self, adjustment: Adjustment) -> AdjustFuture {
        let (memory, delay) = (self.memory.clone(), self.delay);
        if delay.is_zero() {
            return AdjustFuture::ready(memory.change(&adjustment));
        }
        AdjustFuture::new(async move {
            sleep(delay).await;
            memory.change(&adjustment)
        })
    }
}

fn limiter(store: &Remote, quotas: Quotas, policy: FailurePolicy) -> Limiter {
    let builder = Limiter::builder(store.clone()).quotas(quotas);
    builder.on_store_failure(policy).build().expect("a limiter")
}

fn tenant(id: &str) -> Tenant {
    Tenant::new(id, "pro").expect("an id")
}

fn global(name: &str, capacity: u64) -> LimitRule {
    rule(name, capacity).scope(Scope::Global)
}

/// What a tenant has left in its own limits.
async fn left(limiter: &Limiter, id: &str) -> Vec<(String, u64)> {
    let states = limiter.peek(&tenant(id)).await.expect("an answer");
    states
        .into_iter()
        .map(|state| (state.name.to_string(), state.remaining.expect("known")))
        .collect()
}

fn shown(decision: &Decision) -> Vec<(&str, Option<u64>)> {
    let limits = decision.limits.iter();
    limits
        .map(|limit| (limit.name.as_str(), limit.remaining))
        .collect()
}

async fn check(limiter: &Limiter, id: &str, cost: u32) -> Decision {
    limiter.check(&tenant(id), Cost::new(cost)).await
}

#[tokio::test(start_paused = true)]
async fn what_a_shared_limit_denies_is_given_back_to_the_tenant() {
    for delay in [0, 1] {
        let store = Remote::new(delay);
        let quotas = Quotas::new(quota(10))
            .limit(rule("daily", 50).cost(Cost::new(3)))
            .limit(rule("new", 20).shadow())
            .limit(rule("tight", 4).shadow())
            .limit(global("search", 3));
        let limiter = limiter(&store, quotas, FailurePolicy::Closed);
        let allowed = check(&limiter, "a", 2).await;
        assert_eq!(
            (allowed.verdict, allowed.source),
            (Verdict::Allowed, Source::Store)
        );
        let after = [
            ("default", Some(8)),
            ("daily", Some(47)),
            ("new", Some(18)),
            ("tight", Some(2)),
        ];
        let all = |search| [&after[..], &[("search", Some(search))]].concat();
        assert_eq!(shown(&allowed), all(1));

        let denied = check(&limiter, "a", 2).await;
        assert_eq!((denied.verdict, denied.granted), (Verdict::Denied, 0));
        assert_eq!(denied.source, Source::Store);
        assert_eq!(shown(&denied), all(1), "as if it had not been charged");
        let tightest = denied.tightest().expect("a limit");
        assert_eq!(tightest.name.as_str(), "search");
        assert!(matches!(tightest.wait, Wait::For(_)));

        sleep(Duration::from_millis(2)).await;
        let held: Vec<_> = left(&limiter, "a").await;
        let expected = after.map(|(name, left)| (name.to_owned(), left.expect("known")));
        assert_eq!(held, expected, "{delay} ms");
        // Of what is known to be denied, nothing needs to be given back.
        let asked = store.checks();
        let denied = check(&limiter, "a", 2).await;
        assert_eq!(
            (denied.verdict, denied.source),
            (Verdict::Denied, Source::DenialCache)
        );
        let unknown = after.map(|(name, _)| (name, None));
        assert_eq!(
            shown(&denied),
            [&unknown[..], &[("search", Some(1))]].concat()
        );
        assert_eq!(store.checks(), asked);

        // A shadow limit that lacked tokens was not charged, and gets nothing.
        sleep(Duration::from_secs(1)).await;
        let denied = check(&limiter, "a", 3).await;
        assert_eq!(shown(&denied), all(1));
        sleep(Duration::from_millis(2)).await;
        assert_eq!(left(&limiter, "a").await, expected);
    }
}

#[tokio::test(start_paused = true)]
async fn it_is_given_back_also_when_the_caller_leaves() {
    let store = Remote::new(1);
    let quotas = Quotas::new(quota(10)).limit(global("search", 1));
    let limiter = limiter(&store, quotas, FailurePolicy::Closed);
    assert!(!check(&limiter, "a", 4).await.is_allowed());
    // Nothing has run since: the future is gone, and the task is not polled yet.
    assert_eq!(store.checks(), 2);
    let read = || {
        let name = LimitName::default();
        let key = KeySpace::default().bucket(&tenant("a"), &name);
        let limit = Limit {
            name,
            quota: quota(10),
        };
        let cost = Cost::FREE;
        let check = Check::single(Charge { key, limit, cost });
        let decision = store.memory.decide(&check).expect("an answer");
        decision.limits[0].remaining
    };
    assert_eq!(read(), Some(6));
    sleep(Duration::from_millis(2)).await;
    assert_eq!(read(), Some(10));
}

#[test]
fn a_store_that_answers_at_once_needs_no_runtime() {
    let store = Remote::new(0);
    let quotas = Quotas::new(quota(10)).limit(global("search", 1));
    let limiter = limiter(&store, quotas, FailurePolicy::Closed);
    let mut checking = limiter.check(&tenant("a"), Cost::new(2));
    let decision = Pin::new(&mut checking).poll(&mut Context::from_waker(Waker::noop()));
    let Poll::Ready(decision) = decision else {
        panic!("it waits");
    };
    assert_eq!(
        shown(&decision),
        [("default", Some(10)), ("search", Some(1))]
    );
}

#[tokio::test(start_paused = true)]
async fn the_first_check_that_denies_is_the_last() {
    let store = Remote::new(0);
    let dependency = rule("queries", 9).scope(Scope::Dependency("db".into()));
    let quotas = Quotas::new(quota(1))
        .limit(global("search", 5))
        .limit(dependency);
    let limiter = limiter(&store, quotas, FailurePolicy::Closed);
    assert!(check(&limiter, "a", 1).await.is_allowed());
    assert_eq!(store.checks(), 3);
    let denied = check(&limiter, "a", 1).await;
    assert_eq!((denied.verdict, store.checks()), (Verdict::Denied, 4));
    // Clients are told of limits that nobody asked.
    assert_eq!(
        shown(&denied),
        [("default", Some(0)), ("search", None), ("queries", None)]
    );
    assert_eq!(denied.tightest().expect("a limit").name.as_str(), "default");
    // So nothing was taken from the shared ones.
    let other = check(&limiter, "b", 0).await;
    assert_eq!(
        shown(&other),
        [
            ("default", Some(1)),
            ("search", Some(4)),
            ("queries", Some(8))
        ]
    );
    // The one in the middle denies: the first is given back, the third not asked.
    for id in ["c", "d", "e", "f"] {
        assert!(check(&limiter, id, 1).await.is_allowed());
    }
    let denied = check(&limiter, "g", 1).await;
    assert_eq!(
        shown(&denied),
        [("default", Some(1)), ("search", Some(0)), ("queries", None)]
    );
}

#[tokio::test(start_paused = true)]
async fn it_is_given_back_when_the_shared_check_gets_no_answer_and_is_refused() {
    let store = Remote::new(0);
    let quotas = Quotas::new(quota(10)).limit(global("search", 5));
    let limiter = limiter(&store, quotas, FailurePolicy::Closed);
    store.fail("{global}");
    let refused = check(&limiter, "a", 4).await;
    assert_eq!(
        (refused.verdict, refused.source),
        (Verdict::Unavailable, Source::Fallback)
    );
    assert_eq!(shown(&refused), [("default", Some(10)), ("search", None)]);
    assert_eq!(left(&limiter, "a").await, [("default".to_owned(), 10)]);
    // With an answer of the policy that lets it through, the tenant pays.
    let open = limiter.check(&tenant("a"), Cost::new(4));
    let open = open.on_store_failure(FailurePolicy::Open).await;
    assert_eq!(
        (open.verdict, open.source),
        (Verdict::Allowed, Source::Fallback)
    );
    assert_eq!(left(&limiter, "a").await, [("default".to_owned(), 6)]);
}

#[tokio::test(start_paused = true)]
async fn nothing_is_given_back_of_what_a_policy_let_through() {
    for policy in [FailurePolicy::Open, FailurePolicy::local(1)] {
        let store = Remote::new(0);
        let quotas = Quotas::new(quota(10)).limit(global("search", 1));
        let limiter = limiter(&store, quotas, policy);
        assert!(!check(&limiter, "a", 5).await.is_allowed(), "search");
        assert!(check(&limiter, "b", 1).await.is_allowed());
        let own = limiter.check(&tenant("a"), Cost::FREE).await;
        assert_eq!(own.limits[0].remaining, Some(10));
        store.fail("{tenant:a}");
        let denied = check(&limiter, "a", 4).await;
        assert_eq!(
            (denied.verdict, denied.source),
            (Verdict::Denied, Source::Store)
        );
        // Of the local bucket, which has paid and keeps it so; it was last told of 5 tokens, before the
        // others were given back.
        let local = matches!(limiter.policy().on_failure(), FailurePolicy::Local { .. });
        assert_eq!(denied.limits[0].remaining, local.then_some(1));
        store.fail(None);
        assert_eq!(left(&limiter, "a").await, [("default".to_owned(), 10)]);
    }
}

#[tokio::test(start_paused = true)]
async fn an_answer_of_the_policy_to_any_check_makes_the_decision_a_fallback() {
    let store = Remote::new(0);
    let quotas = Quotas::new(quota(10)).limit(global("search", 5));
    let limiter = limiter(&store, quotas, FailurePolicy::Open);
    for keys in ["{tenant", "{global", "{"] {
        store.fail(keys);
        let decision = check(&limiter, "a", 1).await;
        assert_eq!(
            (decision.verdict, decision.source),
            (Verdict::Allowed, Source::Fallback),
            "{keys}"
        );
    }
}

#[tokio::test(start_paused = true)]
async fn all_checks_of_a_request_have_one_deadline() {
    let store = Remote::new(15);
    let dependency = rule("queries", 9).scope(Scope::Dependency("db".into()));
    let quotas = Quotas::new(quota(10))
        .limit(global("search", 5))
        .limit(dependency);
    let limiter = limiter(&store, quotas, FailurePolicy::Closed);
    let start = Instant::now();
    let decision = check(&limiter, "a", 1).await;
    // The first took 15 ms, the second has 10 left.
    assert_eq!(start.elapsed(), Duration::from_millis(25));
    assert_eq!(decision.verdict, Verdict::Unavailable);
    assert_eq!(store.checks(), 2, "the third is in vain");
    let deadlines = store.deadlines.lock().expect("no panic").clone();
    assert_eq!(deadlines, [start + Duration::from_millis(25); 2]);
}

#[tokio::test(start_paused = true)]
async fn a_check_of_limits_that_only_watch_refuses_nobody() {
    let store = Remote::new(0);
    let quotas = Quotas::of(
        rule("new", 1)
            .shadow()
            .on_store_failure(FailureMode::Closed),
    )
    .limit(global("site", 1).enforced_for(0.0))
    .on_store_failure(FailureMode::Closed, None);
    let limiter = limiter(&store, quotas, FailurePolicy::Closed);
    store.fail("{");
    for policy in [FailurePolicy::Closed, FailurePolicy::local(1)] {
        let checking = limiter.check(&tenant("a"), Cost::new(5));
        let decision = checking.on_store_failure(policy).await;
        assert_eq!(decision.verdict, Verdict::Allowed);
        assert!(decision.limits.iter().all(|limit| limit.shadow));
    }
    assert_eq!(check(&limiter, "a", 5).await.verdict, Verdict::Allowed);
}

/// What a request gets whose limits have these policies, when the store is gone.
async fn policy_of(
    limits: &[Option<FailureMode>],
    written: Option<FailureMode>,
    limiters: FailurePolicy,
    layers: Option<FailurePolicy>,
) -> &'static str {
    let store = Remote::new(0);
    let replicas = std::num::NonZeroU32::new(2);
    let mut quotas = Quotas::default();
    for (i, mode) in limits.iter().enumerate() {
        let mut limit = rule(&format!("l{i}"), 10);
        if let Some(mode) = mode {
            limit = limit.on_store_failure(*mode);
        }
        quotas = quotas.limit(limit);
    }
    // Only to have a number for local policies.
    let with_replicas = quotas.clone().on_store_failure(FailureMode::Open, replicas);
    let quotas = match written {
        Some(mode) => with_replicas.on_store_failure(mode, None),
        None if limits.contains(&Some(FailureMode::Local)) => {
            panic!("a local policy needs a number that is written down")
        }
        None => quotas,
    };
    let limiter = limiter(&store, quotas, limiters);
    store.fail("{");
    let mut checking = limiter.check(&tenant("a"), Cost::ONE);
    if let Some(policy) = layers {
        checking = checking.on_store_failure(policy);
    }
    let decision = checking.await;
    match (decision.verdict, decision.limits[0].remaining) {
        (Verdict::Unavailable, _) => "closed",
        (Verdict::Allowed, None) => "open",
        // A half, or a seventh at least.
        (Verdict::Allowed, Some(4)) => "local, as written",
        (Verdict::Allowed, Some(_)) => "local, as counted",
        other => panic!("{other:?}"),
    }
}

#[tokio::test(start_paused = true)]
async fn the_strictest_of_all_policies_that_concern_a_request_wins() {
    use FailureMode::{Closed, Local, Open};
    let open = || FailurePolicy::Open;
    let closed = || FailurePolicy::Closed;
    let counted = || FailurePolicy::local(5);

    // The limiter's own, what is written for all, and the layer's: the later one counts.
    assert_eq!(policy_of(&[None], None, closed(), None).await, "closed");
    assert_eq!(policy_of(&[None], Some(Open), closed(), None).await, "open");
    assert_eq!(
        policy_of(&[None], Some(Local), closed(), None).await,
        "local, as written"
    );
    assert_eq!(
        policy_of(&[None], Some(Local), counted(), None).await,
        "local, as counted"
    );
    assert_eq!(
        policy_of(&[None], Some(Closed), open(), Some(open())).await,
        "open"
    );
    assert_eq!(
        policy_of(&[None], Some(Open), open(), Some(counted())).await,
        "local, as counted"
    );

    // A limit keeps its own, however lenient.
    assert_eq!(
        policy_of(&[Some(Open)], Some(Closed), closed(), Some(closed())).await,
        "open"
    );
    assert_eq!(
        policy_of(&[Some(Closed)], None, open(), Some(open())).await,
        "closed"
    );
    assert_eq!(
        policy_of(&[Some(Local)], Some(Open), open(), None).await,
        "local, as written"
    );
    assert_eq!(
        policy_of(&[Some(Local)], Some(Open), counted(), None).await,
        "local, as counted"
    );

    // Of several, the strictest wins, and a limit without one brings that of the layer or the limiter.
    assert_eq!(
        policy_of(&[Some(Open), Some(Closed)], None, open(), None).await,
        "closed"
    );
    assert_eq!(
        policy_of(&[Some(Open), Some(Local)], Some(Open), open(), None).await,
        "local, as written"
    );
    assert_eq!(
        policy_of(&[Some(Open), None], None, closed(), None).await,
        "closed"
    );
    assert_eq!(
        policy_of(&[Some(Open), None], None, closed(), Some(open())).await,
        "open"
    );
    assert_eq!(
        policy_of(&[Some(Closed), None], None, closed(), Some(open())).await,
        "closed"
    );
    assert_eq!(
        policy_of(&[Some(Local), None], Some(Closed), open(), None).await,
        "closed"
    );
    assert_eq!(
        policy_of(&[Some(Local), None], Some(Open), closed(), None).await,
        "local, as written"
    );
}

#[tokio::test(start_paused = true)]
async fn who_is_blocked_is_denied_without_the_store() {
    let store = Remote::new(0);
    let quotas = Quotas::new(quota(10))
        .limit(rule("banned", 9).tenant("a", Allowance::Blocked))
        .limit(rule("watched", 9).tenant("b", Allowance::Blocked).shadow())
        .limit(global("search", 5));
    let limiter = limiter(&store, quotas, FailurePolicy::Closed);
    for cost in [0, 1] {
        let denied = check(&limiter, "a", cost).await;
        assert_eq!(
            (denied.verdict, denied.source),
            (Verdict::Denied, Source::Quota)
        );
        let tightest = denied.tightest().expect("a limit");
        assert_eq!(
            (tightest.name.as_str(), tightest.wait),
            ("banned", Wait::Never)
        );
        let mut names: Vec<_> = shown(&denied);
        names.sort_unstable();
        assert_eq!(
            names,
            [
                ("banned", Some(0)),
                ("default", None),
                ("search", None),
                ("watched", None)
            ]
        );
    }
    assert_eq!(store.checks(), 0);
    let watched = check(&limiter, "b", 1).await;
    assert!(watched.is_allowed());
    let last = watched.limits.last().expect("a limit");
    assert_eq!(
        (last.name.as_str(), last.wait, last.shadow),
        ("watched", Wait::Never, true)
    );
}

#[tokio::test(start_paused = true)]
async fn who_is_unlimited_is_let_through_without_the_store() {
    let store = Remote::new(0);
    let quotas = Quotas::new(quota(1)).tenant("a", Allowance::Unlimited);
    let limiter = limiter(&store, quotas, FailurePolicy::Closed);
    for _ in 0..3 {
        let decision = check(&limiter, "a", 1_000).await;
        assert_eq!(
            (decision.verdict, decision.source),
            (Verdict::Allowed, Source::Quota)
        );
        assert!(decision.limits.is_empty());
    }
    assert_eq!(store.checks(), 0);
}

#[tokio::test(start_paused = true)]
async fn a_look_charges_nothing_and_shows_all_that_is_the_tenants() {
    #[derive(Default)]
    struct Count(AtomicUsize);
    impl crate::Observer for Count {
        fn decided(&self, _: &str, _: &Decision) {
            self.0.fetch_add(1, Ordering::SeqCst);
        }

        fn store_answered(&self, _: Instant, _: &Result<Decision, StoreError>) {
            self.0.fetch_add(1, Ordering::SeqCst);
        }
    }
    let count = Arc::new(Count::default());
    let store = Remote::new(0);
    let mut quotas = Quotas::new(quota(10))
        .limit(rule("new", 5).shadow())
        .limit(rule("off", 5).mode(Mode::Off))
        .limit(rule("banned", 5).tenant("a", Allowance::Blocked))
        .limit(rule("free", 5).tenant("a", Allowance::Unlimited))
        .limit(rule("user", 5).scope(Scope::Member("user".into())))
        .limit(global("search", 5));
    // Of routes that have nothing in common, so that no request has more than a check can have.
    for i in 0..10 {
        let route = format!("/{i}").parse().expect("a pattern");
        quotas = quotas.limit(rule(&format!("r{i}"), 5).on_route(route));
    }
    let builder = Limiter::builder(store.clone()).quotas(quotas);
    let builder = builder.on_store_failure(FailurePolicy::Closed);
    let limiter = builder.observer(count.clone()).build().expect("a limiter");
    let route = Route {
        method: "GET",
        path: "/9",
        template: None,
    };
    // Not of this one's to block: another tenant's.
    let alice = tenant("b").with_member("user", "alice").expect("an id");
    assert!(
        limiter
            .check_on(&alice, Cost::new(2), &route)
            .await
            .is_allowed()
    );
    let counted = count.0.load(Ordering::SeqCst);
    for _ in 0..3 {
        let states = limiter.peek(&alice).await.expect("an answer");
        let left: Vec<_> = states
            .iter()
            .map(|it| (it.name.as_str(), it.remaining.expect("known"), it.shadow))
            .collect();
        let mut expected = vec![
            ("default", 8, false),
            ("new", 3, true),
            ("banned", 3, false),
            ("free", 3, false),
            ("user", 3, false),
        ];
        let names: Vec<_> = (0..10).map(|i| format!("r{i}")).collect();
        expected.extend(names[..9].iter().map(|name| (&**name, 5, false)));
        expected.push(("r9", 3, false));
        assert_eq!(left, expected);
    }
    assert_eq!(
        count.0.load(Ordering::SeqCst),
        counted,
        "nothing is counted"
    );

    // Who is blocked sees it; what does not bound it, is not there.
    let states = limiter.peek(&tenant("a")).await.expect("an answer");
    assert_eq!(states.len(), 13);
    let last = states.last().expect("a limit");
    assert_eq!((last.name.as_str(), last.wait), ("banned", Wait::Never));
    assert!(
        states
            .iter()
            .all(|it| !["free", "user", "off", "search"].contains(&it.name.as_str()))
    );

    limiter.reset(&alice).await.expect("an answer");
    let states = limiter.peek(&alice).await.expect("an answer");
    assert!(states.iter().all(|it| it.remaining == Some(it.capacity())));
    // What all share is not this tenant's to fill.
    let again = limiter.check(&alice, Cost::FREE).await;
    let search = again.limits.iter().find(|it| it.name.as_str() == "search");
    assert_eq!(search.expect("a limit").remaining, Some(3));
}

#[tokio::test(start_paused = true)]
async fn a_split_tenant_is_looked_at_and_reset_in_all_its_parts() {
    let store = Remote::new(0);
    let shards = std::num::NonZeroU8::new(4).expect("not 0");
    let quotas = Quotas::new(quota(40)).shards_of("a", shards);
    let builder = Limiter::builder(crate::Shards::new(store.clone())).quotas(quotas);
    let builder = builder.on_store_failure(FailurePolicy::Closed);
    let limiter = builder.build().expect("a limiter");
    for _ in 0..40 {
        assert!(check(&limiter, "a", 1).await.is_allowed());
    }
    assert_eq!(left(&limiter, "a").await, [("default".to_owned(), 0)]);
    limiter.reset(&tenant("a")).await.expect("an answer");
    assert_eq!(left(&limiter, "a").await, [("default".to_owned(), 40)]);
    for _ in 0..40 {
        assert!(check(&limiter, "a", 1).await.is_allowed());
    }
    assert!(!check(&limiter, "a", 1).await.is_allowed());
}

#[tokio::test(start_paused = true)]
async fn a_failure_of_the_store_is_an_error_of_a_look_and_of_a_reset() {
    let store = Remote::new(0);
    let limiter = limiter(&store, Quotas::new(quota(10)), FailurePolicy::Open);
    store.fail("{tenant:a}");
    let error = limiter.peek(&tenant("a")).await.expect_err("no answer");
    assert_eq!(error.kind(), ErrorKind::NotABucket);
}

#[test]
fn a_charge_that_is_given_back_is_shown_so() {
    let limit = |capacity, remaining, wait, shadow| {
        let name = LimitName::default();
        let quota = Quota::new(capacity, 1).expect("a quota");
        let limit = Limit {
            name: name.clone(),
            quota,
        };
        let key = KeySpace::default().bucket(&tenant("a"), &name);
        let cost = Cost::new(3);
        let check = Check::single(Charge { key, limit, cost });
        let check = check.with_shadow(shadow).expect("at most one");
        let mut decision = check.decide(1, Source::Store, [(remaining, wait)]);
        uncharge(&mut decision.limits[0]);
        decision.limits[0].remaining
    };
    let lacked = Wait::For(Duration::from_secs(1));
    assert_eq!(limit(10, 4, Wait::None, 0), Some(7));
    assert_eq!(limit(10, 8, Wait::None, 0), Some(10));
    assert_eq!(limit(10, 4, Wait::None, 1), Some(7));
    assert_eq!(limit(10, 2, lacked, 1), Some(2));
}

/// Says of each tenant what it is told to, after a while, and that it has changed.
struct Told {
    account: Arc<Mutex<Account>>,
    delay: Duration,
    changes: broadcast::Sender<Change>,
}

impl QuotaSource for Told {
    fn name(&self) -> &'static str {
        "told"
    }

    fn load<'a>(&'a self, _: &'a str, _: Option<&'a Account>) -> LoadFuture<'a> {
        Box::pin(async {
            sleep(self.delay).await;
            Ok(Some(self.account.lock().expect("no panic").clone()))
        })
    }

    fn changes(&self) -> Option<broadcast::Receiver<Change>> {
        Some(self.changes.subscribe())
    }
}

fn allowing(allowance: impl Into<Allowance>) -> Account {
    let mut account = Account::default();
    account
        .limits
        .insert(LimitName::default(), allowance.into());
    account
}

#[tokio::test(start_paused = true)]
async fn a_quota_that_changes_between_two_requests_counts_for_the_second() {
    let (changes, _) = broadcast::channel(8);
    let account = Arc::new(Mutex::new(allowing(quota(3))));
    let told = Told {
        account: account.clone(),
        delay: Duration::from_millis(5),
        changes: changes.clone(),
    };
    let pattern = "/reports".parse().expect("a pattern");
    let quotas = Quotas::new(quota(1)).limit(rule("reports", 9).on_route(pattern));
    let book = tollgate_quota::QuotaBook::new(quotas).source(told);
    let builder = Limiter::builder(Remote::new(0)).quotas(book);
    let builder = builder.on_store_failure(FailurePolicy::Closed);
    let limiter = builder.build().expect("a limiter");
    let route = Route {
        method: "GET",
        path: "/reports",
        template: None,
    };
    // The route is known also when the account had to be waited for.
    let first = limiter.check_on(&tenant("a"), Cost::new(3), &route).await;
    assert!(first.is_allowed());
    assert_eq!(shown(&first), [("default", Some(0)), ("reports", Some(6))]);
    assert!(!check(&limiter, "a", 1).await.is_allowed());

    let change = async |to: Account| {
        *account.lock().expect("no panic") = to;
        let told = changes.send(Change::Tenant("a".into()));
        assert_eq!(told.expect("heard"), 1);
        sleep(Duration::from_millis(20)).await;
    };
    change(allowing(quota(100))).await;
    let raised = check(&limiter, "a", 0).await;
    assert_eq!(raised.limits[0].capacity(), 100);
    assert_eq!(raised.limits[0].remaining, Some(0), "tokens stay");
    change(allowing(Allowance::Unlimited)).await;
    assert!(check(&limiter, "a", 1).await.is_allowed());
    change(allowing(Allowance::Blocked)).await;
    assert_eq!(check(&limiter, "a", 0).await.verdict, Verdict::Denied);
    change(Account::default()).await;
    assert_eq!(check(&limiter, "a", 0).await.limits[0].capacity(), 1);
}

#[tokio::test(start_paused = true)]
async fn the_time_that_an_account_takes_counts_towards_the_deadline() {
    let (changes, _) = broadcast::channel(8);
    let told = Told {
        account: Arc::default(),
        delay: Duration::from_secs(1),
        changes,
    };
    let book = tollgate_quota::QuotaBook::new(Quotas::new(quota(9))).source(told);
    let builder = Limiter::builder(Remote::new(50)).quotas(book);
    let builder = builder.on_store_failure(FailurePolicy::Closed);
    let limiter = builder.build().expect("a limiter");
    let start = Instant::now();
    assert_eq!(check(&limiter, "a", 1).await.verdict, Verdict::Unavailable);
    assert_eq!(start.elapsed(), Duration::from_millis(25));
}
