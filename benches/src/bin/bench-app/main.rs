//! The service that is measured: one route behind one of the limiters.
//!
//! ```text
//! bench-app VARIANT --redis URL --capacity N --rate N [--limits N] [--tenants N] [--accounts] [--threads N]
//! ```
//!
//! Prints the port that it listens on. Ends with 3 if the variant cannot do what is asked, and says why.

use std::{process::ExitCode, sync::Arc};

use axum::{
    Router,
    routing::{MethodRouter, get},
};
use tokio::net::TcpListener;

mod alone;
mod by_hand;
mod counting;
mod identity;
mod limitador;
mod peers;
mod tollgate;

use self::{counting::Counts, identity::Authenticate};

type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// What each limiter is told, in its own words.
#[derive(Clone, Debug)]
struct Setup {
    variant: String,
    redis: String,
    capacity: u64,
    /// Tokens per second.
    rate: u64,
    /// How many limits each request is charged in.
    limits: usize,
    tenants: usize,
    /// Whether tenants have accounts that are looked up.
    has_accounts: bool,
    threads: usize,
}

/// Why a variant cannot do what is asked. Goes into its row of the table.
#[derive(Debug)]
struct Unable(&'static str);

// === impl Unable ===

impl std::fmt::Display for Unable {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.0)
    }
}

impl std::error::Error for Unable {}

fn main() -> ExitCode {
    match start() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::from(if error.is::<Unable>() { 3 } else { 1 })
        }
    }
}

fn start() -> Result<(), BoxError> {
    let setup = Setup::from_args()?;
    let mut runtime = tokio::runtime::Builder::new_multi_thread();
    let runtime = runtime.worker_threads(setup.threads).enable_all().build()?;
    // The thread that waits here has nothing to do once the server runs.
    runtime.block_on(async { tokio::spawn(serve(setup)).await? })
}

async fn serve(setup: Setup) -> Result<(), BoxError> {
    let counts = Arc::new(Counts::new(setup.tenants));
    let limited = limited(&setup, get(counting::admitted)).await?;
    let app = limited.merge(counting::routes()).with_state(counts);
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    println!("{}", listener.local_addr()?.port());
    Ok(axum::serve(listener, app).await?)
}

/// The route behind the limiter, behind the identity that all have in common.
async fn limited(
    setup: &Setup,
    handler: MethodRouter<Arc<Counts>>,
) -> Result<Router<Arc<Counts>>, BoxError> {
    if setup.variant.starts_with("tollgate") {
        return tollgate::router(setup, handler).await;
    }
    if setup.limits > 1 && !matches!(setup.variant.as_str(), "bare" | "by-hand") {
        return Err(Unable("one limit per layer").into());
    }
    let router = Router::new().route("/", handler);
    let router = match setup.variant.as_str() {
        "bare" => router,
        "fields-alone" => alone::fields(router),
        "refusal-alone" => alone::refusal(),
        "by-hand" => by_hand::layer(setup, router).await?,
        "tower-governor" => peers::tower_governor(setup, router)?,
        "tower-rate-limit-fred" => peers::tower_rate_limit_fred(setup, router).await?,
        "tower-rate-limit-redis" => peers::tower_rate_limit_redis(setup, router).await?,
        "tower-rate-limiter" => peers::tower_rate_limiter(setup, router).await?,
        "limitador-memory" => limitador::memory(setup, router)?,
        "limitador-redis" => limitador::redis(setup, router).await?,
        "limitador-cached" => limitador::cached(setup, router).await?,
        other => return Err(format!("no variant {other}").into()),
    };
    Ok(router.layer(Authenticate))
}

impl Setup {
    fn from_args() -> Result<Self, BoxError> {
        use lexopt::prelude::{Long, Value, ValueExt};

        let mut setup = Self {
            variant: String::new(),
            redis: String::new(),
            capacity: 1_000_000_000,
            rate: 1_000_000,
            limits: 1,
            tenants: 1,
            has_accounts: false,
            threads: 1,
        };
        let mut args = lexopt::Parser::from_env();
        while let Some(arg) = args.next()? {
            match arg {
                Value(variant) => setup.variant = variant.string()?,
                Long("redis") => setup.redis = args.value()?.string()?,
                Long("capacity") => setup.capacity = args.value()?.parse()?,
                Long("rate") => setup.rate = args.value()?.parse()?,
                Long("limits") => setup.limits = args.value()?.parse()?,
                Long("tenants") => setup.tenants = args.value()?.parse()?,
                Long("accounts") => setup.has_accounts = true,
                Long("threads") => setup.threads = args.value()?.parse()?,
                other => return Err(other.unexpected().into()),
            }
        }
        Ok(setup)
    }
}
