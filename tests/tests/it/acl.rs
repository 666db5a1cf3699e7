//! The rights that the store needs on the server.

use std::time::Duration;

use tollgate_core::{Adjustment, ChargeState, ErrorKind, conformance};
use tollgate_tests::{RedisClient, RedisServer, change, check, quota, with_each_client};

use crate::conformance::OnServer;

/// What a check and an adjustment need: the call, the load, and what the scripts do.
const NEEDED: [&str; 5] = ["+evalsha", "+script|load", "+get", "+pttl", "+set"];

fn set_user(server: &RedisServer, rights: &[&str]) {
    let set = redis::cmd("ACL")
        .arg(&[
            "SETUSER", "tollgate", "reset", "on", ">secret", "~tg:*", "-@all",
        ])
        .arg(rights)
        .query::<()>(&mut server.connection());
    set.expect("ACL SETUSER");
}

async fn connect<S: RedisClient>(server: &RedisServer) -> S {
    let builder = S::builder(&format!(
        "redis://tollgate:secret@127.0.0.1:{}",
        server.port()
    ));
    let builder = builder.deadline(Duration::from_secs(10)).strict(true);
    S::open(builder).await.expect("a store")
}

fn denials(server: &RedisServer) -> usize {
    let log: Vec<redis::Value> = redis::cmd("ACL")
        .arg("LOG")
        .query(&mut server.connection())
        .expect("ACL LOG");
    log.len()
}

async fn five_commands_suffice_and_what_the_client_asks_keeps_the_log_quiet<S: RedisClient>() {
    for (rights, quiet) in [
        (NEEDED.to_vec(), false),
        ([&NEEDED[..], S::ASKS].concat(), true),
    ] {
        let server = RedisServer::start();
        set_user(&server, &rights);
        let store = connect::<S>(&server).await;
        for (cost, allowed) in [(1, true), (10, false), (1, true)] {
            let decision = store
                .check(check("a", quota(10, "1/h"), cost))
                .await
                .expect("a decision");
            assert_eq!(decision.is_allowed(), allowed);
        }
        let take = change("a", "default", quota(10, "1/h"), -9, -3);
        let adjusted = store.adjust(Adjustment::new(vec![take]).expect("an adjustment"));
        assert_eq!(adjusted.await.expect("carried out"), [-1]);
        assert_eq!(denials(&server) == 0, quiet, "{rights:?}");
    }
}

/// Nothing that a store does needs more.
async fn every_rule_is_kept_with_these_rights<S: RedisClient>() {
    let server = RedisServer::start();
    set_user(&server, &NEEDED);
    conformance::run(&OnServer(connect::<S>(&server).await)).await;
}

async fn each_missing_right_is_an_auth_error_with_nothing_charged<S: RedisClient>() {
    for missing in NEEDED {
        let server = RedisServer::start();
        let rights: Vec<_> = NEEDED
            .into_iter()
            .filter(|right| *right != missing)
            .collect();
        set_user(&server, &rights);
        let store = connect::<S>(&server).await;
        if missing != "+script|load" {
            // A bucket in use, so that the script gets to all of its commands.
            set_user(&server, &NEEDED);
            let allowed = store.check(check("a", quota(10, "1/h"), 1)).await;
            assert!(allowed.expect("a decision").is_allowed());
            set_user(&server, &rights);
        }
        // Redis closes the connection of a user whose rights shrink; ask on the new one.
        let error = loop {
            let error = store
                .check(check("a", quota(10, "1/h"), 1))
                .await
                .expect_err(missing);
            if error.kind() != ErrorKind::Io {
                break error;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        };
        assert_eq!(
            (error.kind(), error.charge()),
            (ErrorKind::Auth, ChargeState::NotCharged),
            "{missing}: {error}"
        );
    }
}

async fn other_keys_are_out_of_reach<S: RedisClient>() {
    let server = RedisServer::start();
    set_user(&server, &NEEDED);
    let store = connect::<S>(&server).await;
    let mut charge = tollgate_tests::charge("a", "default", quota(10, "1/h"), 1);
    let elsewhere = tollgate_core::KeySpace::new("elsewhere").expect("a prefix");
    charge.key = elsewhere.global_bucket(&charge.limit.name);
    let error = store
        .check(tollgate_core::Check::single(charge))
        .await
        .expect_err("no permission");
    assert_eq!(
        (error.kind(), error.charge()),
        (ErrorKind::Auth, ChargeState::NotCharged),
        "{error}"
    );
}

with_each_client! {
    #[tokio::test] every_rule_is_kept_with_these_rights
    #[tokio::test] five_commands_suffice_and_what_the_client_asks_keeps_the_log_quiet
    #[tokio::test] each_missing_right_is_an_auth_error_with_nothing_charged
    #[tokio::test] other_keys_are_out_of_reach
}
