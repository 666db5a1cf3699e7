//! One replica of the service, a process of its own.

use std::{
    env, fs,
    io::{self, BufRead, BufReader, Read},
    net::SocketAddr,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    sync::Arc,
    thread,
    time::Duration,
};

use axum::{
    extract::{Request, State},
    http::header,
    middleware::{self, Next},
    response::Response,
};
use serde::{Deserialize, Serialize};
use tokio::{net::TcpListener, runtime::Runtime};
use tollgate::{
    CostRouter, FailurePolicy, Limiter, Metrics, Quota, Quotas, RateLimitLayer, RedisRsStore,
    RedisStore, costs::routing::get,
};
use tollgate_redis::RedisSettings;

use super::{BoxError, Client, Policy, Profile};
use crate::RedisClient;

/// How many there are, and what each is told that there are.
pub const REPLICAS: u32 = 3;

/// The deadline of a check in the replicas: the default.
pub const DEADLINE: Duration = Duration::from_millis(25);

/// What a replica is told.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Role {
    /// A section of a file: see [`RedisSettings`].
    pub redis: serde_json::Value,
    /// What decides where Redis does not.
    pub policy: Policy,
    /// The library through which it calls Redis.
    pub client: Client,
    /// Whom it serves.
    pub tenants: Vec<Profile>,
}

/// Holds the role as JSON; where it is set, the program is a replica.
const ROLE: &str = "TOLLGATE_LAB_REPLICA";

/// A running replica; killed when dropped.
#[derive(Debug)]
pub struct Replica {
    process: Child,
    address: SocketAddr,
    log: PathBuf,
}

/// Starts all replicas of one role, which log into `logs`, and waits for their addresses. They run the
/// program that calls this, which has to [`serve`] if it can.
///
/// # Errors
///
/// If one does not start; says why.
pub fn start(role: &Role, logs: &Path) -> Result<Vec<Replica>, BoxError> {
    thread::scope(|scope| {
        let starting: Vec<_> = (0..REPLICAS)
            .map(|number| {
                let log = logs.join(format!("{}-{number}", role.policy.as_str()));
                scope.spawn(move || spawn(role, log))
            })
            .collect();
        // All of them, before the first error counts.
        let started: Vec<_> = starting.into_iter().map(|replica| replica.join()).collect();
        started
            .into_iter()
            .map(|replica| replica.map_err(|_| BoxError::from("a replica did not start"))?)
            .collect()
    })
}

fn spawn(role: &Role, log: PathBuf) -> Result<Replica, BoxError> {
    let mut process = Command::new(env::current_exe()?)
        .env(ROLE, serde_json::to_string(role)?)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(fs::File::create(&log)?)
        .spawn()?;
    let mut line = String::new();
    let output = process.stdout.take().ok_or("the replica has no output")?;
    BufReader::new(output).read_line(&mut line)?;
    let address = line.trim().parse().map_err(|_| {
        let said = fs::read_to_string(&log).unwrap_or_default();
        format!("a replica did not start; it said: {said}")
    })?;
    Ok(Replica {
        process,
        address,
        log,
    })
}

// === impl Replica ===

impl Replica {
    /// Where it serves.
    #[must_use]
    pub const fn address(&self) -> SocketAddr {
        self.address
    }

    /// What it has logged.
    #[must_use]
    pub fn log(&self) -> String {
        fs::read_to_string(&self.log).unwrap_or_default()
    }

    /// The memory that it occupies, in KiB; 0 where the system does not tell.
    #[must_use]
    pub fn memory(&self) -> u64 {
        let status = fs::read_to_string(format!("/proc/{}/status", self.process.id()));
        let status = status.unwrap_or_default();
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
        line.and_then(|line| line.trim().strip_suffix(" kB")?.parse().ok())
            .unwrap_or(0)
    }
}

impl Drop for Replica {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// Serves until the lab ends, if this process is to be a replica.
///
/// # Errors
///
/// If it cannot serve.
#[must_use]
pub fn serve() -> Option<Result<(), BoxError>> {
    let role = env::var(ROLE).ok()?;
    Some(run(&role))
}

fn run(role: &str) -> Result<(), BoxError> {
    let role: Role = serde_json::from_str(role)?;
    let runtime = Runtime::new()?;
    match role.client {
        Client::Fred => runtime.block_on(serve_through::<RedisStore>(role)),
        Client::RedisRs => runtime.block_on(serve_through::<RedisRsStore>(role)),
    }
}

async fn serve_through<S: RedisClient>(role: Role) -> Result<(), BoxError> {
    tracing_subscriber::fmt()
        .with_writer(io::stderr)
        .with_ansi(false)
        .init();
    let tenants = role.tenants.iter();
    let quotas = tenants.fold(Quotas::new(Quota::new(1, "1/s")?), |quotas, profile| {
        quotas.tenant(&*profile.name, profile.quota())
    });
    let settings: RedisSettings = serde_json::from_value(role.redis)?;
    let metrics = Metrics::new();
    let limiter = Limiter::builder(S::open(settings.into()).await?)
        .quotas(quotas)
        .deadline(DEADLINE)
        .on_store_failure(match role.policy {
            Policy::Open => FailurePolicy::Open,
            Policy::Closed => FailurePolicy::Closed,
            Policy::Local => FailurePolicy::local(REPLICAS),
        })
        .observer(metrics.clone())
        .build()?;
    let app = CostRouter::new()
        .route("/items", get(|| async { "items" }))
        .layer(RateLimitLayer::new(limiter))
        .layer(middleware::from_fn_with_state(
            Arc::from(role.tenants),
            authenticate,
        ))
        .into_router()
        .route("/metrics", metrics.route());
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    println!("{}", listener.local_addr()?);
    axum::serve(listener, app)
        .with_graceful_shutdown(parent_gone())
        .await?;
    Ok(())
}

async fn authenticate(
    State(tenants): State<Arc<[Profile]>>,
    mut request: Request,
    next: Next,
) -> Response {
    let key = request
        .headers()
        .get(header::AUTHORIZATION)
        .and_then(|value| value.to_str().ok());
    if let Some(tenant) =
        key.and_then(|key| Profile::authenticate(&tenants, key.strip_prefix("Bearer ")?))
    {
        request.extensions_mut().insert(tenant);
    }
    next.run(request).await
}

/// Ends when standard input does: no replica outlives the lab, however that ends.
async fn parent_gone() {
    let (gone, wait) = tokio::sync::oneshot::channel();
    thread::spawn(move || {
        let _ = io::stdin().read_to_end(&mut Vec::new());
        let _ = gone.send(());
        // A connection that is kept open does not hold it up.
        thread::sleep(Duration::from_secs(1));
        std::process::abort();
    });
    let _ = wait.await;
}
