//! Stores that break one rule each.

use std::{
    collections::HashMap,
    num::NonZeroU64,
    sync::{Arc, Mutex},
    task::Poll,
};

use tollgate_core::{
    AdjustFuture, Adjustment, Change, Charge, ChargeState, Check, CheckFuture, Clock, Cost,
    Decision, ErrorKind, KeySpace, LimitName, ManualClock, MemoryStore, Quota, Rate, Store,
    StoreError, Tenant, Wait,
};

/// What a store does wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Flaw {
    None,
    Down,
    StartsEmpty,
    OneMore,
    FreeCosts,
    DenialCosts,
    ChargesWhatFits,
    IgnoresCount,
    ShadowBlocks,
    NeverIsAnHour,
    ReadsThenWrites,
    ChargesAfterTheDeadline,
    LeavesOpenAfterTheDeadline,
    FillsOnChange,
    ScalesOnChange,
    RefillsSlowly,
    RefillsFast,
    Overfills,
    WaitTooShort,
    WaitTooLong,
    PollingDelays,
    GivesTooMuchBack,
    IgnoresTheFloor,
    ForgetsDebt,
    AdjustsTheFirstOnly,
    AdjustsAfterTheDeadline,
    IgnoresCase,
    TrimsIds,
    IgnoresMembers,
    IgnoresShards,
    AllLimitsShare,
}

pub(crate) const ALL: [(Flaw, &str); 30] = [
    (Flaw::StartsEmpty, "a bucket that is missing is full"),
    (Flaw::OneMore, "a full bucket holds exactly its capacity"),
    (Flaw::FreeCosts, "a cost of 0 only reads"),
    (Flaw::DenialCosts, "a denial costs nothing"),
    (
        Flaw::ChargesWhatFits,
        "several limits are charged all or none",
    ),
    (
        Flaw::IgnoresCount,
        "of a count, as many are granted as fit every limit",
    ),
    (
        Flaw::ShadowBlocks,
        "a limit in shadow never blocks, and pays for as many as fit it",
    ),
    (
        Flaw::NeverIsAnHour,
        "a cost above the capacity never fits, and takes nothing",
    ),
    (
        Flaw::ReadsThenWrites,
        "checks side by side are never granted more than there is",
    ),
    (
        Flaw::ChargesAfterTheDeadline,
        "what is asked after its deadline and fails is not charged",
    ),
    (
        Flaw::LeavesOpenAfterTheDeadline,
        "what is asked after its deadline and fails is not charged",
    ),
    (
        Flaw::FillsOnChange,
        "a changed quota keeps the tokens, up to the new capacity",
    ),
    (
        Flaw::ScalesOnChange,
        "a changed quota keeps the tokens, up to the new capacity",
    ),
    (Flaw::RefillsSlowly, "tokens come back at the rate"),
    (Flaw::RefillsFast, "tokens come back at the rate"),
    (
        Flaw::RefillsFast,
        "in any span, no more is spent than the capacity and the refill",
    ),
    (Flaw::Overfills, "a bucket refills up to its capacity"),
    (
        Flaw::WaitTooShort,
        "the stated wait suffices, and is no longer than it need be",
    ),
    (
        Flaw::WaitTooLong,
        "the stated wait suffices, and is no longer than it need be",
    ),
    (Flaw::PollingDelays, "polling does not delay the refill"),
    (
        Flaw::GivesTooMuchBack,
        "tokens are given back up to the capacity",
    ),
    (
        Flaw::IgnoresTheFloor,
        "tokens are taken out down to the floor",
    ),
    (Flaw::ForgetsDebt, "a debt is paid off by the refill"),
    (
        Flaw::AdjustsTheFirstOnly,
        "an adjustment changes each of its buckets",
    ),
    (
        Flaw::AdjustsAfterTheDeadline,
        "an adjustment after its deadline that fails changes nothing",
    ),
    (
        Flaw::IgnoresCase,
        "tenants never share a bucket, whatever their ids",
    ),
    (
        Flaw::TrimsIds,
        "tenants never share a bucket, whatever their ids",
    ),
    (
        Flaw::IgnoresMembers,
        "limits, members, scopes and shards never share a bucket",
    ),
    (
        Flaw::IgnoresShards,
        "limits, members, scopes and shards never share a bucket",
    ),
    (
        Flaw::AllLimitsShare,
        "limits and members of one tenant fit one check",
    ),
];

/// A store in memory with a flaw.
pub(crate) struct Flawed {
    flaw: Flaw,
    clock: ManualClock,
    store: Arc<MemoryStore<ManualClock>>,
    /// The capacity that each bucket was last used with.
    capacities: Mutex<HashMap<String, u64>>,
    /// When the denied started to poll.
    polled: Mutex<HashMap<String, u64>>,
}

impl Flawed {
    pub(crate) fn new(flaw: Flaw, clock: ManualClock) -> Self {
        Self {
            flaw,
            store: Arc::new(MemoryStore::with_clock(clock.clone())),
            clock,
            capacities: Mutex::default(),
            polled: Mutex::default(),
        }
    }

    fn change(&self, charge: &Charge, delta: i64, floor: i64) {
        let change = Change {
            key: charge.key.clone(),
            quota: charge.limit.quota,
            delta,
            floor,
        };
        let adjustment = Adjustment::new(vec![change]).expect("an adjustment");
        self.store.change(&adjustment).expect("room");
    }

    fn decide(&self, check: &Check) -> Decision {
        self.store.decide(check).expect("room")
    }

    /// What is asked instead.
    fn distort(&self, check: &Check) -> Check {
        match self.flaw {
            Flaw::IgnoresCount => check.clone().with_count(NonZeroU64::MIN),
            Flaw::ShadowBlocks => check.clone().with_shadow(0).expect("none of any"),
            Flaw::FreeCosts => check.map_charges(|charge| Charge {
                cost: charge.cost.max(Cost::ONE),
                ..charge.clone()
            }),
            Flaw::OneMore => with_quotas(check, |quota| (quota.capacity() + 1, 1.0)),
            Flaw::RefillsSlowly => with_quotas(check, |quota| (quota.capacity(), 0.9)),
            Flaw::RefillsFast => with_quotas(check, |quota| (quota.capacity(), 1.5)),
            Flaw::Overfills if check.charges()[0].limit.quota.rate() > per_second(100.0) => {
                with_quotas(check, |quota| (quota.capacity() + 2, 1.0))
            }
            Flaw::IgnoresCase | Flaw::TrimsIds | Flaw::IgnoresMembers | Flaw::IgnoresShards => {
                check.map_charges(|charge| Charge {
                    key: self.rename(charge.key.as_str()),
                    ..charge.clone()
                })
            }
            _ => check.clone(),
        }
    }

    /// What the buckets go through before that.
    fn meddle(&self, check: &Check) {
        for charge in check.charges() {
            let mut capacities = self.capacities.lock().expect("no panic");
            let capacity = charge.limit.quota.capacity();
            let key = charge.key.as_str().to_owned();
            let former = capacities.insert(key, capacity);
            let tokens = i64::try_from(capacity).expect("at most 10^12");
            match (self.flaw, former) {
                (Flaw::StartsEmpty, None) => self.change(charge, -tokens, 0),
                (Flaw::FillsOnChange, Some(former)) if former != capacity => {
                    self.change(charge, tokens, 0);
                }
                (Flaw::ScalesOnChange, Some(former)) if former < capacity => {
                    self.change(charge, i64::try_from(capacity - former).expect("small"), 0);
                }
                _ => {}
            }
        }
    }

    /// What is made of a decision.
    fn spoil(&self, check: &Check, mut decision: Decision) -> Decision {
        let denied = !decision.is_allowed();
        let charge = &check.charges()[0];
        match self.flaw {
            Flaw::DenialCosts if denied => {
                self.change(charge, -1, 0);
                decision.limits[0].remaining =
                    decision.limits[0].remaining.map(|it| it.saturating_sub(1));
            }
            Flaw::ChargesWhatFits if denied => {
                for charge in check.charges() {
                    let _ = self.decide(&Check::single(charge.clone()));
                }
            }
            Flaw::PollingDelays => self.delay(charge, denied),
            Flaw::NeverIsAnHour => each_wait(&mut decision, |wait| match wait {
                Wait::Never => Wait::from_millis(3_600_000),
                wait => wait,
            }),
            Flaw::WaitTooShort => each_wait(&mut decision, |wait| match wait {
                Wait::For(wait) => Wait::For(wait - wait / 10),
                wait => wait,
            }),
            Flaw::WaitTooLong => each_wait(&mut decision, |wait| match wait {
                Wait::For(wait) => Wait::For(2 * wait + std::time::Duration::from_millis(20)),
                wait => wait,
            }),
            _ => {}
        }
        decision
    }

    /// The time since the last look is lost on who is denied again.
    fn delay(&self, charge: &Charge, denied: bool) {
        let mut polled = self.polled.lock().expect("no panic");
        let key = charge.key.as_str().to_owned();
        if denied {
            let now = self.clock.now();
            let since = polled.get(&key).map_or(0, |last| now.saturating_sub(*last));
            self.clock.set(now - since.min(4));
            polled.insert(key, self.clock.now());
        } else {
            polled.remove(&key);
        }
    }

    fn rename(&self, key: &str) -> tollgate_core::BucketKey {
        let text = match self.flaw {
            Flaw::IgnoresCase => key.to_ascii_lowercase(),
            Flaw::TrimsIds => key.replace("%20", ""),
            Flaw::IgnoresMembers => key.splitn(4, ':').take(3).collect::<Vec<_>>().join(":"),
            _ => key.split_once('/').map_or(key.to_owned(), |(start, rest)| {
                format!("{start}{}", &rest[1..])
            }),
        };
        // Under one tag, so that several still make a check.
        let tenant = Tenant::new("all", "pro").expect("an id");
        KeySpace::default().member_bucket(&tenant, &LimitName::default(), &text)
    }

    /// Another caller gets in between the look and the charge.
    fn look_then_charge(&self, check: Check) -> CheckFuture {
        let store = self.store.clone();
        CheckFuture::new(async move {
            let free = check.map_charges(|charge| Charge {
                cost: Cost::FREE,
                ..charge.clone()
            });
            let look = store.decide(&free)?;
            let fits = |(charge, limit): (&Charge, &tollgate_core::LimitDecision)| {
                limit.remaining >= Some(charge.cost.tokens())
            };
            let granted = check.charges().iter().zip(&look.limits).all(fits);
            if !granted || check.count() > 1 {
                return store.decide(&check);
            }
            others_first().await;
            let changes = check.charges().iter().map(|charge| Change {
                key: charge.key.clone(),
                quota: charge.limit.quota,
                delta: -i64::try_from(charge.cost.tokens()).expect("at most 10^12"),
                floor: 0,
            });
            let left = store.change(&Adjustment::new(changes.collect()).expect("changes"))?;
            let states = left
                .into_iter()
                .map(|left| (left.max(0).unsigned_abs(), Wait::None));
            Ok(check.decide(1, tollgate_core::Source::Store, states))
        })
    }
}

impl Store for Flawed {
    fn check(&self, check: Check) -> CheckFuture {
        let late = check.deadline().is_some();
        match self.flaw {
            Flaw::Down => {
                return CheckFuture::ready(Err(fails(
                    "the store is down",
                    ChargeState::NotCharged,
                )));
            }
            Flaw::ChargesAfterTheDeadline if late => {
                self.decide(&check);
                return CheckFuture::ready(Err(fails("late", ChargeState::NotCharged)));
            }
            Flaw::LeavesOpenAfterTheDeadline if late => {
                return CheckFuture::ready(Err(fails("late", ChargeState::Unknown)));
            }
            Flaw::ReadsThenWrites => return self.look_then_charge(check),
            Flaw::AllLimitsShare if check.charges().len() > 1 => {
                let shared = check.charges()[0].clone();
                for _ in 1..check.charges().len() {
                    let _ = self.decide(&Check::single(shared.clone()));
                }
            }
            _ => {}
        }
        self.meddle(&check);
        let decision = self.decide(&self.distort(&check));
        CheckFuture::ready(Ok(self.spoil(&check, decision)))
    }

    fn adjust(&self, adjustment: Adjustment) -> AdjustFuture {
        let change = |change: &Change| {
            let mut change = change.clone();
            match self.flaw {
                Flaw::GivesTooMuchBack if change.delta > 0 => {
                    let capacity = 2 * change.quota.capacity();
                    change.quota = Quota::new(capacity, change.quota.rate()).expect("a quota");
                }
                Flaw::IgnoresTheFloor => change.floor = -1_000_000,
                Flaw::ForgetsDebt => change.floor = change.floor.max(0),
                _ => {}
            }
            change
        };
        let mut changes: Vec<_> = adjustment.changes().iter().map(change).collect();
        let late = adjustment.deadline().is_some();
        let number = changes.len();
        match self.flaw {
            Flaw::Down => {
                return AdjustFuture::ready(Err(fails(
                    "the store is down",
                    ChargeState::NotCharged,
                )));
            }
            Flaw::AdjustsTheFirstOnly => changes.truncate(1),
            _ => {}
        }
        let mut answer = self
            .store
            .change(&Adjustment::new(changes).expect("an adjustment"));
        if let Ok(tokens) = &mut answer {
            tokens.resize(number, 5);
        }
        if late && self.flaw == Flaw::AdjustsAfterTheDeadline {
            answer = Err(fails("late", ChargeState::NotCharged));
        }
        AdjustFuture::ready(answer)
    }
}

fn fails(why: &'static str, charge: ChargeState) -> StoreError {
    StoreError::new(ErrorKind::Other, charge, why)
}

fn per_second(tokens: f64) -> Rate {
    Rate::try_from(tokens).expect("a rate")
}

/// Other capacities, and rates so many times as high.
fn with_quotas(check: &Check, other: impl Fn(&Quota) -> (u64, f64)) -> Check {
    check.map_charges(|charge| {
        let mut charge = charge.clone();
        let quota = charge.limit.quota;
        let (capacity, factor) = other(&quota);
        let rate = quota.rate().per_second() * factor;
        // As it is where there is no such quota.
        charge.limit.quota = Quota::new(capacity, rate).unwrap_or(quota);
        charge
    })
}

fn each_wait(decision: &mut Decision, change: impl Fn(Wait) -> Wait) {
    for limit in &mut decision.limits {
        limit.wait = change(limit.wait);
    }
}

/// Lets whoever else is polled go first, once.
async fn others_first() {
    let mut polled = false;
    std::future::poll_fn(|cx| {
        if std::mem::replace(&mut polled, true) {
            return Poll::Ready(());
        }
        cx.waker().wake_by_ref();
        Poll::Pending
    })
    .await;
}
