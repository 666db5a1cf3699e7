//! What is known, claimed and spent for one set of buckets.

use std::{collections::VecDeque, num::NonZeroU64, sync::Arc, time::Duration};

use tokio::{sync::oneshot, time::Instant};
use tollgate_core::{Charge, Check, Decision, Source, StoreError, Wait};

use super::{LeaseSettings, demand::Demand};

/// A claim is overdue after twice the time that the last call took, and this.
const JITTER: Duration = Duration::from_millis(5);

/// A claim that is not urgent lingers for so long at most, so that others go with it.
pub(super) const LINGER: Duration = Duration::from_millis(10);

/// A claim is not urgent when what is left will last for so long: requests come at random.
const LASTING: Duration = LINGER.saturating_mul(8);

/// Tokens and wait of each charge's bucket, at the store's last answer.
pub(super) type States = Arc<[(u64, Wait)]>;

/// The account of one set of buckets. One at a time works on it; none of its methods waits.
pub(super) struct Ledger {
    /// Who pays, by which quotas, from how many shards.
    check: Check,
    /// Counts the changes of that, so that an answer from before one is told apart.
    era: u64,
    demand: Demand,
    states: Option<States>,
    /// Whether the store has answered the last call that is known of. One that fails gets no claims.
    answers: bool,
    /// How long the last call that was answered took.
    trip: Duration,
    batches: VecDeque<Batch>,
    claim: Option<Pending>,
    /// Requests that wait for the claim; what is left over from it, for the next one.
    waiters: VecDeque<Waiter>,
}

/// What is left of one claim.
pub(super) struct Batch {
    /// As it was claimed for.
    pub(super) payer: Check,
    /// The store's answer to the claim.
    pub(super) decision: Decision,
    pub(super) unspent: u64,
    /// Not to be spent from then on.
    expires: Instant,
}

/// A claim to make.
pub(super) struct Order {
    /// For so many requests.
    pub(super) count: NonZeroU64,
    /// If it is not urgent: until the other side is dropped.
    pub(super) lingers: Option<oneshot::Receiver<()>>,
}

/// A claim on its way.
struct Pending {
    count: u64,
    era: u64,
    /// When it is sent, at the latest.
    sent: Instant,
    /// Dropped when it has become urgent.
    lingers: Option<oneshot::Sender<()>>,
}

/// A request that waits for a claim.
struct Waiter {
    since: Instant,
    turn: oneshot::Sender<Turn>,
}

/// What a waiting request gets. One that gets none makes a call of its own.
pub(super) type Turn = Result<Answer, StoreError>;

/// What a claim has for one request.
#[derive(Debug)]
pub(super) enum Answer {
    Granted(Spent),
    Denied { source: Source, states: States },
}

/// A request that was paid for from a lease.
#[derive(Debug)]
pub(super) struct Spent {
    /// As it was claimed for, if that was under another key class than the request has.
    pub(super) other_payer: Option<Check>,
    pub(super) states: States,
    /// The requests that this replica can still pay for.
    pub(super) unspent: u64,
    /// Whether nothing is left of a batch now, so that nothing is to be given back.
    pub(super) ends_batch: bool,
}

/// What a request is to do.
pub(super) struct Request {
    pub(super) way: Way,
    /// A claim to make, by whoever is told: nobody else is.
    pub(super) claim: Option<Order>,
    pub(super) era: u64,
}

pub(super) enum Way {
    Spend(Spent),
    Wait(oneshot::Receiver<Turn>),
    /// Make a call, and give back what was held for other quotas or shards.
    Ask {
        void: Vec<Batch>,
    },
}

/// What became of a claim.
pub(super) struct Settled {
    /// So many requests are not leased any more: they were not granted, or waited for it.
    pub(super) gone: u64,
    pub(super) rest: Rest,
    /// The next claim to make, for those who have waited in vain.
    pub(super) next: Option<Order>,
}

/// What is left of a claim when those who have waited for it are paid for.
pub(super) enum Rest {
    None,
    /// The account has it now.
    Held,
    /// It came too late to be spent.
    Void(Batch),
}

impl Ledger {
    pub(super) fn new(check: Check, settings: &LeaseSettings, now: Instant) -> Self {
        Self {
            check,
            era: 0,
            demand: Demand::new(settings.target, now),
            states: None,
            answers: false,
            trip: Duration::ZERO,
            batches: VecDeque::new(),
            claim: None,
            waiters: VecDeque::new(),
        }
    }

    /// Whether nothing would be lost by forgetting it.
    pub(super) fn is_idle(&self, now: Instant) -> bool {
        self.batches.is_empty() && self.claim.is_none() && self.demand.is_over(now)
    }

    /// Counts a request, and pays for it if it can.
    pub(super) fn request(
        &mut self,
        check: &Check,
        settings: &LeaseSettings,
        now: Instant,
    ) -> Request {
        let void = if is_same_payer(&self.check, check) {
            Vec::new()
        } else {
            self.change_payer(check)
        };
        self.demand.count(now);
        let spent = self.spend(check, now);
        let claim = self.order(settings, now);
        let way = match spent {
            Some(spent) => Way::Spend(spent),
            // Nobody waits when there is something void: the claim on its way is so, too.
            None => match self.wait(check, now) {
                Some(turn) => Way::Wait(turn),
                None => Way::Ask { void },
            },
        };
        Request {
            way,
            claim,
            era: self.era,
        }
    }

    /// Takes note of the store's answer to a single request that was sent at `sent`.
    pub(super) fn learn(
        &mut self,
        era: u64,
        sent: Instant,
        answer: &Result<Decision, StoreError>,
        now: Instant,
    ) {
        if era != self.era {
            return;
        }
        self.answers = answer.is_ok();
        if let Ok(decision) = answer {
            self.trip = now - sent;
            self.states = states_of(decision).or(self.states.take());
        }
    }

    /// Ends the claim for `payer` that is on its way.
    pub(super) fn settle(
        &mut self,
        settings: &LeaseSettings,
        payer: &Check,
        answer: Result<Decision, StoreError>,
        sent: Instant,
        now: Instant,
    ) -> Settled {
        let claim = self.claim.take().filter(|it| it.era == self.era);
        if let Some(claim) = &claim {
            self.learn(claim.era, sent, &answer, now);
        }
        let mut settled = Settled {
            gone: payer.count(),
            rest: Rest::None,
            next: None,
        };
        match answer {
            Err(error) => self.fail(payer.count(), &error),
            Ok(decision) => {
                let expires = sent + settings.life;
                let mut batch = Batch {
                    payer: payer.clone(),
                    unspent: decision.granted,
                    decision,
                    expires,
                };
                let claim = claim.filter(|_| now < expires);
                if let Some(claim) = &claim {
                    self.serve(claim, sent, &mut batch);
                }
                settled.gone -= batch.unspent.min(settled.gone);
                if batch.unspent > 0 && claim.is_some() {
                    self.batches.push_back(batch);
                    settled.rest = Rest::Held;
                } else if batch.unspent > 0 {
                    settled.rest = Rest::Void(batch);
                }
                if claim.is_some() && !self.waiters.is_empty() {
                    settled.next = self.order(settings, now);
                }
            }
        }
        if settled.next.is_none() {
            self.waiters.clear();
        }
        settled
    }

    /// Ends a claim that will not be made, or has broken off.
    pub(super) fn abandon(&mut self) {
        self.claim = None;
        self.answers = false;
        self.waiters.clear();
    }

    /// Takes what is left of a batch out, for good.
    pub(super) fn withdraw(&mut self, expires: Instant) -> Option<Batch> {
        let position = self.batches.iter().position(|it| it.expires == expires)?;
        self.batches.remove(position)
    }

    /// Tells as many as a claim was for that it has failed.
    fn fail(&mut self, count: u64, error: &StoreError) {
        let count = usize::try_from(count).unwrap_or(usize::MAX);
        for waiter in self.waiters.drain(..).take(count) {
            let _ = waiter.turn.send(Err(error.clone()));
        }
    }

    /// Answers those who wait, as far as `claim` can.
    fn serve(&mut self, claim: &Pending, sent: Instant, batch: &mut Batch) {
        let Some(states) = states_of(&batch.decision) else {
            return;
        };
        self.hand_out(&mut batch.unspent, &states);
        if batch.decision.granted < claim.count {
            self.deny(sent, batch.decision.source, &states);
        }
    }

    /// Pays for waiting requests, oldest first.
    fn hand_out(&mut self, unspent: &mut u64, states: &States) {
        while *unspent > 0 {
            let Some(waiter) = self.waiters.pop_front() else {
                break;
            };
            let spent = Spent {
                // The claim itself counts what it hands out, and what it need not give back.
                other_payer: None,
                states: states.clone(),
                unspent: *unspent - 1,
                ends_batch: false,
            };
            // One that has given up leaves it to the others.
            if waiter.turn.send(Ok(Answer::Granted(spent))).is_ok() {
                *unspent -= 1;
            }
        }
    }

    /// Denies the requests that have waited since before the claim was sent. The store may have decided it
    /// before the others came, and have tokens for them by now.
    fn deny(&mut self, sent: Instant, source: Source, states: &States) {
        let was_there = |it: &Waiter| it.since <= sent;
        while self.waiters.front().is_some_and(was_there)
            && let Some(waiter) = self.waiters.pop_front()
        {
            let states = states.clone();
            let _ = waiter.turn.send(Ok(Answer::Denied { source, states }));
        }
    }

    fn spend(&mut self, check: &Check, now: Instant) -> Option<Spent> {
        let states = self.states.as_ref()?;
        let position = self.batches.iter().position(|it| now < it.expires)?;
        let batch = &mut self.batches[position];
        let is_other = batch.payer.key_class() != check.key_class();
        let other_payer = is_other.then(|| batch.payer.clone());
        batch.unspent -= 1;
        let ends_batch = batch.unspent == 0;
        if ends_batch {
            self.batches.remove(position);
        }
        Some(Spent {
            other_payer,
            states: states.clone(),
            unspent: self.unspent(now),
            ends_batch,
        })
    }

    fn unspent(&self, now: Instant) -> u64 {
        let alive = self.batches.iter().filter(|it| now < it.expires);
        alive.map(|it| it.unspent).sum()
    }

    /// The next claim, if it is time for one.
    fn order(&mut self, settings: &LeaseSettings, now: Instant) -> Option<Order> {
        if self.claim.is_some() || !self.answers {
            return None;
        }
        let states = self.states.as_ref()?;
        let unspent = self.unspent(now);
        // Too much for any claim: that is quickly known, and so for most requests.
        if unspent > self.demand.at_most().min(settings.largest_batch) / 4 {
            return None;
        }
        let demand = self.demand.recent(now);
        let wanted = demand.min(settings.largest_batch);
        let charges = self.check.charges().iter().zip(&**states);
        let count = charges.fold(wanted, |count, (charge, (remaining, _))| {
            affordable(settings.share, *remaining, charge.cost.tokens()).min(count)
        });
        // A quarter of it is what the next trip has time for.
        if count < LeaseSettings::SMALLEST_BATCH || unspent > count / 4 {
            return None;
        }
        let mut claim = Pending {
            count,
            era: self.era,
            sent: now,
            lingers: None,
        };
        let mut order = Order {
            count: NonZeroU64::new(count)?,
            lingers: None,
        };
        if lasts(unspent, demand, settings.target) >= LASTING {
            let (sender, receiver) = oneshot::channel();
            claim.sent += LINGER;
            (claim.lingers, order.lingers) = (Some(sender), Some(receiver));
        }
        self.claim = Some(claim);
        Some(order)
    }

    /// Waits for the claim on its way, if that is likely to pay for this request in time.
    fn wait(&mut self, check: &Check, now: Instant) -> Option<oneshot::Receiver<Turn>> {
        let claim = self.claim.as_mut().filter(|it| it.era == self.era)?;
        if claim.lingers.take().is_some() {
            claim.sent = claim.sent.min(now);
        }
        if now > claim.sent + 2 * self.trip + JITTER {
            return None;
        }
        let mut answered = now.max(claim.sent + self.trip);
        let ahead = self.waiters.len() as u64;
        if ahead >= 2 * claim.count {
            return None;
        }
        if ahead >= claim.count {
            answered += self.trip;
        }
        let in_time = |deadline| answered <= Instant::from_std(deadline);
        if !check.deadline().is_none_or(in_time) {
            return None;
        }
        let (sender, turn) = oneshot::channel();
        self.waiters.push_back(Waiter {
            since: now,
            turn: sender,
        });
        Some(turn)
    }

    /// All that is known and claimed was for other quotas or shards. Returns what is held of it.
    fn change_payer(&mut self, check: &Check) -> Vec<Batch> {
        self.check = check.clone();
        self.era += 1;
        self.states = None;
        self.answers = false;
        self.waiters.clear();
        self.batches.drain(..).collect()
    }
}

/// Whether both are charged by the same quotas, to the same parts of the buckets. The key class is but a label.
fn is_same_payer(a: &Check, b: &Check) -> bool {
    let mut charges = a.charges().iter().zip(b.charges());
    let same_quota = |(a, b): (&Charge, &Charge)| a.limit.quota == b.limit.quota;
    a.shards() == b.shards() && charges.all(same_quota)
}

/// The states that a decision tells; `None` if it leaves one out.
fn states_of(decision: &Decision) -> Option<States> {
    let limits = decision.limits.iter();
    limits.map(|it| Some((it.remaining?, it.wait))).collect()
}

/// How many requests a share of what remains pays for.
#[expect(
    clippy::cast_precision_loss,
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "from 0 to 10^12"
)]
fn affordable(share: f64, remaining: u64, cost: u64) -> u64 {
    if cost == 0 {
        return u64::MAX;
    }
    (share * remaining as f64 / cost as f64) as u64
}

/// For how long that many requests last when `demand` come per `target`.
fn lasts(unspent: u64, demand: u64, target: Duration) -> Duration {
    let unspent = u32::try_from(unspent).unwrap_or(u32::MAX);
    let demand = u32::try_from(demand).unwrap_or(u32::MAX).max(1);
    target.saturating_mul(unspent) / demand
}
