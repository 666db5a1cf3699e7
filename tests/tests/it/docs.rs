//! What the documents tell people to run does what they say.

use std::{fs, path::Path, process::Command, time::Duration};

use serde::Deserialize;
use serde_json::Value;
use tokio::time::timeout;
use tollgate::RedisSettings;
use tollgate_core::{Adjustment, LimitName, Store};
use tollgate_quota::{Allowance, Change, HttpSource, LimitsFile, PostgresSource, QuotaSource};
use tollgate_redis::RedisStore;
use tollgate_tests::{PostgresServer, RedisServer, Script, change, check, quota};
use wiremock::{Mock, MockServer, ResponseTemplate, matchers::path};

const LUA_MD: &str = include_str!("../../../docs/lua.md");
const QUOTAS_MD: &str = include_str!("../../../docs/quotas.md");
const README: &str = include_str!("../../../README.md");
const TOPOLOGIES_MD: &str = include_str!("../../../docs/topologies.md");
const REDIS_README: &str = include_str!("../../../crates/tollgate-redis/README.md");

/// Nothing takes so long, on a busy machine either.
const LONG: Duration = Duration::from_secs(20);

/// The fenced block with just this info string, of which there is one, and the text after it.
fn block<'a>(text: &'a str, info: &str) -> (&'a str, &'a str) {
    let fence = format!("\n```{info}\n");
    let (_, from) = text.split_once(&fence).expect("such a block");
    let (block, after) = from.split_once("\n```").expect("a closing fence");
    assert!(!after.contains(&fence), "two blocks of {info}");
    (block, after)
}

/// All fenced blocks with just this info string.
fn blocks<'a>(text: &'a str, info: &str) -> Vec<&'a str> {
    let fence = format!("\n```{info}\n");
    let rests = text.split(&fence).skip(1);
    let block = |rest: &'a str| rest.split_once("\n```").expect("a closing fence").0;
    rests.map(block).collect()
}

/// A Python that has redis-py: Debian's, or the first in the PATH.
fn python() -> &'static str {
    let has_redis = |python: &&str| {
        let import = Command::new(python).args(["-c", "import redis"]).output();
        import.is_ok_and(|output| output.status.success())
    };
    let found = ["/usr/bin/python3", "python3"].into_iter().find(has_redis);
    found.expect("a Python with redis-py (Debian: apt-get install python3-redis)")
}

#[test]
fn the_python_client_prints_what_the_page_says() {
    let (program, after) = block(LUA_MD, "python");
    let (_, output) = after.split_once("\n```\n").expect("its output");
    let (expected, _) = output.split_once("\n```").expect("a closing fence");
    let redis = RedisServer::start();
    let folder = tempfile::tempdir().expect("a temporary folder");
    let file = folder.path().join("spend.py");
    fs::write(&file, program).expect("written");
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../lua/token_bucket.lua");
    let output = Command::new(python())
        .arg(file)
        .arg(script)
        .env("REDIS_URL", redis.url())
        .output()
        .expect("Python");
    let printed = String::from_utf8_lossy(&output.stdout);
    assert_eq!(
        printed.trim_end(),
        expected,
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
}

#[test]
fn adjustments_answer_what_the_page_says() {
    let (calls, _) = block(LUA_MD, "console");
    let server = RedisServer::start();
    let mut connection = server.connection();
    let check = Script::load(&mut connection, Script::TOKEN_BUCKET);
    let adjust = Script::load(&mut connection, Script::ADJUST);
    let mut seen = 0;
    for line in calls.lines() {
        let (call, answer) = line.split_once('→').expect("a call and its answer");
        let (script, call) = match call.strip_prefix("$ redis-cli EVALSHA $SHA 1 ") {
            Some(call) => (&check, call),
            None => (
                &adjust,
                call.strip_prefix("$ redis-cli EVALSHA $ADJUST 1 ")
                    .expect("one of both scripts"),
            ),
        };
        let words: Vec<_> = call.split_whitespace().collect();
        let (key, args) = words.split_first().expect("a key");
        let reply = script.call(&mut connection, &[key.trim_matches('\'')], args);
        let mut reply = reply.expect(line);
        if let [_, _, wait] = &mut reply[..] {
            // The seconds that a busy machine may take between the calls.
            *wait = (*wait + 9_999) / 10_000 * 10_000;
        }
        let expected: Vec<i64> = answer
            .split_whitespace()
            .map_while(|word| word.parse().ok())
            .collect();
        assert_eq!(reply, expected, "{line}");
        seen += 1;
    }
    assert_eq!(seen, 5);
}

#[tokio::test]
async fn the_acl_line_is_all_that_the_store_needs() {
    let (line, _) = block(LUA_MD, "acl");
    let mut words = line.split_whitespace();
    let server = RedisServer::start();
    redis::cmd(words.next().expect("ACL"))
        .arg(words.collect::<Vec<_>>())
        .query::<()>(&mut server.connection())
        .expect("the line as it stands");
    let url = format!("redis://limiter:SECRET@127.0.0.1:{}", server.port());
    let builder = RedisStore::builder(&url).strict(true);
    let store = builder
        .deadline(std::time::Duration::from_secs(10))
        .connect()
        .await
        .expect("a store");
    for allowed in [true, false] {
        let decision = store.check(check("a", quota(1, "1/h"), 1)).await;
        assert_eq!(decision.expect("a decision").is_allowed(), allowed);
    }
    let back = change("a", "default", quota(1, "1/h"), 1, 0);
    let adjusted = store.adjust(Adjustment::new(vec![back]).expect("an adjustment"));
    assert_eq!(adjusted.await.expect("carried out"), [1]);
}

#[test]
fn the_limits_file_of_the_readme_is_valid() {
    let blocks = blocks(README, "toml");
    let file = blocks.iter().find(|it| it.starts_with("[limits."));
    let parsed = LimitsFile::parse(file.expect("such a block"), "README.md");
    assert_eq!(parsed.expect("valid").quotas.limits().len(), 2);
}

#[derive(Deserialize)]
struct Config {
    redis: RedisSettings,
}

#[test]
fn the_section_of_the_page_on_topologies_is_read() {
    let (section, _) = block(TOPOLOGIES_MD, "toml");
    let config: Config = toml::from_str(section).expect("good settings");
    let mut expected = RedisSettings::new("rediss-cluster://node-0:6379,node-1:6379");
    expected.username = Some("tollgate".into());
    expected.password_file = Some("/run/secrets/redis".into());
    expected.resp = 3;
    expected.connections = 2;
    expected.key_prefix = "shop".into();
    expected.tls.ca_file = Some("/etc/tollgate/redis-ca.pem".into());
    expected.tls.server_name = Some("redis.internal".into());
    assert_eq!(config.redis, expected);
}

/// The names of the fields of a section, as the error for one that is not there lists them.
fn fields(section: &str) -> Vec<String> {
    let text = format!("url = \"redis://a\"\n{section}\nno_such_field = 1");
    let error = toml::from_str::<RedisSettings>(&text).expect_err("no such field");
    let (_, expected) = error
        .message()
        .split_once("expected one of ")
        .expect(section);
    let names = expected
        .split(", ")
        .map(|name| name.trim_matches('`').to_owned());
    names.collect()
}

#[test]
fn the_pages_name_every_setting_and_its_default() {
    let mut all = fields("");
    for section in ["tls", "sentinel"] {
        all.retain(|name| name != section);
        let inner = fields(&format!("[{section}]"));
        all.extend(inner.into_iter().map(|name| format!("{section}.{name}")));
    }
    assert_eq!(all.len(), 20, "{all:?}");
    let mut rows = TOPOLOGIES_MD
        .lines()
        .filter_map(|line| line.strip_prefix("| `")?.split_once("` | "))
        .filter(|(name, _)| all.iter().any(|field| field == name));
    for field in &all {
        let (name, _) = rows.next().expect(field);
        assert_eq!(name, field, "in the order of the fields");
        // The other page puts some in one row, by their last names.
        let last = field.rsplit('.').next().expect("a name");
        let shown = [format!("`{field}`"), format!("`.{last}`")];
        assert!(shown.iter().any(|it| REDIS_README.contains(it)), "{field}");
    }
    assert!(rows.next().is_none());

    let least = RedisSettings::new("redis://a");
    let quoted = |text: &str| format!("\"{text}\"");
    for (field, default) in [
        ("deadline_ms", least.deadline.as_millis().to_string()),
        ("strict", least.strict.to_string()),
        ("database", least.database.unwrap_or_default().to_string()),
        ("resp", least.resp.to_string()),
        ("connections", least.connections.to_string()),
        ("key_prefix", quoted(&least.key_prefix)),
        ("tag_scope", quoted(&least.tag_scope)),
    ] {
        let row = format!("| `{field}` | ");
        let row = TOPOLOGIES_MD.lines().find(|line| line.starts_with(&row));
        let cell = row.and_then(|row| row.split(" | ").nth(2));
        assert_eq!(cell, Some(format!("`{default}`").as_str()), "{field}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_statements_of_the_page_on_quotas_run() {
    let [rows, query, trigger] = blocks(QUOTAS_MD, "sql")[..] else {
        panic!("three blocks");
    };
    let server = PostgresServer::start();
    server
        .run(PostgresSource::SCHEMA)
        .expect("the schema applies");
    server.run(rows).expect("the rows of our tables");
    let builder = || PostgresSource::builder(&server.url()).timeout(LONG);
    let source = builder().connect().await.expect("a source");
    let acme = source.load("acme", None).await.expect("an answer");
    let acme = acme.expect("known");
    let reports = LimitName::new("reports").expect("a name");
    assert_eq!(acme.tier.as_deref(), Some("pro"));
    assert_eq!(acme.limits[&reports].largest_cost(), 100);
    let page = source.load("status-page", None).await.expect("an answer");
    let page = page.expect("known").limits;
    assert_eq!(page[&LimitName::default()], Allowance::Unlimited);

    server
        .run("CREATE TABLE customers (id bigint, plan text, burst bigint, per_minute bigint)")
        .expect("a table of the user's own");
    server.run(trigger).expect("the trigger");
    let source = builder().query(query).connect().await.expect("a source");
    let mut changes = source.changes().expect("it listens");
    server
        .run("INSERT INTO customers VALUES (7, 'pro', 50, 600)")
        .expect("a row");
    let told = async { while changes.recv().await != Ok(Change::Tenant("7".into())) {} };
    timeout(LONG, told).await.expect("the change is told");
    let seven = source.load("7", None).await.expect("an answer");
    let seven = seven.expect("known");
    assert_eq!(seven.tier.as_deref(), Some("pro"));
    assert_eq!(
        seven.limits[&LimitName::default()],
        quota(50, "10/s").into()
    );
    assert_eq!(source.load("acme", None).await.expect("an answer"), None);
}

#[tokio::test]
async fn the_account_of_the_page_on_quotas_is_read() {
    let (json, _) = block(QUOTAS_MD, "json");
    let json: Value = serde_json::from_str(json).expect("JSON");
    let server = MockServer::start().await;
    Mock::given(path("/v1/tenants/acme"))
        .respond_with(ResponseTemplate::new(200).set_body_json(json))
        .mount(&server)
        .await;
    let builder = HttpSource::builder(format!("{}/v1", server.uri())).timeout(LONG);
    let source = builder.build().expect("a source");
    let acme = source.load("acme", None).await.expect("an answer");
    let acme = acme.expect("known");
    assert_eq!(acme.tier.as_deref(), Some("pro"));
    assert_eq!(acme.shards.map(u8::from), Some(4));
    assert_eq!(acme.limits.len(), 4);
}
