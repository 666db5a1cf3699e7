//! Sources that fail, hang or talk nonsense.

use std::io;

use super::*;

/// Whatever is known, without a wait.
#[track_caller]
fn known(directory: &Directory, id: &str) -> Option<String> {
    let Lookup::Known(account) = directory.look_up(&tenant(id)) else {
        panic!("a request of `{id}` waits");
    };
    account.map(|it| it.tier.as_deref().expect("a tier").to_owned())
}

/// Asks for all of `ids` four times a second.
async fn use_for(directory: &Directory, ids: &[String], span: Duration) {
    let end = Instant::now() + span;
    while Instant::now() < end {
        for id in ids {
            known(directory, id);
        }
        sleep(Duration::from_millis(250)).await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_failing_source_is_probed_for_one_tenant_at_a_time() {
    let table = Table::new(5);
    let ids: Vec<String> = (0..200).map(|i| i.to_string()).collect();
    let (directory, _) = open(QuotaBook::new(quotas()).source(table.clone()));
    for id in &ids {
        table.set(id, "pro");
        assert_eq!(tier(&directory, id).await, some("pro"));
    }
    table.fail(true);
    let before = table.loads();
    use_for(&directory, &ids, Duration::from_secs(240)).await;
    let asked = table.loads() - before;
    // Those under way when it began to fail, and then after 1, 2, 4, 8, 16 s, and each 30 s.
    assert!((8..=64 + 16).contains(&asked), "{asked} loads");
    assert_eq!(known(&directory, "7"), some("pro"));

    // Tenants that it has not seen are no reason to ask it either.
    let before = table.loads();
    let start = Instant::now();
    for i in 0..100 {
        assert_eq!(tier(&directory, &format!("new-{i}")).await, None);
    }
    assert!(table.loads() <= before + 1);
    assert!(start.elapsed() < Duration::from_millis(10), "nobody waits");

    for id in &ids {
        table.set(id, "free");
    }
    table.fail(false);
    use_for(&directory, &ids, Duration::from_secs(40)).await;
    for id in &ids {
        assert_eq!(known(&directory, id), some("free"), "{id}");
    }
}

#[tokio::test(start_paused = true)]
async fn who_queues_when_a_source_begins_to_fail_does_not_ask_it() {
    let table = Table::new(50);
    let (directory, _) = open(QuotaBook::new(quotas()).source(table.clone()));
    table.fail(true);
    for i in 0..500 {
        let _ = directory.look_up(&tenant(&i.to_string()));
    }
    sleep(Duration::from_millis(700)).await;
    assert_eq!(table.loads(), MOST_LOADS);
}

#[tokio::test(start_paused = true)]
async fn nonsense_of_one_tenant_leaves_the_others_alone() {
    let table = Table::new(1);
    table.set("a", "pro");
    table.set("b", "pro");
    let (directory, events) = open(QuotaBook::new(quotas()).source(table.clone()));
    assert_eq!(tier(&directory, "a").await, some("pro"));
    assert_eq!(tier(&directory, "b").await, some("pro"));
    table.set("b", NONSENSE);
    table.say(Change::Tenant("b".into()));
    sleep(Duration::from_millis(10)).await;
    assert_eq!(known(&directory, "b"), some("pro"));
    let before = table.loads();
    // Another tenant is asked for at once, and `b` less and less often.
    table.set("c", "pro");
    assert_eq!(tier(&directory, "c").await, some("pro"));
    use_for(&directory, &["b".to_owned()], Duration::from_secs(120)).await;
    let asked = table.loads() - before - 1;
    assert!((5..=10).contains(&asked), "{asked} loads");
    assert!(ages(&events).is_empty(), "the source does not fail");

    table.set("b", "free");
    use_for(&directory, &["b".to_owned()], Duration::from_secs(40)).await;
    assert_eq!(known(&directory, "b"), some("free"));
}

#[tokio::test(start_paused = true)]
async fn nonsense_does_not_end_an_outage() {
    let table = Table::new(1);
    let (directory, events) = open(QuotaBook::new(quotas()).source(table.clone()));
    table.set("b", NONSENSE);
    table.fail(true);
    assert_eq!(tier(&directory, "a").await, None);
    table.fail(false);
    sleep(Duration::from_secs(2)).await;
    assert_eq!(tier(&directory, "b").await, None);
    assert!(!ages(&events).contains(&Duration::ZERO));
    // It was the probe, and the next one need not wait for another.
    table.set("c", "pro");
    assert_eq!(tier(&directory, "c").await, some("pro"));
    assert_eq!(ages(&events).last(), Some(&Duration::ZERO));
}

#[tokio::test(start_paused = true)]
async fn a_load_that_hangs_is_waited_for_once() {
    let table = Table::new(1);
    table.set("a", "pro");
    let (directory, _) = open(QuotaBook::new(quotas()).source(table.clone()));
    assert_eq!(tier(&directory, "a").await, some("pro"));
    sleep(Duration::from_secs(600)).await;
    table.hang(true);
    let patience = CacheSettings::default().patience;
    for (id, last) in [("a", some("pro")), ("new", None)] {
        let start = Instant::now();
        assert_eq!(tier(&directory, id).await, last);
        assert_eq!(start.elapsed(), patience);
        for _ in 0..90 {
            assert_eq!(known(&directory, id), last);
            advance(Duration::from_millis(100)).await;
        }
    }
    // Who comes while it is waited for waits for the rest only.
    let Lookup::Loading(first) = directory.look_up(&tenant("other")) else {
        panic!("not loaded yet");
    };
    drop(first);
    sleep(patience / 2).await;
    let start = Instant::now();
    assert_eq!(tier(&directory, "other").await, None);
    assert_eq!(start.elapsed(), patience / 2);
}

#[tokio::test(start_paused = true)]
async fn loads_that_hang_free_their_places() {
    let table = Table::new(1);
    table.set("a", "pro");
    let (directory, _) = open(QuotaBook::new(quotas()).source(table.clone()));
    table.hang(true);
    for i in 0..MOST_LOADS {
        let _ = directory.look_up(&tenant(&i.to_string()));
    }
    settle().await;
    assert_eq!(tier(&directory, "a").await, None, "queued");
    table.hang(false);
    use_for(&directory, &["a".to_owned()], Duration::from_secs(9)).await;
    assert_eq!(known(&directory, "a"), None);
    use_for(&directory, &["a".to_owned()], Duration::from_secs(4)).await;
    assert_eq!(known(&directory, "a"), some("pro"));
}

#[tokio::test(start_paused = true)]
async fn the_age_is_zero_only_once_all_sources_answer() {
    let (good, bad) = (Table::new(1), Table::new(1));
    let book = QuotaBook::new(quotas()).source(good.clone());
    let (directory, events) = open(book.source(bad.clone()));
    bad.fail(true);
    let start = Instant::now();
    // Tenants never seen before, whom the other source answers for.
    for i in 0..300 {
        let id = i.to_string();
        good.set(&id, "pro");
        assert_eq!(tier(&directory, &id).await, some("pro"));
        sleep(Duration::from_secs(1)).await;
    }
    let told = ages(&events);
    assert!(told.iter().all(|age| !age.is_zero()), "{told:?}");
    assert!(told.is_sorted(), "{told:?}");
    let last = told.last().copied().unwrap_or_default();
    assert!(last + Duration::from_secs(2) > start.elapsed(), "{last:?}");

    good.fail(true);
    bad.fail(false);
    sleep(Duration::from_secs(60)).await;
    let _ = tier(&directory, "another").await;
    let last = ages(&events).last().copied().unwrap_or_default();
    // Since the last answer of that which fails now.
    assert!((60..63).contains(&last.as_secs()), "{last:?}");
    good.fail(false);
    sleep(Duration::from_secs(60)).await;
    let _ = tier(&directory, "one more").await;
    assert_eq!(ages(&events).last(), Some(&Duration::ZERO));
}

#[tokio::test(start_paused = true)]
async fn too_many_limits_make_no_sense() {
    struct Limits(AtomicUsize);
    impl QuotaSource for Limits {
        fn name(&self) -> &'static str {
            "limits"
        }
        fn load<'a>(&'a self, _: &'a str, _: Option<&'a Account>) -> LoadFuture<'a> {
            let limits = (0..self.0.fetch_add(1, Ordering::SeqCst))
                .map(|i| LimitName::new(&format!("l{i}")).expect("a name"))
                .map(|name| (name, Allowance::Unlimited))
                .collect();
            Box::pin(async {
                Ok(Some(Account {
                    limits,
                    ..Account::default()
                }))
            })
        }
    }
    let (directory, events) = open(QuotaBook::new(quotas()).source(Limits(64.into())));
    let limits = async |id| match directory.look_up(&tenant(id)) {
        Lookup::Known(account) => account.map(|it| it.limits.len()),
        Lookup::Loading(loading) => loading.await.map(|it| it.limits.len()),
    };
    assert_eq!(limits("a").await, Some(64));
    assert_eq!(limits("b").await, None);
    assert!(ages(&events).is_empty(), "the source does not fail");
}

#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<u8>>>);

impl io::Write for Log {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().expect("no panic").extend(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[tokio::test(start_paused = true)]
async fn the_log_has_a_line_per_change_and_nonsense_once_a_minute() {
    let log = Log::default();
    let writer = log.clone();
    // With a single dispatcher, tracing asks that of the thread which first comes by a line of log, and another
    // test's has none. With two it asks them all.
    let _second = tracing::Dispatch::new(tracing_subscriber::registry());
    let subscriber = tracing_subscriber::fmt()
        .with_writer(move || writer.clone())
        .with_ansi(false)
        .with_target(false)
        .without_time()
        .finish();
    let _guard = tracing::subscriber::set_default(subscriber);
    let lines = || {
        let text = std::mem::take(&mut *log.0.lock().expect("no panic"));
        let text = String::from_utf8(text).expect("UTF-8");
        let lines: Vec<String> = text.lines().map(|line| line.trim().to_owned()).collect();
        lines
    };

    let table = Table::new(1);
    let (directory, _) = open(QuotaBook::new(quotas()).source(table.clone()));
    for i in 0..100 {
        table.set(&format!("bad-{i}"), NONSENSE);
        table.set(&i.to_string(), "pro");
    }
    // Nonsense and sense by turns.
    for i in 0..100 {
        let _ = tier(&directory, &format!("bad-{i}")).await;
        let _ = tier(&directory, &i.to_string()).await;
    }
    let nonsense = "WARN what the source of quotas says of a tenant makes no sense; what it said last counts, or else the tenant's tier or the default source=\"table\" error=`tier`: no sense suppressed=";
    assert_eq!(lines(), [format!("{nonsense}0")]);
    sleep(Duration::from_secs(61)).await;
    table.set("late", NONSENSE);
    let _ = tier(&directory, "late").await;
    assert_eq!(lines(), [format!("{nonsense}99")]);

    table.fail(true);
    let ids = ["0", "1", "bad-0"].map(str::to_owned);
    sleep(Duration::from_secs(1)).await;
    let _ = tier(&directory, "somebody").await;
    for id in &ids {
        let _ = tier(&directory, id).await;
    }
    use_for(&directory, &ids, Duration::from_secs(20)).await;
    table.fail(false);
    use_for(&directory, &ids[..2], Duration::from_secs(40)).await;
    assert_eq!(
        lines(),
        [
            "WARN the source of quotas fails; what it said last counts, and for new tenants their tier or the default source=\"table\" error=down",
            "INFO the source of quotas answers again source=\"table\"",
        ]
    );
}
