//! Several replicas over one store: too many, too few, stranded.

use super::*;

fn hundred() -> Check {
    check(quota(100, "1/h"), 1)
}

/// Leases of ten requests that live for two seconds.
fn settings() -> LeaseSettings {
    LeaseSettings {
        life: 2 * SECOND,
        largest_batch: 10,
        share: 0.2,
        ..LeaseSettings::default()
    }
}

fn fleet(link: &Link, replicas: usize) -> Vec<Arc<Leases<Link>>> {
    (0..replicas).map(|_| link.replica(settings())).collect()
}

#[tokio::test(start_paused = true)]
async fn all_replicas_together_spend_one_bucket() {
    let link = Link::new();
    let fleet = fleet(&link, 4);
    let mut allowed = 0;
    for _ in 0..50 {
        for replica in &fleet {
            let decision = ask(replica, hundred()).await.expect("an answer");
            allowed += u64::from(decision.is_allowed());
        }
        sleep(MS).await;
    }
    assert!(link.log().claims() > 3);
    let stranded = link.log().outstanding();
    assert_eq!(
        allowed + u64::try_from(stranded).expect("not negative"),
        100
    );
    assert!(stranded <= 8, "{stranded} of 100 claimed and not spent");
    sleep(3 * SECOND).await;
    for replica in &fleet {
        allowed += ask_often(replica, &hundred(), 10, MS).await;
    }
    assert_eq!(allowed, 100);
    assert_eq!(link.log().outstanding(), 0);
}

#[tokio::test(start_paused = true)]
async fn idle_replicas_do_not_starve_a_busy_one() {
    let link = Link::new();
    let fleet = fleet(&link, 4);
    for idle in &fleet[..3] {
        assert_eq!(ask_often(idle, &hundred(), 1, MS).await, 1);
    }
    let busy = &fleet[3];
    let at_once = ask_often(busy, &hundred(), 200, MS).await;
    assert!((70..=97).contains(&at_once), "{at_once}");
    sleep(3 * SECOND).await;
    let later = ask_often(busy, &hundred(), 200, MS).await;
    assert_eq!(at_once + later, 97);
}

#[tokio::test(start_paused = true)]
async fn what_idle_replicas_hold_comes_back() {
    let link = Link::new();
    let fleet = fleet(&link, 4);
    let mut allowed = 0;
    for idle in &fleet[..3] {
        allowed += ask_at_once(idle, &hundred(), 9).await;
        allowed += ask_often(idle, &hundred(), 1, Duration::ZERO).await;
    }
    let held = u64::try_from(link.log().outstanding()).expect("not negative");
    assert!(held >= 20, "{held} held by those who are idle now");
    let busy = &fleet[3];
    let at_once = ask_often(busy, &hundred(), 200, MS).await;
    assert_eq!(at_once, 100 - allowed - held);
    sleep(3 * SECOND).await;
    let later = ask_often(busy, &hundred(), 200, MS).await;
    assert_eq!(later, held);
}

#[tokio::test(start_paused = true)]
async fn a_quota_lowered_while_leases_are_out_is_exceeded_by_them_at_most() {
    let link = Link::new();
    let fleet = fleet(&link, 4);
    for replica in &fleet[..3] {
        let _ = ask_at_once(replica, &hundred(), 9).await;
        let _ = ask_often(replica, &hundred(), 1, Duration::ZERO).await;
    }
    let leased = u64::try_from(link.log().outstanding()).expect("not negative");
    assert!(leased >= 20);
    // The fourth knows of the new quota; the others learn of it while they spend what they hold.
    let lowered = check(quota(20, "1/h"), 1);
    let mut spent = ask_often(&fleet[3], &lowered, 50, MS).await;
    for replica in &fleet[..3] {
        spent += ask_often(replica, &hundred(), 5, MS).await;
    }
    for _ in 0..400 {
        for replica in &fleet {
            spent += ask_often(replica, &lowered, 1, Duration::ZERO).await;
        }
        sleep(10 * MS).await;
    }
    assert!(
        spent > 20 && spent <= 20 + leased,
        "{spent} spent, {leased} were leased"
    );
    assert_eq!(link.log().outstanding(), 0);
}

#[tokio::test(start_paused = true)]
async fn a_cut_of_the_store_is_followed_by_no_lump_charge() {
    let link = Link::new();
    let fleet = fleet(&link, 4);
    let mut allowed = 0;
    for replica in &fleet {
        allowed += ask_at_once(replica, &hundred(), 9).await;
        allowed += ask_often(replica, &hundred(), 1, Duration::ZERO).await;
    }
    let before = link.remaining(&hundred());
    link.set(Fault::Silence);
    let end = Instant::now() + 5 * SECOND;
    while Instant::now() < end {
        for replica in &fleet {
            // Two of each lease; the rest is stranded.
            let asked = tokio::time::timeout(5 * MS, ask(replica, hundred())).await;
            let _ = asked;
        }
        sleep(SECOND).await;
    }
    link.set(Fault::None);
    sleep(5 * SECOND).await;
    assert!(allowed >= 40);
    assert_eq!(
        link.remaining(&hundred()),
        before,
        "neither charged nor given back"
    );
    assert_eq!(link.log().outstanding(), 0);
}

/// Spends all that can be spent in a span, and says by how much the bound was missed.
async fn worst_case() -> (u64, u64) {
    let link = Link::new();
    let quota = quota(100, "100/s");
    let check = check(quota, 1);
    let (holder, other) = (link.replica(settings()), link.replica(settings()));
    let _ = ask_at_once(&holder, &check, 9).await;
    let _ = ask(&holder, check.clone()).await;
    // The bucket is full again before the lease ends.
    sleep(SECOND).await;
    assert_eq!(link.remaining(&check), 100);

    let outstanding = u64::try_from(link.log().outstanding()).expect("not negative");
    assert!(outstanding > 0);
    link.log().spent.clear();
    let single = check.clone().with_lease(false);
    assert_eq!(ask_at_once(&other, &single, 100).await, 100);
    let (start, _) = link.log().spent[0];
    // So that the holder does not renew what it spends.
    link.set(Fault::Refuse);
    for _ in 0..outstanding {
        let decision = ask(&holder, check.clone()).await.expect("an answer");
        assert_eq!(decision.source, Source::Lease);
    }
    sleep(10 * MS).await;
    link.set(Fault::None);
    sleep_until(start + SECOND / 2).await;
    while ask(&other, single.clone())
        .await
        .expect("an answer")
        .is_allowed()
    {}
    let log = link.log();
    let (end, _) = *log.spent.last().expect("spent");
    let refilled = u64::try_from((end - start).as_millis()).expect("short") / 10;
    (log.spent(), 100 + refilled + outstanding)
}

#[tokio::test(start_paused = true)]
async fn the_bound_is_reached_and_not_exceeded_by_one_token() {
    let (spent, bound) = worst_case().await;
    assert_eq!(spent, bound);
}
