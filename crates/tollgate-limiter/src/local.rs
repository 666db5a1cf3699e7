//! Limits without the store: each replica enforces its share.

use std::{
    collections::HashMap,
    sync::{
        PoisonError, RwLock,
        atomic::{AtomicU64, Ordering},
    },
};

use tollgate_core::{
    Adjustment, BucketKey, Charge, Check, Clock, Decision, KeySpace, Limit, LimitName, MemoryStore,
    MonotonicClock, Quota, Source, StoreError, Tenant, Verdict,
};

use crate::checking::uncharge;

/// So many tenants have a bucket of their own while the store is away.
const MAX_BUCKETS: usize = 100_000;

/// What a replica enforces by itself: of each quota `rate / N`, and `capacity / N` or the largest cost that
/// was ever asked of the limit, whichever is more.
///
/// 1. While the store answers, each bucket here is kept at most as full as the store said, divided by N. So a
///    tenant that was just seen drained starts drained.
/// 2. Buckets live on between outages, so a store that comes and goes gives no new bursts.
/// 3. A bucket that is not full is never forgotten. When there are too many of these, all tenants that have
///    none share one for each limit and quota, of the size that one of them would have.
///
/// Bound: N replicas admit at most `N × local capacity + rate × T`.
#[derive(Debug)]
pub(crate) struct Local<C = MonotonicClock> {
    buckets: MemoryStore<C>,
    /// One bucket for each limit and quota.
    overflow: MemoryStore<C>,
    costs: LargestCosts,
}

impl Local {
    pub(crate) fn new() -> Self {
        Self::with_clock(MonotonicClock::default(), MAX_BUCKETS)
    }
}

impl<C: Clock + Clone> Local<C> {
    fn with_clock(clock: C, max_buckets: usize) -> Self {
        Self {
            buckets: MemoryStore::with_clock(clock.clone()).with_max_buckets(max_buckets),
            overflow: MemoryStore::with_clock(clock),
            costs: LargestCosts::default(),
        }
    }

    /// Notes what requests cost, so that no route is shut for good when the store goes.
    pub(crate) fn note_costs(&self, check: &Check) {
        for charge in check.charges() {
            let cost = charge.cost.tokens();
            // What can never fit must not make buckets larger, least of all those of others. And each has room
            // for 1.
            if cost > 1 && cost <= charge.limit.quota.capacity() {
                self.costs.note(&charge.limit.name, cost);
            }
        }
    }

    /// Keeps the local buckets at most as full as the store says that they are.
    pub(crate) fn note_answer(&self, check: &Check, decision: &Decision, replicas: u32) {
        for (charge, limit) in check.charges().iter().zip(&decision.limits) {
            let Some(remaining) = limit.remaining else {
                continue;
            };
            let quota = self.share(&charge.limit, replicas);
            #[expect(clippy::cast_precision_loss, reason = "at most 10^12")]
            let tokens = remaining as f64 / f64::from(replicas.max(1));
            // A store without room forgets nobody; this one will share the overflow bucket.
            let _ = self.buckets.lower(&charge.key, &quota, tokens);
        }
    }

    pub(crate) fn decide(&self, check: &Check, replicas: u32) -> Decision {
        let shares = check.map_charges(|charge| self.share_of(charge, replicas));
        let answer = self.buckets.decide(&shares);
        match answer.or_else(|_| self.decide_apart(&shares)) {
            Ok(mut decision) => {
                decision.source = Source::Fallback;
                decision
            }
            // There are not enough limits to fill that one.
            Err(_) => check.decide_blindly(Verdict::Unavailable),
        }
    }

    /// Decides a check for some of whose buckets there is no room. The others keep theirs: who was drained
    /// before the flood stays so.
    fn decide_apart(&self, check: &Check) -> Result<Decision, StoreError> {
        let overflow = |charge: &Charge| Charge {
            key: overflow_key(&charge.limit),
            ..charge.clone()
        };
        let charges = check.charges().iter();
        let is_held: Vec<_> = charges
            .map(|charge| self.buckets.holds(&charge.key))
            .collect();
        let part = |held: bool| {
            let mut is_held = is_held.iter();
            check.filter(|_| is_held.next() == Some(&held))
        };
        let crowd = part(false).map(|part| part.map_charges(overflow));
        let (Some(own), Some(crowd)) = (part(true), crowd) else {
            return self.overflow.decide(&check.map_charges(overflow));
        };
        let mut ours = self.buckets.decide(&own)?;
        let mut theirs = self.overflow.decide(&crowd)?;
        let granted = ours.granted.min(theirs.granted);
        if let Some(back) = Adjustment::give_back(&own, &ours, ours.granted - granted) {
            self.buckets.change(&back)?;
            ours.limits.iter_mut().for_each(uncharge);
        }
        if let Some(back) = Adjustment::give_back(&crowd, &theirs, theirs.granted - granted) {
            self.overflow.change(&back)?;
            theirs.limits.iter_mut().for_each(uncharge);
        }
        let (mut ours, mut theirs) = (ours.limits.into_iter(), theirs.limits.into_iter());
        let limits = is_held
            .iter()
            .filter_map(|held| if *held { ours.next() } else { theirs.next() });
        let states = limits.map(|limit| (limit.remaining.unwrap_or(0), limit.wait));
        Ok(check.decide(granted, Source::Fallback, states))
    }

    fn share_of(&self, charge: &Charge, replicas: u32) -> Charge {
        let limit = Limit {
            quota: self.share(&charge.limit, replicas),
            ..charge.limit.clone()
        };
        Charge {
            limit,
            ..charge.clone()
        }
    }

    fn share(&self, limit: &Limit, replicas: u32) -> Quota {
        limit.quota.share(replicas, self.costs.largest(&limit.name))
    }
}

/// The largest cost that was ever asked of each limit, at least 1.
#[derive(Debug, Default)]
struct LargestCosts(RwLock<HashMap<LimitName, AtomicU64>>);

impl LargestCosts {
    fn note(&self, limit: &LimitName, cost: u64) {
        // Most of the time there is nothing to write, and then no cache line to fight for.
        if cost <= self.largest(limit) {
            return;
        }
        let mut costs = self.0.write().unwrap_or_else(PoisonError::into_inner);
        let largest = costs.entry(limit.clone()).or_default();
        largest.fetch_max(cost, Ordering::Relaxed);
    }

    fn largest(&self, limit: &LimitName) -> u64 {
        let costs = self.0.read().unwrap_or_else(PoisonError::into_inner);
        let largest = costs.get(limit);
        largest.map_or(1, |largest| largest.load(Ordering::Relaxed))
    }
}

/// One bucket for each limit and quota, so that a tier with a small quota does not drain a larger one's.
fn overflow_key(limit: &Limit) -> BucketKey {
    let everybody = Tenant::new("everybody", "overflow").expect("not empty");
    KeySpace::default().member_bucket(&everybody, &limit.name, &limit.quota.to_string())
}

#[cfg(test)]
mod tests {
    use tollgate_core::{Cost, LimitDecision, LimitName, ManualClock, Wait};

    use super::*;

    fn check(tenant: &str, capacity: u64, rate: f64, cost: u32) -> Check {
        let name = LimitName::default();
        let quota = Quota::new(capacity, rate).expect("a quota");
        let tenant = Tenant::new(tenant, "pro").expect("an id");
        let key = KeySpace::default().bucket(&tenant, &name);
        let limit = Limit { name, quota };
        Check::single(Charge {
            key,
            limit,
            cost: Cost::new(cost),
        })
    }

    /// What the store would have said.
    fn answer(check: &Check, remaining: u64) -> Decision {
        check
            .clone()
            .decide(1, Source::Store, [(remaining, Wait::None)])
    }

    fn local() -> (Local<ManualClock>, ManualClock) {
        let clock = ManualClock::default();
        (Local::with_clock(clock.clone(), 10_000), clock)
    }

    fn admits<C: Clock + Clone>(local: &Local<C>, check: &Check, replicas: u32) -> u64 {
        local.note_costs(check);
        let allowed = |_: &u64| local.decide(check, replicas).is_allowed();
        (0..10_000).take_while(allowed).count() as u64
    }

    #[test]
    fn each_replica_has_its_share_and_says_so() {
        let (local, clock) = local();
        let check = check("a", 100, 10.0, 1);
        assert_eq!(admits(&local, &check, 4), 25);
        clock.advance(2_000);
        assert_eq!(admits(&local, &check, 4), 5);
        let denied = local.decide(&check, 4);
        assert_eq!(
            (denied.verdict, denied.source),
            (Verdict::Denied, Source::Fallback)
        );
        assert_eq!(denied.limits[0].capacity(), 25);
        assert_eq!(denied.limits[0].remaining, Some(0));
    }

    #[test]
    fn a_tenant_seen_drained_starts_drained() {
        let (local, clock) = local();
        let check = check("a", 100, 10.0, 1);
        local.note_answer(&check, &answer(&check, 8), 4);
        assert_eq!(admits(&local, &check, 4), 2);
        // What is known ages with the refill.
        local.note_answer(&check, &answer(&check, 0), 4);
        clock.advance(4_000);
        assert_eq!(admits(&local, &check, 4), 10);
    }

    #[test]
    fn an_outage_that_comes_and_goes_gives_no_new_bursts() {
        let (local, clock) = local();
        let check = check("a", 100, 1.0, 1);
        let mut admitted = 0;
        for _ in 0..60 {
            admitted += admits(&local, &check, 4);
            clock.advance(500);
            // The store is back, and full of tokens.
            local.note_answer(&check, &answer(&check, 100), 4);
            clock.advance(500);
        }
        assert!(admitted <= 25 + 60 / 4, "{admitted}");
    }

    #[test]
    fn a_costly_route_is_not_shut_for_good() {
        let (local, clock) = local();
        let costly = check("a", 100, 10.0, 60);
        assert_eq!(admits(&local, &costly, 10), 1);
        assert_eq!(admits(&local, &costly, 10), 0);
        clock.advance(60_000);
        assert_eq!(admits(&local, &costly, 10), 1);
        let never = check("b", 100, 10.0, 101);
        local.note_costs(&never);
        assert_eq!(local.decide(&never, 10).limits[0].wait, Wait::Never);
    }

    #[test]
    fn a_flood_of_newcomers_shares_one_bucket_and_makes_nobody_forgotten() {
        let clock = ManualClock::default();
        let local = Local::with_clock(clock, 1_000);
        let drained = check("first", 8, 1.0, 2);
        assert_eq!(admits(&local, &drained, 2), 2);
        let newcomers = |local: &Local<ManualClock>| -> usize {
            (0..5_000)
                .filter(|i| {
                    local
                        .decide(&check(&i.to_string(), 8, 1.0, 2), 2)
                        .is_allowed()
                })
                .count()
        };
        let admitted = newcomers(&local);
        // Each that found room had its one request; the rest had the two of the shared bucket.
        let kept = local.buckets.len() - 1;
        assert_eq!(admitted, kept + 2);
        assert!(kept < 1_100, "{kept}");
        assert_eq!(admits(&local, &drained, 2), 0);
    }

    /// A check of two limits of `tenant`, of 8 tokens each and these costs.
    fn pair(tenant: &str, first: u32, second: u32) -> Check {
        let tenant = Tenant::new(tenant, "pro").expect("an id");
        let charge = |name: &str, cost| {
            let name = LimitName::new(name).expect("a name");
            let key = KeySpace::default().bucket(&tenant, &name);
            let quota = Quota::new(8, 0.001).expect("a quota");
            let limit = Limit { name, quota };
            let cost = Cost::new(cost);
            Charge { key, limit, cost }
        };
        Check::new(vec![charge("first", first), charge("second", second)]).expect("a check")
    }

    fn left(decision: &Decision) -> Vec<u64> {
        let limits = decision.limits.iter();
        limits
            .map(|limit| limit.remaining.expect("known"))
            .collect()
    }

    #[test]
    fn who_was_drained_before_a_flood_stays_so_in_one_of_several_limits() {
        let local = Local::with_clock(ManualClock::default(), 1_000);
        // A tenant of whom one bucket is held, and drained, and the other is not.
        let held = pair("a", 8, 0);
        assert!(local.decide(&held, 1).is_allowed());
        // And one with tokens left.
        assert!(local.decide(&pair("b", 5, 0), 1).is_allowed());
        for i in 0..5_000 {
            let _ = local.decide(&pair(&format!("flood-{i}"), 0, 1), 1);
        }
        let full = local.buckets.len();
        for tenant in ["a", "new"] {
            assert!(
                local.decide(&pair(tenant, 0, 0), 1).is_allowed(),
                "reads need no room"
            );
        }
        // The flood has drained the bucket that newcomers share for the second limit.
        let denied = local.decide(&pair("b", 2, 1), 1);
        assert_eq!(denied.verdict, Verdict::Denied);
        assert_eq!(left(&denied), [3, 0], "nothing is taken, and it shows");
        assert_eq!(denied.limits[0].wait, Wait::None);
        assert!(denied.limits[1].lacked_tokens());
        let denied = local.decide(&pair("a", 1, 0), 1);
        assert_eq!((denied.verdict, left(&denied)[0]), (Verdict::Denied, 0));
        // Of the first limit's shared bucket, nobody has taken anything.
        let denied = local.decide(&pair("a", 1, 1), 1);
        assert_eq!(denied.verdict, Verdict::Denied);
        assert!(
            denied.limits[0].lacked_tokens(),
            "the drained bucket is its own"
        );
        let allowed = local.decide(&pair("b", 3, 0), 1);
        assert_eq!((allowed.verdict, left(&allowed)[0]), (Verdict::Allowed, 0));
        assert_eq!(local.buckets.len(), full);
    }

    #[test]
    fn what_own_and_shared_buckets_do_not_both_grant_is_taken_from_neither() {
        let local = Local::with_clock(ManualClock::default(), 0);
        // Fills the room of one tag, with the first limit of `a` among them.
        assert!(local.decide(&pair("a", 8, 0), 1).is_allowed());
        let fill = |local: &Local<ManualClock>, i: u64| {
            local.decide(&check(&format!("f{i}"), 8, 0.001, 1), 1)
        };
        for i in 0..2_000 {
            let _ = fill(&local, i);
        }
        // Its own bucket denies: the shared one is given back what it granted, however often.
        for _ in 0..20 {
            let denied = local.decide(&pair("a", 1, 1), 1);
            assert_eq!(denied.verdict, Verdict::Denied);
            assert_eq!(left(&denied), [0, 8]);
        }
    }

    #[test]
    fn the_largest_cost_is_noted_for_each_limit() {
        let (local, _) = local();
        local.note_costs(&pair("a", 6, 2));
        let decision = local.decide(&pair("a", 1, 1), 8);
        let capacities: Vec<_> = decision
            .limits
            .iter()
            .map(LimitDecision::capacity)
            .collect();
        assert_eq!(capacities, [6, 2]);
    }

    #[test]
    fn a_limit_that_watches_denies_nobody_here_either() {
        let (local, _) = local();
        let check = pair("a", 1, 8).with_shadow(1).expect("one of two");
        let verdicts: Vec<_> = (0..3)
            .map(|_| {
                let decision = local.decide(&check, 1);
                (decision.is_allowed(), decision.limits[1].lacked_tokens())
            })
            .collect();
        assert_eq!(verdicts, [(true, false), (true, true), (true, true)]);
    }

    #[test]
    fn a_cost_that_can_never_fit_makes_nobodys_bucket_larger() {
        let (local, _) = local();
        local.note_costs(&check("b", 100, 0.001, 1_000_000));
        assert_eq!(admits(&local, &check("a", 100, 0.001, 1), 10), 10);
    }

    #[test]
    fn newcomers_of_one_tier_do_not_drain_those_of_another() {
        let local = Local::with_clock(ManualClock::default(), 1_000);
        for i in 0..5_000 {
            let _ = local.decide(&check(&i.to_string(), 8, 0.001, 1), 2);
        }
        assert!(!local.decide(&check("small", 8, 0.001, 1), 2).is_allowed());
        assert!(
            local
                .decide(&check("large", 80_000, 0.01, 1), 2)
                .is_allowed()
        );
    }

    #[test]
    fn an_unknown_number_of_replicas_counts_as_one() {
        let (local, _) = local();
        assert_eq!(admits(&local, &check("a", 10, 0.001, 1), 0), 10);
    }
}
