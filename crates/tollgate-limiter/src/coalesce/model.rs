//! Every interleaving of a few checks that come, leave and end, on the code of `flights.rs` itself.

use loom::{
    model::Builder,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst},
        mpsc,
    },
    thread,
};

use self::flights::{Flights, Joined};

#[expect(clippy::duplicate_mod, reason = "once with the checker's mutex")]
#[path = "flights.rs"]
mod flights;

struct World {
    flights: Flights<(), (), mpsc::Sender<()>>,
    /// How many may go in one call.
    room: usize,
    in_flight: AtomicBool,
    asked: AtomicUsize,
}

impl World {
    fn check(&self, may_leave: bool) {
        match self.flights.join((), (), |()| Some(mpsc::channel())) {
            Joined::First => {
                self.call_for(1);
                self.go_on();
            }
            Joined::Behind(place, answer) => {
                if may_leave && self.flights.leave(&(), place).is_some() {
                    self.asked.fetch_add(1, SeqCst);
                    return;
                }
                // If it never came, the model checker would find that nothing can go on.
                answer.recv().expect("an answer");
                // As it is dropped; by then others may be in flight and wait.
                assert!(self.flights.leave(&(), place).is_none());
            }
            Joined::Alone => unreachable!("all can wait"),
        }
    }

    fn call_for(&self, checks: usize) {
        assert!(!self.in_flight.swap(true, SeqCst), "two calls at a time");
        self.asked.fetch_add(checks, SeqCst);
        self.in_flight.store(false, SeqCst);
    }

    fn go_on(&self) {
        loop {
            let mut counted = 0;
            let batch = self.flights.end(&(), (), |_| {
                counted += 1;
                counted <= self.room
            });
            if batch.is_empty() {
                return;
            }
            assert!(batch.len() <= self.room);
            self.call_for(batch.len());
            for waiter in batch {
                waiter.send(()).expect("one who waits");
            }
        }
    }
}

/// Each thread makes its checks one after the other: whether each may leave.
fn explore(room: usize, threads: &'static [&'static [bool]]) {
    let mut builder = Builder::new();
    builder.preemption_bound = Some(2);
    builder.check(move || {
        let world = Arc::new(World {
            flights: Flights::new(),
            room,
            in_flight: AtomicBool::new(false),
            asked: AtomicUsize::new(0),
        });
        let run = |checks: &'static [bool]| {
            let world = world.clone();
            thread::spawn(move || checks.iter().for_each(|&may_leave| world.check(may_leave)))
        };
        let running: Vec<_> = threads.iter().copied().map(run).collect();
        for thread in running {
            thread.join().expect("no panic");
        }
        let checks: usize = threads.iter().map(|checks| checks.len()).sum();
        assert_eq!(world.asked.load(SeqCst), checks, "each is asked for once");
        assert_eq!(world.flights.len(), 0);
    });
}

#[test]
fn each_check_is_asked_for_once_and_none_waits_for_ever() {
    explore(usize::MAX, &[&[false], &[false], &[false]]);
}

#[test]
fn one_may_leave_while_its_call_is_made() {
    explore(usize::MAX, &[&[false], &[true], &[true]]);
}

#[test]
fn one_that_leaves_late_takes_nobody_elses_place() {
    explore(usize::MAX, &[&[false, false], &[false], &[false]]);
}

#[test]
fn who_does_not_fit_goes_in_the_call_after_that() {
    explore(1, &[&[false], &[true], &[false]]);
}
