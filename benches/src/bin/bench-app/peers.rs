//! Other limiters for Tower, each keyed by the tenant and told the same quota.

use std::{sync::Arc, time::Duration};

use axum::{Router, body::Body};
use http::{Request, Response};
use tollgate::Tenant;

use crate::{BoxError, Setup, Unable, by_hand, counting::Counts, identity::tenant};

type App = Router<Arc<Counts>>;

pub(crate) fn tower_governor(setup: &Setup, router: App) -> Result<App, BoxError> {
    use tower_governor::{GovernorError, GovernorLayer, governor::GovernorConfigBuilder};

    #[derive(Clone)]
    struct ByTenant;

    impl tower_governor::key_extractor::KeyExtractor for ByTenant {
        type Key = Tenant;

        fn extract<T>(&self, request: &Request<T>) -> Result<Tenant, GovernorError> {
            Ok(tenant(request.extensions()).clone())
        }
    }

    let config = GovernorConfigBuilder::default()
        .key_extractor(ByTenant)
        .per_nanosecond(1_000_000_000 / setup.rate)
        .burst_size(setup.capacity.try_into()?)
        .finish()
        .ok_or("a quota")?;
    Ok(router.layer(GovernorLayer::new(config)))
}

/// What the two crates of that family can express.
fn capacity_and_interval(setup: &Setup) -> Result<(u16, Duration), BoxError> {
    let capacity = setup.capacity.try_into();
    match (capacity, 1_000_u64.checked_rem(setup.rate)) {
        (Ok(capacity), Some(0)) => Ok((capacity, Duration::from_millis(1_000 / setup.rate))),
        _ => Err(Unable("its quotas end at 65 535 tokens and a token per millisecond").into()),
    }
}

pub(crate) async fn tower_rate_limit_fred(setup: &Setup, router: App) -> Result<App, BoxError> {
    use tower_rate_limit_fred::{Key, KeyResolver, RateLimitLayer};

    #[derive(Clone)]
    struct ByTenant;

    impl KeyResolver for ByTenant {
        type ErrorBody = Body;

        fn key<T>(&self, request: &Request<T>) -> Result<Option<Key>, Response<Body>> {
            Ok(Some(tenant(request.extensions()).id().into()))
        }
    }

    let (capacity, interval) = capacity_and_interval(setup)?;
    let layer = RateLimitLayer::builder()
        .conn(by_hand::connect(&setup.redis).await?)
        .key_resolver(ByTenant)
        .capacity(capacity)
        .emission_interval(interval)
        .build();
    Ok(router.layer(layer))
}

pub(crate) async fn tower_rate_limit_redis(setup: &Setup, router: App) -> Result<App, BoxError> {
    use tower_rate_limit_redis::{KeyResolver, RateLimitLayer};

    #[derive(Clone)]
    struct ByTenant;

    impl KeyResolver for ByTenant {
        type Key = String;
        type ErrorBody = Body;

        fn key<T>(&self, request: &Request<T>) -> Result<String, Response<Body>> {
            Ok(tenant(request.extensions()).id().to_owned())
        }
    }

    let (capacity, interval) = capacity_and_interval(setup)?;
    let client = redis_0_32::Client::open(setup.redis.as_str())?;
    let layer = RateLimitLayer::builder()
        .conn(client.get_multiplexed_async_connection().await?)
        .key_resolver(ByTenant)
        .capacity(capacity)
        .emission_interval(interval)
        .timeout(Duration::from_secs(1))
        .build();
    Ok(router.layer(layer))
}

pub(crate) async fn tower_rate_limiter(setup: &Setup, router: App) -> Result<App, BoxError> {
    use tower_rate_limiter::{GcraQuota, KeyExtractor, RateLimitError, RateLimitLayer, RedisGcra};

    #[derive(Clone)]
    struct ByTenant;

    impl KeyExtractor for ByTenant {
        type Key = String;

        fn extract<T>(&self, request: &Request<T>) -> Result<String, RateLimitError> {
            Ok(tenant(request.extensions()).id().to_owned())
        }
    }

    let client = redis::Client::open(setup.redis.as_str())?;
    let connection = client.get_multiplexed_async_connection().await?;
    let (rate, burst) = (setup.rate.try_into()?, setup.capacity.try_into()?);
    let quota = GcraQuota::new(rate, Duration::from_secs(1), burst)?;
    let layer = RateLimitLayer::builder(ByTenant)
        .with_policy(RedisGcra::new(connection, quota))
        .build()?;
    Ok(router.layer(layer))
}
