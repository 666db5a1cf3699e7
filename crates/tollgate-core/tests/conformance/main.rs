//! The suite of the stores' rules, tried on a store that keeps them all and on stores that break one each.

mod flaws;

use std::time::Duration;

use tollgate_core::{
    ManualClock, MemoryStore, MonotonicClock, Store,
    conformance::{self, Broken, Harness, RULES},
};

use self::flaws::{Flaw, Flawed};

/// A store whose time passes only when the suite waits.
struct Still<S> {
    store: S,
    /// The store's clock, and one that shows the time that has passed.
    clocks: [ManualClock; 2],
}

impl<S: Store> Harness for Still<S> {
    fn store(&self) -> &dyn Store {
        &self.store
    }

    async fn sleep(&self, time: Duration) {
        let millis = time.as_nanos().div_ceil(1_000_000);
        for clock in &self.clocks {
            clock.advance(u64::try_from(millis).expect("a short time"));
        }
    }

    fn now(&self) -> Duration {
        use tollgate_core::Clock;

        Duration::from_millis(self.clocks[1].now())
    }
}

struct Real(MemoryStore<MonotonicClock>);

impl Harness for Real {
    fn store(&self) -> &dyn Store {
        &self.0
    }

    async fn sleep(&self, time: Duration) {
        tokio::time::sleep(time).await;
    }
}

async fn broken_by(flaw: Flaw) -> Vec<Broken> {
    let clocks = [ManualClock::default(), ManualClock::default()];
    let store = Flawed::new(flaw, clocks[0].clone());
    conformance::broken(&Still { store, clocks }).await
}

#[tokio::test]
async fn the_store_in_memory_keeps_every_rule_by_a_clock_that_is_moved() {
    let clocks = [ManualClock::default(), ManualClock::default()];
    let store = MemoryStore::with_clock(clocks[0].clone());
    conformance::run(&Still { store, clocks }).await;
}

#[tokio::test]
async fn the_store_in_memory_keeps_every_rule_by_the_systems_clock() {
    conformance::run(&Real(MemoryStore::new())).await;
}

/// The same wrapper as around the broken ones, so that it is the flaw that breaks them.
#[tokio::test]
async fn a_wrapper_without_a_flaw_keeps_every_rule() {
    assert_eq!(broken_by(Flaw::None).await, []);
}

#[tokio::test]
async fn each_flaw_is_found_by_the_rule_that_it_breaks() {
    let mut unproven: Vec<_> = RULES.to_vec();
    for (flaw, rule) in flaws::ALL {
        assert!(RULES.contains(&rule), "there is no rule {rule:?}");
        let broken = broken_by(flaw).await;
        let rules: Vec<_> = broken.iter().map(|it| it.rule).collect();
        assert!(rules.contains(&rule), "{flaw:?} broke {rules:#?}");
        unproven.retain(|other| *other != rule);
    }
    assert_eq!(unproven, [""; 0], "no flaw shows that these rules can fail");
}

#[tokio::test]
#[should_panic(expected = "a denial costs nothing: 3 of 2 tokens")]
async fn the_message_names_the_rule_and_what_was_found() {
    let clocks = [ManualClock::default(), ManualClock::default()];
    let store = Flawed::new(Flaw::DenialCosts, clocks[0].clone());
    conformance::run(&Still { store, clocks }).await;
}

/// A store that is down breaks rules; it does not hang or panic the suite.
#[tokio::test]
async fn a_store_that_fails_breaks_rules_with_its_own_words() {
    let broken = broken_by(Flaw::Down).await;
    assert!(broken.len() > 15, "{broken:#?}");
    assert!(
        broken[0].found.contains("the store is down"),
        "{}",
        broken[0]
    );
}
