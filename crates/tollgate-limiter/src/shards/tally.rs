//! What the shards have answered to one check.

use std::time::Duration;

use tollgate_core::{Check, Decision, LimitDecision, Source, Wait};

/// The shortest wait: what is denied for that long is not worth remembering.
const SOON: Wait = Wait::For(Duration::from_millis(1));

/// The answers of one or more shards, on the way to one decision.
#[derive(Default)]
pub(super) struct Tally {
    answers: Vec<Decision>,
    granted: u64,
    cut_short: bool,
}

impl Tally {
    pub(super) const fn granted(&self) -> u64 {
        self.granted
    }

    pub(super) fn add(&mut self, answer: Decision) {
        self.granted += answer.granted;
        self.answers.push(answer);
    }

    /// A shard gave no answer, and none is asked any more.
    pub(super) const fn cut_short(&mut self) {
        self.cut_short = true;
    }

    /// The decision on the whole check.
    pub(super) fn conclude(self, check: &Check) -> Decision {
        // Of the last one, if it has granted what was left.
        let soonest = self.answers.iter().min_by_key(|answer| wait_of(answer));
        let states: Vec<_> = (0..check.charges().len())
            .map(|i| {
                let wait = soonest.map_or(Wait::None, |answer| answer.limits[i].wait);
                let capacity = check.charges()[i].limit.quota.capacity();
                (self.remaining(i, capacity), self.wait(i, wait))
            })
            .collect();
        check.decide(self.granted, self.source(), states)
    }

    fn wait(&self, i: usize, soonest: Wait) -> Wait {
        // A limit in shadow has lacked tokens if it did so for any of the granted.
        let shadow = self
            .answers
            .iter()
            .filter(|answer| answer.granted > 0 && answer.limits[i].shadow)
            .map(|answer| answer.limits[i].wait)
            .max();
        let wait = shadow.unwrap_or(soonest);
        if self.cut_short { wait.min(SOON) } else { wait }
    }

    /// Tokens left of limit `i` in all shards.
    fn remaining(&self, i: usize, capacity: u64) -> u64 {
        let (mut left, mut before, mut asked) = (0_u64, 0_u64, 0_u64);
        for answer in &self.answers {
            let limit = &answer.limits[i];
            let remaining = limit.remaining.unwrap_or(0);
            left += remaining;
            before = before
                .saturating_add(remaining)
                .saturating_add(charged(limit, answer.granted));
            asked += limit.capacity();
        }
        let unasked = if self.granted > 0 {
            scale(before, capacity.saturating_sub(asked), asked)
        } else {
            // A denial knows what there is, and guesses at nothing.
            0
        };
        // Parts of a limit in shadow may make up more than the whole.
        left.saturating_add(unasked).min(capacity)
    }

    /// Who decided, if all agree; else the store had a part in it.
    fn source(&self) -> Source {
        let mut sources = self.answers.iter().map(|answer| answer.source);
        let first = sources.next().unwrap_or(Source::Store);
        if sources.all(|source| source == first) {
            first
        } else {
            Source::Store
        }
    }
}

/// How long until one more request fits a shard.
fn wait_of(answer: &Decision) -> Wait {
    let waits = answer.enforcing().map(|limit| limit.wait);
    waits.max().unwrap_or(Wait::None)
}

/// What a shard has taken, as far as is known: a limit in shadow that lacks tokens is charged for some only.
fn charged(limit: &LimitDecision, granted: u64) -> u64 {
    if limit.shadow && limit.lacked_tokens() {
        return 0;
    }
    limit.cost.tokens().saturating_mul(granted)
}

/// `tokens` of `asked` make how many of `unasked`, rounded down.
fn scale(tokens: u64, unasked: u64, asked: u64) -> u64 {
    let scaled = u128::from(tokens) * u128::from(unasked) / u128::from(asked.max(1));
    u64::try_from(scaled).unwrap_or(u64::MAX)
}
