//! An account from the rows of a query.

use serde_json::{Map, Value};
use tollgate_core::LimitName;

use crate::{
    Account, Allowance,
    wire::{self, InvalidValue, unexpected},
};

const COLUMNS: [&str; 7] = [
    "tier",
    "home",
    "shards",
    "limit_name",
    "capacity",
    "rate",
    "word",
];

/// A row as an object of its columns.
pub(super) type Row = Map<String, Value>;

/// What a row says that makes no sense, or that contradicts an earlier row.
pub(super) fn account(rows: &[Row]) -> Result<Option<Account>, String> {
    let mut account = Account::default();
    for (i, row) in rows.iter().enumerate() {
        add(&mut account, row).map_err(|error| format!("row {}, column {error}", i + 1))?;
    }
    Ok((!rows.is_empty()).then_some(account))
}

fn add(account: &mut Account, row: &Row) -> Result<(), InvalidValue> {
    if let Some(stranger) = row
        .keys()
        .find(|column| !COLUMNS.contains(&column.as_str()))
    {
        let problem = format!("not one of {}", COLUMNS.join(", "));
        return Err(InvalidValue::new(stranger, problem));
    }
    let column = |name| row.get(name).unwrap_or(&Value::Null);
    agree(&mut account.tier, wire::tier(column("tier"))?, "tier")?;
    agree(&mut account.home, wire::home(column("home"))?, "home")?;
    agree(
        &mut account.shards,
        wire::shards(column("shards"))?,
        "shards",
    )?;
    let Some(allowance) = allowance(column("capacity"), column("rate"), column("word"))? else {
        return Ok(());
    };
    let limit = match column("limit_name") {
        Value::Null => LimitName::default(),
        Value::String(name) => wire::limit_name(name).map_err(|it| it.within("limit_name"))?,
        other => return Err(unexpected("limit_name", "the name of a limit", other)),
    };
    let problem = format!("an earlier row has the limit `{limit}` as well");
    match account.limits.insert(limit, allowance) {
        None => Ok(()),
        Some(_) => Err(InvalidValue::new("limit_name", problem)),
    }
}

/// Rows repeat what they say of the tenant itself.
fn agree<T: PartialEq>(
    known: &mut Option<T>,
    said: Option<T>,
    column: &str,
) -> Result<(), InvalidValue> {
    match (&known, said) {
        (_, None) => {}
        (None, said) => *known = said,
        (Some(known), Some(said)) if *known == said => {}
        (Some(_), Some(_)) => {
            return Err(InvalidValue::new(column, "an earlier row says otherwise"));
        }
    }
    Ok(())
}

fn allowance(
    capacity: &Value,
    rate: &Value,
    word: &Value,
) -> Result<Option<Allowance>, InvalidValue> {
    match (capacity, rate, word) {
        (Value::Null, Value::Null, Value::Null) => Ok(None),
        (Value::Null, Value::Null, Value::String(word)) => {
            wire::word(word).map_err(|it| it.within("word"))
        }
        (_, _, Value::String(_)) => {
            let problem = "stands beside `capacity` and `rate`, of which there must be none then";
            Err(InvalidValue::new("word", problem))
        }
        // "50/s" is a whole quota.
        (Value::Null, Value::String(text), Value::Null) => {
            let quota = wire::plain(text).map_err(|it| it.within("rate"))?;
            Ok(Some(quota.into()))
        }
        (capacity, rate, Value::Null) => Ok(Some(wire::quota(capacity, rate)?.into())),
        (_, _, other) => Err(unexpected("word", "a word", other)),
    }
}

#[cfg(test)]
mod tests {
    use std::num::NonZeroU8;

    use serde_json::json;
    use tollgate_core::Quota;

    use super::*;

    fn read(rows: &Value) -> Result<Option<Account>, String> {
        let rows = rows.as_array().expect("rows").iter();
        let rows: Vec<Row> = rows
            .map(|row| row.as_object().expect("a row").clone())
            .collect();
        account(&rows)
    }

    #[test]
    fn rows_make_one_account() {
        let rows = json!([
            {"tier": "pro", "home": "eu", "shards": 4, "limit_name": "default", "capacity": 10, "rate": 2.0, "word": null},
            {"tier": "pro", "home": "eu", "shards": 4, "limit_name": "reports", "capacity": null, "rate": null, "word": "blocked"},
        ]);
        let account = read(&rows).expect("sense").expect("rows");
        assert_eq!(
            (account.tier.as_deref(), account.shards),
            (Some("pro"), NonZeroU8::new(4))
        );
        assert_eq!(account.home.as_deref(), Some("eu"));
        assert_eq!(
            account.limits[&LimitName::default()],
            Quota::new(10, 2).expect("a quota").into()
        );
        let reports = LimitName::new("reports").expect("a name");
        assert_eq!(account.limits[&reports], Allowance::Blocked);
        assert_eq!(account.limits.len(), 2);
    }

    #[test]
    fn columns_may_be_left_out() {
        assert_eq!(read(&json!([])), Ok(None));
        let only_tier = read(&json!([{"tier": "pro"}]))
            .expect("sense")
            .expect("a row");
        assert!(only_tier.limits.is_empty());
        assert_eq!(read(&json!([{"tier": null}])), Ok(Some(Account::default())));
        let plain = read(&json!([{"rate": "50/s"}]))
            .expect("sense")
            .expect("a row");
        let plain = plain.limits.get(&LimitName::default()).copied();
        assert_eq!(plain, Some(Quota::new(50, 50).expect("a quota").into()));
    }

    #[test]
    fn what_makes_no_sense_is_named_with_its_row_and_column() {
        for (second, place) in [
            (json!({"teir": "pro"}), "`teir`"),
            (json!({"tier": "free"}), "`tier`"),
            (json!({"home": "us"}), "`home`"),
            (json!({"home": ""}), "`home`"),
            (json!({"shards": 0}), "`shards`"),
            (
                json!({"limit_name": "Reports", "word": "blocked"}),
                "`limit_name`",
            ),
            (json!({"limit_name": 7, "word": "blocked"}), "`limit_name`"),
            (
                json!({"limit_name": "burst", "word": "blocked"}),
                "`limit_name`",
            ),
            (json!({"word": "endless"}), "`word`"),
            (json!({"word": true}), "`word`"),
            (json!({"word": "blocked", "capacity": 1}), "`word`"),
            (json!({"capacity": 1}), "`rate`"),
            (json!({"rate": 1.0}), "`capacity`"),
            (json!({"rate": "1"}), "`rate`"),
            (json!({"capacity": 0, "rate": 1.0}), "`capacity`"),
            (json!({"capacity": 1, "rate": "NaN"}), "`rate`"),
            (json!({"capacity": 1, "rate": -1.0}), "`rate`"),
        ] {
            let first =
                json!({"tier": "pro", "home": "eu", "limit_name": "burst", "word": "blocked"});
            let error = read(&json!([first, second])).expect_err("no sense");
            assert!(
                error.starts_with(&format!("row 2, column {place}: ")),
                "{second}: {error}"
            );
        }
    }
}
