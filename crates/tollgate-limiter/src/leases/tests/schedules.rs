//! Random fleets, traffic and failures.

use proptest::prelude::*;
use tokio::{task::AbortHandle, time::timeout};

use super::*;

/// What happens next. All spans are in steps of two milliseconds, so that between any two is an instant at
/// which nothing moves.
#[derive(Clone, Debug)]
enum Step {
    /// So many requests at once, each given up after so long if there is a number.
    Burst(usize, usize, Option<u64>),
    /// Evenly spaced requests.
    Stream(usize, usize, u64),
    Weather(Fault, u64),
    Pause(u64),
    Shutdown(usize),
}

fn step(with_failures: bool) -> impl Strategy<Value = Step> {
    let replica = 0..3_usize;
    let given_up = prop::option::weighted(0.3, 0..6_u64);
    let burst = (replica.clone(), 1..30_usize, given_up);
    let fault = prop_oneof![
        3 => Just(Fault::None),
        1 => Just(Fault::Refuse),
        1 => Just(Fault::LoseReplies),
        1 => Just(Fault::Silence),
    ];
    let weather = (fault, 1..10_u64);
    prop_oneof![
        6 => burst.prop_map(move |(replica, times, given_up)| {
            Step::Burst(replica, times, given_up.filter(|_| with_failures))
        }),
        4 => (replica.clone(), 1..60_usize, 1..10_u64)
            .prop_map(|(replica, times, pause)| Step::Stream(replica, times, pause)),
        3 => weather.prop_map(move |(fault, trip)| {
            Step::Weather(if with_failures { fault } else { Fault::None }, trip)
        }),
        4 => (1..400_u64).prop_map(Step::Pause),
        1 => replica.prop_map(Step::Shutdown),
    ]
}

fn schedule(with_failures: bool) -> impl Strategy<Value = (Check, Vec<Step>)> {
    let capacity = prop_oneof![20..100_u64, 100..2_000_u64];
    let rate = prop_oneof![Just("1/h"), Just("20/s"), Just("1000/s")];
    let check = (capacity, rate, 1..4_u32)
        .prop_map(|(capacity, rate, cost)| check(quota(capacity, rate), cost));
    (check, prop::collection::vec(step(with_failures), 1..25))
}

fn steps(count: u64) -> Duration {
    2 * MS * u32::try_from(count).expect("few")
}

/// Outstanding leases at instants when nothing moves.
type Snapshots = Vec<(Instant, u64)>;

/// Plays a schedule to its end, when everything has settled.
async fn play(link: &Link, check: &Check, schedule: Vec<Step>) -> Snapshots {
    let fleet: Vec<_> = (0..3)
        .map(|_| link.replica(LeaseSettings::default()))
        .collect();
    let mut snapshots = Vec::new();
    let mut asked: Vec<AbortHandle> = Vec::new();
    let snap = async |snapshots: &mut Snapshots| {
        sleep(MS).await;
        let outstanding = link.log().outstanding();
        let outstanding = u64::try_from(outstanding).expect("not negative");
        snapshots.push((Instant::now(), outstanding));
        sleep(MS).await;
    };
    for step in schedule {
        match step {
            Step::Burst(replica, times, given_up) => {
                for _ in 0..times {
                    let (replica, check) = (fleet[replica].clone(), check.clone());
                    let patience = given_up.map_or(SECOND, steps);
                    let asking = async move { timeout(patience, ask(&replica, check)).await };
                    asked.push(tokio::spawn(asking).abort_handle());
                }
            }
            Step::Stream(replica, times, pause) => {
                for _ in 0..times {
                    let (replica, check) = (fleet[replica].clone(), check.clone());
                    let asking = async move { timeout(SECOND, ask(&replica, check)).await };
                    asked.push(tokio::spawn(asking).abort_handle());
                    sleep(steps(pause - 1)).await;
                    snap(&mut snapshots).await;
                }
            }
            Step::Weather(fault, trip) => {
                *link.weather.lock().expect("no panic") = (fault, steps(trip));
            }
            Step::Pause(count) => sleep(steps(count)).await,
            Step::Shutdown(replica) => {
                let replica = fleet[replica].clone();
                tokio::spawn(async move { replica.shutdown().await });
            }
        }
        snap(&mut snapshots).await;
    }
    *link.weather.lock().expect("no panic") = (Fault::None, 2 * MS);
    sleep(5 * SECOND).await;
    assert!(
        asked.iter().all(AbortHandle::is_finished),
        "a request hangs"
    );
    snapshots
}

/// By how much the spending from a snapshot on exceeds `capacity + rate × T` and what was leased then.
fn excess(check: &Check, log: &Log, snapshots: &Snapshots) -> f64 {
    let quota = check.charges()[0].limit.quota;
    let float = |tokens: u64| f64::from(u32::try_from(tokens).expect("few"));
    let mut worst = f64::MIN;
    for &(start, outstanding) in snapshots {
        let mut spent = 0;
        for &(at, tokens) in log.spent.iter().filter(|(at, _)| *at > start) {
            spent += tokens;
            let refilled = quota.rate().per_second() * (at - start).as_secs_f64();
            let bound = float(quota.capacity()) + refilled + float(outstanding);
            worst = worst.max(float(spent) - bound);
        }
    }
    worst
}

fn run<T>(test: impl Future<Output = T>) -> T {
    let mut runtime = tokio::runtime::Builder::new_current_thread();
    let runtime = runtime.enable_time().start_paused(true).build();
    runtime.expect("a runtime").block_on(test)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, ..ProptestConfig::default() })]

    #[test]
    fn the_bound_holds_whatever_happens((check, schedule) in schedule(true)) {
        run(async {
            let link = Link::new();
            let snapshots = play(&link, &check, schedule).await;
            let log = link.log();
            prop_assert!(excess(&check, &log, &snapshots) <= 1e-6);
            prop_assert_eq!(log.outstanding(), 0);
            Ok(())
        })?;
    }

    #[test]
    fn without_failures_no_token_is_lost((check, schedule) in schedule(false)) {
        let slow = check.map_charges(|it| {
            let mut charge = it.clone();
            charge.limit.quota = quota(it.limit.quota.capacity(), "1/h");
            charge
        });
        run(async {
            let link = Link::new();
            let _ = play(&link, &slow, schedule).await;
            let log = link.log();
            let capacity = slow.charges()[0].limit.quota.capacity();
            prop_assert_eq!(link.remaining(&slow), capacity - log.spent());
            prop_assert_eq!(log.outstanding(), 0);
            Ok(())
        })?;
    }
}

#[test]
fn schedules_come_to_leases() {
    let stream = vec![
        Step::Stream(0, 50, 2),
        Step::Pause(300),
        Step::Stream(1, 50, 3),
    ];
    run(async {
        let link = Link::new();
        let snapshots = play(&link, &check(quota(500, "20/s"), 1), stream).await;
        assert!(link.log().claims() > 3);
        assert!(snapshots.iter().any(|(_, outstanding)| *outstanding > 0));
    });
}
