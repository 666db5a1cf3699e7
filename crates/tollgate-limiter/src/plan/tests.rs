use std::num::NonZeroU8;

use tollgate_core::{LimitName, Quota, Wait};
use tollgate_quota::Mode;

use super::*;

pub(crate) fn quota(capacity: u64) -> Quota {
    Quota::new(capacity, 1.0 / 3600.0).expect("a quota")
}

pub(crate) fn rule(name: &str, capacity: u64) -> LimitRule {
    let name = LimitName::new(name).expect("a name");
    LimitRule::new(name, quota(capacity))
}

fn acme() -> Tenant {
    Tenant::new("acme", "pro").expect("an id")
}

fn plan_of(quotas: &Quotas, tenant: &Tenant, route: Option<&str>, cost: u32) -> Plan {
    let route = route.map(|path| Route {
        method: "GET",
        path,
        template: None,
    });
    let keys = KeySpace::default();
    let cost = Cost::new(cost);
    let takes = Takes::new(quotas, route.as_ref(), cost);
    Plan::new(&keys, quotas, tenant, None, &takes)
}

/// A request of acme for `/` that costs 1.
fn plan(quotas: &Quotas) -> Plan {
    plan_of(quotas, &acme(), Some("/"), 1)
}

/// Keys and costs of each check, those that only watch in brackets.
fn charged(plan: &Plan) -> Vec<Vec<String>> {
    let of = |part: &Part| {
        let enforcing = part.check.charges().len() - part.check.shadow();
        let charges = part.check.charges().iter().enumerate();
        let text = charges.map(|(i, charge)| {
            let text = format!("{} {}", charge.key, charge.cost.tokens());
            if i < enforcing {
                text
            } else {
                format!("[{text}]")
            }
        });
        text.collect()
    };
    plan.parts.iter().map(of).collect()
}

fn blocked(plan: &Plan) -> Vec<(&str, bool)> {
    let blocked = plan.blocked.iter();
    blocked
        .map(|limit| (limit.name.as_str(), limit.shadow))
        .collect()
}

#[test]
fn a_request_is_charged_in_the_order_of_the_limits_and_watched_last() {
    let quotas = Quotas::of(rule("new", 1).shadow())
        .limit(rule("default", 10))
        .limit(rule("off", 1).mode(Mode::Off))
        .limit(rule("trial", 1).enforced_for(0.0))
        .limit(rule("daily", 5).cost(Cost::new(2)));
    assert_eq!(
        charged(&plan_of(&quotas, &acme(), None, 3)),
        [[
            "tg:{tenant:acme}:default 3",
            "tg:{tenant:acme}:daily 2",
            "[tg:{tenant:acme}:new 3]",
            "[tg:{tenant:acme}:trial 3]",
        ]]
    );
}

#[test]
fn a_limit_is_charged_on_its_routes_and_at_its_own_cost() {
    let pattern = |text: &str| text.parse().expect("a pattern");
    let reports = rule("reports", 50)
        .on_route(pattern("/reports/{*rest}"))
        .cost_on(pattern("/reports/all"), Cost::new(20))
        .cost(Cost::new(4));
    let quotas = Quotas::new(quota(100)).limit(reports);
    for (route, expected) in [
        (None, vec!["default 7"]),
        (Some("/"), vec!["default 7"]),
        (Some("/reports/1"), vec!["default 7", "reports 4"]),
        (Some("/reports/all"), vec!["default 7", "reports 20"]),
    ] {
        let charged = charged(&plan_of(&quotas, &acme(), route, 7));
        let expected: Vec<_> = expected
            .into_iter()
            .map(|it| format!("tg:{{tenant:acme}}:{it}"))
            .collect();
        assert_eq!(charged, [expected], "{route:?}");
    }
    // Nothing covers it: nothing to ask, and nothing in the way.
    let nothing = Quotas::of(rule("a", 1).on_route(pattern("/a")));
    let nothing = plan(&nothing);
    assert!(nothing.parts.is_empty() && nothing.blocked.is_empty());
}

#[test]
fn each_scope_has_keys_of_its_own_and_shared_ones_come_after() {
    let dependency = |name: &str| Scope::Dependency(name.into());
    let quotas = Quotas::of(rule("search", 9).scope(Scope::Global))
        .limit(rule("queries", 9).scope(dependency("db")))
        .limit(rule("user", 9).scope(Scope::Member("user".into())))
        .limit(rule("mails", 9).scope(dependency("smtp")))
        .limit(rule("default", 9))
        .limit(rule("bytes", 9).scope(dependency("db")))
        .limit(rule("site", 9).scope(Scope::Global).shadow());
    let alice = acme().with_member("user", "alice").expect("an id");
    let alices = charged(&plan_of(&quotas, &alice, None, 1));
    let shared = [
        vec!["tg:{global}:search 1", "[tg:{global}:site 1]"],
        vec!["tg:{dependency:db}:queries 1", "tg:{dependency:db}:bytes 1"],
        vec!["tg:{dependency:smtp}:mails 1"],
    ];
    assert_eq!(
        alices[0],
        [
            "tg:{tenant:acme}:user:alice 1",
            "tg:{tenant:acme}:default 1"
        ]
    );
    assert_eq!(alices[1..], shared);
    // Who names no user is charged as the tenant alone, and so is one who names another kind of member.
    let device = acme().with_member("device", "alice").expect("an id");
    for tenant in [acme(), device] {
        let charged = charged(&plan_of(&quotas, &tenant, None, 1));
        assert_eq!(charged[0], ["tg:{tenant:acme}:default 1"]);
        assert_eq!(charged[1..], shared);
    }
    let address = Tenant::anonymous("192.0.2.7".parse().expect("an address"));
    let charged = charged(&plan_of(&quotas, &address, None, 1));
    assert_eq!(charged[0], ["tg:{anonymous:192.0.2.7}:default 1"]);
    assert_eq!(charged[1..], shared);
}

#[test]
fn a_tenant_is_charged_by_its_own_quota() {
    let quotas = Quotas::new(quota(1))
        .tier("pro", quota(2))
        .tenant("big", quota(3))
        .limit(rule("search", 7).scope(Scope::Global));
    let capacities = |id: &str, class: &str| -> Vec<u64> {
        let tenant = Tenant::new(id, class).expect("an id");
        let plan = plan_of(&quotas, &tenant, None, 1);
        let charges = plan.parts.iter().flat_map(|part| part.check.charges());
        charges.map(|it| it.limit.quota.capacity()).collect()
    };
    assert_eq!(capacities("a", "free"), [1, 7]);
    assert_eq!(capacities("a", "pro"), [2, 7]);
    assert_eq!(capacities("big", "pro"), [3, 7]);
    assert_eq!(&*plan(&quotas).label, "pro");
    let free = Tenant::new("a", "free").expect("an id");
    assert_eq!(&*plan_of(&quotas, &free, None, 1).label, "default");
}

#[test]
fn a_blocked_tenant_is_known_without_a_check_of_that_limit() {
    let quotas = Quotas::new(quota(9))
        .limit(rule("banned", 9).tier("pro", Allowance::Blocked))
        .limit(rule("watched", 9).tier("pro", Allowance::Blocked).shadow())
        .limit(
            rule("half", 9)
                .tier("pro", Allowance::Blocked)
                .enforced_for(0.0),
        );
    for cost in [0, 1] {
        let plan = plan_of(&quotas, &acme(), None, cost);
        assert_eq!(
            blocked(&plan),
            [("banned", false), ("watched", true), ("half", true)]
        );
        assert!(plan.blocked.iter().all(|it| it.wait == Wait::Never));
        let expected = format!("tg:{{tenant:acme}}:default {cost}");
        assert_eq!(charged(&plan), [[expected]]);
    }
    // Who does not belong to the limit is not blocked by it.
    let users = LimitRule::new(LimitName::new("user").expect("a name"), Allowance::Blocked);
    let users = Quotas::of(users.scope(Scope::Member("user".into())));
    assert!(plan(&users).blocked.is_empty());
    let free = Tenant::new("acme", "free").expect("an id");
    assert!(plan_of(&quotas, &free, None, 1).blocked.is_empty());
}

#[test]
fn an_unlimited_tenant_is_not_charged() {
    let quotas = Quotas::new(quota(9))
        .tenant("acme", Allowance::Unlimited)
        .limit(rule("daily", 5));
    assert_eq!(charged(&plan(&quotas)), [["tg:{tenant:acme}:daily 1"]]);
    let all = Quotas::new(Allowance::Unlimited);
    assert!(plan(&all).parts.is_empty());
}

#[test]
fn more_limits_than_a_check_can_have_are_cut_and_enforced_ones_stay() {
    // No check of quotas lets them pass; and if they do, no request is lost to a panic.
    let many = |enforced: usize, shadow: usize| {
        let mut quotas = Quotas::default();
        for i in 0..shadow {
            quotas = quotas.limit(rule(&format!("s{i}"), 1).shadow());
        }
        for i in 0..enforced {
            quotas = quotas.limit(rule(&format!("e{i}"), 1));
        }
        quotas
    };
    for (enforced, shadow) in [
        (8, 0),
        (7, 1),
        (8, 1),
        (9, 0),
        (9, 9),
        (1, 9),
        (0, 9),
        (0, 1),
        (1, 0),
    ] {
        let plan = plan(&many(enforced, shadow));
        let check = &plan.parts[0].check;
        let kept = enforced.min(8);
        assert_eq!(check.charges().len(), (enforced + shadow).min(8));
        assert_eq!(check.charges().len() - check.shadow(), kept);
        let first = check.charges()[..kept].iter();
        assert!(
            first
                .clone()
                .all(|it| it.limit.name.as_str().starts_with('e')),
            "{enforced} {shadow}"
        );
        let names: Vec<_> = first.map(|it| it.limit.name.to_string()).collect();
        let expected: Vec<_> = (0..kept).map(|i| format!("e{i}")).collect();
        assert_eq!(names, expected);
    }
}

#[test]
fn the_strictest_policy_of_enforced_limits_counts() {
    let [open, local, closed] = [FailureMode::Open, FailureMode::Local, FailureMode::Closed];
    let failure = |limits: &[(Option<FailureMode>, bool)]| {
        let mut quotas = Quotas::default();
        for (i, (mode, shadow)) in limits.iter().enumerate() {
            let mut limit = rule(&format!("l{i}"), 1);
            if let Some(mode) = mode {
                limit = limit.on_store_failure(*mode);
            }
            quotas = quotas.limit(if *shadow { limit.shadow() } else { limit });
        }
        let failure = plan(&quotas).parts[0].failure;
        (failure.strictest, failure.default_too)
    };
    assert_eq!(failure(&[(None, false)]), (None, true));
    assert_eq!(failure(&[(Some(open), false)]), (Some(open), false));
    assert_eq!(
        failure(&[(Some(open), false), (None, false)]),
        (Some(open), true)
    );
    assert_eq!(
        failure(&[
            (Some(open), false),
            (Some(closed), false),
            (Some(local), false)
        ]),
        (Some(closed), false)
    );
    // Those that watch have no say.
    assert_eq!(
        failure(&[(Some(open), false), (Some(closed), true), (None, true)]),
        (Some(open), false)
    );
    assert_eq!(failure(&[(Some(closed), true)]), (None, false));
}

#[test]
fn a_check_is_leased_when_all_its_limits_are_and_shards_are_the_tenants() {
    let shards = NonZeroU8::new(3).expect("not 0");
    let quotas = Quotas::of(rule("a", 9).leased())
        .limit(rule("search", 9).scope(Scope::Global))
        .shards_of("acme", shards);
    let flags = |quotas: &Quotas| -> Vec<_> {
        let plan = plan(quotas);
        let checks = plan.parts.iter().map(|part| &part.check);
        checks
            .map(|check| {
                (
                    check.is_leased(),
                    check.shards().get(),
                    check.key_class().to_owned(),
                )
            })
            .collect()
    };
    let default = || "default".to_owned();
    assert_eq!(
        flags(&quotas),
        [(true, 3, default()), (false, 1, default())]
    );
    let quotas = quotas.limit(rule("b", 9));
    assert_eq!(flags(&quotas)[0], (false, 3, default()));
}
