//! The load, and what comes of it.

use std::{
    io::{self, IsTerminal, Write},
    net::SocketAddr,
    sync::{Arc, Mutex, PoisonError, RwLock},
    time::Duration,
};

use axum::http::{Request, StatusCode, header};
use bytes::Bytes;
use http_body_util::Empty;
use hyper_util::{
    client::legacy::{Client, connect::HttpConnector},
    rt::TokioExecutor,
};
use tokio::{
    sync::watch,
    task::JoinSet,
    time::{Instant, MissedTickBehavior, interval, sleep_until, timeout},
};

use crate::tenants::{Profile, TENANTS};

/// At most so many requests of a tenant are under way: the rest of the load waits, it does not pile up.
const MOST_AT_ONCE: usize = 64;

const SIDES: [&str; 2] = ["shared", "own"];

/// What became of the requests of one tenant.
#[derive(Clone, Debug, Default)]
pub(crate) struct Tally {
    pub(crate) sent: u64,
    pub(crate) failed: u64,
    /// Admitted by the fleet's limiter, per replica.
    pub(crate) shared: Vec<u64>,
    /// Admitted by each replica's own limiter.
    pub(crate) own: Vec<u64>,
    /// From before the first request to after the last answer.
    pub(crate) span: Duration,
}

type Tallies = Arc<Mutex<[Tally; TENANTS.len()]>>;
type Http = Client<HttpConnector, Empty<Bytes>>;

/// Load that is being sent.
pub(crate) struct Load {
    replicas: Arc<RwLock<Vec<SocketAddr>>>,
    tallies: Tallies,
    stop: watch::Sender<bool>,
    senders: JoinSet<()>,
    started: Instant,
}

impl Load {
    pub(crate) fn start(replicas: Vec<SocketAddr>) -> Self {
        let http: Http = Client::builder(TokioExecutor::new()).build_http();
        let replicas = Arc::new(RwLock::new(replicas));
        let tallies = Tallies::default();
        let (stop, stopped) = watch::channel(false);
        let mut senders = JoinSet::new();
        for tenant in 0..TENANTS.len() {
            let sender = Sender {
                tenant,
                http: http.clone(),
                replicas: replicas.clone(),
                tallies: tallies.clone(),
            };
            senders.spawn(sender.run(stopped.clone()));
        }
        Self {
            replicas,
            tallies,
            stop,
            senders,
            started: Instant::now(),
        }
    }

    pub(crate) fn add_replica(&self, address: SocketAddr) {
        self.replicas
            .write()
            .unwrap_or_else(PoisonError::into_inner)
            .push(address);
    }

    /// Shows progress for `span`, each second.
    pub(crate) async fn watch(&self, span: Duration) {
        let end = Instant::now() + span;
        while Instant::now() < end {
            sleep_until(end.min(Instant::now() + Duration::from_secs(1))).await;
            self.show();
        }
    }

    /// Ends the load and waits for the last answers.
    pub(crate) async fn stop(mut self) -> [Tally; TENANTS.len()] {
        self.stop.send_replace(true);
        while self.senders.join_next().await.is_some() {}
        if io::stderr().is_terminal() {
            eprintln!();
        }
        self.tallies
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }

    fn show(&self) {
        let replicas = self
            .replicas
            .read()
            .unwrap_or_else(PoisonError::into_inner)
            .len();
        let mut line = format!(
            "{:>4} s  {replicas:>2} replicas",
            self.started.elapsed().as_secs()
        );
        let tallies = self.tallies.lock().unwrap_or_else(PoisonError::into_inner);
        for (profile, tally) in TENANTS.iter().zip(&*tallies) {
            let admitted: u64 = tally.shared.iter().sum();
            line += &format!("   {} {admitted} of {}", profile.name, tally.sent);
        }
        if io::stderr().is_terminal() {
            eprint!("\r{line}");
            let _ = io::stderr().flush();
        } else {
            eprintln!("{line}");
        }
    }
}

/// Sends the load of one tenant.
#[derive(Clone)]
struct Sender {
    tenant: usize,
    http: Http,
    replicas: Arc<RwLock<Vec<SocketAddr>>>,
    tallies: Tallies,
}

impl Sender {
    async fn run(self, mut stopped: watch::Receiver<bool>) {
        let profile = TENANTS[self.tenant];
        let mut ticks = interval(Duration::from_secs(1) / profile.sends);
        // A tick that comes late is not made up for by a burst.
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let started = Instant::now();
        let mut requests = JoinSet::new();
        for turn in 0_usize.. {
            tokio::select! {
                _ = ticks.tick() => {}
                _ = stopped.wait_for(|stopped| *stopped) => break,
            }
            while requests.len() >= MOST_AT_ONCE {
                requests.join_next().await;
            }
            while requests.try_join_next().is_some() {}
            requests.spawn(self.clone().send(turn, profile));
        }
        while requests.join_next().await.is_some() {}
        self.tally(|tally| tally.span = started.elapsed());
    }

    /// One request to each side of one replica.
    async fn send(self, turn: usize, profile: Profile) {
        let (replica, address) = {
            let replicas = self.replicas.read().unwrap_or_else(PoisonError::into_inner);
            let replica = if profile.sticky {
                0
            } else {
                turn % replicas.len()
            };
            (replica, replicas[replica])
        };
        self.tally(|tally| tally.sent += 1);
        for side in SIDES {
            let request = Request::get(format!("http://{address}/{side}/items"))
                .header(header::AUTHORIZATION, format!("Bearer {}", profile.key))
                .body(Empty::new())
                .expect("a valid request");
            let answer = timeout(Duration::from_secs(5), self.http.request(request)).await;
            let status = answer
                .ok()
                .and_then(Result::ok)
                .map(|response| response.status());
            self.tally(|tally| tally.count(replica, side, status));
        }
    }

    fn tally(&self, change: impl FnOnce(&mut Tally)) {
        change(&mut self.tallies.lock().unwrap_or_else(PoisonError::into_inner)[self.tenant]);
    }
}

impl Tally {
    fn count(&mut self, replica: usize, side: &str, status: Option<StatusCode>) {
        match status {
            Some(StatusCode::OK) => {
                let admitted = if side == SIDES[0] {
                    &mut self.shared
                } else {
                    &mut self.own
                };
                if admitted.len() <= replica {
                    admitted.resize(replica + 1, 0);
                }
                admitted[replica] += 1;
            }
            Some(StatusCode::TOO_MANY_REQUESTS) => {}
            _ => self.failed += 1,
        }
    }
}
