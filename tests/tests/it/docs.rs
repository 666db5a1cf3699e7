//! What the documents tell people to run does what they say.

use std::{fs, path::Path, process::Command};

use tollgate_core::{Adjustment, Store};
use tollgate_redis::RedisStore;
use tollgate_tests::{RedisServer, Script, change, check, quota};

const LUA_MD: &str = include_str!("../../../docs/lua.md");

/// The fenced block with just this info string, of which there is one, and the text after it.
fn block<'a>(text: &'a str, info: &str) -> (&'a str, &'a str) {
    let fence = format!("\n```{info}\n");
    let (_, from) = text.split_once(&fence).expect("such a block");
    let (block, after) = from.split_once("\n```").expect("a closing fence");
    assert!(!after.contains(&fence), "two blocks of {info}");
    (block, after)
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
