//! A store that fails, and a service that ends.

use super::*;

/// A replica that has leased, and holds what it has not spent; and how much the requests have taken.
async fn with_lease(link: &Link, check: &Check) -> Arc<Leases<Link>> {
    let replica = link.replica(LeaseSettings::default());
    let _ = ask_at_once(&replica, check, 10).await;
    let decision = ask(&replica, check.clone()).await.expect("an answer");
    assert_eq!(decision.source, Source::Lease);
    assert_eq!(link.log().outstanding(), 10);
    replica
}

fn thousand() -> Check {
    check(quota(1_000, "1/h"), 1)
}

#[tokio::test(start_paused = true)]
async fn a_claim_that_fails_tells_those_who_wait_and_leaves_no_lease() {
    let link = Link::new();
    let replica = link.replica(LeaseSettings::default());
    let _ = ask_at_once(&replica, &thousand(), 10).await;
    link.set(Fault::Refuse);
    let waiting: Vec<_> = (0..3).map(|_| replica.check(thousand())).collect();
    for waiting in waiting {
        let error = waiting.await.expect_err("a failure");
        assert_eq!(error.charge(), ChargeState::NotCharged);
    }
    assert_eq!(link.log().claims(), 1);
    assert_eq!(link.log().outstanding(), 0);
    // Nothing is claimed before a single request has got an answer.
    let _ = replica.check(thousand()).await.expect_err("a failure");
    link.set(Fault::None);
    let answer = ask(&replica, thousand()).await.expect("an answer");
    assert_eq!((answer.source, link.log().claims()), (Source::Store, 1));
    let answer = ask(&replica, thousand()).await.expect("an answer");
    assert_eq!((answer.source, link.log().claims()), (Source::Lease, 2));
}

#[tokio::test(start_paused = true)]
async fn a_claim_whose_answer_is_lost_is_never_spent_nor_given_back() {
    let link = Link::new();
    let replica = link.replica(LeaseSettings::default());
    let _ = ask_at_once(&replica, &thousand(), 10).await;
    link.set(Fault::LoseReplies);
    let error = replica.check(thousand()).await.expect_err("lost");
    assert_eq!(error.charge(), ChargeState::Unknown);
    link.set(Fault::None);
    sleep(5 * SECOND).await;
    let log = link.log();
    assert_eq!((log.outstanding(), log.adjustments), (0, 0));
    assert_eq!(
        link.remaining(&thousand()),
        1_000 - 10 - 11,
        "lost until refill"
    );
}

#[tokio::test(start_paused = true)]
async fn giving_back_is_tried_once() {
    for fault in [Fault::Refuse, Fault::LoseReplies, Fault::Silence] {
        let link = Link::new();
        let replica = with_lease(&link, &thousand()).await;
        link.set(fault);
        sleep(SECOND).await;
        assert_eq!(link.log().adjustments, 1, "{fault:?}");
        sleep(SECOND + 10 * MS).await;
        assert_eq!(link.log().outstanding(), 0, "{fault:?}");
        link.set(Fault::None);
        let _ = ask(&replica, thousand()).await;
        sleep(5 * SECOND).await;
        assert_eq!(link.log().adjustments, 1, "{fault:?}");
        let carried_out = if fault == Fault::LoseReplies { 0 } else { 10 };
        assert_eq!(link.remaining(&thousand()), 1_000 - 12 - carried_out);
    }
}

#[tokio::test(start_paused = true)]
async fn nobody_waits_for_a_claim_that_is_overdue() {
    let link = Link::new();
    let replica = link.replica(LeaseSettings::default());
    let _ = ask_at_once(&replica, &thousand(), 10).await;
    link.set(Fault::Silence);
    let waiting = replica.check(thousand());
    sleep(20 * MS).await;
    link.log().checks.clear();
    let own = replica.check(thousand());
    assert_eq!(
        link.log().checks,
        [1],
        "a call of its own, which the circuit breaker hears of"
    );
    drop((waiting, own));
    assert_eq!(link.log().outstanding(), 11);
    sleep(SECOND / 2).await;
    assert_eq!(link.log().outstanding(), 0, "given up");
}

#[tokio::test(start_paused = true)]
async fn a_claim_is_given_up_soon_however_long_a_lease_lives() {
    let link = Link::new();
    let settings = LeaseSettings {
        life: 60 * SECOND,
        ..LeaseSettings::default()
    };
    let replica = link.replica(settings);
    let _ = ask_at_once(&replica, &thousand(), 10).await;
    link.set(Fault::Silence);
    let _waiting = replica.check(thousand());
    assert_eq!(link.log().outstanding(), 11);
    sleep(SECOND / 2 + MS).await;
    assert_eq!(link.log().outstanding(), 0);
}

#[tokio::test(start_paused = true)]
async fn a_lease_from_before_a_cut_is_spent_while_it_lives_and_never_charged_again() {
    let link = Link::new();
    let replica = with_lease(&link, &thousand()).await;
    link.set(Fault::Refuse);
    let mut from_lease = 0;
    for _ in 0..500 {
        if let Ok(decision) = ask(&replica, thousand()).await {
            assert_eq!(decision.source, Source::Lease);
            from_lease += 1;
        }
        sleep(10 * MS).await;
    }
    assert_eq!(from_lease, 10);
    link.set(Fault::None);
    sleep(5 * SECOND).await;
    assert_eq!(link.remaining(&thousand()), 1_000 - 11 - from_lease);
    assert_eq!(link.log().outstanding(), 0);
}

#[tokio::test(start_paused = true)]
async fn shutdown_gives_everything_back_at_once_and_ends_leasing() {
    let link = Link::new();
    let replica = with_lease(&link, &thousand()).await;
    let others: Vec<_> = (0..100)
        .map(|i| {
            let charge = charge(&format!("l{i}"), quota(1_000, "1/h"), 1);
            Check::single(charge).with_lease(true)
        })
        .collect();
    for other in &others {
        let _ = ask_at_once(&replica, other, 5).await;
        let _ = ask(&replica, other.clone()).await;
    }
    // One more is on its way.
    let coming = charge("coming", quota(1_000, "1/h"), 1);
    let coming = Check::single(coming).with_lease(true);
    let _ = ask_at_once(&replica, &coming, 5).await;
    let waiting = replica.check(coming.clone());
    let before = Instant::now();
    replica.shutdown().await;
    assert!(
        before.elapsed() <= 8 * MS,
        "all at once: {:?}",
        before.elapsed()
    );
    assert_eq!(link.log().outstanding(), 0);
    assert!(waiting.await.expect("an answer").is_allowed());
    assert_eq!(link.remaining(&thousand()), 1_000 - 11);
    assert_eq!(link.remaining(&coming), 1_000 - 6);
    for other in &others {
        assert_eq!(link.remaining(other), 1_000 - 6);
    }
    link.log().checks.clear();
    link.log().moves = 0;
    let _ = ask_often(&replica, &thousand(), 50, MS).await;
    assert_eq!(link.log().checks, [1; 50]);
    assert_eq!(link.log().moves, 0, "no claim is even thought of");
    replica.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn shutdown_ends_in_time_when_the_store_is_silent() {
    let link = Link::new();
    let replica = with_lease(&link, &thousand()).await;
    link.set(Fault::Silence);
    let coming = check(quota(500, "1/h"), 1);
    let _claim = replica.check(coming);
    let before = Instant::now();
    replica.shutdown().await;
    assert!(before.elapsed() < 2 * SECOND, "{:?}", before.elapsed());
    sleep(2 * SECOND).await;
    assert_eq!(link.log().outstanding(), 0, "the rest is lost until refill");
    assert!(link.log().adjustments <= 1);
}

#[tokio::test(start_paused = true)]
async fn a_stage_that_is_dropped_gives_back() {
    let link = Link::new();
    let replica = with_lease(&link, &thousand()).await;
    drop(replica);
    sleep(10 * MS).await;
    assert_eq!(link.log().outstanding(), 0);
    assert_eq!(link.remaining(&thousand()), 1_000 - 11);
    assert_eq!(
        Arc::strong_count(&link.store),
        1,
        "and nothing of it is left"
    );
}

fn runtime() -> tokio::runtime::Runtime {
    let mut builder = tokio::runtime::Builder::new_current_thread();
    let builder = builder.enable_time().start_paused(true);
    builder.build().expect("a runtime")
}

#[test]
fn claims_run_where_the_stage_was_built_though_a_request_came_from_elsewhere() {
    let (service, worker) = (runtime(), runtime());
    let link = Link::new();
    let replica = service.block_on(async { link.replica(LeaseSettings::default()) });
    // Driven for one call at a time, and not any more after the one that has to wait for a claim.
    assert_eq!(worker.block_on(ask_at_once(&replica, &thousand(), 10)), 10);
    let entered = worker.enter();
    drop(replica.check(thousand()));
    drop(entered);
    assert_eq!(link.log().outstanding(), 11);
    service.block_on(replica.shutdown());
    assert_eq!(link.log().outstanding(), 0);
    assert_eq!(link.remaining(&thousand()), 1_000 - 10);
}

#[test]
fn a_stage_that_was_built_outside_of_a_runtime_leases_on_that_of_the_request() {
    let link = Link::new();
    let replica = link.replica(LeaseSettings::default());
    runtime().block_on(async {
        let _ = ask_at_once(&replica, &thousand(), 10).await;
        let answer = ask(&replica, thousand()).await.expect("an answer");
        assert_eq!(answer.source, Source::Lease);
        replica.shutdown().await;
    });
    assert_eq!(link.remaining(&thousand()), 1_000 - 11);
}

#[test]
fn claims_that_end_with_their_runtime_are_not_leased_any_more() {
    let first = runtime();
    let (link, replica) = first.block_on(async {
        let link = Link::new();
        let replica = with_lease(&link, &thousand()).await;
        let _ = ask_often(&replica, &thousand(), 8, MS).await;
        (link, replica)
    });
    assert!(link.log().outstanding() > 0);
    drop(first);
    assert_eq!(link.log().outstanding(), 0);
    let answer = runtime().block_on(ask(&replica, thousand()));
    assert_eq!(answer.expect("an answer").source, Source::Store);
}

#[test]
fn leases_end_though_the_runtime_of_earlier_ones_is_not_driven() {
    let link = Link::new();
    let replica = link.replica(LeaseSettings::default());
    let lease = async || {
        let _ = ask_at_once(&replica, &thousand(), 10).await;
        let _ = ask(&replica, thousand()).await;
        assert!(link.log().outstanding() > 0);
    };
    let stopped = runtime();
    stopped.block_on(lease());
    runtime().block_on(async {
        sleep(5 * SECOND).await;
        lease().await;
        sleep(2 * SECOND).await;
        assert_eq!(link.log().outstanding(), 0);
    });
}

#[tokio::test(start_paused = true)]
async fn a_claim_that_lingers_is_not_made_when_the_service_ends() {
    let link = Link::new();
    let replica = with_lease(&link, &thousand()).await;
    // The last of these orders the next claim.
    let mut spent = 0;
    while link.log().outstanding() <= 10 {
        let _ = ask(&replica, thousand()).await;
        spent += 1;
    }
    replica.shutdown().await;
    let log = link.log();
    assert_eq!(log.claims(), 1);
    assert_eq!(log.outstanding(), 0);
    // Ten calls of their own, the claim, and what it gave back.
    assert_eq!(log.saved, 11 + spent - 12);
}
