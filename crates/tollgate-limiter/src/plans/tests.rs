use tollgate_core::{Cost, KeySpace, Quota};

use super::*;

fn quotas(capacity: u64) -> Arc<Quotas> {
    Arc::new(Quotas::new(Quota::new(capacity, 1).expect("a quota")))
}

fn tenant(id: &str, class: &str) -> Tenant {
    Tenant::new(id, class).expect("an id")
}

/// The plan for a request that costs `cost`.
fn get(
    plans: &Plans,
    quotas: &Arc<Quotas>,
    tenant: &Tenant,
    account: Option<&Arc<Account>>,
    cost: u32,
) -> Arc<KeptPlan> {
    let takes = Takes::new(quotas, None, Cost::new(cost));
    plans.get(quotas, tenant, account, takes, |takes| {
        let account = account.map(|account| &**account);
        Plan::new(&KeySpace::default(), quotas, tenant, account, takes)
    })
}

fn capacity(plan: &Plan) -> u64 {
    plan.parts[0].check.charges()[0].limit.quota.capacity()
}

#[test]
fn a_plan_is_made_once() {
    let (plans, quotas) = (Plans::new(10), quotas(5));
    // Each request brings its tenant in allocations of its own.
    let first = get(&plans, &quotas, &tenant("a", "pro"), None, 1);
    let again = get(&plans, &quotas, &tenant("a", "pro"), None, 1);
    assert!(Arc::ptr_eq(&first, &again));
}

#[test]
fn whatever_a_plan_hangs_on_makes_another() {
    let (plans, quotas) = (Plans::new(100), quotas(5));
    let account = Arc::new(Account::default());
    let member = |id| tenant("a", "pro").with_member("user", id).expect("an id");
    let anonymous = |address: &str| Tenant::anonymous(address.parse().expect("an address"));
    let all = [
        get(&plans, &quotas, &tenant("a", "pro"), None, 1),
        get(&plans, &quotas, &tenant("b", "pro"), None, 1),
        get(&plans, &quotas, &tenant("a", "free"), None, 1),
        get(&plans, &quotas, &tenant("a", "pro"), None, 2),
        get(&plans, &quotas, &tenant("a", "pro"), Some(&account), 1),
        get(&plans, &quotas, &member("x"), None, 1),
        get(&plans, &quotas, &member("y"), None, 1),
        get(&plans, &quotas, &anonymous("192.0.2.7"), None, 1),
        get(&plans, &quotas, &tenant("192.0.2.7", "anonymous"), None, 1),
    ];
    for (i, plan) in all.iter().enumerate() {
        let others = all[..i].iter();
        assert!(
            !others.into_iter().any(|other| Arc::ptr_eq(plan, other)),
            "{i}"
        );
    }
}

#[test]
fn a_request_that_takes_something_else_from_one_limit_has_another_plan() {
    let plans = Plans::new(100);
    let rule = |name: &str| {
        let name = tollgate_core::LimitName::new(name).expect("a name");
        tollgate_quota::LimitRule::new(name, Quota::new(5, 1).expect("a quota"))
    };
    let search = "/search".parse().expect("a pattern");
    let quotas = Arc::new(Quotas::of(rule("all")).limit(rule("search").on_route(search)));
    let get = |path| {
        let route = tollgate_quota::Route {
            method: "GET",
            path,
            template: None,
        };
        let takes = Takes::new(&quotas, Some(&route), Cost::ONE);
        let tenant = tenant("a", "pro");
        plans.get(&quotas, &tenant, None, takes, |takes| {
            Plan::new(&KeySpace::default(), &quotas, &tenant, None, takes)
        })
    };
    let charges = |plan: &Plan| plan.parts[0].check.charges().len();
    assert_eq!([charges(&get("/search")), charges(&get("/"))], [2, 1]);
    assert!(Arc::ptr_eq(&get("/a"), &get("/b")), "neither is looked at");
}

#[test]
fn new_quotas_and_accounts_count_at_once_and_old_ones_are_let_go() {
    let plans = Plans::new(10);
    let old = quotas(5);
    let a = tenant("a", "pro");
    assert_eq!(capacity(&get(&plans, &old, &a, None, 1)), 5);
    assert_eq!(capacity(&get(&plans, &quotas(7), &a, None, 1)), 7);
    assert_eq!(capacity(&get(&plans, &old, &a, None, 1)), 5);
    assert_eq!(Arc::strong_count(&old), 1, "no plan keeps its quotas");

    let account = |capacity| {
        let mut account = Account::default();
        let quota = Quota::new(capacity, 1).expect("a quota");
        account
            .limits
            .insert(tollgate_core::LimitName::default(), quota.into());
        Arc::new(account)
    };
    let first = account(50);
    assert_eq!(capacity(&get(&plans, &old, &a, Some(&first), 1)), 50);
    assert_eq!(capacity(&get(&plans, &old, &a, Some(&account(60)), 1)), 60);
    assert_eq!(Arc::strong_count(&first), 1);
}

#[test]
fn no_more_plans_are_kept_than_wanted() {
    let (plans, quotas) = (Plans::new(100), quotas(5));
    for i in 0..10_000 {
        get(&plans, &quotas, &tenant(&i.to_string(), "pro"), None, 1);
    }
    // Its parts share the room as well as they can.
    assert!(plans.kept.len() <= 200, "{}", plans.kept.len());
}
