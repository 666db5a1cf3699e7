//! What the scripts of the buckets answer.

use tollgate_core::{
    Adjustment, Change, ChargeState, Check, Decision, ErrorKind, MAX_TOKENS, Source, StoreError,
    Wait,
};

use crate::failure;

/// What a server may answer that we read, whatever library has received it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Reply {
    Number(i64),
    Text(String),
    List(Vec<Self>),
    /// Anything else.
    Odd,
}

impl Reply {
    pub(crate) const fn number(&self) -> Option<i64> {
        match self {
            Self::Number(number) => Some(*number),
            _ => None,
        }
    }

    pub(crate) fn text(&self) -> Option<&str> {
        match self {
            Self::Text(text) => Some(text),
            _ => None,
        }
    }

    pub(crate) fn list(&self) -> Option<&[Self]> {
        match self {
            Self::List(replies) => Some(replies),
            _ => None,
        }
    }

    /// All of a list that holds nothing but numbers.
    fn numbers(&self) -> Option<Vec<i64>> {
        self.list()?.iter().map(Self::number).collect()
    }
}

/// Reads `{ granted, remaining1, retry_ms1, … }`.
///
/// # Errors
///
/// If it is anything else. The script has run then, so the charge is open.
pub(crate) fn decide(check: &Check, reply: &Reply) -> Result<Decision, StoreError> {
    match read(check, reply) {
        Some((granted, states)) => Ok(check.decide(granted, Source::Store, states)),
        None => Err(malformed()),
    }
}

/// Reads `{ reply1, … }` of `gather.lua`, to that many checks.
///
/// # Errors
///
/// If it is anything else. The script has run then, so the charges are open. A check that the server refused,
/// alone of all, has an error of its own, and was not charged.
pub(crate) fn each(
    reply: Reply,
    checks: usize,
) -> Result<impl Iterator<Item = Result<Reply, StoreError>>, StoreError> {
    match reply {
        Reply::List(replies) if replies.len() == checks => {
            Ok(replies.into_iter().map(|reply| match reply {
                Reply::Text(refusal) => Err(failure::of_text(&refusal)),
                reply => Ok(reply),
            }))
        }
        _ => Err(malformed()),
    }
}

/// Reads `{ tokens1, … }` of `adjust.lua`.
///
/// # Errors
///
/// If it is anything else. The script has run then, so the buckets may have changed.
pub(crate) fn tokens(adjustment: &Adjustment, reply: &Reply) -> Result<Vec<i64>, StoreError> {
    read_tokens(adjustment.changes(), reply).ok_or_else(malformed)
}

fn malformed() -> StoreError {
    StoreError::new(
        ErrorKind::Other,
        ChargeState::Unknown,
        "the script's reply is malformed",
    )
}

fn read<'a>(
    check: &Check,
    reply: &'a Reply,
) -> Option<(u64, impl Iterator<Item = (u64, Wait)> + 'a)> {
    let (granted, states) = reply.list()?.split_first()?;
    let granted = u64::try_from(granted.number()?).ok()?;
    let states = states.chunks(2);
    let fits = granted <= check.count() && states.len() == check.charges().len();
    (fits && states.clone().all(|it| state(it).is_some()))
        .then(|| (granted, states.filter_map(state)))
}

/// `remaining, retry_ms`
fn state(pair: &[Reply]) -> Option<(u64, Wait)> {
    let [remaining, retry] = pair else {
        return None;
    };
    let (remaining, retry) = (u64::try_from(remaining.number()?).ok()?, retry.number()?);
    (retry >= -1).then(|| (remaining, Wait::from_millis(retry)))
}

fn read_tokens(changes: &[Change], reply: &Reply) -> Option<Vec<i64>> {
    let numbers = reply.numbers()?;
    if numbers.len() != changes.len() {
        return None;
    }
    let held = |(&tokens, change): (&i64, &Change)| {
        let most = if tokens < 0 {
            MAX_TOKENS
        } else {
            change.quota.capacity()
        };
        (tokens.unsigned_abs() <= most).then_some(tokens)
    };
    numbers.iter().zip(changes).map(held).collect()
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

    /// What gives back the charges of such a check.
    fn adjustment(limits: &[&str]) -> Adjustment {
        let check = check(limits);
        let change = |charge: &Charge| Change {
            key: charge.key.clone(),
            quota: charge.limit.quota,
            delta: 1,
            floor: 0,
        };
        let changes = check.charges().iter().map(change).collect();
        Adjustment::new(changes).expect("an adjustment")
    }

    fn assert_malformed(error: &StoreError) {
        assert_eq!(
            (error.kind(), error.charge()),
            (ErrorKind::Other, ChargeState::Unknown)
        );
    }

    fn numbers(numbers: &[i64]) -> Reply {
        Reply::List(numbers.iter().copied().map(Reply::Number).collect())
    }

    #[test]
    fn a_reply_becomes_a_decision() {
        let decision =
            decide(&check(&["a", "b"]), &numbers(&[2, 5, 0, 0, -1])).expect("well formed");
        assert_eq!((decision.granted, decision.source), (2, Source::Store));
        let states: Vec<_> = decision
            .limits
            .iter()
            .map(|limit| (limit.remaining, limit.wait))
            .collect();
        assert_eq!(states, [(Some(5), Wait::None), (Some(0), Wait::Never)]);
        let denied = decide(&check(&["a"]), &numbers(&[0, 0, 250])).expect("well formed");
        assert_eq!(denied.limits[0].wait, Wait::For(Duration::from_millis(250)));
    }

    #[test]
    fn a_reply_tells_the_tokens_of_each_bucket() {
        let held = |reply: &[i64]| tokens(&adjustment(&["a", "b"]), &numbers(reply));
        for reply in [[10, -3], [0, -1_000_000_000_000]] {
            assert_eq!(held(&reply).expect("well formed"), reply);
        }
        for reply in [
            &[][..],
            &[1],
            &[1, 2, 3],
            &[1, 11],
            &[-1_000_000_000_001, 1],
            &[i64::MIN, i64::MAX],
        ] {
            assert_malformed(&held(reply).expect_err("malformed"));
        }
        let strange = Reply::List(vec![Reply::Number(1), Reply::Odd]);
        for reply in [Reply::Odd, Reply::Number(1), strange] {
            let held = tokens(&adjustment(&["a", "b"]), &reply);
            assert_malformed(&held.expect_err("malformed"));
        }
    }

    #[test]
    fn a_malformed_reply_is_an_error_and_never_a_panic() {
        for reply in [
            Reply::Odd,
            Reply::Number(1),
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
        ] {
            assert_malformed(&decide(&check(&["a"]), &reply).expect_err("malformed"));
        }
    }
}
