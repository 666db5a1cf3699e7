//! From the text of a limits file to quotas.

use std::num::{NonZeroU8, NonZeroU32};

use tollgate_core::{Cost, InvalidQuota, LimitName, MAX_TOKENS, Quota, Rate};
use toml::de::{DeTable, DeValue};

use super::{
    PlacedFault,
    faults::{Faults, quoted},
    node::{Node, root, suggestion},
    regions::read_regions,
};
use crate::{Allowance, FailureMode, LimitRule, Mode, Quotas, RoutePattern, RoutePrice, Scope};

pub(super) const FILE_FIELDS: &[&str] = &[
    "on_store_failure",
    "replicas",
    "region",
    "regions",
    "limits",
    "tiers",
    "tenants",
    "routes",
];
pub(super) const LIMIT_FIELDS: &[&str] = &[
    "quota",
    "scope",
    "routes",
    "cost",
    "costs",
    "mode",
    "enforce",
    "on_store_failure",
    "lease",
];
pub(super) const QUOTA_FIELDS: &[&str] = &["capacity", "rate"];
pub(super) const REGION_FIELDS: &[&str] = &["share", "away"];
pub(super) const TENANT_FIELDS: &[&str] = &["tier", "home", "shards", "limits"];

const BYTE_ORDER_MARK: char = '\u{feff}';
const QUOTA: &str = "a quota such as `{ capacity = 20, rate = \"2/s\" }`, `\"50/s\"`, `\"unlimited\"` or `\"blocked\"`";
const SCOPE: &str =
    "a scope; there are `tenant`, `member:` and a kind, `global`, `dependency:` and a name";
const FAILURE_MODE: &str = "a failure policy; there are `open`, `closed` and `local`";
const COST: &str = "a cost: a whole number of tokens from 0 (free) to 10^12";

/// What a limits file says.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct ParsedLimits {
    /// The quotas, free of faults.
    pub quotas: Quotas,
    /// What is allowed but will surprise somebody one day.
    pub warnings: Vec<PlacedFault>,
}

/// Reads the whole text. The faults are all that could be told apart, from the first line to the last.
pub(super) fn parse(text: &str) -> Result<ParsedLimits, Vec<PlacedFault>> {
    let text = text.strip_prefix(BYTE_ORDER_MARK).unwrap_or(text);
    let mut faults = Faults::new(text);
    let (table, errors) = DeTable::parse_recoverable(text);
    let table = table.into_inner();
    for error in errors {
        let span = error.span().unwrap_or_default();
        let is_duplicate = error.message() == "duplicate key";
        if is_duplicate {
            let key = quoted(text.get(span.clone()).unwrap_or_default());
            let problem = format!("duplicate key: `{key}` is already written further up");
            faults.add(span.start, [""; 0], problem);
        } else {
            // What follows it may be its consequence.
            let problem = format!("this is not TOML: {}", error.message());
            faults.add(span.start, [""; 0], problem);
            return Err(faults.into_sorted());
        }
    }
    let quotas = read(&table, &mut faults);
    // Where all limits are faulty, it is no fault of its own that there is none.
    let are_all_faulty = quotas.limits().is_empty() && has_limits(&table);
    if !are_all_faulty && let Err(invalid) = quotas.check() {
        for fault in invalid.faults {
            let placed = faults.placed(&table, fault);
            faults.push(placed);
        }
    }
    if !faults.is_empty() {
        return Err(faults.into_sorted());
    }
    let warnings = quotas.warnings().into_iter();
    let warnings = warnings.map(|fault| faults.placed(&table, fault)).collect();
    Ok(ParsedLimits { quotas, warnings })
}

fn has_limits(table: &DeTable<'_>) -> bool {
    let mut entries = table.iter();
    let limits = entries.find(|(key, _)| key.get_ref() == "limits");
    limits.is_some_and(|(_, limits)| match limits.get_ref() {
        DeValue::Table(limits) => !limits.is_empty(),
        _ => true,
    })
}

/// The quotas as far as they could be read. What could not be is recorded, and stands in here as something
/// that causes no further faults.
fn read<'a>(table: &'a DeTable<'a>, faults: &mut Faults<'a>) -> Quotas {
    let mut quotas = Quotas::default();
    let (mut limits, mut tiers, mut tenants) = (Vec::new(), Vec::new(), Vec::new());
    let (mut region, mut regions) = (None, None);
    for node in root(table, FILE_FIELDS, faults) {
        let mut entries = |wanted| node.entries(wanted, faults).unwrap_or_default();
        match node.key() {
            "region" => region = Some(node),
            "regions" => regions = Some(node),
            "limits" => limits = entries("a table of limits by name"),
            "tiers" => tiers = entries("a table of tiers by name"),
            "tenants" => tenants = entries("a table of tenants by id"),
            "routes" => {
                for node in entries("a table of routes and what they cost") {
                    quotas = read_price(&node, quotas, faults);
                }
            }
            "on_store_failure" => {
                if let Some(mode) = read_failure_mode(&node, faults) {
                    quotas = quotas.on_store_failure(mode, None);
                }
            }
            _ => {
                let wanted = "a number of replicas, from 1";
                let make = |number| NonZeroU32::new(u32::try_from(number).ok()?);
                let replicas = node.whole(wanted, make, faults);
                quotas = quotas.with_replicas(replicas.unwrap_or(NonZeroU32::MIN));
            }
        }
    }
    if let Some(regions) = read_regions(region.as_ref(), regions.as_ref(), faults) {
        quotas = quotas.in_regions(regions);
    }
    // Where the regions could not be read, nobody's home is at fault.
    let has_homes = quotas.regions().is_some() || (region.is_none() && regions.is_none());
    let limits = limits.iter().filter_map(|node| read_limit(node, faults));
    let mut limits: Vec<_> = limits.collect();
    for tier in &tiers {
        let wanted = "a table of what limits let the tier spend";
        for (i, allowance) in read_overrides(tier, wanted, &limits, faults) {
            limits[i].tiers.insert(tier.key().into(), allowance);
        }
        quotas = quotas.with_tier(tier.key());
    }
    for tenant in &tenants {
        quotas = read_tenant(tenant, quotas, &mut limits, has_homes, faults);
    }
    limits.into_iter().fold(quotas, Quotas::limit)
}

fn read_limit<'a>(limit: &Node<'a>, faults: &mut Faults<'a>) -> Option<LimitRule> {
    let name = LimitName::new(limit.key());
    let name = name.map_err(|invalid| limit.key_fault(invalid, faults));
    let fields = limit.fields(
        "a limit such as `{ quota = \"50/s\" }`",
        LIMIT_FIELDS,
        faults,
    )?;
    if !fields.iter().any(|node| node.key() == "quota") {
        limit.fault(format_args!("`quota` is missing: {QUOTA}"), faults);
    }
    let mut rule = LimitRule::new(name.ok()?, Allowance::Unlimited);
    for node in fields {
        match node.key() {
            "quota" => {
                if let Some(allowance) = read_allowance(&node, faults) {
                    rule.allowance = allowance;
                }
            }
            "scope" => {
                if let Some(scope) = read_scope(&node, faults) {
                    rule.scope = scope;
                }
            }
            "routes" => {
                let wanted = "a list of routes, such as `[\"/reports/{id}\", \"POST /export\"]`";
                let members = node.members(wanted, faults);
                if members.as_ref().is_some_and(Vec::is_empty) {
                    let problem = "an empty list covers nothing; leave `routes` out to cover all requests, or write `mode = \"off\"`";
                    node.fault(problem, faults);
                }
                for member in members.unwrap_or_default() {
                    let text = member.text("a route such as `\"POST /export\"`", faults);
                    let pattern = text.and_then(|text| read_pattern(&member, text, faults));
                    rule.routes.extend(pattern);
                }
            }
            "cost" => rule.cost = node.whole(COST, cost, faults),
            "costs" => {
                let wanted = "a table of routes and what they cost";
                for node in node.entries(wanted, faults).unwrap_or_default() {
                    let pattern = read_pattern(&node, node.key(), faults);
                    let cost = node.whole(COST, cost, faults);
                    rule.costs.extend(pattern.zip(cost));
                }
            }
            "mode" => {
                if let Some(mode) = read_mode(&node, faults) {
                    rule.mode = mode;
                }
            }
            "enforce" => {
                let wanted = "a share of tenants, a number from 0 to 1";
                let share = node.as_number().filter(|it| (0.0..=1.0).contains(it));
                let share = share.or_else(|| node.misfit(wanted, faults));
                rule.enforced_share = share.unwrap_or(1.0);
            }
            "on_store_failure" => rule.on_store_failure = read_failure_mode(&node, faults),
            _ => rule.leased = node.boolean(faults).unwrap_or_default(),
        }
    }
    Some(rule)
}

fn read_tenant<'a>(
    tenant: &Node<'a>,
    mut quotas: Quotas,
    limits: &mut [LimitRule],
    has_homes: bool,
    faults: &mut Faults<'a>,
) -> Quotas {
    let id = tenant.key();
    if id.is_empty() {
        tenant.key_fault("a tenant's id is not empty", faults);
        return quotas;
    }
    let wanted = "a table with the tenant's `tier`, `home`, `shards` or `limits`";
    let fields = tenant.fields(wanted, TENANT_FIELDS, faults);
    for node in fields.unwrap_or_default() {
        match node.key() {
            "tier" => {
                if let Some(tier) = node.text("the name of a tier", faults) {
                    quotas = quotas.tier_of(id, tier);
                }
            }
            "home" => {
                let region = node.text("the name of a region", faults);
                if let Some(region) = region.filter(|_| has_homes) {
                    quotas = quotas.home_of(id, region);
                }
            }
            "shards" => {
                let make = |number| NonZeroU8::new(u8::try_from(number).ok()?);
                let shards = node.whole("a number of shards from 1 to 255", make, faults);
                if let Some(shards) = shards {
                    quotas = quotas.shards_of(id, shards);
                }
            }
            _ => {
                let wanted = "a table of what limits let the tenant spend";
                for (i, allowance) in read_overrides(&node, wanted, limits, faults) {
                    limits[i].tenants.insert(id.into(), allowance);
                }
            }
        }
    }
    quotas
}

/// What single limits, named by their position, let a tier or a tenant spend.
fn read_overrides<'a>(
    table: &Node<'a>,
    wanted: &str,
    limits: &[LimitRule],
    faults: &mut Faults<'a>,
) -> Vec<(usize, Allowance)> {
    let mut overrides = Vec::new();
    for node in table.entries(wanted, faults).unwrap_or_default() {
        let name = node.key();
        let allowance = match node.as_str() {
            Some("default") => None,
            _ => read_allowance(&node, faults),
        };
        let found = limits.iter().position(|limit| limit.name.as_str() == name);
        let Some(i) = found else {
            let hint = suggestion(name, limits.iter().map(|limit| limit.name.as_str()));
            let problem = format!("there is no limit `{}`{hint}", quoted(name));
            node.key_fault(problem, faults);
            continue;
        };
        if limits[i].scope.is_shared() {
            let problem =
                format!("all tenants share the limit `{name}`; only its own `quota` says how much");
            node.key_fault(problem, faults);
        } else {
            overrides.extend(allowance.map(|allowance| (i, allowance)));
        }
    }
    overrides
}

fn read_allowance<'a>(node: &Node<'a>, faults: &mut Faults<'a>) -> Option<Allowance> {
    let parsed = match node.as_str() {
        Some("unlimited") => return Some(Allowance::Unlimited),
        Some("blocked") => return Some(Allowance::Blocked),
        Some(text) => text.parse::<Quota>(),
        None => return read_quota(node, faults).map(Allowance::Limited),
    };
    match parsed {
        Ok(quota) => Some(Allowance::Limited(quota)),
        Err(InvalidQuota::Syntax(_)) => node.misfit(QUOTA, faults),
        Err(InvalidQuota::Capacity(given)) => {
            let problem = format!(
                "`{given}` gives no whole number of tokens as the capacity; write both, such as `{{ capacity = 1, rate = \"{given}\" }}`"
            );
            node.fault(problem, faults);
            None
        }
        Err(invalid) => {
            node.fault(invalid, faults);
            None
        }
    }
}

fn read_quota<'a>(table: &Node<'a>, faults: &mut Faults<'a>) -> Option<Quota> {
    let fields = table.fields(QUOTA, QUOTA_FIELDS, faults)?;
    let mut field = |name: &str, what: &str| {
        let found = fields.iter().find(|node| node.key() == name);
        if found.is_none() {
            table.fault(format_args!("`{name}` is missing: {what}"), faults);
        }
        found
    };
    let capacity = field("capacity", "the largest burst, in tokens");
    let rate = field(
        "rate",
        "tokens per span such as `\"2/s\"`, or a number per second",
    );
    let capacity = capacity.and_then(|node| {
        let found = node.as_whole().filter(|it| (1..=MAX_TOKENS).contains(it));
        if found.is_none() {
            node.fault(InvalidQuota::Capacity(node.quoted()), faults);
        }
        found
    });
    let rate = rate.and_then(|node| {
        let parsed = match (node.as_str(), node.as_number()) {
            (Some(text), _) => text.parse::<Rate>(),
            (_, Some(number)) => Rate::new(number).map_err(|_| InvalidQuota::Rate(node.quoted())),
            _ => Err(InvalidQuota::Syntax(node.quoted())),
        };
        parsed.map_err(|invalid| node.fault(invalid, faults)).ok()
    });
    let quota = Quota::new(capacity?, rate?);
    quota.map_err(|invalid| table.fault(invalid, faults)).ok()
}

fn read_price<'a>(node: &Node<'a>, quotas: Quotas, faults: &mut Faults<'a>) -> Quotas {
    let price = if node.as_str() == Some("exempt") {
        Some(RoutePrice::Exempt)
    } else {
        let wanted =
            "a cost or `exempt`; a cost is a whole number of tokens from 0 (free) to 10^12";
        node.whole(wanted, cost, faults).map(RoutePrice::Cost)
    };
    match read_pattern(node, node.key(), faults).zip(price) {
        Some((pattern, price)) => quotas.price(pattern, price),
        None => quotas,
    }
}

fn read_pattern(node: &Node<'_>, text: &str, faults: &mut Faults<'_>) -> Option<RoutePattern> {
    let parsed = text.parse::<RoutePattern>();
    parsed
        .map_err(|invalid| node.key_fault(invalid, faults))
        .ok()
}

fn read_scope(node: &Node<'_>, faults: &mut Faults<'_>) -> Option<Scope> {
    let text = node.text(SCOPE, faults)?;
    match text.split_once(':') {
        None if text == "tenant" => Some(Scope::Tenant),
        None if text == "global" => Some(Scope::Global),
        Some(("member", kind)) => Some(Scope::Member(kind.into())),
        Some(("dependency", name)) => Some(Scope::Dependency(name.into())),
        _ => node.misfit(SCOPE, faults),
    }
}

fn read_mode(node: &Node<'_>, faults: &mut Faults<'_>) -> Option<Mode> {
    const MODE: &str = "a mode; there are `enforce`, `shadow` and `off`";
    match node.text(MODE, faults)? {
        "enforce" => Some(Mode::Enforce),
        "shadow" => Some(Mode::Shadow),
        "off" => Some(Mode::Off),
        _ => node.misfit(MODE, faults),
    }
}

fn read_failure_mode(node: &Node<'_>, faults: &mut Faults<'_>) -> Option<FailureMode> {
    match node.text(FAILURE_MODE, faults)? {
        "open" => Some(FailureMode::Open),
        "closed" => Some(FailureMode::Closed),
        "local" => Some(FailureMode::Local),
        _ => node.misfit(FAILURE_MODE, faults),
    }
}

fn cost(tokens: u64) -> Option<Cost> {
    Cost::try_from(tokens).ok()
}
