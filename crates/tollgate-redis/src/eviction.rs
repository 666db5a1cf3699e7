//! Whether the server may forget buckets that are in use.

use crate::{config::SETUP_TIMEOUT, lane::Client};

/// Warns if memory is limited and the policy of eviction lets a flood of new identities push out drained
/// buckets. Servers that do not let us ask are passed over in silence.
pub(crate) async fn warn(client: &impl Client, address: &str) {
    let asked = client.ask("INFO", vec!["memory".to_owned()], SETUP_TIMEOUT);
    if let Ok(reply) = asked.await
        && let Some(policy) = reply.text().and_then(harmful)
    {
        tracing::warn!(
            address,
            policy,
            "Redis may evict buckets in use, which fills them; set `maxmemory-policy` to `volatile-ttl` or \
             `noeviction`"
        );
    }
}

/// The policy, if it is one of those.
fn harmful(info: &str) -> Option<&str> {
    let field = |name: &str| {
        info.lines()
            .find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))
            .map(str::trim)
    };
    let policy = field("maxmemory_policy")?;
    let limited = field("maxmemory").is_some_and(|bytes| bytes != "0");
    (limited && !matches!(policy, "noeviction" | "volatile-ttl")).then_some(policy)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_policies_that_may_evict_drained_buckets_are_harmful() {
        let info = |bytes: u64, policy: &str| {
            format!(
                "# Memory\r\nmaxmemory:{bytes}\r\nmaxmemory_human:1M\r\nmaxmemory_policy:{policy}\r\n"
            )
        };
        assert_eq!(harmful(&info(1, "allkeys-lru")), Some("allkeys-lru"));
        assert_eq!(harmful(&info(1, "volatile-lru")), Some("volatile-lru"));
        assert_eq!(harmful(&info(1, "volatile-ttl")), None);
        assert_eq!(harmful(&info(1, "noeviction")), None);
        assert_eq!(harmful(&info(0, "allkeys-lru")), None);
        assert_eq!(harmful("# Memory\r\n"), None);
    }
}
