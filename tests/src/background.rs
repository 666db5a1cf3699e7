//! A server of the harness, in a thread of its own.

use std::thread::{self, JoinHandle};

use tokio::{runtime, sync::oneshot};

/// A future that runs in a thread with a runtime of its own until the value is dropped: so that tests with a
/// runtime and tests without one can use it, and a busy test does not slow it down.
#[derive(Debug)]
pub(crate) struct Background {
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Background {
    /// Makes the future within the runtime and runs it, and whatever it spawns.
    pub(crate) fn run<F>(make: impl FnOnce() -> F + Send + 'static) -> Self
    where
        F: Future<Output = ()>,
    {
        let (stop, stopped) = oneshot::channel();
        let thread = thread::spawn(move || {
            let runtime = runtime::Builder::new_current_thread().enable_all().build();
            runtime.expect("a runtime").block_on(async {
                tokio::select! {
                    () = make() => {}
                    _ = stopped => {}
                }
            });
        });
        Self {
            stop: Some(stop),
            thread: Some(thread),
        }
    }
}

// === impl Background ===

impl Drop for Background {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            // A panic there has been printed already.
            let _ = thread.join();
        }
    }
}
