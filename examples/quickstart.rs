//! A service to copy: JSON Web Tokens, tiers, costs next to the routes, limits that change while it runs.
//!
//! ```text
//! cargo run --example quickstart
//! LIMITS_FILE=examples/limits.toml cargo run --example quickstart
//! ```
//!
//! | variable | meaning | default |
//! |---|---|---|
//! | `REDIS_URL` | the Redis that all replicas share | none: buckets are in this process |
//! | `LIMITS_FILE` | limits and tiers, read again when the file changes | two tiers, written below |
//! | `DATABASE_URL` | the Postgres whose tables say more about single tenants (with `--features postgres`) | none |
//! | `JWT_SECRET` | the key of HS256 signatures | a well-known one, for trying out |
//! | `LISTEN_ADDR` | where to listen | `127.0.0.1:3000` |
//! | `RUST_LOG` | what to log, such as `tollgate=debug` | `info` |

use std::{
    env,
    error::Error,
    future::pending,
    process::ExitCode,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use axum::{
    Json,
    extract::{Request, State},
    http::{StatusCode, header},
    middleware::{self, Next},
    response::{IntoResponse, Response},
};
use jsonwebtoken::{Algorithm, DecodingKey, EncodingKey, Header, Validation, decode, encode};
use serde::{Deserialize, Serialize};
use tokio::net::TcpListener;
#[cfg(unix)]
use tokio::signal::unix;
use tollgate::{
    CostRouter, FailurePolicy, Limiter, LimitsFile, MemoryStore, Metrics, Quota, QuotaBook, Quotas,
    RateLimitLayer, RedisStore, Tenant,
    costs::{
        CostMethodRouter,
        routing::{get, post},
    },
};

#[tokio::main]
async fn main() -> ExitCode {
    if let Err(error) = run().await {
        eprintln!("quickstart: {error}");
        return ExitCode::FAILURE;
    }
    ExitCode::SUCCESS
}

async fn run() -> Result<(), Box<dyn Error>> {
    let filter =
        tracing_subscriber::EnvFilter::try_from_default_env().unwrap_or_else(|_| "info".into());
    tracing_subscriber::fmt()
        .with_writer(std::io::stderr)
        .with_env_filter(filter)
        .init();
    let secret = variable("JWT_SECRET").unwrap_or_else(|| {
        println!("JWT_SECRET is not set: anyone who reads this example can sign tokens.");
        "only for trying out".to_owned()
    });
    let address = variable("LISTEN_ADDR").unwrap_or_else(|| "127.0.0.1:3000".to_owned());

    // Who may spend how much, what happens without Redis, and who counts.
    let metrics = Metrics::new();
    let builder = if let Some(url) = variable("REDIS_URL") {
        let store = RedisStore::connect(&url).await;
        Limiter::builder(store.map_err(|error| format!("REDIS_URL: {error}"))?)
    } else {
        println!(
            "REDIS_URL is not set: buckets are in this process, and other replicas do not see them."
        );
        Limiter::builder(MemoryStore::new())
    };
    let limiter = builder
        .quotas(quotas().await?)
        .on_store_failure(FailurePolicy::Open)
        .observer(metrics.clone())
        .build()?;

    let app = CostRouter::new()
        .route("/items", get(list_items))
        .route("/reports/export", post(export_report).cost(10))
        .route("/healthz", get(|| async { "ok" }).exempt())
        .route("/metrics", CostMethodRouter::from(metrics.route()).exempt())
        .layer(RateLimitLayer::new(limiter.clone()))
        .layer(middleware::from_fn_with_state(
            DecodingKey::from_secret(secret.as_bytes())?,
            authenticate,
        ))
        .into_router();

    let listener = TcpListener::bind(&address)
        .await
        .map_err(|error| format!("cannot listen on {address} (LISTEN_ADDR): {error}"))?;
    print_how_to_try(&listener.local_addr()?.to_string(), &secret)?;
    axum::serve(listener, app)
        .with_graceful_shutdown(told_to_stop())
        .await?;
    // Tokens that were claimed ahead and not spent go back to the others.
    limiter.shutdown().await;
    Ok(())
}

/// Who may spend how much: what the limits file says, or else two tiers; and of single tenants, what the
/// database says.
async fn quotas() -> Result<QuotaBook, Box<dyn Error>> {
    let book = if let Some(path) = variable("LIMITS_FILE") {
        let file = LimitsFile::open(path);
        QuotaBook::from(file.map_err(|error| format!("LIMITS_FILE: {error}"))?)
    } else {
        QuotaBook::new(
            Quotas::new(Quota::new(20, "2/s")?)
                .tier("free", Quota::new(20, "2/s")?)
                .tier("pro", Quota::new(200, "50/s")?),
        )
    };
    match variable("DATABASE_URL") {
        Some(url) => ask_database(book, &url).await,
        None => Ok(book),
    }
}

/// Its tables are made once, by `crates/tollgate-quota/migrations/0001_tollgate.sql`.
#[cfg(feature = "postgres")]
async fn ask_database(book: QuotaBook, url: &str) -> Result<QuotaBook, Box<dyn Error>> {
    let source = tollgate::PostgresSource::connect(url).await;
    Ok(book.source(source.map_err(|error| format!("DATABASE_URL: {error}"))?))
}

#[cfg(not(feature = "postgres"))]
async fn ask_database(_: QuotaBook, _: &str) -> Result<QuotaBook, Box<dyn Error>> {
    Err(
        "DATABASE_URL is set, and this program is built without Postgres: \
         run it with `cargo run --example quickstart --features postgres`"
            .into(),
    )
}

/// An environment variable that is set, and not to nothing.
fn variable(name: &str) -> Option<String> {
    env::var(name).ok().filter(|value| !value.is_empty())
}

async fn list_items() -> Json<[&'static str; 3]> {
    Json(["apple", "pear", "quince"])
}

async fn export_report() -> &'static str {
    "a report that took much work\n"
}

/// What a token says.
#[derive(Serialize, Deserialize)]
struct Claims {
    sub: String,
    tenant: String,
    tier: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    exp: Option<u64>,
}

/// Verifies the token, if there is one, and puts the tenant into the request's extensions. A request
/// without a token goes on: the limiter answers it with 401, unless its route is exempt.
async fn authenticate(
    State(key): State<DecodingKey>,
    mut request: Request,
    next: Next,
) -> Response {
    let authorization = request.headers().get(header::AUTHORIZATION);
    let Some(authorization) = authorization else {
        return next.run(request).await;
    };
    let tenant = authorization
        .to_str()
        .ok()
        .and_then(|value| verify(value, &key));
    let Some(tenant) = tenant else {
        return (
            StatusCode::UNAUTHORIZED,
            [(header::WWW_AUTHENTICATE, r#"Bearer error="invalid_token""#)],
        )
            .into_response();
    };
    request.extensions_mut().insert(tenant);
    next.run(request).await
}

fn verify(authorization: &str, key: &DecodingKey) -> Option<Tenant> {
    let (scheme, token) = authorization.split_once(' ')?;
    if !scheme.eq_ignore_ascii_case("bearer") {
        return None;
    }
    let mut validation = Validation::new(Algorithm::HS256);
    validation.validate_nbf = true;
    // A token without `exp` is good for ever here; drop this line if yours all have one.
    validation.required_spec_claims.clear();
    let claims = decode::<Claims>(token, key, &validation).ok()?.claims;
    Tenant::new(claims.tenant, claims.tier).ok()
}

fn print_how_to_try(address: &str, secret: &str) -> Result<(), Box<dyn Error>> {
    println!("Listening on http://{address}. To see the limits, repeat one of these:\n");
    for tier in ["free", "pro"] {
        let exp = SystemTime::now() + Duration::from_secs(24 * 3600);
        let claims = Claims {
            sub: "you".to_owned(),
            tenant: format!("acme-{tier}"),
            tier: tier.to_owned(),
            exp: Some(exp.duration_since(UNIX_EPOCH)?.as_secs()),
        };
        let token = encode(
            &Header::default(),
            &claims,
            &EncodingKey::from_secret(secret.as_bytes())?,
        )?;
        println!(
            "curl -i -H 'Authorization: Bearer {token}' -X POST http://{address}/reports/export\n"
        );
    }
    Ok(())
}

/// Ctrl-C, or what Kubernetes and others send before they kill.
async fn told_to_stop() {
    // An error means that this signal cannot be heard; then the other one is waited for.
    let interrupt = async {
        if tokio::signal::ctrl_c().await.is_err() {
            pending().await
        }
    };
    #[cfg(unix)]
    let terminate = async {
        match unix::signal(unix::SignalKind::terminate()) {
            Ok(mut signal) => signal.recv().await,
            Err(_) => pending().await,
        };
    };
    #[cfg(not(unix))]
    let terminate = pending::<()>();
    tokio::select! {
        () = interrupt => {}
        () = terminate => {}
    }
}
