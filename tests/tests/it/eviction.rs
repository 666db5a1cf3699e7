//! A flood of new identities against a Redis whose memory is limited: which policies of eviction remember who
//! has used up what.

use redis::Pipeline;
use tollgate_tests::{RedisServer, Script, argv, check, quota};

/// So many tenants have used up their quota before the flood.
const DRAINED: usize = 50;

/// So many new identities come then, several times as many as there is memory for in any version.
const FLOOD: usize = 40_000;

/// How many drained tenants are let in again after the flood, and how many of it were refused for want of
/// memory.
fn flood(policy: &str) -> (usize, usize) {
    let server = RedisServer::start_with(&["--maxmemory", "3mb", "--maxmemory-policy", policy]);
    let mut connection = server.connection();
    let script = Script::load(&mut connection, Script::TOKEN_BUCKET);
    let command = |tenant: &str, rate: &str, cost: u64| {
        let check = check(tenant, quota(10, rate), cost);
        let key = check.charges()[0].key.to_string();
        script.command(&[&key], &argv(&check))
    };
    let drained = |cost| {
        let tenants = (0..DRAINED).map(|tenant| format!("drained-{tenant}"));
        let commands = tenants.map(|tenant| command(&tenant, "1/h", cost));
        let answers = commands.map(|it| it.query::<Vec<i64>>(&mut server.connection()));
        answers
            .filter(|answer| answer.as_ref().is_ok_and(|answer| answer[0] == 1))
            .count()
    };
    assert_eq!(drained(10), DRAINED);
    let mut refused = 0;
    for batch in 0..FLOOD / 1_000 {
        let mut pipeline = Pipeline::new();
        for identity in 0..1_000 {
            let tenant = format!("flood-{batch}-{identity}");
            pipeline.add_command(command(&tenant, "1/m", 1));
        }
        pipeline.ignore_errors();
        let answers: Vec<redis::Value> =
            pipeline.query(&mut connection).expect("answers or errors");
        refused += answers
            .iter()
            .filter(|answer| matches!(answer, redis::Value::ServerError(_)))
            .count();
    }
    (drained(1), refused)
}

#[test]
fn volatile_ttl_evicts_the_fullest_buckets_and_forgets_nobody() {
    assert_eq!(flood("volatile-ttl"), (0, 0));
}

#[test]
fn noeviction_forgets_nobody_and_refuses_what_is_new() {
    let (forgotten, refused) = flood("noeviction");
    assert_eq!(forgotten, 0);
    assert!(refused > FLOOD / 10, "{refused}");
}

#[test]
fn other_policies_let_drained_tenants_in_again() {
    for policy in ["allkeys-lru", "volatile-lru", "allkeys-random"] {
        let (forgotten, refused) = flood(policy);
        assert!(forgotten > DRAINED / 5, "{policy}: {forgotten}");
        assert_eq!(refused, 0, "{policy}");
    }
}
