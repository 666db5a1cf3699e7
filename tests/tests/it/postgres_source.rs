//! Accounts in a real Postgres.

use std::{
    num::{NonZeroU8, NonZeroUsize},
    path::Path,
    time::Duration,
};

use tokio::{
    sync::broadcast::{self, error::TryRecvError},
    time::timeout,
};
use tollgate_core::{LimitName, Quota};
use tollgate_quota::{
    Account, Allowance, Change, PostgresSource, PostgresSourceBuilder, QuotaSource,
};
use tollgate_tests::{Fault, FaultProxy, PostgresServer};

/// Nothing takes so long, on a busy machine either.
const LONG: Duration = Duration::from_secs(20);

/// A server with our tables.
fn server() -> PostgresServer {
    let server = PostgresServer::start();
    let schema = "../crates/tollgate-quota/migrations/0001_tollgate.sql";
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(schema);
    // By `psql`, as the file itself says.
    server.run_file(&path).expect("the schema applies");
    server
}

fn builder(server: &PostgresServer) -> PostgresSourceBuilder {
    PostgresSource::builder(&server.url()).timeout(LONG)
}

async fn connect(server: &PostgresServer) -> PostgresSource {
    builder(server).connect().await.expect("a source")
}

async fn load(source: &PostgresSource, tenant: &str) -> Option<Account> {
    source.load(tenant, None).await.expect("an answer")
}

async fn fails(source: &PostgresSource, tenant: &str) -> String {
    let loaded = source.load(tenant, None).await;
    let error = loaded.expect_err("no answer").to_string();
    assert!(!error.contains(tenant), "names the tenant: {error}");
    error
}

fn run(server: &PostgresServer, sql: &str) {
    server
        .run(sql)
        .unwrap_or_else(|error| panic!("{sql}: {error}"));
}

fn limit(account: &Account, name: &str) -> Option<Allowance> {
    let name = LimitName::new(name).expect("a name");
    account.limits.get(&name).copied()
}

async fn next(changes: &mut broadcast::Receiver<Change>) -> Change {
    let change = timeout(LONG, changes.recv()).await;
    change.expect("a change in time").expect("none was missed")
}

fn tenant(id: &str) -> Change {
    Change::Tenant(id.into())
}

#[tokio::test(flavor = "multi_thread")]
async fn tiers_and_overrides_are_read_from_our_tables() {
    let server = server();
    run(
        &server,
        "INSERT INTO tollgate_tenants VALUES ('both', 'pro', 4), ('tier-only', 'free', NULL), ('bare', NULL, NULL);
         UPDATE tollgate_tenants SET home = 'eu' WHERE tenant = 'both';
         INSERT INTO tollgate_overrides (tenant, limit_name, capacity, rate, word) VALUES
            ('both', 'default', 10, 2.5, NULL), ('both', 'reports', NULL, NULL, 'unlimited'),
            ('override-only', 'default', NULL, NULL, 'blocked');
         INSERT INTO tollgate_overrides (tenant, capacity, rate) VALUES ('it''s', 1000000000000, 1000000)",
    );
    let source = connect(&server).await;

    let both = load(&source, "both").await.expect("known");
    assert_eq!(both.tier.as_deref(), Some("pro"));
    assert_eq!(both.shards, NonZeroU8::new(4));
    assert_eq!(both.home.as_deref(), Some("eu"));
    let quota = Quota::new(10, 2.5).expect("a quota");
    assert_eq!(limit(&both, "default"), Some(quota.into()));
    assert_eq!(limit(&both, "reports"), Some(Allowance::Unlimited));
    assert_eq!(both.limits.len(), 2);

    let tier_only = load(&source, "tier-only").await.expect("known");
    assert_eq!(
        (tier_only.tier.as_deref(), tier_only.shards),
        (Some("free"), None)
    );
    assert!(tier_only.limits.is_empty());
    assert_eq!(load(&source, "bare").await, Some(Account::default()));

    let override_only = load(&source, "override-only").await.expect("known");
    assert_eq!(override_only.tier, None);
    assert_eq!(limit(&override_only, "default"), Some(Allowance::Blocked));

    let largest = load(&source, "it's").await.expect("known");
    let quota = Quota::new(1_000_000_000_000, 1e6).expect("the largest");
    assert_eq!(limit(&largest, "default"), Some(quota.into()));

    for unknown in ["nobody", "", "a\0b", "' OR true --", &"long".repeat(10_000)] {
        assert_eq!(load(&source, unknown).await, None, "{unknown:.20}");
    }
}

#[test]
fn our_tables_refuse_what_makes_no_sense() {
    let server = server();
    run(
        &server,
        "INSERT INTO tollgate_overrides VALUES ('acme', 'twice', 1, 1)",
    );
    for row in [
        "'acme', 'x', 0, 1, NULL",
        "'acme', 'x', -1, 1, NULL",
        "'acme', 'x', 1000000000001, 1, NULL",
        "'acme', 'x', 1, 0, NULL",
        "'acme', 'x', 1, -1, NULL",
        "'acme', 'x', 1, 'NaN', NULL",
        "'acme', 'x', 1, 'Infinity', NULL",
        "'acme', 'x', 1, 1000001, NULL",
        "'acme', 'x', 1000000000000, 1, NULL",
        "'acme', 'x', 1, NULL, NULL",
        "'acme', 'x', NULL, 1, NULL",
        "'acme', 'x', NULL, NULL, NULL",
        "'acme', 'x', 1, 1, 'unlimited'",
        "'acme', 'x', NULL, 1, 'blocked'",
        "'acme', 'x', NULL, NULL, 'endless'",
        "'acme', 'X', 1, 1, NULL",
        "'acme', '', 1, 1, NULL",
        "'acme', repeat('x', 65), 1, 1, NULL",
        "'acme', NULL, 1, 1, NULL",
        "'', 'x', 1, 1, NULL",
        "NULL, 'x', 1, 1, NULL",
        "'acme', 'twice', 1, 1, NULL",
    ] {
        let refused = server.run(&format!("INSERT INTO tollgate_overrides VALUES ({row})"));
        let error = refused.expect_err(row);
        assert!(error.contains("violates"), "{row}: {error}");
    }
    for row in [
        "'acme', '', 1",
        "'acme', 'pro', 0",
        "'acme', 'pro', 256",
        "'', 'pro', 1",
    ] {
        let refused = server.run(&format!("INSERT INTO tollgate_tenants VALUES ({row})"));
        let error = refused.expect_err(row);
        assert!(error.contains("violates"), "{row}: {error}");
    }
    let rows = server.run("SELECT count(*) FROM tollgate_overrides, tollgate_tenants");
    assert_eq!(rows.as_deref(), Ok("0"), "one times none");
}

#[tokio::test(flavor = "multi_thread")]
async fn any_table_can_be_read_by_a_query_of_its_own() {
    let server = PostgresServer::start();
    run(
        &server,
        "CREATE TYPE plan AS ENUM ('free', 'pro');
         CREATE TABLE customers (id bigint PRIMARY KEY, plan plan, burst numeric(12, 2), per_minute integer);
         INSERT INTO customers VALUES (71, 'pro', NULL, NULL), (72, 'free', 60, 30), (73, 'free', 0, 30);",
    );
    let source = |query: &str| builder(&server).query(query).connect();

    let tier = source("SELECT plan AS tier FROM customers WHERE id::text = $1; ").await;
    let tier = tier.expect("a source");
    let account = load(&tier, "71").await.expect("known");
    assert_eq!(account.tier.as_deref(), Some("pro"));
    assert!(account.limits.is_empty());
    assert_eq!(load(&tier, "acme").await, None);

    let quota = "WITH own AS (SELECT * FROM customers WHERE id::text = $1)
        SELECT plan AS tier, burst AS capacity, per_minute / 60.0 AS rate FROM own -- the default limit";
    let quota = source(quota).await.expect("a source");
    let account = load(&quota, "72").await.expect("known");
    let half = Quota::new(60, 0.5).expect("a quota");
    assert_eq!(limit(&account, "default"), Some(half.into()));
    assert!(load(&quota, "71").await.expect("known").limits.is_empty());
    let error = fails(&quota, "73").await;
    assert!(error.starts_with("row 1, column `capacity`"), "{error}");

    let typo = source("SELECT plan AS teir FROM customers WHERE id::text = $1").await;
    let error = fails(&typo.expect("a source"), "71").await;
    assert!(error.starts_with("row 1, column `teir`"), "{error}");

    let cast = source("SELECT plan AS tier FROM customers WHERE id = $1::bigint").await;
    let cast = cast.expect("a source");
    let error = fails(&cast, "acme-corp").await;
    assert!(error.contains("22P02"), "{error}");
    assert!(load(&cast, "71").await.is_some(), "the connection works on");

    let missing = source("SELECT plan AS tier FROM clients WHERE id = $1").await;
    let error = fails(&missing.expect("a source"), "acme-corp").await;
    assert!(error.contains("\"clients\" does not exist"), "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn notifications_tell_who_has_changed() {
    let server = server();
    let source = connect(&server).await;
    let mut changes = source.changes().expect("it listens");

    for (sql, ids) in [
        (
            "INSERT INTO tollgate_tenants VALUES ('acme', 'free')",
            ["acme"].as_slice(),
        ),
        (
            "UPDATE tollgate_tenants SET tier = 'pro' WHERE tenant = 'acme'",
            &["acme"],
        ),
        (
            "INSERT INTO tollgate_overrides VALUES ('acme', 'default', 1, 1)",
            &["acme"],
        ),
        ("UPDATE tollgate_overrides SET rate = 2", &["acme"]),
        (
            "UPDATE tollgate_overrides SET tenant = 'apex'",
            &["acme", "apex"],
        ),
        ("DELETE FROM tollgate_overrides", &["apex"]),
        ("DELETE FROM tollgate_tenants", &["acme"]),
    ] {
        run(&server, sql);
        for id in ids {
            assert_eq!(next(&mut changes).await, tenant(id), "{sql}");
        }
    }
    let refused = server.run("INSERT INTO tollgate_tenants VALUES ('undone', 'x'); SELECT 1 / 0");
    refused.expect_err("a transaction that is rolled back");
    run(
        &server,
        "INSERT INTO tollgate_tenants VALUES (repeat('é', 4000), 'pro')",
    );
    assert_eq!(
        next(&mut changes).await,
        Change::Anything,
        "an id of 8000 bytes does not fit"
    );
    run(
        &server,
        "INSERT INTO tollgate_tenants VALUES (repeat('x', 7999), 'pro')",
    );
    assert_eq!(next(&mut changes).await, tenant(&"x".repeat(7999)));
    run(&server, "TRUNCATE tollgate_tenants");
    assert_eq!(next(&mut changes).await, Change::Anything);
    run(
        &server,
        "NOTIFY elsewhere, 'acme'; NOTIFY tollgate_quotas, 'by hand'",
    );
    assert_eq!(next(&mut changes).await, tenant("by hand"));
    assert_eq!(changes.try_recv(), Err(TryRecvError::Empty));

    let other = builder(&server).channel("Customers' plans").connect().await;
    let mut others = other.expect("a source").changes().expect("it listens");
    drop(source);
    assert_eq!(
        changes.recv().await,
        Err(broadcast::error::RecvError::Closed)
    );
    assert_eq!(
        others.recv().await,
        Err(broadcast::error::RecvError::Closed),
        "with the source ends its task"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_trigger_of_ones_own_notifies() {
    let server = PostgresServer::start();
    run(
        &server,
        "CREATE TABLE customers (id bigint PRIMARY KEY, plan text, seen integer);
         CREATE FUNCTION customers_notify() RETURNS trigger LANGUAGE plpgsql AS $$
         BEGIN
             PERFORM pg_notify('tollgate_quotas', COALESCE(NEW.id, OLD.id)::text);
             RETURN NULL;
         END $$;
         CREATE TRIGGER customers_notify AFTER INSERT OR UPDATE OF plan OR DELETE ON customers
             FOR EACH ROW EXECUTE FUNCTION customers_notify()",
    );
    let source = connect(&server).await;
    let mut changes = source.changes().expect("it listens");
    for sql in [
        "INSERT INTO customers VALUES (7, 'free')",
        "UPDATE customers SET plan = 'pro'; UPDATE customers SET seen = 1",
        "DELETE FROM customers",
    ] {
        run(&server, sql);
        assert_eq!(next(&mut changes).await, tenant("7"), "{sql}");
    }
    assert_eq!(changes.try_recv(), Err(TryRecvError::Empty));
}

#[tokio::test(flavor = "multi_thread")]
async fn the_channel_can_be_another() {
    let server = server();
    let source = builder(&server).channel("Customers' plans").connect().await;
    let source = source.expect("a source");
    let mut changes = source.changes().expect("it listens");
    run(
        &server,
        "NOTIFY tollgate_quotas, 'nobody listens'; NOTIFY \"Customers' plans\", 'acme'",
    );
    assert_eq!(next(&mut changes).await, tenant("acme"));
}

#[tokio::test(flavor = "multi_thread")]
async fn after_a_restart_anything_may_have_changed() {
    let mut server = server();
    run(
        &server,
        "INSERT INTO tollgate_tenants VALUES ('acme', 'free')",
    );
    let source = connect(&server).await;
    let mut changes = source.changes().expect("it listens");
    assert!(load(&source, "acme").await.is_some());

    server.kill();
    let error = fails(&source, "acme").await;
    assert!(error.contains("refused"), "{error}");
    server.restart();
    assert_eq!(next(&mut changes).await, Change::Anything);
    assert!(load(&source, "acme").await.is_some());
    run(&server, "UPDATE tollgate_tenants SET tier = 'pro'");
    assert_eq!(next(&mut changes).await, tenant("acme"));

    // Idle connections of loads die unnoticed.
    server.restart();
    assert!(load(&source, "acme").await.is_some());
}

#[tokio::test(flavor = "multi_thread")]
async fn it_starts_without_postgres() {
    let mut server = server();
    run(
        &server,
        "INSERT INTO tollgate_tenants VALUES ('acme', 'free')",
    );
    server.kill();
    let source = connect(&server).await;
    let mut changes = source.changes().expect("it will listen");
    let error = fails(&source, "acme").await;
    assert!(error.contains("refused"), "{error}");
    server.restart();
    assert_eq!(next(&mut changes).await, Change::Anything);
    assert!(load(&source, "acme").await.is_some());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_silent_postgres_fails_loads_within_the_timeout_and_uses_nothing_up() {
    let server = server();
    run(
        &server,
        "INSERT INTO tollgate_tenants VALUES ('acme', 'free')",
    );
    let proxy = FaultProxy::start(server.port());
    let limit = Duration::from_secs(2);
    let source = PostgresSource::builder(&PostgresServer::url_on(proxy.port()))
        .timeout(limit)
        .connections(NonZeroUsize::MIN)
        .connect()
        .await
        .expect("a source");
    assert!(load(&source, "acme").await.is_some());

    // The connection that is open, and then one that cannot be opened.
    proxy.set(Fault::BlackHole);
    for _ in 0..2 {
        let error = timeout(LONG, fails(&source, "acme"))
            .await
            .expect("in time");
        assert_eq!(error, "no answer within 2s");
    }
    // Those that are open stay silent for good, and the only place must not be theirs.
    proxy.silence_present();
    proxy.set(Fault::None);
    assert!(load(&source, "acme").await.is_some());

    // Nor is it that of a load that nobody waits for any more.
    proxy.set(Fault::BlackHole);
    let given_up = timeout(Duration::from_millis(50), source.load("acme", None)).await;
    given_up.expect_err("no answer");
    proxy.silence_present();
    proxy.set(Fault::None);
    assert!(load(&source, "acme").await.is_some());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_query_that_waits_for_a_lock_ends_in_postgres_too() {
    let server = server();
    let source = builder(&server)
        .timeout(Duration::from_millis(500))
        .query("SELECT pg_sleep(60)::text AS tier, $1 AS word");
    let source = source.connect().await.expect("a source");
    for _ in 0..6 {
        let error = fails(&source, "acme").await;
        assert!(
            error.contains("no answer") || error.contains("statement timeout"),
            "{error}"
        );
    }
    let asleep = "SELECT count(*) FROM pg_stat_activity WHERE state = 'active' AND query LIKE '%pg_sleep%' AND pid <> pg_backend_pid()";
    let ended = async {
        while server.run(asleep).as_deref() != Ok("0") {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    timeout(LONG, ended).await.expect("none goes on");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_password_is_told_to_nobody() {
    let server = server();
    run(
        &server,
        "CREATE ROLE guarded LOGIN PASSWORD 'secret'; GRANT SELECT ON tollgate_tenants, tollgate_overrides TO guarded",
    );
    let url = |password: &str| {
        let port = server.port();
        format!("postgres://guarded:{password}@127.0.0.1:{port}/postgres")
    };
    let right = PostgresSource::builder(&url("secret")).timeout(LONG);
    assert!(!format!("{right:?}").contains("secret"), "{right:?}");
    let right = right.connect().await.expect("a source");
    assert!(!format!("{right:?}").contains("secret"), "{right:?}");
    // With the rights to read the two tables and no others.
    assert_eq!(load(&right, "acme").await, None);

    let wrong = PostgresSource::builder(&url("hunter2"))
        .timeout(LONG)
        .connect()
        .await;
    let error = fails(&wrong.expect("a source"), "acme").await;
    assert!(error.contains("password authentication failed"), "{error}");
    assert!(!error.contains("hunter2"), "{error}");

    for wrong in [
        "",
        "127.0.0.1",
        "mysql://guarded:hunter2@localhost/x",
        "postgres://guarded:hunter2@localhost:port/x",
    ] {
        let error = PostgresSource::connect(wrong)
            .await
            .expect_err(wrong)
            .to_string();
        assert!(!error.contains("hunter2"), "{error}");
    }
}
