//! Ways to connect to one server, and settings as data.

use std::{collections::BTreeSet, fs, time::Duration};

use tokio::time::{Instant, sleep};
use tollgate::{Cost, FailurePolicy, LimitName, Limiter, Quotas, Tenant};
use tollgate_core::conformance;
use tollgate_redis::{RedisSettings, RedisStoreBuilder};
use tollgate_tests::{RedisClient, RedisServer, check, quota, with_each_client};

use crate::{
    conformance::OnServer,
    support::{decide, until},
};

fn hourly() -> tollgate_core::Check {
    check("a", quota(10, "1/h"), 1)
}

async fn connect<S: RedisClient>(builder: RedisStoreBuilder<S>) -> S {
    let builder = builder.strict(true).deadline(Duration::from_secs(10));
    S::open(builder).await.expect("a store")
}

async fn a_socket_is_connected_to<S: RedisClient>() {
    let dir = tempfile::tempdir().expect("a temporary folder");
    let path = dir.path().join("redis.sock");
    let path = path.to_str().expect("a path in UTF-8");
    let _server = RedisServer::start_with(&["--unixsocket", path]);
    let store = connect(S::builder(&format!("unix://{path}"))).await;
    assert!(decide(&store, hourly()).await.is_allowed());
}

async fn version_3_of_the_protocol_logs_in_with_and_without_a_name<S: RedisClient>() {
    let server = RedisServer::start_with(&["--requirepass", "secret"]);
    let url = format!("redis://:secret@127.0.0.1:{}", server.port());
    let named = url.replace(":secret", "default:secret");
    for url in [&url, &named] {
        let store = connect(S::builder(url).resp(3)).await;
        assert!(decide(&store, hourly()).await.is_allowed());
        let denied = decide(&store, check("a", quota(10, "1/h"), 10)).await;
        assert!(!denied.is_allowed());
    }
}

async fn a_password_that_nobody_asks_for_is_no_hindrance<S: RedisClient>() {
    let server = RedisServer::start();
    for login in [":secret", "default:secret"] {
        for resp in [2, 3] {
            let url = format!("redis://{login}@127.0.0.1:{}", server.port());
            let store = connect(S::builder(&url).resp(resp)).await;
            decide(&store, hourly()).await;
        }
    }
}

async fn a_password_without_a_name_logs_in<S: RedisClient>() {
    let server = RedisServer::start_with(&["--requirepass", "secret"]);
    let url = format!("redis://:secret@127.0.0.1:{}", server.port());
    let store = connect(S::builder(&url).resp(2)).await;
    assert!(decide(&store, hourly()).await.is_allowed());
}

async fn a_database_has_buckets_of_its_own<S: RedisClient>() {
    let server = RedisServer::start();
    for url in [server.url(), format!("{}/1", server.url())] {
        let store = connect(S::builder(&url)).await;
        let all = decide(&store, check("a", quota(10, "1/h"), 10)).await;
        assert!(all.is_allowed(), "{url}");
    }
}

async fn a_password_in_a_file_is_read_for_each_connection<S: RedisClient>() {
    let server = RedisServer::start_with(&["--requirepass", "first"]);
    let dir = tempfile::tempdir().expect("a temporary folder");
    let path = dir.path().join("password");
    fs::write(&path, "first\n").expect("a file");
    let url = format!("redis://127.0.0.1:{}", server.port());
    let store = connect(S::builder(&url).password_file(&path)).await;
    assert!(decide(&store, hourly()).await.is_allowed());

    let client = redis::Client::open(url.replace("://", "://:first@")).expect("a URL");
    let mut connection = client.get_connection().expect("a connection");
    for command in ["CONFIG SET requirepass second", "CLIENT KILL TYPE normal"] {
        let mut words = command.split(' ');
        let mut cmd = redis::cmd(words.next().expect("a word"));
        cmd.arg(words.collect::<Vec<_>>())
            .query::<redis::Value>(&mut connection)
            .expect(command);
    }
    fs::write(&path, "second\n").expect("a file");
    let since = Instant::now();
    while store.check(hourly()).await.is_err() {
        assert!(since.elapsed() < Duration::from_secs(5), "not back");
        sleep(Duration::from_millis(10)).await;
    }
}

async fn settings_from_a_file_connect<S: RedisClient>() {
    let server = RedisServer::start_with(&["--requirepass", "secret"]);
    let dir = tempfile::tempdir().expect("a temporary folder");
    let path = dir.path().join("password");
    fs::write(&path, "secret\n").expect("a file");
    let text = serde_json::json!({
        "url": format!("redis://127.0.0.1:{}", server.port()),
        "deadline_ms": 10_000,
        "strict": true,
        "password_file": path,
        "database": 1,
        "resp": 3,
        "connections": 2,
        "key_prefix": "shop",
        "tag_scope": "user",
    });
    let settings: RedisSettings = serde_json::from_value(text).expect("settings");
    let store = S::open(settings.into()).await;
    assert!(
        decide(&store.expect("a store"), hourly())
            .await
            .is_allowed()
    );
}

fn keys(server: &RedisServer) -> BTreeSet<String> {
    let mut connection = server.connection();
    let keys = redis::cmd("KEYS").arg("*").query(&mut connection);
    keys.expect("KEYS")
}

/// Two services on one Redis, each with the default names of limits.
async fn a_prefix_and_a_scope_name_all_that_a_service_keeps<S: RedisClient>() {
    let server = RedisServer::start();
    let group = LimitName::new("fleet").expect("a name");
    let tenant = Tenant::new("42", "pro").expect("an id");
    for (prefix, word) in [("shop", "user"), ("a:b", "tenant")] {
        let builder = S::builder(&server.url()).key_prefix(prefix).tag_scope(word);
        let store = connect(builder).await;
        let _replicas = store.count_replicas(&group, Duration::from_secs(1));
        let limiter = Limiter::builder(store)
            .quotas(Quotas::new(quota(1, "1/h")))
            .on_store_failure(FailurePolicy::Closed)
            .deadline(Duration::from_secs(10))
            .build()
            .expect("a limiter");
        for allowed in [true, false] {
            let decision = limiter.check(&tenant, Cost::ONE).await;
            assert_eq!(decision.is_allowed(), allowed, "{prefix}");
        }
        let expected = BTreeSet::from([
            format!("{prefix}:{{replicas}}:fleet"),
            format!("{prefix}:{{{word}:42}}:default"),
        ]);
        until(async || keys(&server).is_superset(&expected)).await;
    }
}

/// Whatever the suite does stays within the prefix.
async fn every_rule_is_kept_under_a_prefix<S: RedisClient>() {
    let server = RedisServer::start();
    let builder = S::builder(&server.url());
    let builder = builder.key_prefix("shop").tag_scope("user");
    conformance::run(&OnServer(connect(builder).await)).await;
    let keys = keys(&server);
    assert!(keys.iter().all(|key| key.starts_with("shop:{")));
    assert!(keys.iter().any(|key| key.starts_with("shop:{user:")));
    assert!(!keys.iter().any(|key| key.contains("{tenant:")));
}

async fn a_wrong_setting_is_named_and_no_secret_shown<S: RedisClient>() {
    type Change = fn(&mut RedisSettings);
    let wrong: [(&str, Change); 4] = [
        ("connections", |it| it.connections = 65),
        ("key_prefix", |it| it.key_prefix = "{a}".into()),
        ("tag_scope", |it| it.tag_scope = "replicas".into()),
        ("password", |it| it.password = Some("hunter2".into())),
    ];
    for (field, change) in wrong {
        let mut settings = RedisSettings::new("redis://:hunter2@127.0.0.1:1");
        change(&mut settings);
        let error = S::open(settings.into()).await.expect_err(field);
        let text = format!("{error} {error:?}");
        assert!(text.contains(&format!("`{field}`")), "{text}");
        assert!(!text.contains("hunter2"), "{text}");
    }
    // The server's answer to a wrong password.
    let server = RedisServer::start_with(&["--requirepass", "secret"]);
    let url = format!("redis://127.0.0.1:{}", server.port());
    let builder = S::builder(&url).password("hunter2").strict(true);
    let error = S::open(builder).await.expect_err("a wrong password");
    let text = format!("{error} {error:?}");
    assert!(
        text.contains("Unreachable") && !text.contains("hunter2"),
        "{text}"
    );
}

with_each_client! {
    #[tokio::test] a_prefix_and_a_scope_name_all_that_a_service_keeps
    #[tokio::test] every_rule_is_kept_under_a_prefix
    #[tokio::test] a_wrong_setting_is_named_and_no_secret_shown
    #[tokio::test] a_password_that_nobody_asks_for_is_no_hindrance
    #[tokio::test] a_password_without_a_name_logs_in
    #[tokio::test] a_socket_is_connected_to
    #[tokio::test] version_3_of_the_protocol_logs_in_with_and_without_a_name
    #[tokio::test] a_database_has_buckets_of_its_own
    #[tokio::test] a_password_in_a_file_is_read_for_each_connection
    #[tokio::test] settings_from_a_file_connect
}
