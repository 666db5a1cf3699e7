//! The counters of a key class, found by their labels once.

use std::{
    collections::HashMap,
    sync::{Arc, PoisonError, RwLock},
};

use foldhash::quality::RandomState;
use prometheus::{IntCounter, IntCounterVec};
use tollgate_core::{Decision, LimitDecision, LimitName, Source, Verdict};

/// The values of the label `outcome` that decisions have.
pub(super) const OUTCOMES: [&str; 4] = [
    "allowed",
    "rejected",
    "fallback_allowed",
    "fallback_rejected",
];

/// The values of the label `mode`.
const MODES: [&str; 2] = ["enforce", "shadow"];

/// What is counted of each decision. To look a counter up by its labels takes longer than to count.
pub(super) struct Classes {
    decisions: IntCounterVec,
    rejections: IntCounterVec,
    /// As few as there are tiers.
    known: RwLock<HashMap<Arc<str>, Class, RandomState>>,
}

struct Class {
    /// In the order of [`OUTCOMES`].
    outcomes: [IntCounter; 4],
    /// In the order of [`MODES`], of each limit that has lacked tokens.
    lacking: HashMap<LimitName, [Option<IntCounter>; 2], RandomState>,
}

impl Classes {
    pub(super) fn new(decisions: IntCounterVec, rejections: IntCounterVec) -> Self {
        Self {
            decisions,
            rejections,
            known: RwLock::default(),
        }
    }

    pub(super) fn count(&self, class: &str, decision: &Decision) {
        let known = self.known.read().unwrap_or_else(PoisonError::into_inner);
        if known.get(class).is_some_and(|class| class.count(decision)) {
            return;
        }
        drop(known);
        let mut known = self.known.write().unwrap_or_else(PoisonError::into_inner);
        let entry = known.entry(class.into()).or_insert_with(|| Class {
            outcomes: OUTCOMES.map(|outcome| self.decisions.with_label_values(&[outcome, class])),
            lacking: HashMap::default(),
        });
        for limit in lacking(decision) {
            let labels = [limit.name.as_str(), class, MODES[mode(limit)]];
            let of_limit = entry.lacking.entry(limit.name.clone()).or_default();
            of_limit[mode(limit)].get_or_insert_with(|| self.rejections.with_label_values(&labels));
        }
        entry.count(decision);
    }
}

impl Class {
    /// Counts, if all that is to be counted is here.
    fn count(&self, decision: &Decision) -> bool {
        if !lacking(decision).all(|limit| self.of(limit).is_some()) {
            return false;
        }
        self.outcomes[outcome(decision)].inc();
        let counters = lacking(decision).filter_map(|limit| self.of(limit));
        counters.for_each(IntCounter::inc);
        true
    }

    fn of(&self, limit: &LimitDecision) -> Option<&IntCounter> {
        self.lacking.get(&limit.name)?[mode(limit)].as_ref()
    }
}

/// Which of [`MODES`].
fn mode(limit: &LimitDecision) -> usize {
    usize::from(limit.shadow)
}

fn lacking(decision: &Decision) -> impl Iterator<Item = &LimitDecision> {
    decision.limits.iter().filter(|limit| limit.lacked_tokens())
}

/// Which of [`OUTCOMES`].
const fn outcome(decision: &Decision) -> usize {
    match (decision.source, decision.verdict) {
        (Source::Fallback, Verdict::Allowed) => 2,
        (Source::Fallback, _) => 3,
        (_, Verdict::Allowed) => 0,
        _ => 1,
    }
}
