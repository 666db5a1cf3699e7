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

use super::{Profile, REPLICAS};

/// So many decisions in a row by Redis mean that a replica shares its limits again.
const STREAK: usize = 10;

/// A request that takes longer hangs.
const HANG: Duration = Duration::from_secs(5);

/// Who decided a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum By {
    /// Redis: the answer tells the limit of the whole fleet.
    Store,
    /// The failure policy: the answer tells a replica's share, or nothing.
    Policy,
}

/// What a client got.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// `200`.
    Admitted(By),
    /// `429`.
    Denied(By),
    /// `503`.
    Unavailable,
    /// Anything else.
    Failed(String),
}

// === impl Outcome ===

impl Outcome {
    /// Whether the failure policy has decided.
    #[must_use]
    pub const fn is_by_policy(&self) -> bool {
        matches!(
            self,
            Self::Admitted(By::Policy) | Self::Denied(By::Policy) | Self::Unavailable
        )
    }
}

/// One request.
#[derive(Clone, Debug)]
pub struct Sample {
    /// Its number among those that send.
    pub tenant: usize,
    /// The number of the replica that was asked.
    pub replica: usize,
    /// When the request was sent.
    pub sent: Instant,
    /// When the answer was there, or nobody waited for it any more.
    pub answered: Instant,
    /// What came of it.
    pub outcome: Outcome,
}

// === impl Sample ===

impl Sample {
    /// How long it took.
    #[must_use]
    pub fn latency(&self) -> Duration {
        self.answered - self.sent
    }
}

type Http = Client<HttpConnector, Empty<Bytes>>;
type Samples = Arc<Mutex<Vec<Sample>>>;

/// Load that is being sent.
#[derive(Debug)]
pub struct Load {
    samples: Samples,
    replicas: Vec<SocketAddr>,
    runtime: Handle,
    http: Http,
    stop: watch::Sender<bool>,
    senders: Vec<JoinHandle<()>>,
}

impl Load {
    /// Sends the load of these tenants to these replicas, in turn.
    #[must_use]
    pub fn start(runtime: &Handle, replicas: Vec<SocketAddr>, tenants: &[Profile]) -> Self {
        let http: Http = Client::builder(TokioExecutor::new()).build_http();
        let samples = Samples::default();
        let (stop, stopped) = watch::channel(false);
        let senders = tenants.iter().enumerate().map(|(tenant, profile)| {
            let sender = Sender {
                tenant,
                profile: profile.clone(),
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

    /// What came of the requests that were answered so far.
    pub fn samples(&self) -> MutexGuard<'_, Vec<Sample>> {
        self.samples.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The values of `kind` of the store errors that the replicas have counted.
    #[must_use]
    pub fn error_kinds(&self) -> BTreeSet<String> {
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
    #[must_use]
    pub fn stop(mut self) -> Vec<Sample> {
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
    profile: Profile,
    http: Http,
    replicas: Vec<SocketAddr>,
    samples: Samples,
}

// === impl Sender ===

impl Sender {
    async fn run(self, mut stopped: watch::Receiver<bool>) {
        let mut ticks = interval(Duration::from_secs(1) / self.profile.sends);
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
        let profile = &self.profile;
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

/// How long after `ended` each replica had begun to decide by Redis, for good as far as can be seen from the
/// requests of some tenants; `None` if one has not.
#[must_use]
pub fn back(
    samples: &[Sample],
    ended: Instant,
    counts: impl Fn(&Sample) -> bool,
) -> Option<Duration> {
    let mut last = Duration::ZERO;
    for replica in 0..REPLICAS as usize {
        let mut streak = Vec::new();
        for sample in samples {
            if sample.replica != replica || sample.sent < ended || !counts(sample) {
                continue;
            }
            match sample.outcome {
                Outcome::Admitted(By::Store) | Outcome::Denied(By::Store) => {
                    streak.push(sample.answered);
                }
                _ => streak.clear(),
            }
            if streak.len() == STREAK {
                break;
            }
        }
        if streak.len() < STREAK {
            return None;
        }
        last = last.max(streak[0] - ended);
    }
    Some(last)
}

/// The time within which this share of requests was answered; 0 if there are none.
#[must_use]
pub fn quantile<'a>(samples: impl Iterator<Item = &'a Sample>, share: f64) -> Duration {
    let mut latencies: Vec<_> = samples.map(Sample::latency).collect();
    latencies.sort_unstable();
    #[expect(
        clippy::cast_precision_loss,
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "an index"
    )]
    let index = (latencies.len().saturating_sub(1) as f64 * share).ceil() as usize;
    latencies.get(index).copied().unwrap_or_default()
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
