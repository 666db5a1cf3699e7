//! The parts of an account as JSON values, from whatever source.

use std::{fmt, num::NonZeroU8, sync::Arc};

use serde_json::Value;
use tollgate_core::{InvalidQuota, Quota, Rate};

use crate::Allowance;

/// A value that makes no sense, and where it stands.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct InvalidValue {
    field: String,
    problem: String,
}

impl InvalidValue {
    pub(crate) fn new(field: impl Into<String>, problem: impl fmt::Display) -> Self {
        Self {
            field: field.into(),
            problem: problem.to_string(),
        }
    }

    /// The same, within `outer`.
    pub(crate) fn within(self, outer: &str) -> Self {
        let field = match self.field.as_str() {
            "" => outer.to_owned(),
            inner => format!("{outer}.{inner}"),
        };
        Self { field, ..self }
    }
}

// === impl InvalidValue ===

impl fmt::Display for InvalidValue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "`{}`: {}", self.field, self.problem)
    }
}

impl std::error::Error for InvalidValue {}

/// A name, or null for none.
pub(crate) fn tier(value: &Value) -> Result<Option<Arc<str>>, InvalidValue> {
    match value {
        Value::Null => Ok(None),
        Value::String(name) if !name.is_empty() => Ok(Some(name.as_str().into())),
        other => Err(unexpected("tier", "the name of a tier", other)),
    }
}

/// A whole number from 1 to 255, or null for none.
pub(crate) fn shards(value: &Value) -> Result<Option<NonZeroU8>, InvalidValue> {
    if value.is_null() {
        return Ok(None);
    }
    let shards =
        whole(value).and_then(|shards| NonZeroU8::try_from(u8::try_from(shards).ok()?).ok());
    let missing = || unexpected("shards", "a whole number from 1 to 255", value);
    shards.map(Some).ok_or_else(missing)
}

/// `unlimited`, `blocked`, and `default` for none.
pub(crate) fn word(word: &str) -> Result<Option<Allowance>, InvalidValue> {
    match word {
        "unlimited" => Ok(Some(Allowance::Unlimited)),
        "blocked" => Ok(Some(Allowance::Blocked)),
        "default" => Ok(None),
        other => {
            let problem = format!(
                "`{other}` is not a word for an allowance: `unlimited`, `blocked` or `default`; a rate is written `50/s`"
            );
            Err(InvalidValue::new("", problem))
        }
    }
}

/// A capacity in tokens, and a rate as a number of tokens per second or as `"50/s"`.
pub(crate) fn quota(capacity: &Value, rate: &Value) -> Result<Quota, InvalidValue> {
    let tokens = whole(capacity)
        .ok_or_else(|| unexpected("capacity", "a whole number of tokens", capacity))?;
    let parsed = match rate {
        Value::Number(number) => Rate::new(number.as_f64().unwrap_or(f64::NAN)),
        Value::String(text) => text.parse(),
        other => {
            return Err(unexpected(
                "rate",
                "tokens per second, or per span as in `50/s`",
                other,
            ));
        }
    };
    let parsed = parsed.map_err(|error| InvalidValue::new("rate", error))?;
    Quota::new(tokens, parsed).map_err(|error| {
        let field = match error {
            InvalidQuota::Capacity(_) => "capacity",
            _ => "rate",
        };
        InvalidValue::new(field, error)
    })
}

/// Also `10.0`, as databases write the numbers of some types.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "whole and in range"
)]
fn whole(value: &Value) -> Option<u64> {
    let float = || {
        value
            .as_f64()
            .filter(|it| it.fract() == 0.0 && (0.0..1e15).contains(it))
    };
    value.as_u64().or_else(|| float().map(|it| it as u64))
}

pub(crate) fn unexpected(field: &str, wanted: &str, value: &Value) -> InvalidValue {
    InvalidValue::new(field, format!("must be {wanted}, and is {value}"))
}
