//! Limitador, which is a library of its own, behind a function. It counts in fixed windows.

use std::{collections::HashMap, sync::Arc};

use axum::{
    Router,
    extract::{Request, State},
    http::StatusCode,
    middleware::{Next, from_fn_with_state},
    response::{IntoResponse, Response},
};
use limitador::{
    CheckResult, RateLimiter,
    errors::LimitadorError,
    limit::{Context, Limit, Namespace},
};

use crate::{BoxError, Setup, counting::Counts, identity};

type App = Router<Arc<Counts>>;

/// So many tokens in a window that the average is the quota's rate.
fn limit(setup: &Setup) -> Result<Limit, BoxError> {
    let seconds = (setup.capacity / setup.rate).max(1);
    let variables = vec!["tenant".try_into()?];
    Ok(Limit::new(
        "bench",
        setup.rate * seconds,
        seconds,
        vec![],
        variables,
    ))
}

fn context(request: &Request) -> (Namespace, Context<'static>) {
    let id = identity::tenant(request.extensions()).id().to_owned();
    let values = HashMap::from([("tenant".to_owned(), id)]);
    ("bench".into(), values.into())
}

/// `None` if there is no answer.
fn is_limited(checked: Result<CheckResult, LimitadorError>) -> Option<bool> {
    checked.ok().map(|it| it.limited)
}

async fn respond(is_limited: Option<bool>, request: Request, next: Next) -> Response {
    match is_limited {
        Some(true) => StatusCode::TOO_MANY_REQUESTS.into_response(),
        Some(false) => next.run(request).await,
        None => StatusCode::SERVICE_UNAVAILABLE.into_response(),
    }
}

pub(crate) fn memory(setup: &Setup, router: App) -> Result<App, BoxError> {
    async fn check(
        State(limiter): State<Arc<RateLimiter>>,
        request: Request,
        next: Next,
    ) -> Response {
        let is_limited = {
            let (namespace, context) = context(&request);
            is_limited(limiter.check_rate_limited_and_update(&namespace, &context, 1))
        };
        respond(is_limited, request, next).await
    }

    let limiter = RateLimiter::new(200_000);
    limiter.add_limit(limit(setup)?);
    Ok(router.layer(from_fn_with_state(Arc::new(limiter), check)))
}

#[cfg(feature = "limitador-redis")]
mod shared {
    use limitador::{
        AsyncRateLimiter,
        storage::{
            AsyncCounterStorage,
            redis::{AsyncRedisStorage, CachedRedisStorageBuilder},
        },
    };

    use super::*;

    pub(crate) async fn redis(setup: &Setup, router: App) -> Result<App, BoxError> {
        let storage = AsyncRedisStorage::new(&setup.redis).await?;
        layer(setup, router, Box::new(storage))
    }

    pub(crate) async fn cached(setup: &Setup, router: App) -> Result<App, BoxError> {
        let builder = CachedRedisStorageBuilder::new(&setup.redis).max_cached_counters(200_000);
        layer(setup, router, Box::new(builder.build().await?))
    }

    fn layer(
        setup: &Setup,
        router: App,
        storage: Box<dyn AsyncCounterStorage>,
    ) -> Result<App, BoxError> {
        let limiter = AsyncRateLimiter::new_with_storage(storage);
        limiter.add_limit(limit(setup)?);
        Ok(router.layer(from_fn_with_state(Arc::new(limiter), check)))
    }

    async fn check(
        State(limiter): State<Arc<AsyncRateLimiter>>,
        request: Request,
        next: Next,
    ) -> Response {
        let is_limited = {
            let (namespace, context) = context(&request);
            let checked = limiter.check_rate_limited_and_update(&namespace, &context, 1);
            is_limited(checked.await)
        };
        respond(is_limited, request, next).await
    }
}

#[cfg(feature = "limitador-redis")]
pub(crate) use self::shared::{cached, redis};

#[cfg(not(feature = "limitador-redis"))]
mod absent {
    use super::*;
    use crate::Unable;

    const WHY: Unable = Unable(
        "not built: its storage in Redis compiles with RocksDB only (feature `limitador-redis`)",
    );

    pub(crate) async fn redis(_: &Setup, _: App) -> Result<App, BoxError> {
        Err(WHY.into())
    }

    pub(crate) async fn cached(_: &Setup, _: App) -> Result<App, BoxError> {
        Err(WHY.into())
    }
}

#[cfg(not(feature = "limitador-redis"))]
pub(crate) use self::absent::{cached, redis};
