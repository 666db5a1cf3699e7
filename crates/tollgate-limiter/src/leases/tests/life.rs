//! Claimed, renewed, spent, given back.

use super::*;

/// Leases of at most ten requests.
fn of_ten() -> LeaseSettings {
    LeaseSettings {
        largest_batch: 10,
        ..LeaseSettings::default()
    }
}

/// Asks a thousand times, and is paid for by a lease each time without a wait.
async fn spend_at_once(replica: &Leases<Link>, check: &Check, pause: Duration) {
    for _ in 0..1_000 {
        let before = Instant::now();
        let decision = ask(replica, check.clone()).await.expect("an answer");
        assert_eq!(decision.source, Source::Lease);
        assert_eq!(before.elapsed(), Duration::ZERO, "it has waited");
        sleep(pause).await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_busy_tenant_never_waits_for_the_store() {
    let link = Link::new();
    let replica = link.replica(LeaseSettings::default());
    let check = check(quota(100_000, "1/s"), 1);
    let _ = ask_often(&replica, &check, 100, 5 * MS).await;
    let calls = link.log().checks.len();
    spend_at_once(&replica, &check, 5 * MS).await;
    // 100 in each target span, so a call for each 100.
    let calls = link.log().checks.len() - calls;
    assert!((9..=12).contains(&calls), "{calls} calls");
    assert!(link.log().saved >= 1_000);
}

#[tokio::test(start_paused = true)]
async fn a_claim_that_is_urgent_does_not_linger() {
    let link = Link::new();
    let settings = LeaseSettings {
        target: 40 * MS,
        ..LeaseSettings::default()
    };
    let replica = link.replica(settings);
    let check = check(quota(100_000, "1/s"), 1);
    let _ = ask_often(&replica, &check, 100, MS).await;
    // A quarter lasts for 10 ms, and a call takes four.
    spend_at_once(&replica, &check, MS).await;
}

#[tokio::test(start_paused = true)]
async fn claims_that_are_not_urgent_go_together() {
    let link = Link::new();
    let replica = link.replica(LeaseSettings::default());
    let mut asking = JoinSet::new();
    for tenant in 0..10 {
        let charge = charge(&format!("l{tenant}"), quota(100_000, "1/s"), 1);
        let check = Check::single(charge).with_lease(true);
        let replica = replica.clone();
        asking.spawn(async move {
            sleep(tenant * MS).await;
            let _ = ask_often(&replica, &check, 20, 11 * MS).await;
            replica.shared.store.log().claimed.clear();
            ask_often(&replica, &check, 300, 11 * MS).await
        });
    }
    let _ = asking.join_all().await;
    let mut claimed = link.log().claimed.clone();
    let claims = claimed.len();
    claimed.sort_unstable();
    claimed.dedup();
    assert!(claims >= 50, "{claims} claims");
    assert!(claimed.len() < claims / 2, "{} rounds", claimed.len());
}

#[tokio::test(start_paused = true)]
async fn a_burst_hurries_a_claim_that_lingers() {
    let check = check(quota(100_000, "1/s"), 1);
    let mut waited = 0;
    // Wherever between two claims it comes: at some of them, one lingers.
    for phase in 100..200 {
        let link = Link::new();
        let replica = link.replica(LeaseSettings::default());
        let _ = ask_often(&replica, &check, phase, 5 * MS).await;
        let mut burst = JoinSet::new();
        for _ in 0..60 {
            let (replica, check) = (replica.clone(), check.clone());
            burst.spawn(async move {
                let before = Instant::now();
                let decision = ask(&replica, check).await.expect("an answer");
                assert_eq!(decision.source, Source::Lease);
                before.elapsed()
            });
        }
        let longest = burst.join_all().await.into_iter().max().expect("some");
        assert!(longest <= 5 * MS, "{longest:?}, and a call takes four");
        waited += u32::from(!longest.is_zero());
    }
    assert!(waited > 0);
}

#[tokio::test(start_paused = true)]
async fn requests_at_random_cost_hardly_more_calls_than_even_ones() {
    let link = Link::new();
    let replica = link.replica(LeaseSettings::default());
    let check = check(quota(100_000, "1000/s"), 1);
    // One in 19.5 ms, so a claim for 25 or 26.
    let mut random = 42_u64;
    for _ in 0..5_000 {
        random = random.wrapping_mul(6_364_136_223_846_793_005);
        random = random.wrapping_add(1);
        let pause = Duration::from_millis((random >> 33) % 40);
        assert_eq!(ask_often(&replica, &check, 1, pause).await, 1);
    }
    let log = link.log();
    let calls = log.checks.len() + log.adjustments;
    assert!((190..=205).contains(&calls), "{calls} calls");
}

#[tokio::test(start_paused = true)]
async fn a_lease_whose_claim_was_overtaken_ends_in_time() {
    let link = Link::new();
    let replica = link.replica(LeaseSettings::default());
    let [first, second] = ["a", "b"].map(|name| {
        let charge = charge(name, quota(1_000, "1/h"), 1);
        Check::single(charge).with_lease(true)
    });
    for check in [&first, &second] {
        let _ = ask_at_once(&replica, check, 10).await;
    }
    link.weather.lock().expect("no panic").1 = 100 * MS;
    let sent = Instant::now();
    let slow = replica.check(first.clone());
    sleep(100 * MS).await;
    link.weather.lock().expect("no panic").1 = 2 * MS;
    let _ = ask(&replica, second.clone()).await;
    assert!(slow.await.is_ok());
    assert_eq!(link.log().outstanding(), 20);
    sleep_until(sent + SECOND + 10 * MS).await;
    assert_eq!(link.log().outstanding(), 10);
    sleep_until(sent + SECOND + 110 * MS).await;
    assert_eq!(link.log().outstanding(), 0);
}

#[tokio::test(start_paused = true)]
async fn what_is_not_spent_goes_back_though_nobody_asks_any_more() {
    let link = Link::new();
    let replica = link.replica(LeaseSettings::default());
    let check = check(quota(1_000, "1/h"), 2);
    let allowed = ask_often(&replica, &check, 40, MS).await;
    assert!(link.log().outstanding() > 0);
    assert!(link.remaining(&check) < 1_000 - 2 * allowed);
    // Not renewed since, and never later than the life of the last claim, and the trip.
    sleep(SECOND + 10 * MS).await;
    assert_eq!(link.log().outstanding(), 0);
    assert_eq!(link.remaining(&check), 1_000 - 2 * allowed);
    assert_eq!(
        replica.shared.sets.len(),
        0,
        "nothing is kept for an idle tenant"
    );
}

#[tokio::test(start_paused = true)]
async fn a_lease_ends_its_life_counted_from_when_the_claim_was_sent() {
    let link = Link::new();
    link.weather.lock().expect("no panic").1 = 100 * MS;
    let replica = link.replica(LeaseSettings::default());
    let check = check(quota(1_000, "1/h"), 1);
    let _ = ask_at_once(&replica, &check, 10).await;
    let sent = Instant::now();
    let waited = ask(&replica, check.clone()).await.expect("an answer");
    assert_eq!((waited.source, sent.elapsed()), (Source::Lease, 200 * MS));
    sleep_until(sent + SECOND - MS).await;
    let last = ask(&replica, check.clone()).await.expect("an answer");
    assert_eq!(last.source, Source::Lease);
    sleep_until(sent + SECOND).await;
    let next = ask(&replica, check.clone()).await.expect("an answer");
    assert_eq!(next.source, Source::Store);
}

#[tokio::test(start_paused = true)]
async fn near_the_limit_nothing_is_claimed() {
    let link = Link::new();
    let replica = link.replica(LeaseSettings::default());
    let check = check(quota(32, "1/h"), 1);
    // With 30 left, three are claimed once; then all are asked for one by one.
    let allowed = ask_often(&replica, &check, 100, MS).await;
    let checks = link.log().checks.clone();
    assert!(
        checks.iter().all(|&count| count == 1 || count == 3),
        "{checks:?}"
    );
    assert!((1..=2).contains(&link.log().claims()));
    assert_eq!(allowed, 32);
    assert_eq!(link.log().spent(), 32);
}

#[tokio::test(start_paused = true)]
async fn a_claim_is_sized_by_demand_share_and_setting() {
    let largest = |settings: LeaseSettings, capacity, cost, requests| async move {
        let link = Link::new();
        let replica = link.replica(settings);
        let check = check(quota(capacity, "1000/s"), cost);
        let _ = ask_at_once(&replica, &check, requests).await;
        let _ = ask(&replica, check).await;
        let largest = link.log().checks.iter().copied().max();
        largest.expect("a call")
    };
    let settings = LeaseSettings::default;
    assert_eq!(largest(settings(), 100_000, 1, 40).await, 41, "the demand");
    assert_eq!(largest(settings(), 140, 1, 40).await, 10, "a tenth of 100");
    assert_eq!(
        largest(settings(), 1_400, 10, 40).await,
        10,
        "of ten tokens each"
    );
    let mut capped = settings();
    capped.largest_batch = 7;
    assert_eq!(largest(capped, 100_000, 1, 40).await, 7);
}

#[tokio::test(start_paused = true)]
async fn requests_wait_for_the_claim_on_its_way_and_those_left_over_for_the_next() {
    let link = Link::new();
    let replica = link.replica(of_ten());
    let check = check(quota(1_000, "1/h"), 1);
    let _ = ask_at_once(&replica, &check, 10).await;
    link.log().checks.clear();
    let before = Instant::now();
    assert_eq!(ask_at_once(&replica, &check, 15).await, 15);
    assert_eq!(link.log().sorted_checks(), [10, 10]);
    assert_eq!(before.elapsed(), 8 * MS, "two trips");
    // A third of them would wait for too long.
    sleep(2 * SECOND).await;
    let _ = ask_at_once(&replica, &check, 10).await;
    link.log().checks.clear();
    assert_eq!(ask_at_once(&replica, &check, 25).await, 25);
    assert_eq!(link.log().sorted_checks(), [1, 1, 1, 1, 1, 10, 10]);
}

#[tokio::test(start_paused = true)]
async fn those_who_cannot_wait_for_two_trips_make_calls_of_their_own() {
    let link = Link::new();
    let replica = link.replica(of_ten());
    let check = check(quota(1_000, "1/h"), 1);
    let _ = ask_at_once(&replica, &check, 10).await;
    link.log().checks.clear();
    let deadline = Instant::now() + 7 * MS;
    let check = check.with_deadline(deadline.into_std());
    assert_eq!(ask_at_once(&replica, &check, 12).await, 12);
    assert_eq!(link.log().sorted_checks(), [1, 1, 10]);
    assert!(Instant::now() < deadline);
}

#[tokio::test(start_paused = true)]
async fn one_that_leaves_while_it_waits_passes_its_turn_on() {
    let link = Link::new();
    let replica = link.replica(LeaseSettings::default());
    let check = check(quota(1_000, "1/h"), 1);
    let _ = ask_at_once(&replica, &check, 4).await;
    let mut waiting: Vec<_> = (0..3).map(|_| replica.check(check.clone())).collect();
    drop(waiting.remove(0));
    for waiting in waiting {
        assert_eq!(waiting.await.expect("an answer").source, Source::Lease);
    }
    // 4 single ones, and two of a claim of five; the other three go back.
    assert_eq!(link.log().outstanding(), 3);
    sleep(2 * SECOND).await;
    assert_eq!(link.remaining(&check), 1_000 - 6);
    assert_eq!(link.log().outstanding(), 0);
}

#[tokio::test(start_paused = true)]
async fn what_is_shown_as_remaining_includes_what_this_replica_holds() {
    let link = Link::new();
    let replica = link.replica(LeaseSettings::default());
    let check = check(quota(1_000, "1/h"), 2);
    for i in 1..=100 {
        let decision = ask(&replica, check.clone()).await.expect("an answer");
        let limit = &decision.limits[0];
        // Nobody else spends, so it is exact but for claims whose answer is on its way.
        let exact = 1_000 - 2 * i;
        let shown = limit.remaining.expect("known");
        assert!(
            shown <= exact && shown + 2 >= exact,
            "{shown}, {exact} are there"
        );
        assert_eq!(limit.wait, Wait::None);
        sleep(5 * MS).await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_set_of_limits_is_leased_as_a_whole() {
    let link = Link::new();
    let replica = link.replica(LeaseSettings::default());
    let charges = vec![
        charge("default", quota(1_000, "1/h"), 1),
        charge("reports", quota(600, "1/h"), 3),
        charge("free", quota(5, "1/h"), 0),
    ];
    let check = Check::new(charges).expect("a check").with_lease(true);
    let allowed = ask_often(&replica, &check, 100, MS).await;
    assert_eq!(allowed, 100);
    assert!(link.log().claims() > 0);
    sleep(2 * SECOND).await;
    let decision = link.store.decide(&check).expect("an answer");
    let remaining: Vec<_> = decision.limits.iter().map(|it| it.remaining).collect();
    assert_eq!(remaining, [Some(899), Some(297), Some(5)]);
    assert_eq!(link.log().outstanding(), 0);
}

#[tokio::test(start_paused = true)]
async fn a_limit_in_shadow_never_blocks_and_shows_that_it_lacks_tokens() {
    let link = Link::new();
    let replica = link.replica(LeaseSettings::default());
    let charges = vec![
        charge("default", quota(10_000, "1/h"), 1),
        charge("watched", quota(50, "1/h"), 1),
    ];
    let check = Check::new(charges).expect("a check").with_shadow(1);
    let check = check.expect("one of two").with_lease(true);
    let mut lacking = 0;
    for _ in 0..100 {
        let decision = ask(&replica, check.clone()).await.expect("an answer");
        assert!(decision.is_allowed());
        lacking += usize::from(decision.limits[1].lacked_tokens());
        sleep(MS).await;
    }
    assert_eq!(lacking, 50);
}

#[tokio::test(start_paused = true)]
async fn only_what_may_be_leased_is() {
    let link = Link::new();
    let replica = link.replica(LeaseSettings::default());
    let leased = check(quota(1_000, "1/h"), 1);
    let several = leased
        .clone()
        .with_count(NonZeroU64::new(2).expect("not 0"));
    let free = check(quota(1_000, "1/h"), 0);
    for check in [leased.with_lease(false), several, free] {
        let _ = ask_often(&replica, &check, 20, MS).await;
    }
    assert_eq!(link.log().checks.len(), 60);
    assert_eq!(replica.shared.sets.len(), 0);
}

#[tokio::test(start_paused = true)]
async fn the_number_of_sets_is_bounded() {
    let link = Link::new();
    let settings = LeaseSettings {
        max_sets: 64,
        ..LeaseSettings::default()
    };
    let replica = link.replica(settings);
    let check = |i: usize| {
        let charge = charge(&format!("l{i}"), quota(1_000, "1/h"), 1);
        Check::single(charge).with_lease(true)
    };
    for i in 0..500 {
        drop(replica.check(check(i)));
    }
    assert!(replica.shared.sets.len() <= 64);
    // There is room again when they are idle.
    sleep(2 * SECOND).await;
    for i in 500..600 {
        drop(replica.check(check(i)));
        let _ = ask_at_once(&replica, &check(i), 5).await;
        sleep(2 * SECOND).await;
        assert!(replica.shared.sets.len() <= 64);
        link.log().checks.clear();
        let _ = ask_at_once(&replica, &check(i), 5).await;
        assert_eq!(link.log().claims(), 1, "set {i}");
        sleep(2 * SECOND).await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_lease_is_void_when_its_quota_changes() {
    let link = Link::new();
    let replica = link.replica(LeaseSettings::default());
    let (old, new) = (quota(1_000, "1/h"), quota(20, "1/h"));
    let _ = ask_often(&replica, &check(old, 1), 50, MS).await;
    let leased = link.log().outstanding();
    assert!(leased > 0);
    let spent = link.log().spent();
    // Clamped to the new capacity.
    let first = ask(&replica, check(new, 1)).await.expect("an answer");
    assert_eq!(
        (first.source, first.limits[0].remaining),
        (Source::Store, Some(19))
    );
    sleep(10 * MS).await;
    assert_eq!(link.log().outstanding(), 0, "given back at once");
    let mut asked = 0;
    while ask(&replica, check(new, 1))
        .await
        .expect("an answer")
        .is_allowed()
    {
        asked += 1;
    }
    assert!(
        asked <= 20,
        "{asked} of 20, {leased} were leased, {spent} spent before"
    );
    // Back to the former quota, nothing of the old lease is spendable.
    let again = ask(&replica, check(old, 1)).await.expect("an answer");
    assert_ne!(again.source, Source::Lease);
}

#[tokio::test(start_paused = true)]
async fn a_claim_that_was_under_way_when_the_quota_changed_is_given_back() {
    let link = Link::new();
    let replica = link.replica(LeaseSettings::default());
    let (old, new) = (quota(1_000, "1/h"), quota(2_000, "1/h"));
    let _ = ask_at_once(&replica, &check(old, 1), 10).await;
    let waiting = replica.check(check(old, 1));
    assert_eq!(link.log().outstanding(), 11);
    let other = replica.check(check(new, 1));
    assert_eq!(other.await.expect("an answer").source, Source::Store);
    assert_eq!(waiting.await.expect("an answer").source, Source::Store);
    sleep(10 * MS).await;
    assert_eq!(link.log().outstanding(), 0);
    assert_eq!(link.remaining(&check(old, 1)), 1_000 - 12);
}

#[tokio::test(start_paused = true)]
async fn a_lease_is_void_when_the_number_of_shards_changes() {
    let link = Link::new();
    let replica = link.replica(LeaseSettings::default());
    let whole = check(quota(1_000, "1/h"), 1);
    let split = whole.clone().with_shards(NonZeroU8::MAX);
    let _ = ask_at_once(&replica, &whole, 10).await;
    let _ = ask(&replica, whole.clone()).await;
    assert_eq!(link.log().outstanding(), 10);
    let first = ask(&replica, split).await.expect("an answer");
    assert_eq!(first.source, Source::Store);
    sleep(10 * MS).await;
    assert_eq!(link.log().outstanding(), 0, "given back at once");
    assert_eq!(link.remaining(&whole), 1_000 - 12);
}

#[tokio::test(start_paused = true)]
async fn tenants_of_two_key_classes_spend_one_lease_which_counts_for_the_class_that_claimed_it() {
    let link = Link::new();
    let replica = link.replica(LeaseSettings::default());
    let pro = check(quota(10_000, "1/h"), 1);
    let free = pro.clone().with_key_class("free".into());
    for _ in 0..200 {
        for check in [&pro, &free] {
            assert_eq!(ask_often(&replica, check, 1, MS).await, 1);
        }
    }
    let calls = link.log().checks.len();
    assert!(calls < 40, "{calls} calls for 400 requests");
    sleep(2 * SECOND).await;
    let mut leased: Vec<_> = link.log().leased.clone().into_iter().collect();
    leased.sort_unstable();
    assert_eq!(leased, [("free".to_owned(), 0), ("pro".to_owned(), 0)]);
    assert_eq!(link.remaining(&pro), 10_000 - 400);
}

#[tokio::test(start_paused = true)]
async fn a_short_claim_denies_only_those_who_came_before_it_was_sent() {
    let link = Link::new();
    link.weather.lock().expect("no panic").1 = 10 * MS;
    let replica = link.replica(LeaseSettings::default());
    // A token every 10 ms.
    let check = check(quota(1_000, "100/s"), 1);
    let _ = ask_at_once(&replica, &check, 10).await;
    let others = check
        .clone()
        .with_count(NonZeroU64::new(1_000).expect("not 0"));
    let _ = link.store.decide(&others).expect("an answer");

    // The store has one token for these when it decides, and the next one 10 ms later.
    let before = [replica.check(check.clone()), replica.check(check.clone())];
    sleep(15 * MS).await;
    let after = replica.check(check.clone());
    let [first, second] = before;
    let first = first.await.expect("an answer");
    assert_eq!((first.is_allowed(), first.source), (true, Source::Lease));
    let second = second.await.expect("an answer");
    assert_eq!((second.is_allowed(), second.source), (false, Source::Store));
    assert!(after.await.expect("an answer").is_allowed());
    assert_eq!(link.log().claims(), 1);
}

#[tokio::test(start_paused = true)]
async fn calls_saved_are_the_requests_without_a_call_less_the_calls_that_leases_cost() {
    // Bursts whose lease is wasted, bursts that a lease pays for, and a steady tenant.
    for (burst, pause) in [(6, 1_500), (100, 1_500), (500, 5)] {
        let link = Link::new();
        let replica = link.replica(LeaseSettings::default());
        let check = check(quota(1_000, "1000/s"), 1);
        let mut asked = 0;
        while asked < 500 {
            let _ = ask_often(&replica, &check, burst, 5 * MS).await;
            asked += burst;
            sleep(pause * MS).await;
        }
        replica.shutdown().await;
        let log = link.log();
        let calls = log.checks.len() + log.adjustments;
        let spared = asked.saturating_sub(calls);
        assert_eq!(log.saved, spared, "{asked} requests, {calls} calls");
    }
}

#[tokio::test(start_paused = true)]
async fn a_claim_that_goes_to_waiting_requests_whole_costs_one_call() {
    let link = Link::new();
    let replica = link.replica(of_ten());
    let check = check(quota(1_000, "1/h"), 1);
    for _ in 0..2 {
        assert_eq!(ask_at_once(&replica, &check, 10).await, 10);
    }
    replica.shutdown().await;
    let log = link.log();
    assert_eq!((log.checks.len(), log.adjustments), (11, 0));
    assert_eq!(log.saved, 20 - 11);
}

#[test]
fn settings_out_of_range_are_refused_by_name() {
    type Change = (&'static str, fn(&mut LeaseSettings));
    let changes: [Change; 9] = [
        ("life", |it| it.life = Duration::ZERO),
        ("life", |it| it.life = Duration::MAX),
        ("target", |it| it.target = Duration::ZERO),
        ("target", |it| it.target = 2 * it.life),
        ("share", |it| it.share = 0.0),
        ("share", |it| it.share = 1.1),
        ("share", |it| it.share = f64::NAN),
        ("largest_batch", |it| it.largest_batch = 2),
        ("max_sets", |it| it.max_sets = 0),
    ];
    assert_eq!(LeaseSettings::default().fault(), None);
    for (field, change) in changes {
        let mut settings = LeaseSettings::default();
        change(&mut settings);
        let fault = settings.fault().expect("refused");
        assert!(fault.contains(field), "{fault}");
    }
}
