//! Checks that come while calls are in flight go together in the next call.

use std::{
    error::Error,
    mem,
    pin::pin,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    time::Duration,
};

use tokio::{
    runtime::Handle,
    sync::{mpsc, oneshot},
    time::{Instant, timeout},
};
use tollgate_core::{ChargeState, Check, CheckFuture, Decision, ErrorKind, StoreError};

use crate::{
    arguments,
    lane::{Asking, Lane},
    node::Node,
    reply,
    script::Name,
};

/// So many checks go without being held back, and no more in one call: the server does nothing else meanwhile.
const MOST: usize = 32;

/// No call holds others back for longer, so no check is held back for longer.
const HOLD: Duration = Duration::from_millis(1);

/// So many tasks are kept for further calls.
const IDLE: usize = 8;

/// Checks whose deadlines are further apart do not go together, since a call has one: the earliest.
const DEADLINES: Duration = Duration::from_millis(2);

/// The checks for one server, whatever their tags.
///
/// While fewer calls are in flight than there are connections, a check is sent at once. Else it waits until one
/// of them ends, for at most a millisecond, and goes together with all that wait. Each is decided on its own, as
/// if it came alone.
///
/// Two limiters whose deadlines are further apart than [`DEADLINES`] send each other's queue off: on one store,
/// fewer of their checks go together.
///
/// Calls are made in [tasks of their own](Job): nobody who leaves takes others along. A check that is dropped before
/// it is sent is not sent.
pub(crate) struct Gather<L: Lane> {
    node: Arc<Node<L>>,
    /// So many calls are in flight before further checks wait.
    connections: usize,
    runtime: Handle,
    queue: Mutex<Queue<L>>,
    /// Behind some addresses there is a cluster all the same, and it refuses keys of several tags.
    refused: AtomicBool,
}

struct Queue<L: Lane> {
    /// Calls that hold others back.
    in_flight: usize,
    waiting: Vec<Waiter>,
    /// The tasks that have nothing to do.
    idle: Vec<Caller<L>>,
}

/// A task that makes calls, one after the other. It ends when this is dropped.
type Caller<L> = mpsc::UnboundedSender<Job<L>>;

/// A call to make. The task that makes it is there for the next one afterwards: what a call has to keep is some
/// kilobytes, and to find room for them each time would take as long as a good part of the call.
struct Job<L: Lane> {
    waiting: Vec<Waiter>,
    flight: Flight<L>,
    caller: Caller<L>,
}

struct Waiter {
    check: Check,
    deadline: Instant,
    answer: oneshot::Sender<Result<Decision, StoreError>>,
}

/// A call that holds others back until this is dropped, however it ends.
struct Flight<L: Lane>(Arc<Gather<L>>);

impl<L: Lane> Gather<L> {
    pub(crate) fn new(node: Arc<Node<L>>, connections: usize, runtime: &Handle) -> Self {
        Self {
            node,
            connections,
            runtime: runtime.clone(),
            queue: Mutex::new(Queue {
                in_flight: 0,
                waiting: Vec::new(),
                idle: Vec::new(),
            }),
            refused: AtomicBool::new(false),
        }
    }

    pub(crate) const fn node(&self) -> &Arc<Node<L>> {
        &self.node
    }

    /// Decides `check` by the deadline.
    pub(crate) fn check(self: &Arc<Self>, check: Check, deadline: Instant) -> CheckFuture {
        let (answer, answered) = oneshot::channel();
        self.push(Waiter {
            check,
            deadline,
            answer,
        });
        CheckFuture::new(async {
            let answer = answered.await;
            answer.unwrap_or_else(|_| {
                let reason = "the runtime is shutting down";
                Err(StoreError::new(ErrorKind::Io, ChargeState::Unknown, reason))
            })
        })
    }

    fn push(self: &Arc<Self>, waiter: Waiter) {
        let mut queue = self.queue();
        let apart = queue.is_apart(waiter.deadline).then(|| queue.take());
        queue.waiting.push(waiter);
        let full = queue.in_flight < self.connections || queue.waiting.len() >= MOST;
        let full = full.then(|| queue.take());
        drop(queue);
        for waiting in apart.into_iter().chain(full) {
            self.send(waiting);
        }
    }

    /// Makes a call, which is counted already, in a task of its own.
    fn send(self: &Arc<Self>, waiting: Vec<Waiter>) {
        let idle = self.queue().idle.pop();
        let caller = idle.unwrap_or_else(|| {
            let (caller, jobs) = mpsc::unbounded_channel();
            self.runtime.spawn(make_calls(jobs));
            caller
        });
        let job = Job {
            waiting,
            flight: Flight(self.clone()),
            caller: caller.clone(),
        };
        // One that is gone with its runtime leaves them without an answer, which is what they are told then.
        let _ = caller.send(job);
    }

    async fn call(self: Arc<Self>, mut waiting: Vec<Waiter>) {
        waiting.retain(|waiter| !waiter.answer.is_closed());
        if waiting.len() > 1 && !self.refused.load(Relaxed) {
            waiting = self.call_together(waiting).await;
        }
        let last = waiting.pop();
        for waiter in waiting {
            self.runtime.spawn(self.clone().call_alone(waiter));
        }
        if let Some(waiter) = last {
            self.call_alone(waiter).await;
        }
    }

    async fn call_alone(self: Arc<Self>, waiter: Waiter) {
        let Waiter {
            check,
            deadline,
            answer,
        } = waiter;
        let args = |sha: &str| arguments::of_check(sha, &check);
        let current = self.node.settled(deadline).await;
        let called = self
            .node
            .call(current, Name::TokenBucket, &args, Asking::No, deadline);
        let reply = called.await;
        // Whoever has left does not mind.
        let _ = answer.send(reply.and_then(|reply| reply::decide(&check, &reply)));
    }

    /// Decides all in one call. Returns those that it was refused for, without anything having run: what is
    /// refused for the sake of one check need not be for the others.
    async fn call_together(&self, waiting: Vec<Waiter>) -> Vec<Waiter> {
        let earliest = waiting.iter().map(|waiter| waiter.deadline).min();
        let Some(deadline) = earliest else {
            return waiting;
        };
        let waiting = in_runs(waiting);
        let args = |sha: &str| {
            let checks = waiting.iter().map(|waiter| &waiter.check);
            arguments::of_checks(sha, checks)
        };
        let current = self.node.settled(deadline).await;
        let called = self
            .node
            .call(current.clone(), Name::Gather, &args, Asking::No, deadline);
        let reply = called.await;
        match &reply {
            Err(error) if is_refusal(error, "CROSSSLOT") => {
                self.refused.store(true, Relaxed);
                return waiting;
            }
            Err(error) if is_refusal(error, "NOPERM") => return waiting,
            _ => {}
        }
        let reply = reply.as_ref().map_err(Clone::clone);
        match reply.and_then(|reply| reply::lines(reply, waiting.len())) {
            Ok(lines) => {
                for (waiter, line) in waiting.into_iter().zip(lines) {
                    let decided = reply::decide_line(&waiter.check, line);
                    if let Err(error) = &decided {
                        self.node.look_into(error.kind(), &current);
                    }
                    let _ = waiter.answer.send(decided);
                }
            }
            Err(error) => {
                for waiter in waiting {
                    let _ = waiter.answer.send(Err(error.clone()));
                }
            }
        }
        Vec::new()
    }

    fn queue(&self) -> MutexGuard<'_, Queue<L>> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

// === impl Gather ===

impl<L: Lane> Job<L> {
    async fn run(self) {
        let gather = self.flight.0.clone();
        let mut call = pin!(gather.clone().call(self.waiting));
        let mut flight = Some(self.flight);
        if timeout(HOLD, &mut call).await.is_err() {
            flight = None;
            call.await;
        }
        let mut queue = gather.queue();
        if queue.idle.len() < IDLE {
            queue.idle.push(self.caller);
        }
        drop(queue);
        // The next call that this one has held back may be for the same task.
        drop(flight);
    }
}

async fn make_calls<L: Lane>(mut jobs: mpsc::UnboundedReceiver<Job<L>>) {
    while let Some(job) = jobs.recv().await {
        job.run().await;
    }
}

impl<L: Lane> Queue<L> {
    fn is_apart(&self, deadline: Instant) -> bool {
        self.waiting.first().is_some_and(|first| {
            let earlier = first.deadline.min(deadline);
            first.deadline.max(deadline) - earlier > DEADLINES
        })
    }

    /// All who wait, for the call that goes now.
    fn take(&mut self) -> Vec<Waiter> {
        self.in_flight += 1;
        // The next one is for about as many.
        let next = Vec::with_capacity(self.waiting.len());
        mem::replace(&mut self.waiting, next)
    }
}

impl<L: Lane> Drop for Flight<L> {
    fn drop(&mut self) {
        let mut queue = self.0.queue();
        queue.in_flight -= 1;
        let next = queue.in_flight < self.0.connections && !queue.waiting.is_empty();
        let next = next.then(|| queue.take());
        drop(queue);
        if let Some(waiting) = next {
            self.0.send(waiting);
        }
    }
}

/// Brings those together whose checks differ in their keys only, so that what they have in common is sent once.
fn in_runs(waiting: Vec<Waiter>) -> Vec<Waiter> {
    let fits_first =
        |waiter: &Waiter| arguments::differ_in_keys_only(&waiting[0].check, &waiter.check);
    if waiting.iter().skip(1).all(fits_first) {
        return waiting;
    }
    let mut runs: Vec<Vec<Waiter>> = Vec::with_capacity(2);
    for waiter in waiting {
        let fits =
            |run: &&mut Vec<Waiter>| arguments::differ_in_keys_only(&run[0].check, &waiter.check);
        match runs.iter_mut().find(fits) {
            Some(run) => run.push(waiter),
            None => runs.push(vec![waiter]),
        }
    }
    runs.into_iter().flatten().collect()
}

fn is_refusal(error: &StoreError, code: &str) -> bool {
    let reply = error.source().map(ToString::to_string);
    error.charge() == ChargeState::NotCharged && reply.is_some_and(|reply| reply.starts_with(code))
}
