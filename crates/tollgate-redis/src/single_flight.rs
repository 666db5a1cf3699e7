//! Work that many ask for and one does.

use std::sync::{Arc, Mutex, PoisonError, Weak};

use tokio::{runtime::Handle, sync::watch};

/// Runs at most one piece of work at a time, in a task of its own: whoever asks while it runs shares its
/// outcome, and nobody's leaving stops it for the others.
#[derive(Debug)]
pub(crate) struct SingleFlight<T> {
    /// Alive exactly as long as the task, however that ends.
    running: Mutex<Weak<watch::Sender<Option<T>>>>,
}

/// The outcome of the work, once it is there.
#[derive(Debug)]
pub(crate) struct Outcome<T>(watch::Receiver<Option<T>>);

impl<T: Clone + Send + Sync + 'static> SingleFlight<T> {
    pub(crate) fn new() -> Self {
        Self {
            running: Mutex::new(Weak::new()),
        }
    }

    /// Joins what runs, or starts `work`.
    pub(crate) fn join<F>(&self, runtime: &Handle, work: F) -> Outcome<T>
    where
        F: Future<Output = T> + Send + 'static,
    {
        let mut running = self.running.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(sender) = running.upgrade() {
            return Outcome(sender.subscribe());
        }
        let (sender, receiver) = watch::channel(None);
        let sender = Arc::new(sender);
        *running = Arc::downgrade(&sender);
        runtime.spawn(async move {
            sender.send_replace(Some(work.await));
        });
        Outcome(receiver)
    }
}

impl<T: Clone> Outcome<T> {
    /// Waits for it. `None` if the task ended without one, as when the runtime shuts down.
    ///
    /// # Cancel safety
    ///
    /// The work goes on when the future is dropped.
    pub(crate) async fn wait(mut self) -> Option<T> {
        let outcome = self.0.wait_for(Option::is_some).await.ok()?;
        outcome.clone()
    }
}

#[cfg(test)]
mod tests {
    use std::{
        sync::atomic::{AtomicU32, Ordering},
        time::Duration,
    };

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn those_who_ask_meanwhile_share_one_run_and_later_ones_start_another() {
        let (flight, runs) = (SingleFlight::new(), Arc::new(AtomicU32::new(0)));
        let work = || {
            let runs = runs.clone();
            async move {
                tokio::time::sleep(Duration::from_millis(10)).await;
                runs.fetch_add(1, Ordering::SeqCst)
            }
        };
        let runtime = Handle::current();
        let first = flight.join(&runtime, work());
        let second = flight.join(&runtime, work());
        // The one who started it leaves.
        drop(first);
        assert_eq!(second.wait().await, Some(0));
        assert_eq!(flight.join(&runtime, work()).wait().await, Some(1));
    }

    #[tokio::test]
    async fn work_that_panics_does_not_block_the_next() {
        let flight = SingleFlight::<u32>::new();
        let runtime = Handle::current();
        let failed = flight.join(&runtime, async { panic!("expected by the test") });
        assert_eq!(failed.wait().await, None);
        assert_eq!(flight.join(&runtime, async { 7 }).wait().await, Some(7));
    }
}
