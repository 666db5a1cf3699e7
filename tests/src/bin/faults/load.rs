//! The load, and what each request got.

use std::{
    collections::BTreeSet,
    net::SocketAddr,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use axum::http::{HeaderMap, Request, StatusCode, header};
use bytes::Bytes;
use http_body_util::{BodyExt, Empty};
use hyper_util::{
    client::legacy::{Client, connect::HttpConnector},
    rt::TokioExecutor,
};
use tokio::{
    runtime::Handle,
    sync::watch,
    task::{JoinHandle, JoinSet},
    time::{Instant, MissedTickBehavior, interval, timeout},
};

use crate::tenants::{Profile, TENANTS};

/// A request that takes longer hangs.
const HANG: Duration = Duration::from_secs(5);

/// Who decided a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum By {
    /// Redis: the answer tells the limit of the whole fleet.
    Store,
    /// The failure policy: the answer tells a replica's share, or nothing.
    Policy,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    Admitted(By),
    Denied(By),
    /// `503`.
    Unavailable,
    /// Anything else.
    Failed(String),
}

// === impl Outcome ===

impl Outcome {
    pub(crate) fn is_by_policy(&self) -> bool {
        matches!(
            self,
            Self::Admitted(By::Policy) | Self::Denied(By::Policy) | Self::Unavailable
        )
    }
}

/// One request.
#[derive(Clone, Debug)]
pub(crate) struct Sample {
    pub(crate) tenant: usize,
    pub(crate) replica: usize,
    pub(crate) sent: Instant,
    pub(crate) answered: Instant,
    pub(crate) outcome: Outcome,
}

type Http = Client<HttpConnector, Empty<Bytes>>;
type Samples = Arc<Mutex<Vec<Sample>>>;

/// Load that is being sent.
pub(crate) struct Load {
    samples: Samples,
    replicas: Vec<SocketAddr>,
    runtime: Handle,
    http: Http,
    stop: watch::Sender<bool>,
    senders: Vec<JoinHandle<()>>,
}

impl Load {
    pub(crate) fn start(runtime: &Handle, replicas: Vec<SocketAddr>) -> Self {
        let http: Http = Client::builder(TokioExecutor::new()).build_http();
        let samples = Samples::default();
        let (stop, stopped) = watch::channel(false);
        let senders = (0..TENANTS.len()).map(|tenant| {
            let sender = Sender {
                tenant,
                http: http.clone(),
                replicas: replicas.clone(),
                samples: samples.clone(),
            };
            runtime.spawn(sender.run(stopped.clone()))
        });
        Self {
            senders: senders.collect(),
            samples,
            replicas,
            runtime: runtime.clone(),
            http,
            stop,
        }
    }

    pub(crate) fn samples(&self) -> MutexGuard<'_, Vec<Sample>> {
        self.samples.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The values of `kind` of the store errors that the replicas have counted.
    pub(crate) fn error_kinds(&self) -> BTreeSet<String> {
        let mut kinds = BTreeSet::new();
        for address in &self.replicas {
            let scrape = async { timeout(HANG, scrape(&self.http, *address)).await };
            let text = self.runtime.block_on(scrape);
            for line in text.unwrap_or_default().lines() {
                let counted = line
                    .strip_prefix("ratelimit_store_errors_total{kind=\"")
                    .filter(|line| !line.ends_with(" 0"));
                kinds.extend(counted.and_then(|line| Some(line.split('"').next()?.to_owned())));
            }
        }
        kinds
    }

    /// Ends the load and waits for the last answers.
    pub(crate) fn stop(mut self) -> Vec<Sample> {
        self.stop.send_replace(true);
        for sender in self.senders.drain(..) {
            let _ = self.runtime.block_on(sender);
        }
        self.samples().clone()
    }
}

async fn scrape(http: &Http, address: SocketAddr) -> String {
    let request = Request::get(format!("http://{address}/metrics")).body(Empty::new());
    let Ok(response) = http.request(request.expect("a valid request")).await else {
        return String::new();
    };
    let body = response.into_body().collect().await;
    let bytes = body.map(|body| body.to_bytes()).unwrap_or_default();
    String::from_utf8_lossy(&bytes).into_owned()
}

/// Sends the load of one tenant.
#[derive(Clone)]
struct Sender {
    tenant: usize,
    http: Http,
    replicas: Vec<SocketAddr>,
    samples: Samples,
}

// === impl Sender ===

impl Sender {
    async fn run(self, mut stopped: watch::Receiver<bool>) {
        let mut ticks = interval(Duration::from_secs(1) / TENANTS[self.tenant].sends);
        // A tick that comes late is not made up for by a burst.
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        // What waits for an answer does not keep the next request from being sent; a hang bounds how many.
        let mut requests = JoinSet::new();
        for turn in 0_usize.. {
            tokio::select! {
                _ = ticks.tick() => {}
                _ = stopped.wait_for(|stopped| *stopped) => break,
            }
            while requests.try_join_next().is_some() {}
            requests.spawn(self.clone().send(turn % self.replicas.len()));
        }
        while requests.join_next().await.is_some() {}
    }

    async fn send(self, replica: usize) {
        let profile = &TENANTS[self.tenant];
        let request = Request::get(format!("http://{}/items", self.replicas[replica]))
            .header(header::AUTHORIZATION, format!("Bearer {}", profile.name))
            .body(Empty::new())
            .expect("a valid request");
        let sent = Instant::now();
        let outcome = match timeout(HANG, self.http.request(request)).await {
            Ok(Ok(response)) => outcome(response.status(), response.headers(), profile),
            Ok(Err(error)) => Outcome::Failed(format!("no answer: {error}")),
            Err(_) => Outcome::Failed(format!("no answer within {HANG:?}")),
        };
        let sample = Sample {
            tenant: self.tenant,
            replica,
            sent,
            answered: Instant::now(),
            outcome,
        };
        self.samples
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .push(sample);
    }
}

fn outcome(status: StatusCode, headers: &HeaderMap, profile: &Profile) -> Outcome {
    let limit = headers.get("x-ratelimit-limit");
    let by = match limit.and_then(|limit| limit.to_str().ok()?.parse::<u64>().ok()) {
        Some(limit) if limit == profile.capacity => By::Store,
        _ => By::Policy,
    };
    match status {
        StatusCode::OK => Outcome::Admitted(by),
        StatusCode::TOO_MANY_REQUESTS => Outcome::Denied(by),
        StatusCode::SERVICE_UNAVAILABLE => Outcome::Unavailable,
        other => Outcome::Failed(format!("status {other}")),
    }
}
