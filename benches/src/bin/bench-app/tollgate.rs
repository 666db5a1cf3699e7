//! Tollgate, with the stages and answers that the name of the variant lists.

use std::{sync::Arc, time::Duration};

use axum::{Router, routing::MethodRouter};
use tollgate::{
    Account, CostRouter, FailurePolicy, Headers, LimitName, LimitRule, Limiter, LoadFuture,
    MemoryStore, Metrics, Quota, QuotaBook, QuotaSource, Quotas, RateLimitLayer, RedisRsStore,
    RedisStore, Store,
};

use crate::{BoxError, Setup, counting::Counts, identity::Authenticate};

/// What follows `tollgate` in the name of a variant, each after a hyphen; none of them are the defaults.
struct Options {
    /// Buckets in this process.
    memory: bool,
    /// Through redis-rs in place of fred.
    redis_rs: bool,
    /// Neither shared calls nor remembered denials.
    plain: bool,
    leases: bool,
    headerless: bool,
    metrics: bool,
    /// What the store does not answer is decided here, by the whole quota; by default it is refused.
    local: bool,
}

/// Accounts as a table would give them, a millisecond away.
struct Accounts(Quota);

pub(crate) async fn router(
    setup: &Setup,
    handler: MethodRouter<Arc<Counts>>,
) -> Result<Router<Arc<Counts>>, BoxError> {
    let options = Options::parse(&setup.variant)?;
    let limiter = if options.memory {
        limiter(setup, &options, MemoryStore::new())?
    } else if options.redis_rs {
        limiter(setup, &options, RedisRsStore::connect(&setup.redis).await?)?
    } else {
        limiter(setup, &options, RedisStore::connect(&setup.redis).await?)?
    };
    let mut layer = RateLimitLayer::new(limiter);
    if options.headerless {
        layer = layer.with_headers(Headers::RetryAfterOnly);
    }
    let router = CostRouter::new().route("/", handler).layer(layer);
    Ok(router.layer(Authenticate).into_router())
}

fn limiter(setup: &Setup, options: &Options, store: impl Store) -> Result<Limiter, BoxError> {
    let quota = Quota::new(setup.capacity, i32::try_from(setup.rate)?)?;
    let mut quotas = Quotas::default();
    for number in 0..setup.limits {
        let name = match number {
            0 => LimitName::default(),
            _ => LimitName::new(&format!("limit-{number}"))?,
        };
        let rule = LimitRule::new(name, quota);
        quotas = quotas.limit(if options.leases { rule.leased() } else { rule });
    }
    let mut book = QuotaBook::new(quotas);
    if setup.has_accounts {
        book = book.source(Accounts(quota));
    }
    let mut builder = Limiter::builder(store)
        .quotas(book)
        // As long as all others wait: what a busy machine holds up is slow, and not an outage.
        .deadline(Duration::from_secs(1))
        .denial_cache(!options.plain)
        .coalescing(!options.plain)
        .on_store_failure(if options.local {
            FailurePolicy::local(1)
        } else {
            FailurePolicy::Closed
        });
    if options.metrics {
        builder = builder.observer(Metrics::new());
    }
    Ok(builder.build()?)
}

impl Options {
    fn parse(variant: &str) -> Result<Self, BoxError> {
        let mut options = Self {
            memory: false,
            redis_rs: false,
            plain: false,
            leases: false,
            headerless: false,
            metrics: false,
            local: false,
        };
        for word in variant.split('-').skip(1) {
            match word {
                "memory" => options.memory = true,
                "redisrs" => options.redis_rs = true,
                "plain" => options.plain = true,
                "leases" => options.leases = true,
                "headerless" => options.headerless = true,
                "metrics" => options.metrics = true,
                "local" => options.local = true,
                _ => return Err(format!("no option {word} of {variant}").into()),
            }
        }
        Ok(options)
    }
}

// === impl Accounts ===

impl QuotaSource for Accounts {
    fn name(&self) -> &'static str {
        "table"
    }

    fn load<'a>(&'a self, _: &'a str, _: Option<&'a Account>) -> LoadFuture<'a> {
        Box::pin(async {
            tokio::time::sleep(Duration::from_millis(1)).await;
            let mut account = Account::default();
            account.limits.insert(LimitName::default(), self.0.into());
            Ok(Some(account))
        })
    }
}
