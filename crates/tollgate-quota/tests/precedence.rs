//! Who may spend what, by a file: the most specific says it, whatever else is written.
#![cfg(feature = "file")]

use std::{collections::BTreeMap, fmt::Write, net::Ipv4Addr};

use proptest::{collection::btree_map, option, prelude::*, sample::select};
use tollgate_core::{Quota, Tenant};
use tollgate_quota::{Allowance, LimitsFile, Quotas};

/// What a file may say in one place.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Said {
    Tokens(u64),
    Unlimited,
    Blocked,
    Default,
}

impl Said {
    fn written(self) -> String {
        match self {
            Self::Tokens(tokens) => format!("{{ capacity = {tokens}, rate = \"1/h\" }}"),
            Self::Unlimited => "\"unlimited\"".to_owned(),
            Self::Blocked => "\"blocked\"".to_owned(),
            Self::Default => "\"default\"".to_owned(),
        }
    }

    fn allowance(self) -> Option<Allowance> {
        match self {
            Self::Tokens(tokens) => {
                let quota = Quota::new(tokens, "1/h").expect("a quota");
                Some(Allowance::Limited(quota))
            }
            Self::Unlimited => Some(Allowance::Unlimited),
            Self::Blocked => Some(Allowance::Blocked),
            Self::Default => None,
        }
    }
}

const LIMITS: [&str; 3] = ["default", "reports", "a.b"];
const TIERS: [&str; 3] = ["free", "pro", "anonymous"];
const TENANTS: [&str; 4] = ["acme", "a.b", "192.0.2.7", "O'Hara \"x\" \\ é"];

type Overrides = BTreeMap<&'static str, Said>;

#[derive(Clone, Debug)]
struct Account {
    tier: Option<usize>,
    limits: Overrides,
}

/// A file as plain lists.
#[derive(Clone, Debug)]
struct File {
    limits: BTreeMap<&'static str, Said>,
    tiers: BTreeMap<&'static str, Overrides>,
    tenants: BTreeMap<&'static str, Account>,
}

impl File {
    /// The same, without what leads nowhere.
    fn consistent(mut self) -> Self {
        let limits = self.limits.clone();
        let tenants = self.tenants.values_mut().map(|it| &mut it.limits);
        for overrides in self.tiers.values_mut().chain(tenants) {
            overrides.retain(|limit, _| limits.contains_key(limit));
        }
        self
    }

    fn tier_of(&self, account: &Account) -> Option<&'static str> {
        let tiers: Vec<_> = self.tiers.keys().copied().collect();
        let tier = account.tier.filter(|_| !tiers.is_empty());
        tier.map(|i| tiers[i % tiers.len()])
    }

    fn written(&self) -> String {
        let mut text = String::new();
        let table = |text: &mut String, overrides: &Overrides| {
            for (limit, said) in overrides {
                writeln!(text, "{limit:?} = {}", said.written()).expect("a string");
            }
        };
        for (id, account) in &self.tenants {
            writeln!(text, "[tenants.{id:?}]").expect("a string");
            if let Some(tier) = self.tier_of(account) {
                writeln!(text, "tier = {tier:?}").expect("a string");
            }
            writeln!(text, "[tenants.{id:?}.limits]").expect("a string");
            table(&mut text, &account.limits);
        }
        for (tier, overrides) in &self.tiers {
            writeln!(text, "[tiers.{tier:?}]").expect("a string");
            table(&mut text, overrides);
        }
        for (limit, said) in &self.limits {
            writeln!(text, "[limits.{limit:?}]\nquota = {}", said.written()).expect("a string");
        }
        text
    }

    /// Asks the tenant, then its tier, then the limit.
    fn expected(&self, tenant: &Tenant, limit: &str) -> Allowance {
        let account = self
            .tenants
            .get(tenant.id())
            .filter(|_| !tenant.is_anonymous());
        if let Some(own) = account.and_then(|it| it.limits.get(limit)?.allowance()) {
            return own;
        }
        let tier = account.and_then(|it| self.tier_of(it));
        let tier = tier.unwrap_or(tenant.key_class());
        let tiers = self
            .tiers
            .get(tier)
            .and_then(|it| it.get(limit)?.allowance());
        tiers.unwrap_or_else(|| self.limits[limit].allowance().expect("a quota"))
    }
}

fn said() -> impl Strategy<Value = Said> {
    prop_oneof![
        3 => (1..1_000_u64).prop_map(Said::Tokens),
        1 => Just(Said::Unlimited),
        1 => Just(Said::Blocked),
        1 => Just(Said::Default),
    ]
}

fn file() -> impl Strategy<Value = File> {
    let overrides = || btree_map(select(&LIMITS[..]), said(), 0..=3);
    let quota = said().prop_filter("a quota", |said| *said != Said::Default);
    let account = (option::of(0..3_usize), overrides());
    let account = account.prop_map(|(tier, limits)| Account { tier, limits });
    let parts = (
        btree_map(select(&LIMITS[..]), quota, 1..=3),
        btree_map(select(&TIERS[..]), overrides(), 0..=3),
        btree_map(select(&TENANTS[..]), account, 0..=4),
    );
    parts.prop_map(|(limits, tiers, tenants)| {
        let file = File {
            limits,
            tiers,
            tenants,
        };
        file.consistent()
    })
}

/// Everybody of interest: each id and an unknown one in each class and an unknown one, and addresses.
fn callers() -> Vec<Tenant> {
    let mut callers = Vec::new();
    for id in TENANTS.into_iter().chain(["unknown"]) {
        for class in TIERS.into_iter().chain(["unknown", "default"]) {
            callers.push(Tenant::new(id, class).expect("an id"));
        }
    }
    // One address is the id of a tenant too, and must not be taken for it.
    callers.push(Tenant::anonymous(Ipv4Addr::new(192, 0, 2, 7).into()));
    callers.push(Tenant::anonymous(Ipv4Addr::new(192, 0, 2, 8).into()));
    callers
}

proptest! {
    #[test]
    fn the_most_specific_wins(file in file()) {
        let text = file.written();
        let quotas = quotas(&text);
        prop_assert_eq!(quotas.limits().len(), file.limits.len());
        for tenant in callers() {
            for limit in quotas.limits() {
                let given = quotas.terms(&tenant, None).allowance(limit);
                let expected = file.expected(&tenant, limit.name().as_str());
                prop_assert_eq!(given, expected, "{} {} {}\n{}", tenant.id(), tenant.key_class(), limit.name(), text);
            }
        }
    }
}

#[track_caller]
fn quotas(text: &str) -> Quotas {
    match LimitsFile::parse(text, "limits.toml") {
        Ok(parsed) => parsed.quotas,
        Err(error) => panic!("{error}\n{text}"),
    }
}

#[test]
fn default_says_nothing_and_unlimited_is_not_taken_back() {
    let quotas = quotas(
        r#"
        [limits.default]
        quota = "5/s"
        [limits.reports]
        quota = "5/s"
        [tiers.pro]
        default = "10/h"
        reports = "unlimited"
        [tenants.acme]
        tier = "pro"
        limits = { default = "default", reports = "default" }
        [tenants.zen]
        tier = "pro"
        limits = { default = "unlimited" }
        "#,
    );
    let allowed = |id: &str, class: &str| -> Vec<Allowance> {
        let tenant = Tenant::new(id, class).expect("an id");
        let terms = quotas.terms(&tenant, None);
        let limits = quotas.limits().iter();
        limits.map(|limit| terms.allowance(limit)).collect()
    };
    let (ten, five): (Quota, Quota) = (
        "10/h".parse().expect("a quota"),
        "5/s".parse().expect("a quota"),
    );
    assert_eq!(allowed("acme", "free"), [ten.into(), Allowance::Unlimited]);
    assert_eq!(
        allowed("zen", "free"),
        [Allowance::Unlimited, Allowance::Unlimited]
    );
    assert_eq!(allowed("x", "pro"), [ten.into(), Allowance::Unlimited]);
    assert_eq!(allowed("x", "free"), [five.into(), five.into()]);
}

#[test]
fn clients_see_limits_in_the_order_of_the_file() {
    let names = ["zulu", "alpha", "mike"];
    let text: String = names
        .iter()
        .map(|name| format!("[limits.{name}]\nquota = \"5/s\"\n"))
        .collect();
    let quotas = quotas(&text);
    let seen: Vec<_> = quotas
        .limits()
        .iter()
        .map(|it| it.name().as_str())
        .collect();
    assert_eq!(seen, names);
}
