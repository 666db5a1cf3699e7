//! Every interleaving of a few checks that come, leave, take over and end, on the code of `flights.rs` itself.

use loom::{
    model::Builder,
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering::SeqCst},
        mpsc,
    },
    thread,
};

use self::flights::{Flights, Joined, Next};

#[expect(clippy::duplicate_mod, reason = "once with the checker's mutex")]
#[path = "flights.rs"]
mod flights;

/// What a check does when it has to wait.
#[derive(Clone, Copy)]
enum Kind {
    Stays,
    Leaves,
    /// It holds the call in flight for overdue.
    TakesOver,
}

use Kind::{Leaves, Stays, TakesOver};

struct World {
    flights: Flights<(), (), mpsc::Sender<()>>,
    /// How many calls may be in flight at a time.
    most: usize,
    in_flight: AtomicUsize,
    asked: AtomicUsize,
}

impl World {
    fn check(&self, kind: Kind) {
        match self.flights.join((), (), |()| Some(mpsc::channel())) {
            Joined::First(number) => {
                self.call_for(1);
                self.go_on(self.flights.end(&(), number, ()));
            }
            Joined::Behind(place, answer) => {
                match kind {
                    Stays => {}
                    Leaves => {
                        if self.flights.leave(&(), place).is_some() {
                            self.asked.fetch_add(1, SeqCst);
                            return;
                        }
                    }
                    TakesOver => self.go_on(self.flights.take_over(&(), place, ())),
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
        let others = self.in_flight.fetch_add(1, SeqCst);
        assert!(others < self.most, "too many calls at a time");
        self.asked.fetch_add(checks, SeqCst);
        self.in_flight.fetch_sub(1, SeqCst);
    }

    fn go_on(&self, mut next: Option<Next<mpsc::Sender<()>>>) {
        while let Some(Next { number, waiters }) = next {
            assert!(!waiters.is_empty(), "a call for nobody");
            self.call_for(waiters.len());
            for waiter in waiters {
                waiter.send(()).expect("one who waits");
            }
            next = self.flights.end(&(), number, ());
        }
    }
}

/// Each thread makes its checks one after the other.
fn explore(threads: &'static [&'static [Kind]]) {
    let mut builder = Builder::new();
    builder.preemption_bound = Some(2);
    builder.check(move || {
        let checks = || threads.iter().copied().flatten();
        let takers = checks().filter(|kind| matches!(kind, TakesOver));
        let world = Arc::new(World {
            flights: Flights::new(),
            most: 1 + takers.count(),
            in_flight: AtomicUsize::new(0),
            asked: AtomicUsize::new(0),
        });
        let run = |checks: &'static [Kind]| {
            let world = world.clone();
            thread::spawn(move || checks.iter().for_each(|&kind| world.check(kind)))
        };
        let running: Vec<_> = threads.iter().copied().map(run).collect();
        for thread in running {
            thread.join().expect("no panic");
        }
        let asked = world.asked.load(SeqCst);
        assert_eq!(asked, checks().count(), "each is asked for once");
        assert_eq!(world.flights.len(), 0);
    });
}

#[test]
fn each_check_is_asked_for_once_and_none_waits_for_ever() {
    explore(&[&[Stays], &[Stays], &[Stays]]);
}

#[test]
fn one_may_leave_while_its_call_is_made() {
    explore(&[&[Stays], &[Leaves], &[Leaves]]);
}

#[test]
fn one_that_leaves_late_takes_nobody_elses_place() {
    explore(&[&[Stays, Stays], &[Stays], &[Stays]]);
}

#[test]
fn one_that_takes_over_takes_the_others_along() {
    explore(&[&[Stays], &[Stays], &[TakesOver]]);
}

#[test]
fn two_that_take_over_do_not_both_send_and_an_overdue_call_ends_no_other() {
    explore(&[&[Stays], &[TakesOver], &[TakesOver]]);
    explore(&[&[Stays, Stays], &[TakesOver], &[Leaves]]);
}
