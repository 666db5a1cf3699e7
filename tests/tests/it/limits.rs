//! Several limits of one request, and quotas that change, on a real Redis.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex},
    time::Duration,
};

use tokio::task::JoinSet;
use tollgate::{
    Allowance, BuildError, Cost, Decision, FailurePolicy, KeySpace, LimitName, LimitRule, Limiter,
    Mode, Quota, Quotas, RateLimitLayer, Regions, Route, Scope, Source, Tenant, Verdict, Wait,
};
use tollgate_core::{Charge, Check};
use tollgate_tests::{RedisServer, charge, quota};

use crate::support::{decide, remaining, store};

/// So slow that nothing refills while a test runs.
const SLOW: &str = "1/h";

fn rule(name: &str, capacity: u64) -> LimitRule {
    let name = LimitName::new(name).expect("a name");
    LimitRule::new(name, quota(capacity, SLOW))
}

fn tenant(id: &str) -> Tenant {
    Tenant::new(id, "pro").expect("an id")
}

async fn limiter(server: &RedisServer, quotas: Quotas) -> Limiter {
    prefixed(server, quotas, "tg").await
}

async fn prefixed(server: &RedisServer, quotas: Quotas, prefix: &str) -> Limiter {
    let builder = Limiter::builder(store(server).await).quotas(quotas);
    // Each request is to be decided by the script.
    let builder = builder.denial_cache(false);
    let builder = builder
        .on_store_failure(FailurePolicy::Closed)
        .keys(KeySpace::new(prefix).expect("a prefix"))
        // Every decision is to be the store's, on a busy machine too.
        .deadline(Duration::from_secs(30));
    builder.build().expect("a limiter")
}

/// What `tenant` has left, by limit.
async fn left(limiter: &Limiter, tenant: &Tenant) -> BTreeMap<String, u64> {
    let states = limiter.peek(tenant).await.expect("an answer");
    states
        .iter()
        .map(|state| (state.name.to_string(), remaining(state)))
        .collect()
}

/// Requests at random: a tenant, a path and a cost.
fn traffic(seed: u64, count: usize, costs: u64) -> Vec<(Tenant, &'static str, Cost)> {
    let mut state = seed;
    let mut below = |bound: u64| {
        // Steele and Vigna's SplitMix64.
        state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (state ^ (state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (mixed ^ (mixed >> 31)) % bound
    };
    (0..count)
        .map(|_| {
            let tenant = tenant(["a", "b", "c"][usize::try_from(below(3)).expect("small")]);
            let path = ["/", "/reports/1", "/export"][usize::try_from(below(3)).expect("small")];
            let cost = Cost::try_from(below(costs)).expect("a cost");
            (tenant, path, cost)
        })
        .collect()
}

const fn get(path: &str) -> Route<'_> {
    Route {
        method: "GET",
        path,
        template: None,
    }
}

/// What each bucket should have been charged, by tenant and limit.
type Spent = BTreeMap<(String, String), u64>;

fn note(spent: &mut Spent, tenant: &Tenant, decision: &Decision) {
    for limit in &decision.limits {
        // One in shadow is charged when it has the tokens.
        let is_charged = decision.is_allowed() && !limit.lacked_tokens();
        let cost = if is_charged { limit.cost.tokens() } else { 0 };
        let key = (tenant.id().to_owned(), limit.name.to_string());
        *spent.entry(key).or_default() += cost;
    }
}

/// Sends the traffic through all limiters at the same time, and returns what was admitted and what that cost.
async fn hammer(limiters: &[Limiter], seed: u64, costs: u64) -> (usize, usize, Spent) {
    let spent: Arc<Mutex<(usize, usize, Spent)>> = Arc::default();
    let mut tasks = JoinSet::new();
    for task in 0..16_usize {
        let limiter = limiters[task % limiters.len()].clone();
        let spent = spent.clone();
        let seed = seed + u64::try_from(task).expect("small");
        tasks.spawn(async move {
            for (tenant, path, cost) in traffic(seed, 60, costs) {
                let decision = limiter.check_on(&tenant, cost, &get(path)).await;
                assert_eq!(decision.source, Source::Store);
                let mut spent = spent.lock().expect("no panic");
                let (admitted, denied, costs) = &mut *spent;
                *(if decision.is_allowed() {
                    admitted
                } else {
                    denied
                }) += 1;
                note(costs, &tenant, &decision);
            }
        });
    }
    while let Some(task) = tasks.join_next().await {
        task.expect("no panic");
    }
    let spent = spent.lock().expect("no panic");
    spent.clone()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn eight_limits_are_charged_all_or_none_whatever_happens_at_the_same_time() {
    let server = RedisServer::start();
    let pattern = |text: &str| text.parse().expect("a pattern");
    let quotas = Quotas::of(rule("default", 260))
        .limit(rule("requests", 120).cost(Cost::ONE))
        .limit(rule("reports", 90).on_route(pattern("/reports/{*rest}")))
        .limit(
            rule("export", 70)
                .on_route(pattern("/export"))
                .cost(Cost::new(4)),
        )
        .limit(rule("not-home", 200).on_route(pattern("/{*rest}")))
        .limit(rule("weights", 500).cost_on(pattern("/export"), Cost::new(9)))
        .limit(rule("new", 150).shadow())
        .limit(rule("roomy", 10_000))
        .limit(rule("twice", 300).cost(Cost::new(2)));
    let limiters = [
        limiter(&server, quotas.clone()).await,
        limiter(&server, quotas.clone()).await,
    ];
    let (admitted, denied, spent) = hammer(&limiters, 7, 6).await;
    assert!(admitted > 100 && denied > 100, "{admitted} and {denied}");
    let mut compared = 0;
    for id in ["a", "b", "c"] {
        let left = left(&limiters[0], &tenant(id)).await;
        for rule in quotas.limits() {
            let name = rule.name().to_string();
            let states = limiters[1].peek(&tenant(id)).await.expect("an answer");
            let state = states.iter().find(|it| it.name == *rule.name());
            let capacity = state.expect("a limit").capacity();
            let spent = spent[&(id.to_owned(), name.clone())];
            assert_eq!(left[&name], capacity - spent, "{name} of {id}");
            compared += 1;
        }
    }
    assert_eq!(compared, 27);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn what_a_shared_limit_denies_has_cost_the_tenants_nothing() {
    let server = RedisServer::start();
    let quotas = Quotas::of(rule("default", 1_200))
        .limit(rule("daily", 5_000).cost(Cost::new(3)))
        .limit(rule("search", 700).scope(Scope::Global))
        .limit(
            rule("queries", 900)
                .scope(Scope::Dependency("db".into()))
                .cost(Cost::new(4)),
        );
    let limiters = [
        limiter(&server, quotas.clone()).await,
        limiter(&server, quotas).await,
    ];
    let (admitted, denied, spent) = hammer(&limiters, 99, 5).await;
    assert!(admitted > 100 && denied > 100, "{admitted} and {denied}");
    let of = |id: &str, name: &str| spent[&(id.to_owned(), name.to_owned())];
    let of_all = |name: &str| ["a", "b", "c"].iter().map(|id| of(id, name)).sum::<u64>();
    let mut expected = vec![700 - of_all("search"), 900 - of_all("queries")];
    for id in ["a", "b", "c"] {
        expected.extend([5_000 - of(id, "daily"), 1_200 - of(id, "default")]);
    }
    let redis = store(&server).await;
    let keys = KeySpace::default();
    let shared =
        [("search", 700, None), ("queries", 900, Some("db"))].map(|(name, capacity, of)| {
            let limit = LimitName::new(name).expect("a name");
            let key = match of {
                None => keys.global_bucket(&limit),
                Some(dependency) => keys.dependency_bucket(dependency, &limit),
            };
            let charge = charge("any", name, quota(capacity, SLOW), 0);
            Check::single(Charge { key, ..charge })
        });
    // What is given back may be on its way still.
    let settled = async {
        loop {
            let mut found = Vec::new();
            for check in &shared {
                found.push(remaining(&decide(&redis, check.clone()).await.limits[0]));
            }
            for id in ["a", "b", "c"] {
                found.extend(left(&limiters[0], &tenant(id)).await.into_values());
            }
            if found == expected {
                return;
            }
            assert!(
                found
                    .iter()
                    .zip(&expected)
                    .all(|(found, expected)| found <= expected),
                "more than was taken is given back: {found:?}, not {expected:?}"
            );
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    let settled = tokio::time::timeout(Duration::from_secs(20), settled).await;
    settled.expect("every token of a refused request is given back");
}

/// The same traffic to a limiter whose limit `new` only watches, and to its twin where it denies.
///
/// What must agree, request by request:
/// * a limit in shadow says that it lacks tokens exactly when an enforcing one in its place would deny,
///   given the same bucket. It is charged for what fits it, as an enforcing one is for what it admits; so
///   while no *other* limit denies anything, both buckets have the same history, and every single decision
///   agrees, whatever the costs.
/// * Other limits in the shadow run are charged also for requests that the twin denies, so from the first of
///   their denials on, histories part. What must hold then is that each shadow decision is the one that the
///   limit would make alone: the twin for that has it as its only limit, and gets the requests that the
///   other limits of the shadow run have admitted.
#[tokio::test]
async fn a_limit_in_shadow_says_what_it_would_do() {
    let server = RedisServer::start();
    let new = || rule("new", 60).tier("pro", quota(40, SLOW));
    let roomy = || Quotas::of(rule("default", 10_000));
    let shadow = prefixed(&server, roomy().limit(new().shadow()), "shadow").await;
    let twin = prefixed(&server, roomy().limit(new()), "twin").await;
    let mut denials = 0;
    for (tenant, path, cost) in traffic(3, 150, 4) {
        let watched = shadow.check_on(&tenant, cost, &get(path)).await;
        let enforced = twin.check_on(&tenant, cost, &get(path)).await;
        assert!(watched.is_allowed());
        let (watched, enforcing) = (&watched.limits[1], &enforced.limits[1]);
        assert!(watched.shadow && !enforcing.shadow);
        assert_eq!(watched.lacked_tokens(), !enforced.is_allowed());
        assert_eq!(watched.remaining, enforcing.remaining);
        denials += usize::from(!enforced.is_allowed());
    }
    assert!((20..130).contains(&denials), "{denials}");

    let narrow = || Quotas::of(rule("default", 50));
    let shadow = prefixed(&server, narrow().limit(new().shadow()), "shadow2").await;
    let alone = prefixed(&server, Quotas::of(new()), "alone").await;
    let (mut denied, mut lacked) = (0, 0);
    for (tenant, path, cost) in traffic(4, 200, 4) {
        let watched = shadow.check_on(&tenant, cost, &get(path)).await;
        let state = &watched.limits[1];
        lacked += usize::from(watched.is_allowed() && state.lacked_tokens());
        if watched.is_allowed() {
            let enforced = alone.check_on(&tenant, cost, &get(path)).await;
            assert_eq!(state.lacked_tokens(), !enforced.is_allowed());
            assert_eq!(state.remaining, enforced.limits[0].remaining);
        } else {
            denied += 1;
            // Denied by the other: this one is not charged, and says what it would have said.
            let look = alone.check_on(&tenant, Cost::FREE, &get(path)).await;
            assert_eq!(state.remaining, look.limits[0].remaining);
            assert_eq!(state.lacked_tokens(), remaining(state) < cost.tokens());
        }
    }
    assert!(denied > 20 && lacked > 5, "{denied} and {lacked}");
}

fn shown(decision: &Decision) -> (bool, u64, u64) {
    let limit = &decision.limits[0];
    (decision.is_allowed(), limit.capacity(), remaining(limit))
}

#[tokio::test]
async fn a_quota_that_changes_applies_to_the_running_bucket() {
    let server = RedisServer::start();
    let quotas = |capacity, rate: &str| Quotas::new(Quota::new(capacity, rate).expect("a quota"));
    let ten = limiter(&server, quotas(10, "10/h")).await;
    let check = async |limiter: &Limiter, id: &str| limiter.check(&tenant(id), Cost::ONE).await;

    // Lowered: the tokens that are there are cut to what the new quota holds.
    for expected in [9, 8] {
        assert_eq!(shown(&check(&ten, "lowered").await), (true, 10, expected));
    }
    let five = limiter(&server, quotas(5, "10/h")).await;
    assert_eq!(shown(&check(&five, "lowered").await), (true, 5, 4));

    // Raised: they stay.
    for expected in (4..10).rev() {
        assert_eq!(shown(&check(&ten, "raised").await), (true, 10, expected));
    }
    let hundred = limiter(&server, quotas(100, "100/h")).await;
    assert_eq!(shown(&check(&hundred, "raised").await), (true, 100, 3));

    // Restarted.
    assert_eq!(shown(&check(&ten, "restarted").await), (true, 10, 9));
    drop(ten);
    let again = limiter(&server, quotas(10, "10/h")).await;
    assert_eq!(shown(&check(&again, "restarted").await), (true, 10, 8));

    // While a new quota is rolled out, some replicas have the old one.
    let mut admitted = 0;
    for i in 0..200 {
        let replica = if i % 2 == 0 { &again } else { &hundred };
        admitted += u32::from(check(replica, "rolled-out").await.is_allowed());
    }
    assert!((10..=100).contains(&admitted), "{admitted}");
}

#[tokio::test]
async fn who_was_denied_is_admitted_once_the_quota_is_raised() {
    let server = RedisServer::start();
    let ten = limiter(&server, Quotas::new(quota(10, SLOW))).await;
    let acme = tenant("acme");
    assert!(ten.check(&acme, Cost::new(10)).await.is_allowed());
    assert!(!ten.check(&acme, Cost::ONE).await.is_allowed());
    let unlimited = Quotas::new(quota(10, SLOW)).tenant("acme", Allowance::Unlimited);
    let unlimited = limiter(&server, unlimited).await;
    let decision = unlimited.check(&acme, Cost::ONE).await;
    assert_eq!(
        (decision.verdict, decision.source),
        (Verdict::Allowed, Source::Quota)
    );
    // A limit that is switched off is out of the way, too.
    let off = Quotas::of(rule("default", 10).mode(Mode::Off)).limit(rule("other", 10));
    let off = limiter(&server, off).await;
    assert!(off.check(&acme, Cost::ONE).await.is_allowed());
    // And switched on again, it goes on from where it was.
    assert!(!ten.check(&acme, Cost::ONE).await.is_allowed());
    ten.reset(&acme).await.expect("an answer");
    assert!(ten.check(&acme, Cost::new(10)).await.is_allowed());
}

#[tokio::test]
async fn a_cost_that_can_never_be_paid_is_refused_by_name() {
    let server = RedisServer::start();
    // Of a limit's own costs.
    let costly = Quotas::new(quota(10, "1/s")).limit(rule("export", 10).cost(Cost::new(11)));
    let builder = Limiter::builder(store(&server).await).quotas(costly);
    let error = builder.on_store_failure(FailurePolicy::Closed).build();
    let Err(BuildError::Quotas(error)) = error else {
        panic!("refused: {error:?}");
    };
    assert_eq!(error.faults[0].path, ["limits", "export", "cost"]);
    // Of the routes'.
    let ten = || Quotas::new(quota(10, "1/s"));
    let layer = RateLimitLayer::new(limiter(&server, ten()).await);
    let error = layer.with_default_cost(11).expect_err("refused");
    assert!(error.to_string().contains("11"), "{error}");

    // A tier that is lowered below what a route costs.
    let lowered = limiter(&server, ten().tier("pro", quota(5, "1/h"))).await;
    let denied = lowered.check(&tenant("a"), Cost::new(8)).await;
    assert_eq!(denied.verdict, Verdict::Denied);
    assert_eq!(denied.limits[0].wait, Wait::Never, "no time to wait for");
    let next = lowered.check(&tenant("a"), Cost::ONE).await;
    assert_eq!(shown(&next), (true, 5, 4), "the refusal took nothing");
    let other = Tenant::new("b", "free").expect("an id");
    assert!(lowered.check(&other, Cost::new(8)).await.is_allowed());
}

#[tokio::test]
async fn regions_with_stores_of_their_own_spend_one_quota_together() {
    let servers = [RedisServer::start(), RedisServer::start()];
    let mut limiters = Vec::new();
    for (server, own) in servers.iter().zip(["eu", "us"]) {
        let regions = Regions::new(own).region("eu", 0.4).region("us", 0.6);
        let quotas = Quotas::of(rule("default", 11)).in_regions(regions);
        let quotas = quotas.home_of("at-home", "eu");
        limiters.push(limiter(server, quotas).await);
    }
    for (id, expected) in [("split", [4, 7]), ("at-home", [11, 0])] {
        for (limiter, expected) in limiters.iter().zip(expected) {
            let mut allowed = 0;
            for _ in 0..12 {
                let decision = limiter.check(&tenant(id), Cost::ONE).await;
                allowed += u32::from(decision.is_allowed());
            }
            assert_eq!(allowed, expected, "{id}");
        }
    }
    let asked = servers[1].calls("evalsha");
    let denied = limiters[1].check(&tenant("at-home"), Cost::ONE).await;
    assert_eq!(
        (denied.verdict, denied.limits[0].wait),
        (Verdict::Denied, Wait::Never)
    );
    assert_eq!(servers[1].calls("evalsha"), asked, "the store is not asked");
}
