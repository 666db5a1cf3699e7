//! One replica of the service, a process of its own.

use std::{
    env, fs,
    io::{self, BufRead, BufReader, Read},
    net::SocketAddr,
    path::PathBuf,
    process::{Child, Command, Stdio},
    thread,
    time::Duration,
};

use axum::{
    extract::Request,
    http::header,
    middleware::{self, Next},
    response::Response,
};
use tokio::net::TcpListener;
use tollgate::{
    CostRouter, FailurePolicy, Limiter, Metrics, Quota, Quotas, RateLimitLayer, RedisRsStore,
    RedisStore, costs::routing::get,
};
use tollgate_tests::RedisClient;

use crate::{
    BoxError, DEADLINE,
    client::Client,
    policy::Policy,
    tenants::{Profile, TENANTS},
};

/// How many there are, and what each is told that there are.
pub(crate) const REPLICAS: u32 = 3;

/// What a replica is told.
#[derive(Debug)]
pub(crate) struct Role {
    pub(crate) redis: String,
    pub(crate) policy: Policy,
    pub(crate) client: Client,
}

/// Names the Redis; where it is set, the program is a replica.
const ROLE: &str = "TOLLGATE_FAULT_LAB_REPLICA_OF";
const CLIENT: &str = "TOLLGATE_FAULT_LAB_CLIENT";
const POLICY: &str = "TOLLGATE_FAULT_LAB_POLICY";

/// A running replica; killed when dropped.
#[derive(Debug)]
pub(crate) struct Replica {
    process: Child,
    address: SocketAddr,
    log: PathBuf,
}

/// Starts a replica that logs into `log`, and waits for its address.
pub(crate) fn spawn(role: &Role, log: PathBuf) -> Result<Replica, BoxError> {
    let mut process = Command::new(env::current_exe()?)
        .env(ROLE, &role.redis)
        .env(CLIENT, role.client.as_str())
        .env(POLICY, role.policy.as_str())
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
    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }

    /// What it has logged.
    pub(crate) fn log(&self) -> String {
        fs::read_to_string(&self.log).unwrap_or_default()
    }

    /// The memory that it occupies, in KiB; 0 where the system does not tell.
    pub(crate) fn memory(&self) -> u64 {
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

/// What this process is told, if it is to be a replica.
pub(crate) fn role() -> Option<Result<Role, BoxError>> {
    let redis = env::var(ROLE).ok()?;
    let rest = || Ok((env::var(POLICY)?.parse()?, env::var(CLIENT)?.parse()?));
    Some(rest().map(|(policy, client)| Role {
        redis,
        policy,
        client,
    }))
}

pub(crate) async fn serve(role: &Role) -> Result<(), BoxError> {
    match role.client {
        Client::Fred => serve_through::<RedisStore>(role).await,
        Client::RedisRs => serve_through::<RedisRsStore>(role).await,
    }
}

async fn serve_through<S: RedisClient>(role: &Role) -> Result<(), BoxError> {
    tracing_subscriber::fmt()
        .with_writer(io::stderr)
        .with_ansi(false)
        .init();
    let quotas = TENANTS
        .iter()
        .fold(Quotas::new(Quota::new(1, "1/s")?), |quotas, profile| {
            quotas.tenant(profile.name, profile.quota())
        });
    let metrics = Metrics::new();
    let limiter = Limiter::builder(S::open(S::builder(&role.redis)).await?)
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
        .layer(middleware::from_fn(authenticate))
        .into_router()
        .route("/metrics", metrics.route());
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    println!("{}", listener.local_addr()?);
    axum::serve(listener, app)
        .with_graceful_shutdown(parent_gone())
        .await?;
    Ok(())
}

async fn authenticate(mut request: Request, next: Next) -> Response {
    let key = request
        .headers()
        .get(header::AUTHORIZATION)
        .and_then(|value| value.to_str().ok());
    if let Some(tenant) = key.and_then(|key| Profile::authenticate(key.strip_prefix("Bearer ")?)) {
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
