//! No two identities share a bucket, and many tenants share no slot.

use std::collections::HashSet;

use tollgate_core::{Charge, Check, Cost, KeySpace, Limit, LimitName, Tenant};
use tollgate_tests::{RedisServer, check, quota};

use crate::{
    shards::slot,
    support::{decide, store},
};

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

/// Of `n` tenants, each of 64 equal ranges of slots gets `n / 64` on average. If slots were drawn at random, the sum of
/// the squared differences over that average would have the mean 63 and the standard deviation √126 ≈ 11.2
/// (chi-square with 63 degrees of freedom); 63 + 8 × 11.2 is passed by chance less than once in a million
/// families of ids. A hash that leaves a single range empty adds `n / 64` = 156 alone.
#[test]
fn tenants_spread_evenly_over_the_slots_whatever_their_ids_look_like() {
    const TENANTS: u32 = 10_000;
    let families: [fn(u32) -> String; 5] = [
        |i| i.to_string(),
        |i| format!("customer-{i:08}"),
        |i| format!("{i:08x}-0000-4000-8000-{:012x}", u64::from(i) * 0x9e37_79b9),
        |i| format!("user.{i}@example.com"),
        |i| format!("{{same}}:{i}"),
    ];
    for family in families {
        let mut ranges = [0_u32; 64];
        for i in 0..TENANTS {
            let check = check(&family(i), quota(2, "1/h"), 1);
            let slot = slot(check.charges()[0].key.as_str());
            ranges[usize::from(slot / 256)] += 1;
        }
        let average = f64::from(TENANTS) / 64.0;
        let squares = ranges.map(|tenants| (f64::from(tenants) - average).powi(2));
        let distance = squares.iter().sum::<f64>() / average;
        assert!(distance < 63.0 + 8.0 * 11.2, "{}: {distance}", family(1));
    }
}

#[test]
fn tenants_that_look_alike_spread_over_many_slots() {
    let server = RedisServer::start_with(&["--cluster-enabled", "yes"]);
    let mut connection = server.connection();
    let mut told = |key: &str| -> u16 {
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
        slots.insert(told(key.as_str()));
        assert_eq!(told(key.as_str()), slot(key.as_str()));
        // The tag alone gives the slot, so all limits of a tenant share it.
        assert_eq!(
            told(key.as_str()),
            told(&format!("other:{{{}}}:user:x", key.tag()))
        );
    }
    assert!(slots.len() > 190, "{} slots for 200 tenants", slots.len());
}
