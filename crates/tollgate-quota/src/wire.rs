//! The parts of an account as JSON values, from whatever source.

use std::{fmt, num::NonZeroU8, str::FromStr, sync::Arc};

use serde_json::{Value, error::Category};
use tollgate_core::{InvalidQuota, LimitName, Quota, Rate};

use crate::Allowance;

/// So much of a value is told of: what is wrong with it is seen, and it may be of any length.
const MOST_QUOTED: usize = 40;

/// A value that makes no sense, and where it stands.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct InvalidValue {
    field: String,
    problem: String,
}

impl InvalidValue {
    pub(crate) fn new(field: impl Into<String>, problem: impl fmt::Display) -> Self {
        Self {
            field: short(&field.into()),
            problem: problem.to_string(),
        }
    }

    /// The same, within `outer`.
    pub(crate) fn within(self, outer: &str) -> Self {
        let outer = short(outer);
        let field = match self.field.as_str() {
            "" => outer,
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

/// The name of a region, or null for none.
pub(crate) fn home(value: &Value) -> Result<Option<Arc<str>>, InvalidValue> {
    match value {
        Value::Null => Ok(None),
        Value::String(name) if !name.is_empty() => Ok(Some(name.as_str().into())),
        other => Err(unexpected("home", "the name of a region", other)),
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
            let other = short(other);
            let problem = format!(
                "`{other}` is not a word for an allowance: `unlimited`, `blocked` or `default`; a rate is written `50/s`"
            );
            Err(InvalidValue::new("", problem))
        }
    }
}

/// A rate that is the capacity as well, such as `"50/s"`.
pub(crate) fn plain(text: &str) -> Result<Quota, InvalidValue> {
    parse(text, "a quota such as `50/s`")
}

/// The name of a limit.
pub(crate) fn limit_name(name: &str) -> Result<LimitName, InvalidValue> {
    LimitName::new(name).map_err(|_| {
        let wanted =
            "the name of a limit, a lower-case letter and then at most 63 of a-z 0-9 _ . -";
        unexpected("", wanted, &name.into())
    })
}

/// Errors quote the text, so a long one, which is none, is not tried.
fn parse<T: FromStr<Err = InvalidQuota>>(text: &str, wanted: &str) -> Result<T, InvalidValue> {
    if text.len() > MOST_QUOTED {
        return Err(unexpected("", wanted, &text.into()));
    }
    text.parse().map_err(|error| InvalidValue::new("", error))
}

/// A capacity in tokens, and a rate as a number of tokens per second or as `"50/s"`.
pub(crate) fn quota(capacity: &Value, rate: &Value) -> Result<Quota, InvalidValue> {
    let tokens = whole(capacity)
        .ok_or_else(|| unexpected("capacity", "a whole number of tokens", capacity))?;
    let parsed = match rate {
        Value::Number(number) => Rate::new(number.as_f64().unwrap_or(f64::NAN))
            .map_err(|_| unexpected("rate", "above 0 and at most 10^6 tokens per second", rate)),
        Value::String(text) => parse(text, "tokens per span, such as `50/s`"),
        other => Err(unexpected(
            "",
            "tokens per second, or per span as in `50/s`",
            other,
        )),
    };
    let parsed: Rate = parsed.map_err(|it| InvalidValue {
        field: "rate".to_owned(),
        ..it
    })?;
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
    let value = short(&value.to_string());
    InvalidValue::new(field, format!("must be {wanted}, and is {value}"))
}

/// What is wrong with text that is no JSON, and where, without any of it.
pub(crate) fn no_json(error: &serde_json::Error) -> String {
    let kind = match error.classify() {
        Category::Io => "it cannot be read",
        Category::Syntax => "its syntax is wrong",
        Category::Data => "it is of another type",
        Category::Eof => "it ends early",
    };
    format!("{kind}, line {}, column {}", error.line(), error.column())
}

fn short(text: &str) -> String {
    match text.char_indices().nth(MOST_QUOTED) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECRET: &str = "s3cret";

    fn long() -> String {
        format!("{}{SECRET}", "ä".repeat(MOST_QUOTED))
    }

    #[track_caller]
    fn is_short<T: fmt::Debug>(answer: Result<T, InvalidValue>) {
        let error = answer.expect_err("no sense").to_string();
        assert!(error.contains("äää") || error.contains("1e+308"), "{error}");
        assert!(!error.contains(SECRET), "{error}");
        assert!(error.chars().count() < 250, "{error}");
    }

    #[test]
    fn values_are_quoted_in_part() {
        let (text, value) = (long(), Value::from(long()));
        is_short(tier(&Value::from(vec![value.clone()])));
        is_short(home(&Value::from(vec![value.clone()])));
        is_short(shards(&value));
        is_short(word(&text));
        is_short(plain(&text));
        is_short(limit_name(&text));
        is_short(quota(&value, &Value::Null));
        is_short(quota(&10.into(), &value));
        is_short(quota(&10.into(), &vec![value].into()));
        is_short(quota(&10.into(), &1e308.into()));
        is_short::<()>(Err(InvalidValue::new(long(), "")));
        is_short::<()>(Err(InvalidValue::new("inner", "").within(&text)));
    }

    #[test]
    fn text_that_is_no_json_is_not_quoted() {
        let read = |text: &str| serde_json::from_str::<serde_json::Map<String, Value>>(text);
        for (text, wanted) in [
            ("\n  \"s3cret\"", "it is of another type, line 2, column 10"),
            (
                "{\n\"s3cret\": s3cret}",
                "its syntax is wrong, line 2, column 11",
            ),
            ("{\"s3cret\"", "it ends early, line 1, column 9"),
        ] {
            let error = read(text).expect_err("no object");
            assert_eq!(no_json(&error), wanted);
        }
    }
}
