//! What the script answers.

use fred::types::Value;
use tollgate_core::{ChargeState, Check, Decision, ErrorKind, Source, StoreError, Wait};

/// Reads `{ granted, remaining1, retry_ms1, … }`.
///
/// # Errors
///
/// If it is anything else. The script has run then, so the charge is open.
pub(crate) fn decide(check: Check, reply: &Value) -> Result<Decision, StoreError> {
    match read(&check, reply) {
        Some((granted, states)) => Ok(check.decide(granted, Source::Store, states)),
        None => Err(StoreError::new(
            ErrorKind::Other,
            ChargeState::Unknown,
            "the script's reply is malformed",
        )),
    }
}

fn read(check: &Check, reply: &Value) -> Option<(u64, Vec<(u64, Wait)>)> {
    let Value::Array(numbers) = reply else {
        return None;
    };
    let (granted, states) = numbers.split_first()?;
    let granted = u64::try_from(whole(granted)?).ok()?;
    if granted > check.count() || states.len() != 2 * check.charges().len() {
        return None;
    }
    let states = states.chunks_exact(2).map(state).collect::<Option<_>>()?;
    Some((granted, states))
}

fn state(numbers: &[Value]) -> Option<(u64, Wait)> {
    let remaining = u64::try_from(whole(&numbers[0])?).ok()?;
    let retry = whole(&numbers[1]).filter(|&retry| retry >= -1)?;
    Some((remaining, Wait::from_millis(retry)))
}

fn whole(number: &Value) -> Option<i64> {
    match number {
        Value::Integer(number) => Some(*number),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use std::{num::NonZeroU64, time::Duration};

    use tollgate_core::{Charge, Cost, KeySpace, Limit, LimitName, Quota, Tenant};

    use super::*;

    fn check(limits: &[&str]) -> Check {
        let tenant = Tenant::new("42", "pro").expect("an id");
        let charge = |name: &&str| {
            let name = LimitName::new(name).expect("a name");
            let quota = Quota::new(10, 1).expect("a quota");
            let key = KeySpace::default().bucket(&tenant, &name);
            Charge {
                key,
                limit: Limit { name, quota },
                cost: Cost::ONE,
            }
        };
        let check = Check::new(limits.iter().map(charge).collect()).expect("a check");
        check.with_count(NonZeroU64::new(3).expect("not 0"))
    }

    fn numbers(numbers: &[i64]) -> Value {
        Value::Array(numbers.iter().copied().map(Value::Integer).collect())
    }

    #[test]
    fn a_reply_becomes_a_decision() {
        let decision =
            decide(check(&["a", "b"]), &numbers(&[2, 5, 0, 0, -1])).expect("well formed");
        assert_eq!((decision.granted, decision.source), (2, Source::Store));
        let states: Vec<_> = decision
            .limits
            .iter()
            .map(|limit| (limit.remaining, limit.wait))
            .collect();
        assert_eq!(states, [(Some(5), Wait::None), (Some(0), Wait::Never)]);
        let denied = decide(check(&["a"]), &numbers(&[0, 0, 250])).expect("well formed");
        assert_eq!(denied.limits[0].wait, Wait::For(Duration::from_millis(250)));
    }

    #[test]
    fn a_malformed_reply_is_an_error_and_never_a_panic() {
        let text = Value::String("1".into());
        for reply in [
            Value::Null,
            Value::Integer(1),
            Value::String("OK".into()),
            numbers(&[]),
            numbers(&[1]),
            numbers(&[1, 5]),
            numbers(&[1, 5, 0, 5]),
            numbers(&[1, 5, 0, 5, 0]),
            numbers(&[-1, 5, 0]),
            numbers(&[4, 5, 0]),
            numbers(&[1, -5, 0]),
            numbers(&[1, 5, -2]),
            numbers(&[i64::MIN, i64::MIN, i64::MIN]),
            Value::Array(vec![text.clone(), text.clone(), text]),
            Value::Array(vec![Value::Integer(1), Value::Null, Value::Integer(0)]),
            Value::Array(vec![
                Value::Integer(1),
                Value::Double(5.0),
                Value::Integer(0),
            ]),
        ] {
            let error = decide(check(&["a"]), &reply).expect_err("malformed");
            assert_eq!(
                (error.kind(), error.charge()),
                (ErrorKind::Other, ChargeState::Unknown)
            );
        }
    }
}
