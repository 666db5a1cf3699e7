//! Regions, as a limits file has them.

use std::env;

use super::{faults::Faults, node::Node, parse::REGION_FIELDS};
use crate::Regions;

const REGION: &str =
    "the name of a region, or `{ env = \"REGION\" }` for the environment variable with its name";
const AWAY: &str = "a share of quotas, a number from 0 and below 1";
const SHARE: &str = "a share of quotas, a number above 0 and at most 1";

/// The regions, if they could be read. Without them, nothing is said of those that tenants name.
pub(super) fn read_regions<'a>(
    region: Option<&Node<'a>>,
    regions: Option<&Node<'a>>,
    faults: &mut Faults<'a>,
) -> Option<Regions> {
    let own = region.map(|node| read_own(node, faults));
    let all = match (&own, regions) {
        (None, None) => return None,
        (Some(own), None) => {
            if own.is_some() {
                let problem = "there are no regions; list them with their shares in `regions`";
                region?.fault(problem, faults);
            }
            return None;
        }
        (_, Some(node)) => node.entries("a table of regions and their shares", faults)?,
    };
    if all.is_empty() {
        let problem = "there are no regions here; list all of them with their shares";
        regions?.fault(problem, faults);
        return None;
    }
    if own.is_none() {
        let problem =
            format!("`region` is missing: which of these this deployment is in, {REGION}");
        regions?.fault(problem, faults);
    }
    let all: Vec<_> = all.iter().map(|node| read_region(node, faults)).collect();
    let read: Option<Vec<_>> = all.into_iter().collect();
    let regions = Regions::new(own??);
    let add = |regions: Regions, (name, share, away): (String, f64, f64)| {
        regions.region(name.clone(), share).away(name, away)
    };
    Some(read?.into_iter().fold(regions, add))
}

/// The region that the file is read in.
fn read_own<'a>(node: &Node<'a>, faults: &mut Faults<'a>) -> Option<String> {
    if let Some(name) = node.as_str() {
        return Some(name.to_owned());
    }
    let fields = node.fields(REGION, &["env"], faults)?;
    let Some(variable) = fields.first() else {
        return node.misfit(REGION, faults);
    };
    let wanted = "the name of an environment variable";
    let name = variable.as_str().filter(|name| is_variable(name));
    let name = name.or_else(|| variable.misfit(wanted, faults))?;
    let value = env::var(name).ok().filter(|value| !value.is_empty());
    if value.is_none() {
        let problem =
            format!("the environment variable `{name}`, which names this region, is not set");
        variable.fault(problem, faults);
    }
    value
}

/// Others cannot be looked up.
fn is_variable(name: &str) -> bool {
    !name.is_empty() && !name.contains(['=', '\0'])
}

fn read_region<'a>(node: &Node<'a>, faults: &mut Faults<'a>) -> Option<(String, f64, f64)> {
    let fields = node.fields("a region such as `{ share = 0.4 }`", REGION_FIELDS, faults)?;
    let (mut share, mut away) = (None, Some(0.0));
    if !fields.iter().any(|field| field.key() == "share") {
        node.fault(format_args!("`share` is missing: {SHARE}"), faults);
    }
    for field in fields {
        let number = field.as_number();
        if field.key() == "share" {
            let fits = number.filter(|it| *it > 0.0 && *it <= 1.0);
            share = fits.or_else(|| field.misfit(SHARE, faults));
        } else {
            let fits = number.filter(|it| (0.0..1.0).contains(it));
            away = fits.or_else(|| field.misfit(AWAY, faults));
        }
    }
    Some((node.key().to_owned(), share?, away?))
}
