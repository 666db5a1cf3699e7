//! Tenants that are split over several slots.

use std::{
    collections::BTreeSet,
    num::{NonZeroU8, NonZeroU64},
};

use tollgate_core::{Check, Quota, Store};
use tollgate_limiter::Shards;
use tollgate_redis::RedisStore;
use tollgate_tests::{RedisServer, charge, quota};

use crate::support::{pttl, store};

fn sharded(quota: Quota, shards: u8) -> Check {
    let check = Check::new(vec![
        charge("42", "default", quota, 1),
        charge("42", "reports", quota, 1),
    ]);
    let shards = NonZeroU8::new(shards).expect("not 0");
    check.expect("a check").with_shards(shards)
}

fn keys(connection: &mut redis::Connection) -> BTreeSet<String> {
    redis::cmd("KEYS").arg("*").query(connection).expect("KEYS")
}

/// The slot of a key on a cluster, as its specification says: CRC16 of the hash tag.
pub(crate) fn slot(key: &str) -> u16 {
    let (_, rest) = key.split_once('{').expect("a tag");
    let (tag, _) = rest.split_once('}').expect("a tag");
    let crc = tag.bytes().fold(0_u16, |crc, byte| {
        (0..8).fold(crc ^ (u16::from(byte) << 8), |crc, _| {
            let carry = if crc & 0x8000 == 0 { 0 } else { 0x1021 };
            (crc << 1) ^ carry
        })
    });
    crc % 16_384
}

async fn drain(store: &Shards<RedisStore>, check: &Check) -> u64 {
    let mut admitted = 0;
    loop {
        let decision = store.check(check.clone()).await.expect("a decision");
        if !decision.is_allowed() {
            return admitted;
        }
        admitted += decision.granted;
    }
}

#[tokio::test]
async fn two_processes_share_exactly_one_capacity_of_a_split_tenant() {
    let server = RedisServer::start();
    let (one, two) = (store(&server).await, store(&server).await);
    let (one, two) = (Shards::new(one), Shards::new(two));
    let check = sharded(quota(11, "11/d"), 4);
    let (by_one, by_two) = tokio::join!(drain(&one, &check), drain(&two, &check));
    assert_eq!(by_one + by_two, 11);

    let connection = &mut server.connection();
    let keys = keys(connection);
    let expected = (0..4)
        .flat_map(|i| ["default", "reports"].map(|limit| format!("tg:{{tenant:42/{i}}}:{limit}")));
    assert_eq!(keys, expected.collect());
    let slots: BTreeSet<_> = keys.iter().map(|key| slot(key)).collect();
    assert_eq!(slots.len(), 4, "one for each shard and all its limits");
    // Each is empty and has a quarter of the rate: 3 tokens take 12/11 of a day, 2 take 8/11.
    for (i, days) in [12, 12, 12, 8].into_iter().enumerate() {
        let left = pttl(connection, &format!("tg:{{tenant:42/{i}}}:default"));
        let full = days * 86_400_000 / 11;
        assert!((full - 60_000..=full + 1).contains(&left), "{i}: {left}");
    }
}

#[test]
fn slots_are_those_of_the_specification() {
    // `CLUSTER KEYSLOT` of the same keys.
    assert_eq!(slot("{123456789}"), 0x31c3);
    assert_eq!(slot("x{foo}y"), 12_182);
}

/// The shards of a tenant differ in the last digit of their tags. CRC16 is linear, so their slots differ by that
/// digit's own remainder whoever the tenant is, and four of them are in four different quarters of all slots.
#[test]
fn four_shards_are_in_four_quarters_of_the_slots_whoever_the_tenant_is() {
    for i in 0..1_000 {
        let key = charge(&format!("tenant-{i}"), "default", quota(1, "1/s"), 1).key;
        let quarters: BTreeSet<_> = (0..4)
            .map(|i| slot(key.shard(i).as_str()) / 4_096)
            .collect();
        assert_eq!(quarters.len(), 4, "{key}");
    }
}

#[tokio::test]
async fn a_batch_takes_what_all_shards_have() {
    let server = RedisServer::start();
    let store = Shards::new(store(&server).await);
    let many = NonZeroU64::new(50).expect("not 0");
    let check = sharded(quota(30, "30/d"), 7).with_count(many);
    let decision = store.check(check.clone()).await.expect("a decision");
    assert_eq!(decision.granted, 30);
    let calls = server.calls("evalsha");
    let denied = store.check(check).await.expect("a decision");
    assert_eq!((denied.granted, denied.limits[0].remaining), (0, Some(0)));
    assert_eq!(server.calls("evalsha") - calls, 7, "each shard once");
}
