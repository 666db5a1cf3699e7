//! The account in an answer.

use crate::{
    Account, Allowance,
    wire::{self, InvalidValue, unexpected},
};
use serde_json::{Map, Value};

/// Reads `{"tier": …, "home": …, "shards": …, "limits": {…}}`. What else there is, is passed over.
pub(super) fn account(object: &Map<String, Value>) -> Result<Account, InvalidValue> {
    let field = |name| object.get(name).unwrap_or(&Value::Null);
    let mut account = Account {
        tier: wire::tier(field("tier"))?,
        home: wire::home(field("home"))?,
        shards: wire::shards(field("shards"))?,
        ..Account::default()
    };
    match field("limits") {
        Value::Null => {}
        Value::Object(limits) => {
            for (name, value) in limits {
                let read = wire::limit_name(name)
                    .and_then(|limit| Ok(allowance(value)?.map(|given| (limit, given))));
                account
                    .limits
                    .extend(read.map_err(|it| it.within(name).within("limits"))?);
            }
        }
        other => return Err(unexpected("limits", "an object", other)),
    }
    Ok(account)
}

/// `"50/s"`, `"unlimited"`, `"blocked"`, `{"capacity": 100, "rate": "50/s"}`; and `"default"` or null for none.
fn allowance(value: &Value) -> Result<Option<Allowance>, InvalidValue> {
    match value {
        Value::Null => Ok(None),
        Value::String(text) if text.contains('/') => Ok(Some(wire::plain(text)?.into())),
        Value::String(text) => wire::word(text),
        Value::Object(object) => {
            if let Some(stranger) = object
                .keys()
                .find(|key| !["capacity", "rate"].contains(&&***key))
            {
                let problem = "not a field of a quota, which has `capacity` and `rate`";
                return Err(InvalidValue::new(stranger, problem));
            }
            let field = |name| object.get(name).unwrap_or(&Value::Null);
            Ok(Some(wire::quota(field("capacity"), field("rate"))?.into()))
        }
        other => Err(unexpected("", "a quota or a word", other)),
    }
}

#[cfg(test)]
mod tests {
    use std::num::NonZeroU8;

    use serde_json::json;
    use tollgate_core::{LimitName, Quota};

    use super::*;

    fn read(value: &Value) -> Result<Account, String> {
        account(value.as_object().expect("an object")).map_err(|error| error.to_string())
    }

    fn limit(value: &Value) -> Result<Option<Allowance>, String> {
        let account = read(&json!({"limits": {"reports": value}}))?;
        Ok(account.limits.into_values().next())
    }

    #[test]
    fn an_account_is_read_in_all_its_forms() {
        let read = read(&json!({
            "tier": "pro", "home": "eu", "shards": 4, "plan_since": {"year": 2020},
            "limits": {"default": {"capacity": 10, "rate": "2/s"}, "reports": "unlimited", "daily": "default"},
        }));
        let account = read.expect("an account");
        assert_eq!(account.tier.as_deref(), Some("pro"));
        assert_eq!(account.home.as_deref(), Some("eu"));
        assert_eq!(account.shards, NonZeroU8::new(4));
        let quota = Quota::new(10, 2).expect("a quota");
        assert_eq!(account.limits.len(), 2);
        assert_eq!(account.limits[&LimitName::default()], quota.into());
        let reports = wire::limit_name("reports").expect("a name");
        assert_eq!(account.limits[&reports], Allowance::Unlimited);

        let plain = Quota::new(50, 50).expect("a quota");
        assert_eq!(limit(&json!("50/s")), Ok(Some(plain.into())));
        assert_eq!(
            limit(&json!({"capacity": 50.0, "rate": 50})),
            Ok(Some(plain.into()))
        );
        assert_eq!(limit(&json!("blocked")), Ok(Some(Allowance::Blocked)));
        assert_eq!(limit(&json!("default")), Ok(None));
        assert_eq!(limit(&json!(null)), Ok(None));
    }

    #[test]
    fn what_makes_no_sense_is_named_with_its_place() {
        for (value, place) in [
            (json!({"tier": ""}), "`tier`"),
            (json!({"tier": 4}), "`tier`"),
            (json!({"home": 1}), "`home`"),
            (json!({"shards": 0}), "`shards`"),
            (json!({"shards": 256}), "`shards`"),
            (json!({"shards": 1.5}), "`shards`"),
            (json!({"limits": []}), "`limits`"),
            (json!({"limits": {"Reports": "1/s"}}), "`limits.Reports`"),
            (json!({"limits": {"reports": "lots"}}), "`limits.reports`"),
            (json!({"limits": {"reports": "0/s"}}), "`limits.reports`"),
            (json!({"limits": {"reports": 5}}), "`limits.reports`"),
            (
                json!({"limits": {"reports": {"capacity": 5}}}),
                "`limits.reports.rate`",
            ),
            (
                json!({"limits": {"reports": {"rate": 5}}}),
                "`limits.reports.capacity`",
            ),
            (
                json!({"limits": {"reports": {"capacity": 0, "rate": 5}}}),
                "`limits.reports.capacity`",
            ),
            (
                json!({"limits": {"reports": {"capacity": -5, "rate": 5}}}),
                "`limits.reports.capacity`",
            ),
            (
                json!({"limits": {"reports": {"capacity": 5, "rate": 0}}}),
                "`limits.reports.rate`",
            ),
            (
                json!({"limits": {"reports": {"capacity": 5, "rate": "NaN"}}}),
                "`limits.reports.rate`",
            ),
            (
                json!({"limits": {"reports": {"capacity": 5, "rate": "1/s", "burst": 9}}}),
                "`limits.reports.burst`",
            ),
        ] {
            let error = read(&value).expect_err("no sense");
            assert!(error.starts_with(&format!("{place}: ")), "{value}: {error}");
        }
    }
}
