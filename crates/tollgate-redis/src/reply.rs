//! What the scripts of the buckets answer.

use std::iter;

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
    let numbers = reply.list().unwrap_or_default().iter().map(Reply::number);
    read(check, numbers).ok_or_else(malformed)
}

/// The lines of the text that `gather.lua` answers to that many checks.
///
/// # Errors
///
/// If it is anything else. The script has run then, so the charges are open.
pub(crate) fn lines(
    reply: &Reply,
    checks: usize,
) -> Result<impl Iterator<Item = &str>, StoreError> {
    let lines = reply.text().unwrap_or_default().split('\n');
    if lines.clone().count() == checks {
        Ok(lines)
    } else {
        Err(malformed())
    }
}

/// Reads `granted remaining1 retry_ms1 …`.
///
/// # Errors
///
/// If it is `!` and an error: the server refused this check, alone of all, and it was not charged. If it is anything
/// else, as for the reply to a single check.
pub(crate) fn decide_line(check: &Check, line: &str) -> Result<Decision, StoreError> {
    if let Some(refusal) = line.strip_prefix('!') {
        return Err(failure::of_text(refusal));
    }
    let numbers = line.split(' ').map(|number| number.parse().ok());
    read(check, numbers).ok_or_else(malformed)
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

/// The decision that the numbers of a reply tell, each of them `None` if it is something else.
fn read(check: &Check, mut numbers: impl Iterator<Item = Option<i64>>) -> Option<Decision> {
    let granted = u64::try_from(numbers.next()??).ok()?;
    let states = iter::from_fn(|| state(&mut numbers));
    let decision = check.decide(granted, Source::Store, states);
    let is_whole = decision.limits.iter().all(|it| it.remaining.is_some());
    (granted <= check.count() && is_whole && numbers.next().is_none()).then_some(decision)
}

/// `remaining, retry_ms`
fn state(mut numbers: impl Iterator<Item = Option<i64>>) -> Option<(u64, Wait)> {
    let (remaining, retry) = (numbers.next()??, numbers.next()??);
    let remaining = u64::try_from(remaining).ok()?;
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
            Reply::Text("1 5 0".to_owned()),
        ] {
            assert_malformed(&decide(&check(&["a"]), &reply).expect_err("malformed"));
        }
        let strange = Reply::List(vec![Reply::Number(1), Reply::Number(5), Reply::Odd]);
        assert_malformed(&decide(&check(&["a"]), &strange).expect_err("malformed"));
        for malformed in [
            &[][..],
            &[1],
            &[1, 5],
            &[1, 5, 0, 5],
            &[1, 5, 0, 5, 0],
            &[-1, 5, 0],
            &[4, 5, 0],
            &[1, -5, 0],
            &[1, 5, -2],
            &[i64::MIN, i64::MIN, i64::MIN],
        ] {
            let check = check(&["a"]);
            assert_malformed(&decide(&check, &numbers(malformed)).expect_err("malformed"));
            let words: Vec<_> = malformed.iter().map(ToString::to_string).collect();
            let read = decide_line(&check, &words.join(" "));
            assert_malformed(&read.expect_err("malformed"));
        }
    }

    #[test]
    fn a_line_says_what_the_reply_to_a_single_check_does() {
        let check = check(&["a", "b"]);
        let plain = decide(&check, &numbers(&[2, 5, 0, 0, -1])).expect("well formed");
        let line = decide_line(&check, "2 5 0 0 -1").expect("well formed");
        assert_eq!(line, plain);
        for line in [
            "",
            "2 5 0 0",
            "2 5 0 0 x",
            "2 5 0 0 1.5",
            "2  5 0 0",
            "2 5 0 0 -1 ",
        ] {
            assert_malformed(&decide_line(&check, line).expect_err("malformed"));
        }
        let refused = decide_line(&check, "!WRONGTYPE no text").expect_err("refused");
        assert_eq!(
            (refused.kind(), refused.charge()),
            (ErrorKind::NotABucket, ChargeState::NotCharged)
        );
    }

    #[test]
    fn each_check_has_a_line() {
        let text = |text: &str| Reply::Text(text.to_owned());
        let told = text("1 5 0\n!OOM\n0 0 9");
        let told: Vec<_> = lines(&told, 3).expect("as many").collect();
        assert_eq!(told, ["1 5 0", "!OOM", "0 0 9"]);
        for reply in [
            text("1 5 0\n1 5 0"),
            text("1 5 0\n1 5 0\n1 5 0\n"),
            Reply::Odd,
        ] {
            let told = lines(&reply, 3).map(Iterator::count);
            assert_malformed(&told.expect_err("malformed"));
        }
    }
}
