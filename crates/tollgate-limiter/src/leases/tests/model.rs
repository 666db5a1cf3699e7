//! Every interleaving of requests, claims and the end of a lease on one account.

use loom::{
    sync::{Arc, Mutex},
    thread,
};

use tokio::sync::oneshot::error::TryRecvError;

use super::{super::ledger::Rest, *};

struct World {
    ledger: Mutex<Account>,
    settings: LeaseSettings,
    check: Check,
    now: Instant,
}

/// The account, and what happened to the tokens.
struct Account {
    ledger: Ledger,
    claims_under_way: u64,
    granted: u64,
    spent: u64,
    handed: u64,
    withdrawn: u64,
    /// Batches that are held, less those of which all was spent or withdrawn.
    batches: u64,
}

impl World {
    /// An account that has seen ten requests and a claim of which `held` requests are left.
    fn new(base: &Base, held: u64) -> Self {
        let settings = LeaseSettings {
            largest_batch: 4,
            ..LeaseSettings::default()
        };
        let (check, now) = (base.check.clone(), base.now);
        let mut ledger = Ledger::new(check.clone(), &settings, now);
        for _ in 0..10 {
            let request = ledger.request(&check, &settings, now);
            assert!(matches!(request.way, Way::Ask { .. }) && request.claim.is_none());
        }
        ledger.learn(0, now, &Ok(base.answer(1)), now);
        let world = Self {
            ledger: Mutex::new(Account {
                ledger,
                claims_under_way: 0,
                granted: 0,
                spent: 0,
                handed: 0,
                withdrawn: 0,
                batches: 0,
            }),
            settings,
            check,
            now,
        };
        if held > 0 {
            // This one pays for itself out of it.
            world.request(base, held + 1);
        }
        world
    }

    /// One request, and the claim that it may have to make, which is granted `granted`.
    fn request(&self, base: &Base, granted: u64) {
        let mut account = self.ledger.lock().expect("no panic");
        let request = account
            .ledger
            .request(&self.check, &self.settings, self.now);
        if let Way::Spend(spent) = &request.way {
            account.spent += 1;
            account.batches -= u64::from(spent.ends_batch);
        }
        account.claims_under_way += u64::from(request.claim.is_some());
        assert!(account.claims_under_way <= 1, "two claims at a time");
        drop(account);

        let mut claim = request.claim;
        while let Some(Order { count, .. }) = claim.take() {
            let granted = granted.min(count.get());
            // The store is asked meanwhile.
            thread::yield_now();
            let mut account = self.ledger.lock().expect("no panic");
            account.claims_under_way -= 1;
            account.granted += granted;
            let answer = Ok(base.answer(granted));
            let settled = account.ledger.settle(
                &self.settings,
                &self.check.clone().with_count(count),
                answer,
                self.now,
                self.now,
            );
            account.handed += settled.gone - (count.get() - granted);
            account.batches += u64::from(matches!(settled.rest, Rest::Held));
            claim = settled.next;
            account.claims_under_way += u64::from(claim.is_some());
        }
        // Nobody is left waiting: by now, or by the claim that is under way.
        if let Way::Wait(mut turn) = request.way {
            let account = self.ledger.lock().expect("no panic");
            let is_told = !matches!(turn.try_recv(), Err(TryRecvError::Empty));
            assert!(is_told || account.claims_under_way == 1);
        }
    }

    /// The time of a batch is over.
    fn end(&self) {
        let mut account = self.ledger.lock().expect("no panic");
        let expires = self.now + self.settings.life;
        if let Some(batch) = account.ledger.withdraw(expires) {
            account.withdrawn += batch.unspent;
            account.batches -= 1;
        }
    }

    /// Takes out what is left: each token has gone exactly one way.
    fn balance(&self) {
        for _ in 0..10 {
            self.end();
        }
        let account = self.ledger.lock().expect("no panic");
        let gone = account.spent + account.handed + account.withdrawn;
        assert_eq!((account.granted, account.batches), (gone, 0));
        assert_eq!(account.claims_under_way, 0);
    }
}

/// What does not change, made outside of the model.
#[derive(Clone)]
struct Base {
    check: Check,
    now: Instant,
}

impl Base {
    fn new() -> Self {
        Self {
            check: check(quota(1_000, "1/h"), 1),
            now: Instant::now(),
        }
    }

    fn answer(&self, granted: u64) -> Decision {
        let states = [(900, Wait::None)];
        self.check.clone().decide(granted, Source::Store, states)
    }
}

fn explore(held: u64, granted: u64) {
    let base = Base::new();
    loom::model(move || {
        let world = Arc::new(World::new(&base, held));
        let spend = || {
            let (world, base) = (world.clone(), base.clone());
            thread::spawn(move || world.request(&base, granted))
        };
        let threads = [spend(), spend()];
        world.end();
        for thread in threads {
            thread.join().expect("no panic");
        }
        world.balance();
    });
}

#[test]
fn spending_renewing_and_ending_lose_and_invent_no_token() {
    // Nothing held: all wait for one claim. Two held: spent, renewed and ended at once.
    for held in [0, 2] {
        // A claim that is granted in full, in part, and not at all.
        for granted in [4, 1, 0] {
            explore(held, granted);
        }
    }
}
