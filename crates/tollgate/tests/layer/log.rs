//! What is logged.

use std::{
    io::Write,
    sync::{Arc, Mutex},
};

use tracing::{
    Dispatch,
    subscriber::{DefaultGuard, NoSubscriber},
};
use tracing_subscriber::fmt::MakeWriter;

/// What is logged on this thread while it lives.
#[derive(Clone, Default)]
pub(crate) struct Log(Arc<Mutex<Vec<u8>>>);

/// Listens while it lives.
pub(crate) struct Listening {
    _ours: DefaultGuard,
    /// With a single listener, the thread that comes to a line of the log first is asked whether it listens,
    /// and the answer is kept for all; and that may be the thread of another test.
    _second: Dispatch,
}

impl Log {
    pub(crate) fn capture() -> (Self, Listening) {
        let log = Self::default();
        let _second = Dispatch::new(NoSubscriber::new());
        let subscriber = tracing_subscriber::fmt()
            .with_max_level(tracing::Level::DEBUG)
            .with_writer(log.clone())
            .with_ansi(false)
            .finish();
        let _ours = tracing::subscriber::set_default(subscriber);
        (log, Listening { _ours, _second })
    }

    pub(crate) fn text(&self) -> String {
        String::from_utf8(self.0.lock().expect("no panic").clone()).expect("UTF-8")
    }

    pub(crate) fn count(&self, needle: &str) -> usize {
        self.text().matches(needle).count()
    }
}

impl Write for Log {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().expect("no panic").extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

impl MakeWriter<'_> for Log {
    type Writer = Self;

    fn make_writer(&self) -> Self {
        self.clone()
    }
}
