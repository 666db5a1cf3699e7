//! One replica of the service, a process of its own.
//!
//! It serves the same route twice: `/shared/items` behind the fleet's limiter, `/own/items` behind one that
//! this replica has for itself, so that both can be given the same load.

use std::{
    env,
    io::{self, BufRead, BufReader, Read},
    net::SocketAddr,
    process::{Child, Command, Stdio},
    thread,
};

use axum::{
    extract::Request,
    http::header,
    middleware::{self, Next},
    response::Response,
};
use tokio::net::TcpListener;
use tollgate::{
    CostRouter, FailurePolicy, KeySpace, Limiter, MemoryStore, Quota, Quotas, RateLimitLayer,
    RedisStore, Store, costs::routing::get,
};

use crate::{
    BoxError,
    redis::Redis,
    tenants::{Profile, TENANTS},
};

/// Names the Redis of the fleet; where it is set, the program is a replica.
const ROLE: &str = "TOLLGATE_FLEET_REPLICA_OF";
/// The certificate to trust, if any.
const CA_FILE: &str = "TOLLGATE_FLEET_CA_FILE";

/// A running replica; killed when dropped.
#[derive(Debug)]
pub(crate) struct Replica {
    process: Child,
    address: SocketAddr,
}

impl Replica {
    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }
}

impl Drop for Replica {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// Starts a replica and waits for its address.
pub(crate) fn spawn(redis: &Redis) -> Result<Replica, BoxError> {
    let mut process = Command::new(env::current_exe()?)
        .env(ROLE, redis.url())
        .envs(redis.ca_file().map(|file| (CA_FILE, file)))
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()?;
    let mut line = String::new();
    let output = process.stdout.take().ok_or("the replica has no output")?;
    BufReader::new(output).read_line(&mut line)?;
    let address = line
        .trim()
        .parse()
        .map_err(|_| "a replica did not start; what it said stands above")?;
    Ok(Replica { process, address })
}

/// The Redis to use, if this process is to be a replica.
pub(crate) fn role() -> Option<Result<String, BoxError>> {
    let url = env::var_os(ROLE)?;
    Some(
        url.into_string()
            .map_err(|_| "the Redis URL is not UTF-8".into()),
    )
}

pub(crate) async fn serve(redis: &str) -> Result<(), BoxError> {
    let mut builder = RedisStore::builder(redis).strict(true);
    if let Some(file) = env::var_os(CA_FILE) {
        builder = builder.ca_file(file);
    }
    let store = builder.connect().await?;
    let (shared, own) = (limiter(store)?, limiter(MemoryStore::new())?);
    let app = CostRouter::new()
        .nest("/shared", side(shared.clone()))
        .nest("/own", side(own.clone()))
        .layer(middleware::from_fn(authenticate))
        .into_router();
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    println!("{}", listener.local_addr()?);
    axum::serve(listener, app)
        .with_graceful_shutdown(parent_gone())
        .await?;
    // After the last request: what was claimed ahead goes back.
    shared.shutdown().await;
    Ok(())
}

fn limiter(store: impl Store) -> Result<Limiter, BoxError> {
    let quotas = TENANTS
        .iter()
        .fold(Quotas::new(Quota::new(1, "1/s")?), |quotas, profile| {
            quotas.tenant(profile.name, profile.quota())
        });
    let limiter = Limiter::builder(store)
        .quotas(quotas)
        .keys(KeySpace::new("tollgate-fleet")?)
        // So that whatever Redis did not answer is never taken for admitted.
        .on_store_failure(FailurePolicy::Closed)
        .build()?;
    Ok(limiter)
}

fn side(limiter: Limiter) -> CostRouter {
    CostRouter::new()
        .route("/items", get(|| async { "items" }))
        .layer(RateLimitLayer::new(limiter))
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

/// Ends when standard input does: no replica outlives the demonstration, however that ends.
async fn parent_gone() {
    let (gone, wait) = tokio::sync::oneshot::channel();
    thread::spawn(move || {
        let _ = io::stdin().read_to_end(&mut Vec::new());
        let _ = gone.send(());
    });
    let _ = wait.await;
}
