//! Ways to connect to one server, and settings as data.

use std::{fs, time::Duration};

use tokio::time::{Instant, sleep};
use tollgate_redis::{RedisSettings, RedisStoreBuilder};
use tollgate_tests::{RedisClient, RedisServer, check, quota, with_each_client};

use crate::support::decide;

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
    });
    let settings: RedisSettings = serde_json::from_value(text).expect("settings");
    let store = S::open(settings.into()).await;
    assert!(
        decide(&store.expect("a store"), hourly())
            .await
            .is_allowed()
    );
}

with_each_client! {
    #[tokio::test] a_socket_is_connected_to
    #[tokio::test] version_3_of_the_protocol_logs_in_with_and_without_a_name
    #[tokio::test] a_database_has_buckets_of_its_own
    #[tokio::test] a_password_in_a_file_is_read_for_each_connection
    #[tokio::test] settings_from_a_file_connect
}
