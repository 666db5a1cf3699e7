//! The limiter that one writes in an afternoon: a function, a client, and the script that the web is full of.

use std::{sync::Arc, time::Duration};

use axum::{
    Router,
    extract::{Request, State},
    http::{StatusCode, header::RETRY_AFTER},
    middleware::{Next, from_fn_with_state},
    response::{IntoResponse, Response},
};
use fred::{
    clients::Client,
    interfaces::{ClientLike, LuaInterface},
    types::{
        Builder, Value,
        config::{Config, ReconnectPolicy, TcpConfig},
    },
};

use tollgate_benches::TEXTBOOK;

use crate::{BoxError, Setup, counting::Counts, identity};

struct Limiter {
    client: Client,
    sha: String,
    limits: usize,
    args: Vec<Value>,
}

pub(crate) async fn layer(
    setup: &Setup,
    router: Router<Arc<Counts>>,
) -> Result<Router<Arc<Counts>>, BoxError> {
    let client = connect(&setup.redis).await?;
    let sha = client.script_load(TEXTBOOK).await?;
    let charge = [setup.capacity, setup.rate, 1].map(|it| Value::from(it.to_string()));
    let charges = std::iter::repeat_n(charge, setup.limits);
    let limiter = Arc::new(Limiter {
        client,
        sha,
        limits: setup.limits,
        args: charges.flatten().collect(),
    });
    Ok(router.layer(from_fn_with_state(limiter, limit)))
}

/// A client as a careful hand would set it up: no waiting for ever, no calls sent twice.
pub(crate) async fn connect(url: &str) -> Result<Client, BoxError> {
    let mut builder = Builder::from_config(Config::from_url(url)?);
    builder.with_connection_config(|connection| {
        connection.max_command_attempts = 1;
        connection.tcp = TcpConfig {
            nodelay: Some(true),
            ..TcpConfig::default()
        };
    });
    builder.with_performance_config(|performance| {
        performance.default_command_timeout = Duration::from_secs(1);
    });
    builder.set_policy(ReconnectPolicy::new_exponential(0, 50, 2_000, 2));
    let client = builder.build()?;
    client.init().await?;
    Ok(client)
}

async fn limit(State(limiter): State<Arc<Limiter>>, request: Request, next: Next) -> Response {
    let tenant = identity::tenant(request.extensions()).id();
    let key = |limit| format!("hand:{{{tenant}}}:{limit}");
    let keys: Vec<_> = (0..limiter.limits).map(key).collect();
    let client = &limiter.client;
    let reply: Result<Vec<i64>, _> = client
        .evalsha(limiter.sha.as_str(), keys, limiter.args.clone())
        .await;
    match reply.as_deref() {
        Ok([1, ..]) => next.run(request).await,
        Ok([_, _, wait, ..]) => {
            let seconds = wait.div_euclid(1_000) + 1;
            (
                StatusCode::TOO_MANY_REQUESTS,
                [(RETRY_AFTER, seconds.to_string())],
            )
                .into_response()
        }
        _ => StatusCode::SERVICE_UNAVAILABLE.into_response(),
    }
}
