//! No two identities share a bucket, and many tenants share no slot.

use std::collections::HashSet;

use tollgate_core::{Charge, Check, Cost, KeySpace, Limit, LimitName, Tenant};
use tollgate_tests::{RedisServer, check, quota};

use crate::support::{decide, store};

#[tokio::test]
async fn each_identity_has_its_own_tokens() {
    let server = RedisServer::start();
    let store = store(&server).await;
    let many = (1..=200).map(|i| format!("{{same}}-{i}"));
    let odd = [
        "{",
        "}",
        "{}",
        "a}{b",
        "x{y}z",
        "t:shard:1",
        "ACME",
        "acme",
        "é",
        "e\u{301}",
        "a b",
        "a\nb",
        "%7B",
    ];
    for tenant in odd.map(String::from).into_iter().chain(many) {
        for allowed in [true, true, false] {
            let decision = decide(&store, check(&tenant, quota(2, "1/h"), 1)).await;
            assert_eq!(decision.is_allowed(), allowed, "{tenant}");
        }
    }
}

#[tokio::test]
async fn a_member_of_one_tenant_is_not_another_tenant() {
    let server = RedisServer::start();
    let store = store(&server).await;
    let name = LimitName::new("group").expect("a name");
    for (tenant, member) in [("acme", "eu:gold"), ("acme:eu", "gold")] {
        let tenant = Tenant::new(tenant, "pro").expect("an id");
        let key = KeySpace::default().member_bucket(&tenant, &name, member);
        for allowed in [true, true, false] {
            let limit = Limit {
                name: name.clone(),
                quota: quota(2, "1/h"),
            };
            let check = Check::single(Charge {
                key: key.clone(),
                limit,
                cost: Cost::ONE,
            });
            assert_eq!(decide(&store, check).await.is_allowed(), allowed, "{key}");
        }
    }
}

#[test]
fn tenants_that_look_alike_spread_over_many_slots() {
    let server = RedisServer::start_with(&["--cluster-enabled", "yes"]);
    let mut connection = server.connection();
    let mut slot = |key: &str| -> u16 {
        redis::cmd("CLUSTER")
            .arg("KEYSLOT")
            .arg(key)
            .query(&mut connection)
            .expect("a slot")
    };
    let mut slots = HashSet::new();
    for i in 1..=200 {
        let check = check(&format!("{{same}}-{i}"), quota(2, "1/h"), 1);
        let key = &check.charges()[0].key;
        slots.insert(slot(key.as_str()));
        // The tag alone gives the slot, so all limits of a tenant share it.
        assert_eq!(
            slot(key.as_str()),
            slot(&format!("other:{{{}}}:user:x", key.tag()))
        );
    }
    assert!(slots.len() > 190, "{} slots for 200 tenants", slots.len());
}
