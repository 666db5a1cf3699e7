use std::{
    collections::HashMap,
    future::pending,
    sync::{
        Mutex,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
};

use tokio::time::{Instant, advance, sleep};
use tollgate_core::{LimitName, Quota};

use super::*;
use crate::{Allowance, LoadFuture, QuotaBook, SourceError};

mod failures;

/// A tier that makes no sense.
const NONSENSE: &str = "?";

/// Accounts that a test can change, behind a delay, with failures on demand.
#[derive(Clone)]
struct Table {
    inner: Arc<TableInner>,
}

struct TableInner {
    tiers: Mutex<HashMap<String, &'static str>>,
    loads: AtomicUsize,
    down: AtomicBool,
    hangs: AtomicBool,
    delay: Duration,
    changes: broadcast::Sender<Change>,
}

impl Table {
    fn new(delay: u64) -> Self {
        let inner = TableInner {
            tiers: Mutex::default(),
            loads: AtomicUsize::new(0),
            down: AtomicBool::new(false),
            hangs: AtomicBool::new(false),
            delay: Duration::from_millis(delay),
            changes: broadcast::channel(16).0,
        };
        Self {
            inner: Arc::new(inner),
        }
    }

    fn set(&self, tenant: &str, tier: &'static str) {
        let mut tiers = self.inner.tiers.lock().expect("no panic");
        tiers.insert(tenant.to_owned(), tier);
    }

    fn fail(&self, down: bool) {
        self.inner.down.store(down, Ordering::SeqCst);
    }

    fn hang(&self, hangs: bool) {
        self.inner.hangs.store(hangs, Ordering::SeqCst);
    }

    fn loads(&self) -> usize {
        self.inner.loads.load(Ordering::SeqCst)
    }

    fn say(&self, change: Change) {
        self.inner.changes.send(change).expect("somebody listens");
    }
}

impl QuotaSource for Table {
    fn name(&self) -> &'static str {
        "table"
    }

    fn load<'a>(&'a self, tenant: &'a str, _: Option<&'a Account>) -> LoadFuture<'a> {
        self.inner.loads.fetch_add(1, Ordering::SeqCst);
        let tier = self
            .inner
            .tiers
            .lock()
            .expect("no panic")
            .get(tenant)
            .copied();
        Box::pin(async move {
            sleep(self.inner.delay).await;
            if self.inner.down.load(Ordering::SeqCst) {
                return Err(SourceError::new("down"));
            }
            if self.inner.hangs.load(Ordering::SeqCst) {
                return pending().await;
            }
            if tier == Some(NONSENSE) {
                return Err(SourceError::of_tenant("`tier`: no sense"));
            }
            Ok(tier.map(|tier| Account {
                tier: Some(tier.into()),
                ..Account::default()
            }))
        })
    }

    fn changes(&self) -> Option<broadcast::Receiver<Change>> {
        Some(self.inner.changes.subscribe())
    }
}

fn quotas() -> Quotas {
    Quotas::new(Quota::new(10, 1).expect("a quota"))
}

type Events = Arc<Mutex<Vec<QuotaEvent>>>;

fn open(book: QuotaBook) -> (Directory, Events) {
    let events = Events::default();
    let heard = events.clone();
    let directory = book.open(move |event| heard.lock().expect("no panic").push(event));
    (directory, events)
}

/// What was told of how long a source has failed.
fn ages(events: &Events) -> Vec<Duration> {
    let events = events.lock().expect("no panic");
    let age = |event: &QuotaEvent| match event {
        QuotaEvent::Stale(age) => Some(*age),
        _ => None,
    };
    events.iter().filter_map(age).collect()
}

fn tenant(id: &str) -> Tenant {
    Tenant::new(id, "free").expect("an id")
}

async fn tier(directory: &Directory, id: &str) -> Option<String> {
    let account = match directory.look_up(&tenant(id)) {
        Lookup::Known(account) => account,
        Lookup::Loading(loading) => loading.await,
    };
    account.map(|account| account.tier.as_deref().expect("a tier").to_owned())
}

fn some(tier: &str) -> Option<String> {
    Some(tier.to_owned())
}

/// Lets tasks that are ready run.
async fn settle() {
    for _ in 0..20 {
        tokio::task::yield_now().await;
    }
}

#[tokio::test(start_paused = true)]
async fn one_load_per_tenant_however_many_wait() {
    let table = Table::new(2);
    for i in 0..100 {
        table.set(&i.to_string(), "pro");
    }
    let (directory, _) = open(QuotaBook::new(quotas()).source(table.clone()));
    let requests: Vec<_> = (0..10_000)
        .map(|i| {
            let directory = directory.clone();
            tokio::spawn(async move { tier(&directory, &(i % 100).to_string()).await })
        })
        .collect();
    for request in requests {
        assert_eq!(request.await.expect("no panic"), some("pro"));
    }
    assert_eq!(table.loads(), 100);
}

#[tokio::test(start_paused = true)]
async fn an_account_in_use_is_loaded_ahead_and_nobody_waits() {
    let table = Table::new(5);
    table.set("a", "pro");
    let (directory, _) = open(QuotaBook::new(quotas()).source(table.clone()));
    assert_eq!(tier(&directory, "a").await, some("pro"));
    table.set("a", "enterprise");
    let start = Instant::now();
    let mut seen = None;
    while start.elapsed() < Duration::from_secs(60) {
        let Lookup::Known(account) = directory.look_up(&tenant("a")) else {
            panic!("a request waits");
        };
        if account.expect("known").tier.as_deref() == Some("enterprise") {
            seen.get_or_insert(start.elapsed());
        }
        advance(Duration::from_millis(100)).await;
        settle().await;
    }
    let seen = seen.expect("the change arrives");
    assert!(seen < Duration::from_secs(50), "{seen:?}");
    assert!(table.loads() <= 3, "{}", table.loads());
}

#[tokio::test(start_paused = true)]
async fn an_account_out_of_use_is_waited_for() {
    let table = Table::new(5);
    table.set("a", "pro");
    let (directory, _) = open(QuotaBook::new(quotas()).source(table.clone()));
    assert_eq!(tier(&directory, "a").await, some("pro"));
    table.set("a", "enterprise");
    advance(Duration::from_secs(600)).await;
    assert_eq!(tier(&directory, "a").await, some("enterprise"));
}

#[tokio::test(start_paused = true)]
async fn a_change_that_is_told_arrives_at_once() {
    let table = Table::new(5);
    table.set("a", "pro");
    let (directory, _) = open(QuotaBook::new(quotas()).source(table.clone()));
    assert_eq!(tier(&directory, "a").await, some("pro"));
    table.set("a", "enterprise");
    table.say(Change::Tenant("a".into()));
    sleep(Duration::from_millis(6)).await;
    let Lookup::Known(account) = directory.look_up(&tenant("a")) else {
        panic!("loaded already");
    };
    assert_eq!(account.expect("known").tier.as_deref(), Some("enterprise"));

    // What a load under way may have missed is loaded once more.
    table.say(Change::Tenant("a".into()));
    sleep(Duration::from_millis(2)).await;
    table.set("a", "free");
    table.say(Change::Tenant("a".into()));
    sleep(Duration::from_millis(20)).await;
    assert_eq!(tier(&directory, "a").await, some("free"));

    table.set("a", "pro");
    table.say(Change::Anything);
    settle().await;
    let Lookup::Known(account) = directory.look_up(&tenant("a")) else {
        panic!("what may have changed is waited for");
    };
    assert_eq!(account.expect("known").tier.as_deref(), Some("free"));
    sleep(Duration::from_millis(6)).await;
    assert_eq!(tier(&directory, "a").await, some("pro"));
    assert_eq!(table.loads(), 5);

    // Out of use for long, it is waited for as ever.
    sleep(Duration::from_secs(600)).await;
    table.set("a", "free");
    table.say(Change::Anything);
    settle().await;
    assert_eq!(tier(&directory, "a").await, some("free"));
}

#[tokio::test(start_paused = true)]
async fn an_unknown_tenant_is_not_asked_for_at_each_request() {
    let table = Table::new(1);
    let (directory, events) = open(QuotaBook::new(quotas()).source(table.clone()));
    for _ in 0..100 {
        assert_eq!(tier(&directory, "nobody").await, None);
    }
    assert_eq!(table.loads(), 1);
    advance(Duration::from_secs(12)).await;
    table.set("nobody", "pro");
    assert_eq!(tier(&directory, "nobody").await, some("pro"));
    let events = events.lock().expect("no panic");
    assert!(
        !events.contains(&QuotaEvent::Unknown),
        "it is known to be unknown"
    );
}

#[tokio::test(start_paused = true)]
async fn what_a_failing_source_said_last_counts_and_its_age_is_told() {
    let table = Table::new(1);
    table.set("a", "pro");
    let (directory, events) = open(QuotaBook::new(quotas()).source(table.clone()));
    assert_eq!(tier(&directory, "a").await, some("pro"));
    table.fail(true);
    let mut waits = 0;
    for _ in 0..600 {
        match directory.look_up(&tenant("a")) {
            Lookup::Known(account) => assert!(account.is_some()),
            Lookup::Loading(loading) => {
                waits += 1;
                assert!(loading.await.is_some());
            }
        }
        advance(Duration::from_secs(1)).await;
        settle().await;
    }
    assert_eq!(waits, 0, "a source that fails slows nobody");
    let age = ages(&events).last().copied();
    assert!(
        age.is_some_and(|age| age > Duration::from_secs(560)),
        "{age:?}"
    );

    table.set("a", "free");
    sleep(Duration::from_secs(1)).await;
    table.fail(false);
    for _ in 0..40 {
        let _ = directory.look_up(&tenant("a"));
        advance(Duration::from_secs(1)).await;
        settle().await;
    }
    assert_eq!(tier(&directory, "a").await, some("free"));
    assert_eq!(ages(&events).last(), Some(&Duration::ZERO));
}

#[tokio::test(start_paused = true)]
async fn at_first_sight_a_source_that_is_down_or_slow_is_waited_for_once_and_shortly() {
    let table = Table::new(500);
    table.set("a", "pro");
    let (directory, events) = open(QuotaBook::new(quotas()).source(table.clone()));
    let start = Instant::now();
    assert_eq!(tier(&directory, "a").await, None);
    assert_eq!(start.elapsed(), CacheSettings::default().patience);
    assert_eq!(*events.lock().expect("no panic"), [QuotaEvent::Unknown]);
    // The load went on.
    sleep(Duration::from_millis(500)).await;
    assert_eq!(tier(&directory, "a").await, some("pro"));

    table.fail(true);
    assert_eq!(tier(&directory, "b").await, None);
    sleep(Duration::from_millis(500)).await;
    let start = Instant::now();
    assert_eq!(tier(&directory, "b").await, None);
    assert_eq!(start.elapsed(), Duration::ZERO);
}

#[tokio::test(start_paused = true)]
async fn an_earlier_source_goes_before_a_later_one() {
    let name = LimitName::default();
    struct Fixed(Account);
    impl QuotaSource for Fixed {
        fn name(&self) -> &'static str {
            "fixed"
        }
        fn load<'a>(&'a self, _: &'a str, _: Option<&'a Account>) -> LoadFuture<'a> {
            Box::pin(async { Ok(Some(self.0.clone())) })
        }
    }
    let of_tier = |tier: &str| Account {
        tier: Some(tier.into()),
        ..Account::default()
    };
    let (first, mut second) = (of_tier("first"), of_tier("second"));
    second.limits.insert(name.clone(), Allowance::Unlimited);
    let book = QuotaBook::new(quotas())
        .source(Fixed(first))
        .source(Fixed(second));
    let (directory, _) = open(book);
    let Lookup::Loading(loading) = directory.look_up(&tenant("a")) else {
        panic!("not loaded yet");
    };
    let account = loading.await.expect("known");
    assert_eq!(account.tier.as_deref(), Some("first"));
    assert_eq!(account.limits[&name], Allowance::Unlimited);
}

#[tokio::test(start_paused = true)]
async fn memory_is_bounded_and_addresses_are_not_looked_up() {
    let table = Table::new(0);
    let settings = CacheSettings {
        max_tenants: 100,
        ..CacheSettings::default()
    };
    let book = QuotaBook::new(quotas())
        .source(table.clone())
        .cache(settings);
    let (directory, _) = open(book);
    for i in 0..5_000 {
        let _ = tier(&directory, &i.to_string()).await;
    }
    assert!(directory.inner.slots.len() <= 100);
    let loads = table.loads();
    let address = Tenant::anonymous(std::net::Ipv4Addr::LOCALHOST.into());
    assert!(matches!(directory.look_up(&address), Lookup::Known(None)));
    assert_eq!(table.loads(), loads);
}

#[tokio::test(start_paused = true)]
async fn a_source_that_panics_wedges_no_tenant() {
    struct Bomb(AtomicUsize);
    impl QuotaSource for Bomb {
        fn name(&self) -> &'static str {
            "bomb"
        }
        fn load<'a>(&'a self, _: &'a str, _: Option<&'a Account>) -> LoadFuture<'a> {
            assert!(self.0.fetch_add(1, Ordering::SeqCst) > 0, "boom");
            Box::pin(async {
                Ok(Some(Account {
                    tier: Some("pro".into()),
                    ..Account::default()
                }))
            })
        }
    }
    let (directory, _) = open(QuotaBook::new(quotas()).source(Bomb(AtomicUsize::new(0))));
    assert_eq!(tier(&directory, "a").await, None);
    advance(Duration::from_secs(2)).await;
    let _ = directory.look_up(&tenant("a"));
    settle().await;
    assert_eq!(tier(&directory, "a").await, some("pro"));
}
