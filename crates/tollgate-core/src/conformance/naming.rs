//! Whose bucket is whose.

use super::{
    Harness,
    bench::{Bench, FROZEN, Verdict, charge, ensure, name, quota, remaining, several},
};
use crate::{BucketKey, Check};

/// Each bucket holds one token: whoever finds none shares one with somebody before.
async fn apart<H: Harness>(bench: &Bench<'_, H>, keys: Vec<(String, BucketKey)>) -> Verdict {
    let drain = |key: BucketKey| Check::single(charge(key, "default", quota(1, FROZEN), 1));
    for (what, key) in &keys {
        let first = bench.ask(drain(key.clone())).await?;
        ensure!(
            first.is_allowed(),
            "the bucket of {what} was used already, under the key {key}"
        );
    }
    for (what, key) in keys {
        let again = bench.ask(drain(key)).await?;
        ensure!(
            !again.is_allowed(),
            "the bucket of {what} is full again, or was another one before"
        );
    }
    Ok(())
}

pub(super) async fn tenants<H: Harness>(bench: &Bench<'_, H>) -> Verdict {
    let long = "x".repeat(500);
    let mut ids: Vec<String> = [
        "", "a", "A", "b", " a", "a ", "a b", "a:b", "a:", ":a", "a/1", "a/2", "{", "}", "}{",
        "{a}", "{}", "%7D", "%", "%25", "#", "*", "?", "[a]", "\\", "\"", "'", "\0", "\n", "\r\n",
        "a\r\nb", "ä", "a\u{308}", "Å", "日本", "🦀", "null", "-1", "0", "00", "default", "global",
    ]
    .map(String::from)
    .into();
    ids.extend([long.clone(), format!("{long}y"), format!("{long}z")]);
    let keys = ids.into_iter().map(|id| {
        let key = bench.key(&id, "default");
        (format!("the tenant {id:?}"), key)
    });
    apart(bench, keys.collect()).await
}

pub(super) async fn buckets<H: Harness>(bench: &Bench<'_, H>) -> Verdict {
    let (keys, tenant) = (bench.keys(), bench.tenant(""));
    let mut buckets = Vec::new();
    for limit in ["default", "a", "b", "a.b", "a_b", "a-b"] {
        buckets.push((
            format!("the limit {limit}"),
            keys.bucket(&tenant, &name(limit)),
        ));
        for member in ["a", "b", "A", "a:b", "}", "default"] {
            let key = keys.member_bucket(&tenant, &name(limit), member);
            buckets.push((format!("the member {member} under {limit}"), key));
        }
    }
    let whole = keys.bucket(&tenant, &name("sharded"));
    for index in 0..4 {
        buckets.push((format!("shard {index}"), whole.shard(index)));
    }
    buckets.push(("the whole of the shards".to_owned(), whole));
    let shared = keys.dependency_bucket(tenant.id(), &name("default"));
    buckets.push(("a dependency with the tenant's id".to_owned(), shared));
    apart(bench, buckets).await
}

pub(super) async fn one_tag<H: Harness>(bench: &Bench<'_, H>) -> Verdict {
    for id in ["", "}{", "a:b", "\r\n", "日本"] {
        let tenant = bench.tenant(id);
        let keys = [
            bench.keys().bucket(&tenant, &name("default")),
            bench.keys().bucket(&tenant, &name("reports")),
            bench.keys().member_bucket(&tenant, &name("user"), "alice"),
            bench.keys().member_bucket(&tenant, &name("user"), "}bob{"),
        ];
        let charges = keys.map(|key| charge(key, "default", quota(5, FROZEN), 2));
        let decision = bench.ask(several(charges.into())).await?;
        ensure!(
            decision.is_allowed() && remaining(&decision) == [3; 4],
            "four limits of the tenant {id:?}: {decision:?}"
        );
    }
    Ok(())
}
