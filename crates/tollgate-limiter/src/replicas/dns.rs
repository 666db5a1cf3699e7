//! Counting the addresses of a name.

use std::{
    collections::HashSet,
    fmt,
    future::Future,
    io,
    net::IpAddr,
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
    time::Duration,
};

use tokio::{net::lookup_host, task::JoinHandle, time::sleep};

use super::ReplicaCount;

/// The number of addresses behind a DNS name, looked up in the background: the A and AAAA records of a
/// Kubernetes headless service count its ready pods.
///
/// Until the first answer it is 1, so that a replica that starts in an outage is too generous rather than
/// shut. An answer without addresses, and no answer, leave the number as it was. Dropping the value ends the
/// look-ups.
///
/// # Deployment caveat
///
/// It counts the pods that the service selects and that are ready, whoever asks. In a dual-stack cluster,
/// pods have an address of each family: name the service with a single family, or halve the number.
pub struct DnsReplicas {
    name: String,
    known: Arc<AtomicU32>,
    task: JoinHandle<()>,
}

impl DnsReplicas {
    /// Looks `name` up now and then each `interval`, but at most once a second. The operating system's resolver answers, with whatever
    /// it caches; Kubernetes' records live for 5 to 30 s.
    ///
    /// # Panics
    ///
    /// Outside of a Tokio runtime with time enabled.
    #[must_use]
    pub fn watch(name: impl Into<String>, interval: Duration) -> Self {
        let name = name.into();
        let host = name.clone();
        let interval = interval.max(Duration::from_secs(1));
        Self::watch_with(name, interval, move || addresses_of(host.clone()))
    }

    fn watch_with<F>(
        name: String,
        interval: Duration,
        look_up: impl Fn() -> F + Send + 'static,
    ) -> Self
    where
        F: Future<Output = io::Result<HashSet<IpAddr>>> + Send,
    {
        let known = Arc::new(AtomicU32::new(1));
        let task = tokio::spawn({
            let (known, name) = (known.clone(), name.clone());
            async move {
                let mut failing = false;
                loop {
                    let answer = look_up().await;
                    learn(&known, &name, answer, &mut failing);
                    sleep(interval).await;
                }
            }
        });
        Self { name, known, task }
    }
}

async fn addresses_of(name: String) -> io::Result<HashSet<IpAddr>> {
    Ok(lookup_host((name, 0))
        .await?
        .map(|address| address.ip())
        .collect())
}

fn learn(known: &AtomicU32, name: &str, answer: io::Result<HashSet<IpAddr>>, failing: &mut bool) {
    let error = match answer {
        Ok(addresses) if !addresses.is_empty() => {
            *failing = false;
            let number = u32::try_from(addresses.len()).unwrap_or(u32::MAX);
            known.store(number, Ordering::Relaxed);
            return;
        }
        Ok(_) => "no addresses".to_owned(),
        Err(error) => error.to_string(),
    };
    if !std::mem::replace(failing, true) {
        let replicas = known.load(Ordering::Relaxed);
        tracing::warn!(
            name,
            error,
            replicas,
            "cannot count the replicas; the last number is kept"
        );
    }
}

// === impl DnsReplicas ===

impl ReplicaCount for DnsReplicas {
    fn replicas(&self) -> u32 {
        self.known.load(Ordering::Relaxed)
    }
}

impl Drop for DnsReplicas {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl fmt::Debug for DnsReplicas {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DnsReplicas")
            .field("name", &self.name)
            .field("known", &self.known)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn the_last_known_number_is_kept_and_never_falls_below_one() {
        let addresses = |n: u8| {
            (0..n)
                .map(|i| IpAddr::from([10, 0, 0, i]))
                .collect::<HashSet<_>>()
        };
        let answers = Mutex::new(vec![
            Ok(addresses(5)),
            Err(io::Error::other("no such host")),
            Ok(addresses(0)),
            Ok(addresses(3)),
            Err(io::Error::other("no such host")),
        ]);
        let look_up =
            move || std::future::ready(answers.lock().expect("no panic").pop().expect("enough"));
        let replicas = DnsReplicas::watch_with("x".to_owned(), Duration::from_secs(5), look_up);
        assert_eq!(replicas.replicas(), 1, "nothing known yet");
        for expected in [1, 3, 3, 3, 5] {
            tokio::time::sleep(Duration::from_millis(4_999)).await;
            assert_eq!(replicas.replicas(), expected);
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    }

    #[tokio::test]
    async fn the_systems_resolver_is_asked() {
        let addresses = addresses_of("localhost".to_owned())
            .await
            .expect("every machine knows it");
        assert!(addresses.iter().all(IpAddr::is_loopback) && !addresses.is_empty());
    }
}
