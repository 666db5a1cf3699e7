//! Schedules of requests that come, are given up at any point, and meet a store that is slow or fails.

use std::{
    future::poll_fn,
    pin::pin,
    sync::atomic::{AtomicU64, AtomicUsize, Ordering::SeqCst},
    task::Poll,
};

use proptest::{collection::vec, prelude::*};
use tokio::{
    task::{JoinSet, yield_now},
    time::{sleep, timeout},
};
use tollgate_core::{Cost, KeySpace, Limit, LimitName, ManualClock, MemoryStore, Quota, Tenant};

use super::*;

/// What happens to one call: it takes so many milliseconds to the decision and back.
#[derive(Clone, Copy, Debug)]
struct Fate {
    there: u64,
    back: u64,
    failure: Option<ChargeState>,
}

#[derive(Clone, Copy, Debug)]
struct Request {
    comes: u64,
    count: u64,
    deadline: Option<u64>,
    leaves: Option<Leave>,
}

#[derive(Clone, Copy, Debug)]
enum Leave {
    /// At this one of its awaits; 0 is before it is polled at all.
    AtAwait(usize),
    /// After so many milliseconds.
    After(u64),
}

#[derive(Clone, Debug)]
struct Schedule {
    capacity: u64,
    cost: u32,
    fates: Vec<Fate>,
    requests: Vec<Request>,
}

impl Schedule {
    fn check(&self) -> Check {
        let name = LimitName::default();
        let key = KeySpace::default().bucket(&Tenant::new("42", "pro").expect("an id"), &name);
        let quota = Quota::new(self.capacity, "1/d").expect("a quota");
        let limit = Limit { name, quota };
        let cost = Cost::new(self.cost);
        Check::single(Charge { key, limit, cost })
    }
}

fn schedules(gentle: bool) -> impl Strategy<Value = Schedule> {
    let failure = prop_oneof![
        4 => Just(None),
        1 => Just(Some(ChargeState::NotCharged)),
        1 => Just(Some(ChargeState::Unknown)),
    ];
    let fate = (0_u64..15, 0_u64..15, failure).prop_map(move |(there, back, failure)| Fate {
        there,
        back,
        failure: failure.filter(|_| !gentle),
    });
    let leave = prop_oneof![
        2 => Just(None),
        1 => (0_usize..4).prop_map(|polls| Some(Leave::AtAwait(polls))),
        1 => (0_u64..30).prop_map(|millis| Some(Leave::After(millis))),
    ];
    let deadline = proptest::option::of(1_u64..60);
    // Batches pass through.
    let count = prop_oneof![9 => Just(1_u64), 1 => 2_u64..5];
    let request = (0_u64..40, count, deadline, leave);
    let request = request.prop_map(move |(comes, count, deadline, leaves)| Request {
        comes,
        count,
        deadline: deadline.filter(|_| !gentle),
        leaves: leaves.filter(|_| !gentle),
    });
    (1_u64..60, 1_u32..4, vec(fate, 1..10), vec(request, 1..30)).prop_map(
        |(capacity, cost, fates, requests)| Schedule {
            capacity,
            cost,
            fates,
            requests,
        },
    )
}

/// A store over a network.
struct Remote {
    memory: Arc<MemoryStore<ManualClock>>,
    fates: Vec<Fate>,
    calls: AtomicUsize,
    /// For how many requests it was asked.
    asked: Arc<AtomicU64>,
}

impl Store for Remote {
    fn check(&self, check: Check) -> CheckFuture {
        let fate = self.fates[self.calls.fetch_add(1, SeqCst) % self.fates.len()];
        self.asked.fetch_add(check.count(), SeqCst);
        let memory = self.memory.clone();
        let deadline = check.deadline().map(Instant::from_std);
        let failure = |charge| StoreError::new(ErrorKind::Io, charge, "as told");
        let answer = async move {
            sleep(Duration::from_millis(fate.there)).await;
            if fate.failure == Some(ChargeState::NotCharged) {
                return Err(failure(ChargeState::NotCharged));
            }
            let answer = memory.decide(&check);
            sleep(Duration::from_millis(fate.back)).await;
            fate.failure.map_or(answer, |charge| Err(failure(charge)))
        };
        CheckFuture::new(async move {
            match deadline {
                Some(deadline) => timeout_at(deadline, answer)
                    .await
                    .unwrap_or_else(|_| Err(late())),
                None => answer.await,
            }
        })
    }

    fn adjust(&self, _: Adjustment) -> AdjustFuture {
        unreachable!("nothing is given back here")
    }
}

/// Waits for an answer; `None` if it was given up.
async fn ask(coalesce: Coalesce<Remote>, check: Check, request: Request) -> Option<Answer> {
    sleep(Duration::from_millis(request.comes)).await;
    let start = Instant::now();
    let deadline = request.deadline.map(|it| start + Duration::from_millis(it));
    let mut check = check.with_count(NonZeroU64::new(request.count).expect("from 1"));
    if let Some(deadline) = deadline {
        check = check.with_deadline(deadline.into_std());
    }
    let future = coalesce.check(check);
    let answer = match request.leaves {
        None => Some(future.await),
        Some(Leave::After(millis)) => timeout(Duration::from_millis(millis), future).await.ok(),
        Some(Leave::AtAwait(awaits)) => {
            let (mut future, mut polls) = (pin!(future), 0);
            poll_fn(|cx| {
                if polls == awaits {
                    return Poll::Ready(None);
                }
                polls += 1;
                match future.as_mut().poll(cx) {
                    Poll::Pending if polls == awaits => Poll::Ready(None),
                    poll => poll.map(Some),
                }
            })
            .await
        }
    };
    // Timers count whole milliseconds.
    let latest = deadline.map(|deadline| deadline + Duration::from_millis(1));
    assert!(latest.is_none_or(|latest| Instant::now() <= latest), "late");
    answer
}

struct Outcome {
    answers: Vec<Option<Answer>>,
    asked: u64,
    /// For how many requests the store's bucket was charged.
    charged: u64,
    in_flight: usize,
}

fn run(schedule: &Schedule) -> Outcome {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .start_paused(true)
        .build()
        .expect("a runtime");
    runtime.block_on(async {
        let memory = Arc::new(MemoryStore::with_clock(ManualClock::default()));
        let asked = Arc::new(AtomicU64::new(0));
        let remote = Remote {
            memory: memory.clone(),
            fates: schedule.fates.clone(),
            calls: AtomicUsize::new(0),
            asked: asked.clone(),
        };
        let coalesce = Coalesce::new(remote, Arc::new(()));
        let mut requests = JoinSet::new();
        for request in &schedule.requests {
            requests.spawn(ask(coalesce.clone(), schedule.check(), *request));
        }
        let answers = timeout(Duration::from_secs(60), requests.join_all()).await;
        let answers = answers.expect("nobody waits for ever");
        // A call for some who have all left may still be on its way.
        sleep(Duration::from_secs(1)).await;
        yield_now().await;
        let flights = &coalesce.shared.flights;
        Outcome {
            answers,
            asked: asked.load(SeqCst),
            charged: charged(&memory, schedule),
            in_flight: flights.iter().map(Flights::len).sum(),
        }
    })
}

/// For how many requests the bucket was charged; it does not refill.
fn charged(memory: &MemoryStore<ManualClock>, schedule: &Schedule) -> u64 {
    let charge = schedule.check().charges()[0].clone();
    let cost = Cost::FREE;
    let look = memory.decide(&Check::single(Charge { cost, ..charge }));
    let remaining = look.expect("a decision").limits[0].remaining;
    (schedule.capacity - remaining.expect("known")) / u64::from(schedule.cost)
}

fn decisions(outcome: &Outcome) -> impl Iterator<Item = &Decision> {
    let answers = outcome.answers.iter().flatten();
    answers.filter_map(|answer| answer.as_ref().ok())
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn nothing_is_granted_twice_and_nobody_is_denied_for_nothing(schedule in schedules(false)) {
        let outcome = run(&schedule);
        let fits = schedule.capacity / u64::from(schedule.cost);
        let granted: u64 = decisions(&outcome).map(|decision| decision.granted).sum();
        prop_assert!(granted <= outcome.charged);
        let wanted: u64 = schedule.requests.iter().map(|request| request.count).sum();
        prop_assert!(outcome.asked <= wanted, "{} of {} were asked for", outcome.asked, wanted);
        if decisions(&outcome).any(|decision| decision.limits[0].lacked_tokens()) {
            prop_assert_eq!(outcome.charged, fits, "the plain store would have had tokens");
        }
        prop_assert_eq!(outcome.in_flight, 0);
    }

    #[test]
    fn if_all_goes_well_as_much_is_granted_as_by_the_plain_store(schedule in schedules(true)) {
        let plain = MemoryStore::with_clock(ManualClock::default());
        let mut plainly = 0;
        for request in &schedule.requests {
            let count = NonZeroU64::new(request.count).expect("from 1");
            let decision = plain.decide(&schedule.check().with_count(count));
            plainly += decision.expect("a decision").granted;
        }
        let outcome = run(&schedule);
        let granted: u64 = decisions(&outcome).map(|decision| decision.granted).sum();
        prop_assert_eq!((granted, outcome.charged), (plainly, plainly));
        prop_assert_eq!(decisions(&outcome).count(), schedule.requests.len());
        prop_assert_eq!(outcome.in_flight, 0);
    }
}
