//! Bad arguments and foreign values: an error, and not a trace in the keyspace.

use tollgate_core::{ChargeState, ErrorKind, Store};
use tollgate_tests::{RedisServer, Script, check, quota};

use crate::support::store;

/// Of one key.
const GOOD: [&str; 3] = ["10", "1", "1"];
const GOOD_CHANGE: [&str; 4] = ["10", "1", "-1", "-5"];

/// No number anywhere.
const NEVER: [&str; 20] = [
    "", "nan", "inf", "-inf", "0x10", "0X1p4", "abc", "1e999", "--1", "1e", " 1", "1 ", "1\n",
    "1\0", "1.2.3", ".", "1-2", "1e5e5", "1,000", "e",
];

struct Subject {
    connection: redis::Connection,
    script: Script,
    _server: RedisServer,
}

impl Subject {
    fn new() -> Self {
        Self::of(Script::TOKEN_BUCKET)
    }

    fn of(source: &str) -> Self {
        let server = RedisServer::start();
        let mut connection = server.connection();
        let script = Script::load(&mut connection, source);
        Self {
            connection,
            script,
            _server: server,
        }
    }

    /// Asserts that the script refuses this, with its own error, and writes nothing.
    fn refuses(&mut self, keys: &[&str], args: &[&str]) {
        let before = self.dump();
        let error = self
            .script
            .call(&mut self.connection, keys, args)
            .expect_err("refused");
        assert!(
            error.to_string().contains("tollgate: "),
            "{keys:?} {args:?}: {error}"
        );
        assert_eq!(self.dump(), before, "{keys:?} {args:?}");
    }

    /// The number of keys, and the values of those the tests use.
    fn dump(&mut self) -> (u64, Vec<Option<Vec<u8>>>) {
        let size = redis::cmd("DBSIZE")
            .query(&mut self.connection)
            .expect("DBSIZE");
        let values = ["tg:{a}:1", "tg:{a}:2"].map(|key| {
            redis::cmd("DUMP")
                .arg(key)
                .query(&mut self.connection)
                .expect("DUMP")
        });
        (size, values.into())
    }
}

#[test]
fn bad_numbers_are_refused_and_write_nothing() {
    let mut subject = Subject::new();
    let bad: [(usize, &[&str]); 3] = [
        (0, &["-1", "0", "0.5", "1.5", "1e13", "1000000000001"]),
        (1, &["-1", "0", "1000001", "1e7", "0.00000000001"]),
        (2, &["-1", "0.5", "1e13"]),
    ];
    for (place, more) in bad {
        for number in NEVER.iter().chain(more) {
            let mut args = GOOD;
            args[place] = number;
            subject.refuses(&["tg:{a}:1"], &args);
            // The first key is fine, and is not charged all the same.
            subject.refuses(&["tg:{a}:1", "tg:{a}:2"], &[GOOD, args].concat());
        }
    }
}

#[test]
fn bad_numbers_of_an_adjustment_are_refused_and_write_nothing() {
    let mut subject = Subject::of(Script::ADJUST);
    let too_large: &[&str] = &[
        "0.5",
        "-0.5",
        "1e13",
        "-1e13",
        "1000000000001",
        "-1000000000001",
    ];
    let bad: [(usize, &[&str]); 4] = [
        (0, &["-1", "0", "0.5", "1.5", "1e13", "1000000000001"]),
        (1, &["-1", "0", "1000001", "1e7", "0.00000000001"]),
        (2, too_large),
        (3, too_large),
    ];
    for (place, more) in bad {
        for number in NEVER.iter().chain(more) {
            let mut args = GOOD_CHANGE;
            args[place] = number;
            subject.refuses(&["tg:{a}:1"], &args);
            subject.refuses(&["tg:{a}:1", "tg:{a}:2"], &[GOOD_CHANGE, args].concat());
        }
    }
}

#[test]
fn bad_counts_and_shadows_are_refused_and_write_nothing() {
    let mut subject = Subject::new();
    for count in ["0", "0.5", "-1", "nan", "inf", "", "1e13", "0x1"] {
        subject.refuses(&["tg:{a}:1"], &["10", "1", "1", count]);
    }
    for shadow in ["2", "-1", "0.5", "nan", ""] {
        subject.refuses(&["tg:{a}:1"], &["10", "1", "1", "1", shadow]);
    }
}

#[test]
fn wrong_numbers_of_keys_and_arguments_are_refused() {
    let mut subject = Subject::new();
    subject.refuses(&["tg:{a}:1"], &["10", "1"]);
    subject.refuses(&["tg:{a}:1"], &[]);
    subject.refuses(&["tg:{a}:1"], &["10", "1", "1", "1", "0", "7"]);
    subject.refuses(&["tg:{a}:1", "tg:{a}:2"], &GOOD);
    subject.refuses(&[], &[]);
    let nine: Vec<_> = (1..=9).map(|i| format!("tg:{{a}}:{i}")).collect();
    let nine: Vec<_> = nine.iter().map(String::as_str).collect();
    subject.refuses(&nine, &GOOD.repeat(9));
    subject.refuses(&["tg:{a}:1", "tg:{a}:2", "tg:{a}:1"], &GOOD.repeat(3));
}

#[test]
fn wrong_numbers_of_keys_and_arguments_of_an_adjustment_are_refused() {
    let mut subject = Subject::of(Script::ADJUST);
    subject.refuses(&["tg:{a}:1"], &GOOD);
    subject.refuses(&["tg:{a}:1"], &[]);
    subject.refuses(&["tg:{a}:1"], &["10", "1", "-1", "-5", "0"]);
    subject.refuses(&["tg:{a}:1", "tg:{a}:2"], &GOOD_CHANGE);
    subject.refuses(&[], &[]);
    let nine: Vec<_> = (1..=9).map(|i| format!("tg:{{a}}:{i}")).collect();
    let nine: Vec<_> = nine.iter().map(String::as_str).collect();
    subject.refuses(&nine, &GOOD_CHANGE.repeat(9));
    subject.refuses(
        &["tg:{a}:1", "tg:{a}:2", "tg:{a}:1"],
        &GOOD_CHANGE.repeat(3),
    );
    let eight = subject
        .script
        .call(&mut subject.connection, &nine[..8], &GOOD_CHANGE.repeat(8));
    assert_eq!(eight.expect("taken"), [9; 8]);
}

#[test]
fn decimal_numbers_of_any_form_are_taken() {
    let mut subject = Subject::new();
    for args in [
        ["10", "1.5e-05", "1"],
        ["1e3", "0.25", "1e0"],
        ["10.0", "5E+2", "2"],
    ] {
        let reply = subject
            .script
            .call(&mut subject.connection, &["tg:{a}:1"], &args);
        assert_eq!(reply.expect("taken")[0], 1, "{args:?}");
        let _: i64 = redis::cmd("DEL")
            .arg("tg:{a}:1")
            .query(&mut subject.connection)
            .expect("DEL");
    }
    let mut subject = Subject::of(Script::ADJUST);
    for (args, left) in [
        (["1e3", "1.5e-05", "-1e1", "0"], 990),
        (["1000.0", "0.00025", "-1E+1", "+5"], 980),
        (["1000", "1e-4", "5.0", "-1e12"], 985),
    ] {
        let reply = subject
            .script
            .call(&mut subject.connection, &["tg:{a}:1"], &args);
        assert_eq!(reply.expect("taken"), [left], "{args:?}");
    }
}

/// Values that are no buckets: of the wrong length, and of the right one with junk for numbers.
fn foreign_values() -> Vec<Vec<u8>> {
    let pack = |tokens: f64, px: f64| [tokens.to_le_bytes(), px.to_le_bytes()].concat();
    vec![
        b"".to_vec(),
        b"7".to_vec(),
        vec![0; 15],
        vec![0; 17],
        vec![0; 16],
        vec![0xff; 16],
        b"sixteen letters!".to_vec(),
        pack(f64::NAN, 1000.0),
        pack(f64::INFINITY, 1000.0),
        pack(f64::NEG_INFINITY, 1000.0),
        pack(1e13, 1000.0),
        pack(-1e13, 1000.0),
        pack(1.0, f64::NAN),
        pack(1.0, -5.0),
        pack(1.0, 0.5),
        pack(1.0, 1e300),
    ]
}

#[test]
fn foreign_values_are_refused_and_left_alone() {
    for (source, good) in [
        (Script::TOKEN_BUCKET, &GOOD[..]),
        (Script::ADJUST, &GOOD_CHANGE),
    ] {
        let mut subject = Subject::of(source);
        for value in foreign_values() {
            let set = redis::cmd("SET")
                .arg("tg:{a}:2")
                .arg(&value)
                .query::<()>(&mut subject.connection);
            set.expect("SET");
            subject.refuses(&["tg:{a}:2"], good);
            subject.refuses(&["tg:{a}:1", "tg:{a}:2"], &good.repeat(2));
        }
    }
}

#[tokio::test]
async fn foreign_values_are_told_apart_from_failures_of_the_store() {
    let server = RedisServer::start();
    let store = store(&server).await;
    let mut connection = server.connection();
    let check = || check("a", quota(10, "1/s"), 1);
    let key = check().charges()[0].key.to_string();
    let hash = redis::cmd("HSET")
        .arg(&key)
        .arg("tokens")
        .arg(5)
        .query::<()>(&mut connection);
    hash.expect("HSET");
    let error = store.check(check()).await.expect_err("a hash is no bucket");
    assert_eq!(
        (error.kind(), error.charge()),
        (ErrorKind::NotABucket, ChargeState::NotCharged),
        "{error}"
    );
    for value in foreign_values() {
        redis::cmd("SET")
            .arg(&key)
            .arg(&value)
            .query::<()>(&mut connection)
            .expect("SET");
        let error = store.check(check()).await.expect_err("no bucket");
        assert_eq!(
            (error.kind(), error.charge()),
            (ErrorKind::NotABucket, ChargeState::NotCharged),
            "{error}"
        );
    }
    redis::cmd("DEL")
        .arg(&key)
        .query::<()>(&mut connection)
        .expect("DEL");
    assert!(
        store
            .check(check())
            .await
            .expect("a bucket again")
            .is_allowed()
    );
}
