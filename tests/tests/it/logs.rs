//! What an operator reads in the log: one line for each change, none for each request.

use std::{
    io,
    sync::{Arc, Mutex},
    time::Duration,
};

use tokio::time::{Instant, sleep};
use tollgate::{FailurePolicy, RedisStore};
use tollgate_tests::{Fault, FaultProxy, RedisServer};
use tracing::{Dispatch, subscriber::NoSubscriber};

use crate::faults::{DEADLINE, Load, Replica};

#[derive(Clone, Default)]
struct Lines(Arc<Mutex<Vec<u8>>>);

impl io::Write for Lines {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().expect("no panic").extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Lines {
    fn take(&self) -> Vec<String> {
        let bytes = std::mem::take(&mut *self.0.lock().expect("no panic"));
        let text = String::from_utf8(bytes).expect("UTF-8");
        text.lines().map(str::to_owned).collect()
    }
}

/// What is logged on this thread while the guard lives.
fn catch() -> (Lines, tracing::subscriber::DefaultGuard) {
    let lines = Lines::default();
    let writer = lines.clone();
    let subscriber = tracing_subscriber::fmt()
        .with_ansi(false)
        .with_writer(move || writer.clone())
        .finish();
    (lines, tracing::subscriber::set_default(subscriber))
}

/// On one thread with all of its tasks, so that only its own lines are caught.
#[tokio::test]
async fn an_outage_is_told_when_it_starts_and_when_it_ends() {
    // With a single listener, the thread that comes to a line of the log first is asked whether it listens,
    // and the answer is kept for all; and that may be the thread of another test.
    let _second = Dispatch::new(NoSubscriber::new());
    let (lines, _caught) = catch();
    let server = RedisServer::start();
    let proxy = FaultProxy::start(server.port());
    let replica = Replica::start(&proxy.url(), FailurePolicy::Open, DEADLINE).await;
    let built = lines.take();
    assert!(
        built.len() == 1 && built[0].contains("a day or longer to fill"),
        "{built:#?}"
    );
    replica.shared().await;
    sleep(Duration::from_millis(1_200)).await;
    assert_eq!(lines.take(), [""; 0], "nothing to tell on a good day");

    let load = Load::start(&replica, Duration::from_millis(2));
    proxy.set(Fault::Refuse);
    sleep(Duration::from_millis(2_500)).await;
    let started = lines.take();
    assert_eq!(started.len(), 2, "{started:#?}");
    for said in ["no connection to Redis", "store fails"] {
        let warns = |line: &String| line.contains(said) && line.contains("WARN");
        assert!(started.iter().any(warns), "{said}: {started:#?}");
    }

    proxy.set(Fault::None);
    replica.is_back(Instant::now()).await;
    sleep(Duration::from_millis(1_200)).await;
    let ended = lines.take();
    assert_eq!(ended.len(), 2, "{ended:#?}");
    for said in ["connected to Redis again", "store answers again"] {
        assert!(ended.iter().any(|line| line.contains(said)), "{ended:#?}");
    }
    load.stop().await.keeps_to("open");
}

#[tokio::test]
async fn a_server_that_may_forget_buckets_in_use_is_told_once() {
    let _second = Dispatch::new(NoSubscriber::new());
    let (lines, _caught) = catch();
    for (policy, warns) in [("allkeys-lru", true), ("volatile-ttl", false)] {
        let server = RedisServer::start_with(&["--maxmemory", "9mb", "--maxmemory-policy", policy]);
        let store = RedisStore::builder(&server.url())
            .strict(true)
            .connect()
            .await;
        store.expect("a store");
        let said = lines.take();
        let warned = said
            .iter()
            .filter(|line| line.contains("may evict") && line.contains(policy));
        assert_eq!(warned.count(), usize::from(warns), "{said:#?}");
    }
}
