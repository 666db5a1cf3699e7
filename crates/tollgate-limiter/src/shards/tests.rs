use std::{
    pin::pin,
    sync::{Mutex, PoisonError},
    task::{Context, Poll, Waker},
    time::Duration,
};

use proptest::{collection::vec, prelude::*};
use tokio::time::Instant;
use tollgate_core::{
    Change, ChargeState, Cost, Decision, ErrorKind, KeySpace, LimitName, MAX_TOKENS, ManualClock,
    MemoryStore, Source, StoreError, StoreFuture, Tenant, Wait,
};

use super::*;

fn charge(limit: &str, quota: Quota, cost: u32) -> Charge {
    let name = LimitName::new(limit).expect("a name");
    let tenant = Tenant::new("42", "pro").expect("an id");
    Charge {
        key: KeySpace::default().bucket(&tenant, &name),
        limit: Limit { name, quota },
        cost: Cost::new(cost),
    }
}

fn quota(capacity: u64, rate: impl Into<f64>) -> Quota {
    Quota::new(capacity, rate.into()).expect("a quota")
}

fn nonzero(shards: u8) -> NonZeroU8 {
    NonZeroU8::new(shards).expect("not 0")
}

fn count(count: u64) -> NonZeroU64 {
    NonZeroU64::new(count).expect("not 0")
}

fn check(quota: Quota, cost: u32, shards: u8) -> Check {
    Check::single(charge("default", quota, cost)).with_shards(nonzero(shards))
}

/// The answer of a store that never waits.
fn now<T>(future: StoreFuture<T>) -> Result<T, StoreError> {
    match pin!(future).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(answer) => answer,
        Poll::Pending => panic!("it waits"),
    }
}

fn decide(store: &impl Store, check: Check) -> Decision {
    now(store.check(check)).expect("a decision")
}

fn granted(store: &impl Store, check: Check) -> u64 {
    decide(store, check).granted
}

/// Remaining tokens and wait of the first limit.
fn state(decision: &Decision) -> (u64, Wait) {
    let limit = &decision.limits[0];
    (limit.remaining.expect("known"), limit.wait)
}

fn change(quota: Quota, delta: i64, floor: i64, shards: u8) -> Adjustment {
    let key = charge("default", quota, 1).key;
    let change = Change {
        key,
        quota,
        delta,
        floor,
    };
    let adjustment = Adjustment::new(vec![change]).expect("an adjustment");
    adjustment.with_shards(nonzero(shards))
}

fn over_memory() -> (Shards<MemoryStore<ManualClock>>, ManualClock) {
    let clock = ManualClock::default();
    let store = MemoryStore::with_clock(clock.clone());
    (Shards::new(store), clock)
}

/// Answers from memory, fails where it is told to, and keeps what it was asked.
struct Watched {
    memory: MemoryStore<ManualClock>,
    fails_at: Option<(usize, ChargeState)>,
    calls: Arc<Mutex<Vec<Call>>>,
}

/// The hash tag and the deadline.
type Call = (String, Option<Instant>);

impl Watched {
    /// The call of this number fails, counted from 0.
    fn new(fails_at: Option<(usize, ChargeState)>) -> (Shards<Self>, Arc<Mutex<Vec<Call>>>) {
        let calls = Arc::default();
        let watched = Self {
            memory: MemoryStore::with_clock(ManualClock::default()),
            fails_at,
            calls: Arc::clone(&calls),
        };
        (Shards::new(watched), calls)
    }

    fn note(&self, call: Call) -> Result<(), StoreError> {
        let mut calls = self.calls.lock().unwrap_or_else(PoisonError::into_inner);
        calls.push(call);
        match self.fails_at {
            Some((at, charge)) if at + 1 == calls.len() => {
                Err(StoreError::new(ErrorKind::Io, charge, "connection reset"))
            }
            _ => Ok(()),
        }
    }
}

impl Store for Watched {
    fn check(&self, check: Check) -> CheckFuture {
        let deadline = check.deadline().map(Instant::from_std);
        match self.note((check.tag().to_owned(), deadline)) {
            Ok(()) => self.memory.check(check),
            Err(error) => CheckFuture::ready(Err(error)),
        }
    }

    fn adjust(&self, adjustment: Adjustment) -> AdjustFuture {
        let deadline = adjustment.deadline().map(Instant::from_std);
        match self.note((adjustment.tag().to_owned(), deadline)) {
            Ok(()) => self.memory.adjust(adjustment),
            Err(error) => AdjustFuture::ready(Err(error)),
        }
    }
}

/// The tags of the calls since the last look.
fn taken(calls: &Mutex<Vec<Call>>) -> Vec<String> {
    let mut calls = calls.lock().expect("no panic");
    calls.drain(..).map(|(tag, _)| tag).collect()
}

#[test]
fn exactly_the_capacity_is_admitted_for_any_number_of_shards() {
    for capacity in 1..200 {
        for shards in 1..=16 {
            let quota = quota(capacity, 1.0);
            let (store, _) = over_memory();
            for _ in 0..capacity {
                assert!(
                    decide(&store, check(quota, 1, shards)).is_allowed(),
                    "{capacity} over {shards}"
                );
            }
            assert!(
                !decide(&store, check(quota, 1, shards)).is_allowed(),
                "{capacity} over {shards}"
            );
            let (store, _) = over_memory();
            let more = check(quota, 1, shards).with_count(count(capacity + 3));
            assert_eq!(granted(&store, more), capacity, "{capacity} over {shards}");
        }
    }
}

#[test]
fn load_is_spread_over_all_shards_and_one_call_suffices_while_there_is_room() {
    let (store, calls) = Watched::new(None);
    for _ in 0..400 {
        assert!(decide(&store, check(quota(4_000, 1.0), 1, 4)).is_allowed());
    }
    let tags = taken(&calls);
    assert_eq!(tags.len(), 400);
    for i in 0..4 {
        let tag = format!("tenant:42/{i}");
        let calls = tags.iter().filter(|asked| **asked == tag).count();
        // 11 standard deviations from the mean.
        assert!((4..=196).contains(&calls), "{calls} of 400 for {tag}");
    }
}

#[test]
fn a_dry_shard_tries_each_other_once_before_denying() {
    let (store, calls) = Watched::new(None);
    let quota = quota(8, 1.0);
    assert_eq!(granted(&store, check(quota, 1, 8).with_count(count(8))), 8);
    taken(&calls);
    assert!(!decide(&store, check(quota, 1, 8)).is_allowed());
    let mut asked = taken(&calls);
    asked.sort();
    let all: Vec<_> = (0..8).map(|i| format!("tenant:42/{i}")).collect();
    assert_eq!(asked, all);
}

#[test]
fn one_shard_is_the_plain_bucket() {
    let (store, calls) = Watched::new(None);
    let quota = quota(8, 1.0);
    assert!(decide(&store, check(quota, 1, 1)).is_allowed());
    assert_eq!(
        now(store.adjust(change(quota, 1, 0, 1))).ok(),
        Some(vec![8])
    );
    assert_eq!(taken(&calls), ["tenant:42", "tenant:42"]);
}

#[test]
fn the_bound_is_reached_and_not_passed() {
    // In whole tokens per shard and second, so that what greedy callers get is the bound itself.
    let quota = quota(11, 8.0);
    let (store, clock) = over_memory();
    let mut admitted = 0;
    for _ in 0..=3_000 {
        while decide(&store, check(quota, 1, 4)).is_allowed() {
            admitted += 1;
        }
        clock.advance(1);
    }
    assert_eq!(admitted, 11 + 8 * 3);
}

#[test]
fn the_wait_is_that_of_the_shard_with_room_soonest_and_is_exact() {
    let quota = quota(10, 2.0);
    let (store, clock) = over_memory();
    // Drained at different times, so the shards refill out of step.
    for _ in 0..10 {
        assert!(decide(&store, check(quota, 1, 4)).is_allowed());
        clock.advance(10);
    }
    for _ in 0..20 {
        let denied = decide(&store, check(quota, 1, 4));
        let (_, Wait::For(wait)) = state(&denied) else {
            panic!("{denied:?}")
        };
        let millis = u64::try_from(wait.as_millis()).expect("short");
        clock.advance(millis - 1);
        assert!(!decide(&store, check(quota, 1, 4)).is_allowed());
        clock.advance(1);
        assert!(decide(&store, check(quota, 1, 4)).is_allowed());
    }
}

#[test]
fn a_cost_must_fit_one_shard() {
    let quota = quota(11, 1.0);
    let (store, clock) = over_memory();
    let denied = decide(&store, check(quota, 4, 4));
    assert_eq!(state(&denied), (11, Wait::Never));
    // 3, 3, 3 and 2: three shards have room for it, and the fourth is no reason to give up.
    let three = check(quota, 3, 4);
    assert_eq!(granted(&store, three.clone().with_count(count(9))), 3);
    let denied = decide(&store, three.clone());
    let wait = Wait::For(Duration::from_secs(12));
    assert_eq!(state(&denied), (2, wait));
    clock.advance(12_000);
    assert!(decide(&store, three).is_allowed());
    assert_eq!(quota.parts(nonzero(4), 4).get(), 2);
    let (store, _) = over_memory();
    assert!(decide(&store, check(quota, 4, 2)).is_allowed());
}

#[test]
fn the_decision_shows_the_whole_quota() {
    let quota = quota(11, 1.0);
    let (store, _) = over_memory();
    let first = decide(&store, check(quota, 1, 4));
    assert_eq!(first.limits[0].quota, Some(quota));
    assert_eq!(first.limits[0].name, LimitName::default());
    assert_eq!(
        state(&first),
        (10, Wait::None),
        "the others were taken to be full"
    );
    assert_eq!(first.source, Source::Store);
    // All are asked for the last ones, so it is exact.
    let rest = decide(&store, check(quota, 1, 4).with_count(count(11)));
    assert_eq!((rest.granted, state(&rest).0), (10, 0));
    assert!(rest.is_allowed() && rest.limits[0].lacked_tokens());
}

#[test]
fn what_remains_is_exact_for_a_denial() {
    let quota = quota(11, 1.0);
    let (store, clock) = over_memory();
    assert_eq!(granted(&store, check(quota, 2, 4).with_count(count(9))), 4);
    // 1, 1, 1 and 0 are left.
    assert_eq!(state(&decide(&store, check(quota, 2, 4))).0, 3);
    // A quarter of a token in each is none at all: each is rounded down.
    clock.advance(1_000);
    assert_eq!(state(&decide(&store, check(quota, 2, 4))).0, 3);
}

#[test]
fn all_limits_go_to_one_shard_or_none_is_charged() {
    let (store, calls) = Watched::new(None);
    let both = || {
        let charges = vec![
            charge("default", quota(40, 1.0), 1),
            charge("reports", quota(8, 1.0), 1),
        ];
        let check = Check::new(charges).expect("a check");
        check.with_shards(nonzero(4))
    };
    for _ in 0..8 {
        assert!(decide(&store, both()).is_allowed());
    }
    taken(&calls);
    let denied = decide(&store, both());
    assert!(!denied.is_allowed());
    let left: Vec<_> = denied.limits.iter().map(|limit| limit.remaining).collect();
    assert_eq!(left, [Some(32), Some(0)]);
    assert_eq!(taken(&calls).len(), 4);
}

#[test]
fn shards_that_lack_different_limits_deny_until_one_has_both() {
    let limits = [("default", quota(40, 1.0)), ("reports", quota(8, 0.5))];
    let of = |names: &[&str]| {
        let charges = limits.into_iter().filter(|(name, _)| names.contains(name));
        let charges = charges.map(|(name, quota)| charge(name, quota, 1));
        let check = Check::new(charges.collect()).expect("a check");
        check.with_shards(nonzero(2))
    };
    let (store, clock) = over_memory();
    for (index, name) in [(0, "default"), (1, "reports")] {
        let _ = decide(&*store.store, part_of(&of(&[name]), index, count(99)));
    }
    let both = || of(&["default", "reports"]);
    for _ in 0..20 {
        let denied = decide(&store, both());
        let waits: Vec<_> = denied.limits.iter().map(|limit| limit.wait).collect();
        // The other shard has reports again after four seconds, whichever is asked first.
        assert_eq!(waits, [Wait::For(Duration::from_secs(2)), Wait::None]);
    }
    clock.advance(1_999);
    assert!(!decide(&store, both()).is_allowed());
    clock.advance(1);
    assert!(decide(&store, both()).is_allowed());
}

#[test]
fn a_quota_too_small_for_all_shards_has_fewer_and_keeps_its_bound() {
    let (store, _) = over_memory();
    let both = || {
        let charges = vec![
            charge("default", quota(40, 1.0), 1),
            charge("reports", quota(3, 1.0), 1),
        ];
        let check = Check::new(charges).expect("a check");
        check.with_shards(nonzero(8))
    };
    let reports = Check::single(charge("reports", quota(3, 1.0), 1)).with_shards(nonzero(8));
    assert_eq!(granted(&store, both().with_count(count(2))), 2);
    assert_eq!(granted(&store, reports.with_count(count(9))), 1);
    let denied = decide(&store, both());
    // 15 were within reach of both, in three shards of eight.
    let left: Vec<_> = denied.limits.iter().map(|limit| limit.remaining).collect();
    assert_eq!((denied.granted, left), (0, vec![Some(13), Some(0)]));
    let rest = check(quota(40, 1.0), 1, 8).with_count(count(99));
    assert_eq!(granted(&store, rest), 38);
}

/// A check with a limit in shadow.
fn shadowed(trial: Charge) -> Check {
    let charges = vec![charge("default", quota(40, 1.0), 1), trial];
    let check = Check::new(charges).expect("a check").with_shadow(1);
    check.expect("a shadow").with_shards(nonzero(4))
}

#[test]
fn a_limit_in_shadow_is_split_as_well_and_never_blocks() {
    let (store, _) = over_memory();
    let trial = charge("trial", quota(12, 1.0), 1);
    let answers: Vec<_> = (0..40)
        .map(|_| decide(&store, shadowed(trial.clone())))
        .collect();
    assert!(answers.iter().all(Decision::is_allowed));
    let trials = answers.iter().map(|answer| &answer.limits[1]);
    assert!(trials.clone().all(|trial| trial.shadow));
    assert_eq!(trials.filter(|trial| !trial.lacked_tokens()).count(), 12);
}

#[test]
fn a_limit_in_shadow_without_a_token_for_each_shard_never_blocks() {
    for (cost, lacked) in [(1, true), (0, false)] {
        let (store, _) = over_memory();
        let trial = charge("trial", quota(2, 1.0), cost);
        let all = decide(&store, shadowed(trial).with_count(count(99)));
        assert_eq!(all.granted, 40);
        assert_eq!(all.limits[1].lacked_tokens(), lacked);
        assert!(all.limits[1].remaining <= Some(2));
    }
}

#[test]
fn a_limit_in_shadow_lacked_tokens_if_it_did_for_any_of_the_granted() {
    for _ in 0..20 {
        let (store, _) = over_memory();
        let trial = charge("trial", quota(80, 1.0), 1);
        let alone = Check::single(trial.clone()).with_shards(nonzero(4));
        let _ = decide(&*store.store, part_of(&alone, 0, count(20)));
        // Whichever shard is asked last.
        let all = decide(&store, shadowed(trial).with_count(count(40)));
        assert_eq!((all.granted, all.limits[0].wait), (40, Wait::None));
        assert!(all.limits[1].lacked_tokens());
    }
}

#[test]
fn without_a_grant_a_failure_is_the_answer() {
    for charge in [ChargeState::NotCharged, ChargeState::Unknown] {
        let quota = quota(4, 1.0);
        let (store, calls) = Watched::new(Some((4 + 2, charge)));
        assert_eq!(granted(&store, check(quota, 1, 4).with_count(count(4))), 4);
        let error = now(store.check(check(quota, 1, 4))).expect_err("it fails");
        assert_eq!((error.kind(), error.charge()), (ErrorKind::Io, charge));
        assert_eq!(taken(&calls).len(), 7, "nobody is asked after the failure");
    }
}

#[test]
fn a_grant_stands_when_the_next_shard_fails() {
    let (store, calls) = Watched::new(Some((2, ChargeState::Unknown)));
    let decision = decide(&store, check(quota(40, 1.0), 1, 4).with_count(count(40)));
    assert_eq!(decision.granted, 20);
    assert_eq!(state(&decision).1, Wait::For(Duration::from_millis(1)));
    assert_eq!(taken(&calls).len(), 3);
}

#[test]
fn another_number_of_shards_gives_at_most_one_more_capacity() {
    for (before, after, more) in [(1, 4, 12), (4, 1, 12), (2, 4, 6), (4, 2, 0)] {
        let quota = quota(12, 1.0);
        let (store, _) = over_memory();
        let all = |shards| check(quota, 1, shards).with_count(count(99));
        assert_eq!(granted(&store, all(before)), 12);
        assert_eq!(
            granted(&store, all(after)),
            more,
            "from {before} to {after}"
        );
    }
}

#[test]
fn what_is_given_back_can_be_spent_again_and_no_more() {
    let quota = quota(40, 1.0);
    let (store, _) = over_memory();
    let all = check(quota, 1, 4).with_count(count(40));
    let decision = decide(&store, all.clone());
    for given in [1, 7, 30] {
        let back = Adjustment::give_back(&all, &decision, given).expect("something");
        assert_eq!(back.shards(), nonzero(4));
        assert!(now(store.adjust(back)).is_ok());
        assert_eq!(granted(&store, all.clone()), given);
    }
    // Twice the capacity fills it, and what does not fit is lost.
    assert_eq!(
        now(store.adjust(change(quota, 80, 0, 4))).ok(),
        Some(vec![40])
    );
    assert_eq!(granted(&store, all), 40);
}

#[test]
fn few_tokens_are_given_back_in_as_few_calls() {
    let quota = quota(40, 1.0);
    let (store, calls) = Watched::new(None);
    assert_eq!(
        now(store.adjust(change(quota, 2, 0, 4))).ok(),
        Some(vec![40])
    );
    assert_eq!(taken(&calls).len(), 2);
    // To look, all are asked.
    assert_eq!(
        now(store.adjust(change(quota, 0, 0, 4))).ok(),
        Some(vec![40])
    );
    assert_eq!(taken(&calls).len(), 4);
}

#[test]
fn the_most_tokens_fill_every_shard_even_out_of_debt() {
    let largest = i64::try_from(MAX_TOKENS).expect("small enough");
    for whole in [quota(11, 1.0), quota(MAX_TOKENS, 1e6)] {
        let (store, _) = over_memory();
        let debt = now(store.adjust(change(whole, -largest, -largest, 3)));
        let left = i64::try_from(whole.capacity()).expect("small enough") - largest;
        assert_eq!(debt.ok(), Some(vec![left]));
        let debt = now(store.adjust(change(whole, -largest, -7, 3))).expect("an answer");
        assert_eq!(debt, [left.min(-7)]);
        let filled = now(store.adjust(change(whole, largest, 0, 3))).expect("an answer");
        assert_eq!(
            filled,
            [i64::try_from(whole.capacity()).expect("small enough")]
        );
    }
}

#[test]
fn an_adjustment_that_fails_halfway_may_have_changed_something() {
    let quota = quota(40, 1.0);
    for (at, charge) in [(0, ChargeState::NotCharged), (1, ChargeState::Unknown)] {
        let (store, calls) = Watched::new(Some((at, ChargeState::NotCharged)));
        let error = now(store.adjust(change(quota, 40, 0, 4))).expect_err("it fails");
        assert_eq!((error.kind(), error.charge()), (ErrorKind::Io, charge));
        assert_eq!(taken(&calls).len(), at + 1);
    }
    let (store, _) = Watched::new(Some((1, ChargeState::NotCharged)));
    let error = now(store.adjust(change(quota, 0, 0, 4))).expect_err("it fails");
    assert_eq!(error.charge(), ChargeState::NotCharged, "it only looked");
}

#[test]
fn the_deadline_is_the_same_for_every_shard() {
    let (store, calls) = Watched::new(None);
    let quota = quota(40, 1.0);
    let deadline = Instant::now() + Duration::from_millis(25);
    let all = check(quota, 1, 4).with_count(count(99));
    let _ = decide(&store, all.with_deadline(deadline.into_std()));
    let back = change(quota, 40, 0, 4).with_deadline(deadline.into_std());
    assert!(now(store.adjust(back)).is_ok());
    let calls = calls.lock().expect("no panic");
    assert_eq!(calls.len(), 8);
    assert!(calls.iter().all(|(_, given)| *given == Some(deadline)));
}

#[test]
fn the_store_has_decided_if_it_was_asked_at_all() {
    let check = check(quota(2, 1.0), 1, 2);
    let denial = |source| check.clone().decide(0, source, [(0, Wait::Never)]);
    for (sources, expected) in [
        ([Source::Store, Source::DenialCache], Source::Store),
        ([Source::DenialCache, Source::Store], Source::Store),
        (
            [Source::DenialCache, Source::DenialCache],
            Source::DenialCache,
        ),
    ] {
        let mut tally = Tally::default();
        for source in sources {
            tally.add(denial(source));
        }
        assert_eq!(tally.conclude(&check).source, expected);
    }
}

#[derive(Clone, Debug)]
struct Step {
    millis: u64,
    cost: u32,
    count: u64,
}

fn histories() -> impl Strategy<Value = Vec<Step>> {
    let millis = prop_oneof![Just(0_u64), 1_u64..50, 1_u64..3_000];
    let step = (millis, 0_u32..4, 1_u64..6);
    let step = step.prop_map(|(millis, cost, count)| Step {
        millis,
        cost,
        count,
    });
    vec(step, 1..80)
}

proptest! {
    #[test]
    fn no_traffic_gets_more_than_a_plain_bucket_may_give(
        capacity in 1_u64..60,
        per_second in 1_u32..40,
        shards in 2_u8..=16,
        steps in histories(),
    ) {
        let quota = quota(capacity, per_second);
        let parts = quota.parts(nonzero(shards), 1);
        let (store, clock) = over_memory();
        let (mut time, mut spent) = (0, Vec::new());
        for step in steps {
            clock.advance(step.millis);
            time += step.millis;
            let decision = decide(
                &store,
                check(quota, step.cost, shards).with_count(count(step.count)),
            );
            spent.push((time, decision.granted * u64::from(step.cost)));

            // In every span up to now, in thousandths of a token.
            let mut sum = 0;
            for (start, tokens) in spent.iter().rev() {
                sum += tokens;
                let bound = capacity * 1_000 + u64::from(per_second) * (time - start);
                prop_assert!(sum * 1_000 <= bound, "{} in {} ms", sum, time - start);
            }
            // Denied is only what no shard has room for.
            if decision.granted < step.count {
                for i in 0..parts.get() {
                    let one = part_of(&check(quota, step.cost, shards), i, NonZeroU64::MIN);
                    prop_assert!(!decide(&*store.store, one).is_allowed());
                }
            }
        }
    }
}

/// Answers from memory after a delay, within the deadline.
struct Far {
    memory: Arc<MemoryStore<ManualClock>>,
    calls: Arc<Mutex<u32>>,
}

impl Store for Far {
    fn check(&self, check: Check) -> CheckFuture {
        *self.calls.lock().expect("no panic") += 1;
        let answer = self.memory.decide(&check);
        CheckFuture::new(async move {
            tokio::time::sleep(Duration::from_millis(4)).await;
            answer
        })
    }

    fn adjust(&self, _: Adjustment) -> AdjustFuture {
        unreachable!("nothing is given back here")
    }
}

#[tokio::test(start_paused = true)]
async fn a_drained_tenant_is_denied_though_asking_all_shards_takes_longer_than_a_deadline() {
    let calls = Arc::new(Mutex::new(0));
    let far = Far {
        memory: Arc::new(MemoryStore::with_clock(ManualClock::default())),
        calls: calls.clone(),
    };
    let shards = Shards::new(far).with_denial_cache(Arc::new(()));
    let charges = ["a", "b"].map(|limit| charge(limit, quota(64, 0.001), 1));
    let check = Check::new(charges.to_vec()).expect("a check");
    let check = check.with_shards(nonzero(8));
    // Twenty-five milliseconds are enough for six of the eight.
    let ask =
        async || tokio::time::timeout(Duration::from_millis(25), shards.check(check.clone())).await;
    let (mut admitted, mut denied, mut late) = (0, 0, 0);
    for _ in 0..200 {
        match ask().await {
            Ok(answer) if answer.as_ref().expect("an answer").is_allowed() => admitted += 1,
            Ok(_) => denied += 1,
            Err(_) => late += 1,
        }
    }
    // A request that was given up may have taken a token from the shard that it asked last.
    assert!(admitted <= 64 && admitted + late >= 64, "{admitted} {late}");
    assert!(late <= 20 && denied >= 100, "{late} late, {denied} denied");
    assert!(*calls.lock().expect("no panic") < 800, "{calls:?}");
}
