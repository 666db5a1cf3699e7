use std::net::{IpAddr, Ipv4Addr};

use proptest::{collection::hash_map, option, prelude::*};

use super::*;

fn name(text: &str) -> LimitName {
    LimitName::new(text).expect("a name")
}

fn quota(capacity: u64) -> Quota {
    Quota::new(capacity, 1).expect("a quota")
}

fn rule(text: &str, capacity: u64) -> LimitRule {
    LimitRule::new(name(text), quota(capacity))
}

fn pattern(text: &str) -> RoutePattern {
    text.parse().expect("a pattern")
}

/// The path and a word of the problem, for each fault.
fn faults(quotas: &Quotas) -> Vec<(String, String)> {
    let faults = match quotas.check() {
        Ok(()) => Vec::new(),
        Err(invalid) => invalid.faults,
    };
    faults
        .into_iter()
        .map(|fault| (fault.path.join("."), fault.problem))
        .collect()
}

/// There is one fault, at `path`, and its problem has these words.
#[track_caller]
fn assert_fault(quotas: &Quotas, path: &str, words: &str) {
    let faults = faults(quotas);
    let [(at, problem)] = &*faults else {
        panic!("not one fault: {faults:?}");
    };
    assert_eq!(at, path, "{problem}");
    assert!(problem.contains(words), "{problem}");
}

#[test]
fn every_fault_is_found_at_its_place() {
    let base = || Quotas::new(quota(10));
    let with = |limit: LimitRule| base().limit(limit);
    let dependency = |name: &str| Scope::Dependency(name.into());
    assert_fault(&Quotas::default(), "limits", "at least one limit");
    let early = Quotas::default()
        .tenant("spammer", Allowance::Blocked)
        .limit(rule("x", 1));
    assert_fault(&early, "tenants.spammer", "before there was a limit");
    let early = Quotas::default().tier("pro", quota(2)).limit(rule("x", 1));
    assert_fault(&early, "tiers.pro", "before there was a limit");
    assert_fault(&with(rule("default", 1)), "limits.default", "two limits");
    for share in [-0.1, 1.1, f64::NAN, f64::INFINITY] {
        let new = rule("new", 1).enforced_for(share);
        assert_fault(&with(new), "limits.new.enforce", "share of tenants");
    }
    let search = || rule("search", 1).scope(Scope::Global);
    for limit in [
        search().tier("pro", quota(1)),
        search().tenant("acme", Allowance::Unlimited),
    ] {
        let faults = faults(&with(limit));
        assert_eq!(faults[0].0, "limits.search", "{faults:?}");
        assert!(faults[0].1.contains("the same for all"), "{faults:?}");
    }
    let unnamed = rule("x", 1).scope(dependency(""));
    assert_fault(&with(unnamed), "limits.x.scope", "a dependency has a name");
    let unnamed = rule("x", 1).scope(Scope::Member("".into()));
    assert_fault(&with(unnamed), "limits.x.scope", "kind of member");

    let costly = rule("x", 5).cost(Cost::new(6));
    assert_fault(&with(costly), "limits.x.cost", "above every capacity");
    let costly = rule("x", 5).cost_on(pattern("POST /a"), Cost::new(6));
    assert_fault(&with(costly), "limits.x.costs.POST /a", "at most 5");
    let elsewhere = rule("x", 5)
        .on_route(pattern("/a/{*rest}"))
        .cost_on(pattern("/b"), Cost::ONE);
    assert_fault(&with(elsewhere), "limits.x.costs./b", "does not cover");

    let unnamed = base().with_tier("");
    assert_fault(&unnamed, "tiers.", "a tier has a name");
    let unnamed = base().tenant("", quota(1));
    assert_fault(&unnamed, "tenants.", "a tenant has a name");
    let unknown = base().tier_of("acme", "gold");
    assert_fault(&unknown, "tenants.acme.tier", "no tier `gold`");
    let mut unknown = base();
    let account = unknown.tenants.entry("acme".into()).or_default();
    account.limits.insert(name("reports"), Allowance::Unlimited);
    assert_fault(&unknown, "tenants.acme.limits.reports", "no limit");
    let mut shared = unknown.limit(rule("reports", 1).scope(Scope::Global));
    assert_fault(&shared, "tenants.acme.limits.reports", "shared by all");
    shared.limits[1].scope = Scope::Tenant;
    assert_eq!(faults(&shared), []);
    let shards = NonZeroU8::new(4).expect("not 0");
    let small = base().tenant("acme", quota(3)).shards_of("acme", shards);
    assert_fault(&small, "tenants.acme.shards", "at most 3 fit");

    let local = with(rule("x", 1).on_store_failure(FailureMode::Local));
    assert_fault(&local, "limits.x.on_store_failure", "number of replicas");
    let local = base().on_store_failure(FailureMode::Local, None);
    assert_fault(&local, "on_store_failure", "number of replicas");
    let local = local.on_store_failure(FailureMode::Local, NonZeroU32::new(3));
    assert_eq!(faults(&local), []);
}

#[test]
fn all_faults_are_told_and_always_in_the_same_order() {
    let many = || {
        let mut quotas = Quotas::new(quota(10)).limit(rule("x", 1).cost(Cost::new(2)));
        for tenant in ["d", "b", "a", "c"] {
            quotas = quotas.tier_of(tenant, "gold");
        }
        faults(&quotas)
    };
    let paths: Vec<_> = many().into_iter().map(|(path, _)| path).collect();
    assert_eq!(
        paths,
        [
            "limits.x.cost",
            "tenants.a.tier",
            "tenants.b.tier",
            "tenants.c.tier",
            "tenants.d.tier"
        ]
    );
}

#[test]
fn what_is_useful_is_no_fault() {
    let fine = Quotas::new(quota(10))
        .tier("pro", quota(100))
        .tier_of("acme", "pro")
        // Somebody can pay it.
        .limit(
            rule("a", 1)
                .tier("pro", quota(50))
                .cost(Cost::new(50))
                .enforced_for(0.0),
        )
        // Nobody can pay anything, and that is meant.
        .limit(LimitRule::new(name("b"), Allowance::Blocked).cost(Cost::new(7)))
        // Nobody is asked to.
        .limit(rule("c", 1).cost(Cost::new(7)).mode(Mode::Off))
        // Some of what the cost is for is covered.
        .limit(
            rule("d", 5)
                .on_route(pattern("POST /a/{id}"))
                .cost_on(pattern("/{*rest}"), Cost::new(2)),
        )
        .limit(rule("e", 5).cost(Cost::FREE));
    assert_eq!(faults(&fine), []);
}

/// So many limits, each made by `limit`, named a0, a1, ...
fn crowd(
    quotas: Quotas,
    count: u32,
    prefix: &str,
    limit: impl Fn(LimitRule) -> LimitRule,
) -> Quotas {
    (0..count).fold(quotas, |quotas, i| {
        quotas.limit(limit(rule(&format!("{prefix}{i}"), 1)))
    })
}

#[test]
fn no_request_is_covered_by_more_limits_than_a_check_can_have() {
    let base = || Quotas::new(quota(10));
    let on = |route: &'static str| move |limit: LimitRule| limit.on_route(pattern(route));
    assert_eq!(faults(&crowd(base(), 7, "a", |it| it)), []);
    let nine = crowd(base(), 8, "a", |it| it);
    assert_fault(
        &nine,
        "limits",
        "9 limits of the tenant cover every request",
    );
    let nested = crowd(base(), 4, "a", on("/a/{*rest}"));
    assert_eq!(faults(&crowd(nested.clone(), 3, "b", on("/a/b"))), []);
    let nested = crowd(nested, 4, "b", on("/a/b"));
    assert_fault(&nested, "limits", "9 limits of the tenant cover `/a/b`");
    // Neither pattern lies within the other, and yet one request is of both.
    for (one, other, path) in [
        ("/a/{id}", "/{kind}/b", "`/a/b`"),
        ("GET /a/{*rest}", "/a/b", "`/a/b`"),
        ("GET /a", "HEAD /{x}", "`/a`"),
    ] {
        let crossed = crowd(base(), 4, "a", on(one));
        let crossed = crowd(crossed, 4, "b", on(other));
        assert_fault(&crossed, "limits", &format!("cover {path}"));
    }
    let apart = crowd(base(), 7, "a", on("/a/{id}"));
    assert_eq!(faults(&crowd(apart, 7, "b", on("/a/{id}/c"))), []);
    // Three at a time.
    let three = crowd(base(), 3, "a", on("/a/{y}/{z}"));
    let three = crowd(three, 3, "b", on("/{x}/b/{z}"));
    let three = crowd(three, 2, "c", on("/{x}/{y}/c"));
    assert_fault(&three, "limits", "cover `/a/b/c`");
    // Those that are off are no crowd.
    let off = crowd(base(), 20, "a", |it| it.mode(Mode::Off));
    assert_eq!(faults(&off), []);
}

#[test]
fn shared_limits_are_counted_by_their_scope() {
    let global = |limit: LimitRule| limit.scope(Scope::Global);
    let of =
        |name: &'static str| move |limit: LimitRule| limit.scope(Scope::Dependency(name.into()));
    let many = crowd(Quotas::new(quota(10)), 7, "a", |it| it);
    let many = crowd(many, 8, "b", global);
    let many = crowd(many, 8, "c", of("search"));
    assert_eq!(faults(&many), []);
    let nine = crowd(many.clone(), 1, "d", global);
    assert_fault(&nine, "limits", "9 limits that share one scope");
    assert_eq!(faults(&crowd(many.clone(), 1, "d", of("mail"))), []);
    let apart = crowd(many, 4, "d", |it| global(it).mode(Mode::Off));
    assert_eq!(faults(&apart), []);
}

#[test]
fn long_windows_are_warned_of() {
    let day = Quota::new(86_400, 1).expect("a quota");
    let nearly = Quota::new(86_399, 1).expect("a quota");
    let quotas = Quotas::new(nearly)
        .limit(LimitRule::new(name("daily"), day))
        .limit(rule("tiers", 1).tier("pro", day))
        .limit(rule("overrides", 1).tenant("acme", day));
    let warned: Vec<_> = quotas
        .warnings()
        .into_iter()
        .map(|warning| warning.path.join("."))
        .collect();
    assert_eq!(warned, ["limits.daily", "limits.tiers", "limits.overrides"]);
}

#[test]
fn the_largest_capacity_is_that_of_the_narrowest_limit_that_all_requests_pay() {
    assert_eq!(Quotas::new(quota(10)).largest_capacity(), 10);
    let quotas = Quotas::new(quota(10)).tier("pro", quota(70));
    assert_eq!(quotas.largest_capacity(), 70);
    let quotas = quotas.tenant("acme", quota(200));
    assert_eq!(quotas.largest_capacity(), 200);
    let narrow = rule("narrow", 50);
    for (limit, expected) in [
        (narrow.clone(), 50),
        (narrow.clone().tenant("acme", quota(60)), 60),
        (narrow.clone().tenant("acme", Allowance::Unlimited), 200),
        (narrow.clone().shadow(), 200),
        (narrow.clone().mode(Mode::Off), 200),
        (narrow.clone().cost(Cost::ONE), 200),
        (narrow.on_route(pattern("/a")), 200),
    ] {
        let quotas = quotas.clone().limit(limit.clone());
        assert_eq!(quotas.largest_capacity(), expected, "{limit:?}");
    }
    let unlimited = Quotas::new(Allowance::Unlimited);
    assert_eq!(unlimited.largest_capacity(), u64::MAX);
}

#[test]
fn the_first_price_that_covers_a_request_counts() {
    let quotas = Quotas::new(quota(10))
        .price(pattern("GET /health"), RoutePrice::Exempt)
        .price(pattern("/a/b"), RoutePrice::Cost(Cost::new(3)))
        .price(pattern("/a/{*rest}"), RoutePrice::Cost(Cost::FREE));
    let price = |method, path, template| {
        quotas.price_of(&Route {
            method,
            path,
            template,
        })
    };
    let exempt = Some(RoutePrice::Exempt);
    assert_eq!(price("GET", "/health", None), exempt);
    assert_eq!(price("HEAD", "/health", None), exempt);
    assert_eq!(price("POST", "/health", None), None);
    let cost = |tokens| Some(RoutePrice::Cost(Cost::new(tokens)));
    assert_eq!(price("GET", "/a/b", None), cost(3));
    assert_eq!(price("GET", "/a/c", None), cost(0));
    assert_eq!(price("GET", "/x/7", Some("/a/b")), cost(3));
    assert_eq!(price("GET", "/b", None), None);
}

#[test]
fn an_address_never_claims_what_is_a_tenants() {
    let address = IpAddr::V4(Ipv4Addr::new(192, 0, 2, 7));
    let caller = Tenant::anonymous(address);
    let quotas = Quotas::new(quota(10))
        .tier("anonymous", quota(2))
        .tier("pro", quota(100))
        .tenant("192.0.2.7", Allowance::Unlimited)
        .tier_of("192.0.2.7", "pro")
        .shards_of("192.0.2.7", NonZeroU8::new(3).expect("not 0"));
    let mut account = Account::default();
    account
        .limits
        .insert(LimitName::default(), Allowance::Unlimited);
    account.tier = Some("pro".into());
    let terms = quotas.terms(&caller, Some(&account));
    let limit = &quotas.limits()[0];
    assert_eq!(terms.allowance(limit), quota(2).into());
    assert_eq!((&*terms.label(), terms.shards().get()), ("anonymous", 1));
    let tenant = Tenant::new("192.0.2.7", "free").expect("an id");
    let terms = quotas.terms(&tenant, None);
    assert_eq!(terms.allowance(limit), Allowance::Unlimited);
    assert_eq!((&*terms.label(), terms.shards().get()), ("pro", 3));
}

// Regions.

fn two_regions(own: &str) -> Regions {
    let regions = Regions::new(own).region("eu", 0.4).region("us", 0.6);
    regions.away("eu", 0.1)
}

/// What the default limit lets a tenant spend in each region: `eu`, `us`.
fn in_both(quotas: &Quotas, tenant: &Tenant, account: Option<&Account>) -> [Allowance; 2] {
    ["eu", "us"].map(|own| {
        let quotas = quotas.clone().in_regions(two_regions(own));
        quotas.check().expect("no faults");
        let terms = quotas.terms(tenant, account);
        terms.allowance(&quotas.limits()[0])
    })
}

fn tokens(capacity: u64, rate: f64) -> Allowance {
    Quota::new(capacity, rate).expect("a quota").into()
}

#[test]
fn a_region_has_its_part_of_every_quota() {
    let pro = |id: &str| Tenant::new(id, "pro").expect("an id");
    let quotas = Quotas::new(quota(10))
        .tier("pro", quota(100))
        .tenant("acme", quota(1_000))
        .tenant("free", Allowance::Unlimited);
    let free = Tenant::new("x", "free").expect("an id");
    for (tenant, expected) in [
        (free, [tokens(4, 0.4), tokens(6, 0.6)]),
        (pro("x"), [tokens(40, 0.4), tokens(60, 0.6)]),
        (pro("acme"), [tokens(400, 0.4), tokens(600, 0.6)]),
        (pro("free"), [Allowance::Unlimited; 2]),
    ] {
        assert_eq!(in_both(&quotas, &tenant, None), expected, "{tenant:?}");
    }
}

#[test]
fn a_tenant_at_home_has_its_whole_quotas() {
    let tenant = Tenant::new("acme", "").expect("an id");
    let quotas = || Quotas::new(quota(10));
    let (at_eu, at_us) = (
        [tokens(10, 1.0), Allowance::Blocked],
        [tokens(1, 0.1), tokens(9, 0.9)],
    );
    assert_eq!(
        in_both(&quotas().home_of("acme", "eu"), &tenant, None),
        at_eu
    );
    let account = |home: &str| Account {
        home: Some(home.into()),
        ..Account::default()
    };
    assert_eq!(in_both(&quotas(), &tenant, Some(&account("us"))), at_us);
    // What is written here goes before what a source says, and an unknown region is no home.
    let us = account("us");
    let both = in_both(&quotas().home_of("acme", "eu"), &tenant, Some(&us));
    assert_eq!(both, at_eu);
    let split = [tokens(4, 0.4), tokens(6, 0.6)];
    assert_eq!(in_both(&quotas(), &tenant, Some(&account("mars"))), split);
    // An address has no home, and a limit of all tenants neither.
    let address = IpAddr::V4(Ipv4Addr::new(192, 0, 2, 7));
    let named = quotas().home_of("192.0.2.7", "eu");
    assert_eq!(in_both(&named, &Tenant::anonymous(address), None), split);
    let shared = Quotas::of(rule("all", 10).scope(Scope::Global)).home_of("acme", "eu");
    assert_eq!(in_both(&shared, &tenant, None), split);
}

#[test]
fn what_regions_cannot_hold_is_refused_in_each() {
    let split =
        |quotas: Quotas| ["eu", "us"].map(|own| quotas.clone().in_regions(two_regions(own)));
    let costly = |cost| rule("default", 100).cost(Cost::new(cost));
    let homes = |quotas: Quotas| quotas.home_of("acme", "us");
    for (quotas, path, words) in [
        (
            Quotas::new(quota(1)),
            "limits.default.quota",
            "the part of the region `eu` is less than one token of 1; a capacity of 3 would do",
        ),
        (
            Quotas::new(quota(10)).tier("pro", quota(2)),
            "tiers.pro.default",
            "region `eu`",
        ),
        (
            Quotas::new(quota(10)).tenant("acme", quota(2)),
            "tenants.acme.limits.default",
            "region `eu`",
        ),
        // Visitors get a tenth.
        (
            homes(Quotas::new(quota(9))),
            "tenants.acme.home",
            "less than one token of 9; a capacity of 10 would do",
        ),
        (
            homes(Quotas::new(quota(10)).tenant("acme", quota(5))),
            "tenants.acme.limits.default",
            "a capacity of 10",
        ),
        (
            Quotas::new(quota(10)).home_of("acme", "mars"),
            "tenants.acme.home",
            "there is no region `mars`; there are `eu`, `us`",
        ),
        (
            Quotas::of(costly(41)),
            "limits.default.cost",
            "at most 40 in every region",
        ),
        (
            Quotas::new(quota(100)).price(pattern("/a"), RoutePrice::Cost(Cost::new(41))),
            "routes./a",
            "at most 40 in every region",
        ),
        (
            Quotas::new(quota(10)).shards_of("acme", NonZeroU8::new(7).expect("not 0")),
            "tenants.acme.shards",
            "at most 6 fit",
        ),
    ] {
        for quotas in split(quotas) {
            assert_fault(&quotas, path, words);
        }
    }
    for fitting in [
        Quotas::of(costly(40)),
        homes(Quotas::of(costly(90))),
        Quotas::new(quota(10)),
        Quotas::of(rule("off", 1).mode(Mode::Off)).limit(rule("x", 10)),
    ] {
        for quotas in split(fitting) {
            assert_eq!(faults(&quotas), [], "{quotas:?}");
        }
    }
    let [here, _] = split(Quotas::new(quota(100)));
    assert_eq!(here.largest_capacity(), 40);
}

#[test]
fn regions_that_do_not_add_up_are_refused() {
    let with = |regions| Quotas::new(quota(1_000)).in_regions(regions);
    let one = || Regions::new("eu").region("eu", 0.5);
    assert_fault(
        &with(Regions::new("mars").region("eu", 1.0)),
        "region",
        "no region `mars`",
    );
    for share in [0.0, -0.1, 1.1, f64::NAN, f64::INFINITY, 1e-12] {
        let regions = one().region("us", share);
        assert_fault(&with(regions), "regions.us.share", "not a share");
    }
    for share in [-0.1, 1.0, f64::NAN] {
        let regions = one().region("us", 0.5).away("us", share);
        assert_fault(&with(regions), "regions.us.away", "not a share");
    }
    let sum = "the shares add up to 1.1";
    assert_fault(&with(one().region("us", 0.6)), "regions", sum);
    let away = one().region("us", 0.1).away("us", 0.6);
    let away = away.region("ap", 0.1).away("ap", 0.4);
    assert_fault(&with(away), "regions", "the home `eu` adds up to 1");
    assert_fault(
        &Quotas::new(quota(10)).home_of("acme", "eu"),
        "tenants.acme.home",
        "there are no regions",
    );
    let rest = with(one()).warnings();
    let [rest] = &*rest else { panic!("{rest:?}") };
    assert!(
        rest.to_string()
            .contains("add up to 0.5: nobody has the rest"),
        "{rest}"
    );
    let all = with(one().region("us", 0.5));
    assert_eq!(all.warnings(), []);
}

// Precedence, as the table at `Quotas` has it.

const LIMITS: [&str; 3] = ["a", "b", "c"];
/// Two that are configured, and one that is not.
const TIERS: [&str; 3] = ["free", "pro", "odd"];

/// What one of the places says about a tenant.
#[derive(Clone, Debug, Default)]
struct Says {
    tier: Option<&'static str>,
    limits: HashMap<&'static str, Allowance>,
    shards: Option<u8>,
}

/// What a limit says by itself.
#[derive(Clone, Debug)]
struct Written {
    own: Allowance,
    tiers: HashMap<&'static str, Allowance>,
    is_shared: bool,
}

fn allowance() -> impl Strategy<Value = Allowance> {
    prop_oneof![
        4 => (1_u64..1_000_000).prop_map(|capacity| quota(capacity).into()),
        1 => Just(Allowance::Unlimited),
        1 => Just(Allowance::Blocked),
    ]
}

fn says() -> impl Strategy<Value = Says> {
    let limits = hash_map(proptest::sample::select(&LIMITS[..]), allowance(), 0..3);
    let tier = option::of(proptest::sample::select(&TIERS[..]));
    (tier, limits, option::of(2_u8..9)).prop_map(|(tier, limits, shards)| Says {
        tier,
        limits,
        shards,
    })
}

fn written() -> impl Strategy<Value = Written> {
    let tiers = hash_map(proptest::sample::select(&TIERS[..2]), allowance(), 0..3);
    (allowance(), tiers, proptest::bool::weighted(0.2)).prop_map(|(own, tiers, is_shared)| {
        let tiers = if is_shared { HashMap::new() } else { tiers };
        Written {
            own,
            tiers,
            is_shared,
        }
    })
}

/// The quotas that say `written` of limits, and `says` of the tenant `acme`.
fn quotas_of(written: &[Written], says: &Says) -> Quotas {
    let mut quotas = Quotas::default().with_tier("free").with_tier("pro");
    for (text, limit) in LIMITS.iter().zip(written) {
        let mut rule = LimitRule::new(name(text), limit.own);
        for (tier, allowance) in &limit.tiers {
            rule = rule.tier(*tier, *allowance);
        }
        if limit.is_shared {
            rule = rule.scope(Scope::Global);
        }
        if let Some(allowance) = says.limits.get(text) {
            rule = rule.tenant("acme", *allowance);
        }
        quotas = quotas.limit(rule);
    }
    if let Some(tier) = says.tier {
        quotas = quotas.tier_of("acme", tier);
    }
    if let Some(shards) = says.shards {
        quotas = quotas.shards_of("acme", NonZeroU8::new(shards).expect("not 0"));
    }
    quotas
}

fn account_of(says: &Says) -> Account {
    Account {
        tier: says.tier.map(Into::into),
        limits: says
            .limits
            .iter()
            .map(|(limit, allowance)| (name(limit), *allowance))
            .collect(),
        shards: says.shards.and_then(NonZeroU8::new),
        ..Account::default()
    }
}

/// The rules in so many words. `places`: the quotas, then each source in its order.
fn expected(limit: usize, written: &Written, places: &[&Says], identity: &str) -> Allowance {
    if written.is_shared {
        return written.own;
    }
    for place in places {
        if let Some(allowance) = place.limits.get(LIMITS[limit]) {
            return *allowance;
        }
    }
    let mut tier = identity;
    for place in places.iter().rev() {
        if let Some(says) = place.tier {
            tier = says;
        }
    }
    match written.tiers.get(tier) {
        Some(allowance) => *allowance,
        None => written.own,
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, cases: 1024, ..ProptestConfig::default() })]

    #[test]
    fn the_most_specific_wins(
        written in [written(), written(), written()],
        here in says(),
        first in option::of(says()),
        second in option::of(says()),
        identity in proptest::sample::select(&TIERS[..]),
    ) {
        let quotas = quotas_of(&written, &here);
        // As the directory does.
        let account = match (&first, &second) {
            (Some(first), Some(second)) => {
                let mut merged = account_of(first);
                merged.fill_from(&account_of(second));
                Some(merged)
            }
            (Some(one), None) | (None, Some(one)) => Some(account_of(one)),
            (None, None) => None,
        };
        let places: Vec<_> = [Some(&here), first.as_ref(), second.as_ref()].into_iter().flatten().collect();

        let tenant = Tenant::new("acme", identity).expect("an id");
        let terms = quotas.terms(&tenant, account.as_ref());
        for (i, rule) in quotas.limits().iter().enumerate() {
            prop_assert_eq!(terms.allowance(rule), expected(i, &written[i], &places, identity), "{}", rule.name());
        }
        let shards = places.iter().find_map(|place| place.shards).unwrap_or(1);
        prop_assert_eq!(terms.shards().get(), shards);
        let tier = places.iter().find_map(|place| place.tier).unwrap_or(identity);
        let label = if tier == "odd" { DEFAULT_CLASS } else { tier };
        prop_assert_eq!(&*terms.label(), label);

        // Another tenant has nothing of this one's, and of its source's account all.
        let other = Tenant::new("other", identity).expect("an id");
        let terms = quotas.terms(&other, None);
        for (i, rule) in quotas.limits().iter().enumerate() {
            prop_assert_eq!(terms.allowance(rule), expected(i, &written[i], &[], identity));
        }
    }
}
