//! What a store answers.

use std::{cmp::Ordering, time::Duration};

use crate::{Cost, LimitName, Quota, quota::as_f64};

/// Allowed or denied, with each limit's state and where the answer came from.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Decision {
    /// What to do with the request.
    pub verdict: Verdict,
    /// How many of the wanted requests were granted: 0 or 1 for a check with the usual count of 1.
    pub granted: u64,
    /// Who decided.
    pub source: Source,
    /// The state of each charge's limit, in the order of the check: enforcing ones first. Of a request that took
    /// several checks, one check's after the other.
    pub limits: Vec<LimitDecision>,
}

impl Decision {
    /// The decision on a request for which no store was asked: one that nothing limits, or that a limit blocks.
    #[must_use]
    pub fn without_store(verdict: Verdict, limits: Vec<LimitDecision>) -> Self {
        Self {
            verdict,
            granted: u64::from(verdict == Verdict::Allowed),
            source: Source::Quota,
            limits,
        }
    }

    /// Whether the request may go on.
    #[must_use]
    pub fn is_allowed(&self) -> bool {
        self.verdict == Verdict::Allowed
    }

    /// The limits that can deny, without the ones in shadow.
    pub fn enforcing(&self) -> impl Iterator<Item = &LimitDecision> {
        self.limits.iter().filter(|limit| !limit.shadow)
    }

    /// The tightest limit: the one that denied with the longest wait; if allowed, the one with the smallest
    /// remaining ÷ capacity.
    #[must_use]
    pub fn tightest(&self) -> Option<&LimitDecision> {
        if self.is_allowed() {
            self.enforcing().min_by(|a, b| {
                a.share_left()
                    .partial_cmp(&b.share_left())
                    .unwrap_or(Ordering::Equal)
            })
        } else {
            // `max_by` takes the last of equals; the first named limit is the better answer.
            self.enforcing().reduce(|longest, limit| {
                if limit.wait > longest.wait {
                    limit
                } else {
                    longest
                }
            })
        }
    }
}

/// What to do with a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Go on.
    Allowed,
    /// Refuse: a limit lacks the tokens.
    Denied,
    /// Refuse: the store gave no answer, and the policy for that case is to refuse.
    Unavailable,
}

/// Who decided.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Source {
    /// The store itself.
    Store,
    /// A denial known already, whose wait has not passed.
    DenialCache,
    /// Tokens that this process has claimed before.
    Lease,
    /// The quotas: a limit has blocked the tenant, or nothing limits it. No store was asked.
    Quota,
    /// The policy for a store that gives no answer.
    Fallback,
}

impl Source {
    /// The name in logs and metrics.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Store => "store",
            Self::DenialCache => "denial-cache",
            Self::Lease => "lease",
            Self::Quota => "quota",
            Self::Fallback => "fallback",
        }
    }
}

/// The state of one limit after a decision.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct LimitDecision {
    /// The limit's name.
    pub name: LimitName,
    /// How much it allows. `None` for a tenant that it blocks.
    pub quota: Option<Quota>,
    /// What one request takes.
    pub cost: Cost,
    /// Tokens left, rounded down. `None` when no store answered.
    pub remaining: Option<u64>,
    /// How long until one more request fits, if this limit lacked tokens.
    pub wait: Wait,
    /// Whether this limit is only watched and never denies.
    pub shadow: bool,
}

impl LimitDecision {
    /// A limit that blocks the tenant, whatever a request costs.
    #[must_use]
    pub const fn blocked(name: LimitName, cost: Cost, shadow: bool) -> Self {
        Self {
            name,
            quota: None,
            cost,
            remaining: Some(0),
            wait: Wait::Never,
            shadow,
        }
    }

    /// The most tokens that the limit's bucket holds; 0 for a tenant that it blocks.
    #[must_use]
    pub fn capacity(&self) -> u64 {
        self.quota.map_or(0, |quota| quota.capacity())
    }

    /// Whether this limit had too few tokens for what was wanted.
    #[must_use]
    pub fn lacked_tokens(&self) -> bool {
        self.wait != Wait::None
    }

    /// Remaining ÷ capacity; 1 if unknown, 0 for a tenant that the limit blocks.
    #[must_use]
    pub fn share_left(&self) -> f64 {
        self.remaining.map_or(1.0, |remaining| {
            as_f64(remaining) / as_f64(self.capacity().max(1))
        })
    }
}

/// How long until one more request fits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Wait {
    /// It fitted.
    None,
    /// This long, if nobody else takes the tokens. Rounded up to whole milliseconds.
    For(Duration),
    /// The cost exceeds the capacity: it can never fit.
    Never,
}

impl Wait {
    /// Reads a `retry_ms` of the script: 0 for none, −1 for never.
    ///
    /// ```
    /// # use tollgate_core::Wait;
    /// # use std::time::Duration;
    /// assert_eq!(Wait::from_millis(1500), Wait::For(Duration::from_millis(1500)));
    /// assert_eq!(Wait::from_millis(-1), Wait::Never);
    /// ```
    #[must_use]
    pub fn from_millis(millis: i64) -> Self {
        match u64::try_from(millis) {
            Ok(0) => Self::None,
            Ok(millis) => Self::For(Duration::from_millis(millis)),
            Err(_) => Self::Never,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{LimitName, Quota};

    fn limit(name: &str, capacity: u64, remaining: u64, wait: Wait) -> LimitDecision {
        let name = LimitName::new(name).expect("a name");
        let quota = Quota::new(capacity, 1).expect("a quota");
        LimitDecision {
            name,
            quota: Some(quota),
            cost: Cost::ONE,
            remaining: Some(remaining),
            wait,
            shadow: false,
        }
    }

    fn tightest(verdict: Verdict, limits: Vec<LimitDecision>) -> String {
        let decision = Decision {
            verdict,
            granted: 0,
            source: Source::Store,
            limits,
        };
        decision.tightest().expect("a limit").name.to_string()
    }

    #[test]
    fn the_tightest_of_an_allowed_request_has_the_smallest_share_left() {
        let limits = vec![
            limit("roomy", 100, 60, Wait::None),
            limit("near", 1000, 500, Wait::None),
        ];
        assert_eq!(tightest(Verdict::Allowed, limits), "near");
    }

    #[test]
    fn the_tightest_of_a_denied_request_denies_longest() {
        let short = limit("short", 100, 0, Wait::from_millis(5));
        let long = limit("long", 100, 5, Wait::from_millis(5000));
        let mut never = limit("never", 100, 90, Wait::Never);
        assert_eq!(
            tightest(Verdict::Denied, vec![short.clone(), long.clone()]),
            "long"
        );
        assert_eq!(
            tightest(
                Verdict::Denied,
                vec![short.clone(), never.clone(), long.clone()]
            ),
            "never"
        );
        never.shadow = true;
        assert_eq!(tightest(Verdict::Denied, vec![short, never, long]), "long");
    }
}
