//! Limits in a file.

mod error;
mod faults;
mod node;
mod parse;
mod regions;
#[cfg(test)]
mod tests;
mod watched;

use std::{
    fmt,
    path::Path,
    sync::{Arc, Weak},
    time::Duration,
};

use arc_swap::ArcSwap;

use self::watched::{Look, Watched};
pub use self::{
    error::{LimitsError, Place, PlacedFault},
    parse::ParsedLimits,
};
use crate::{Quotas, event::Listener};

const DEFAULT_INTERVAL: Duration = Duration::from_secs(1);
const MIN_INTERVAL: Duration = Duration::from_millis(10);

/// A TOML file of limits, tiers, tenants and routes that is read again when it changes.
///
/// ```toml
/// [limits.default]
/// quota = { capacity = 20, rate = "2/s" }
///
/// [tiers.pro]
/// default = { capacity = 200, rate = "50/s" }
///
/// [tenants.acme]
/// tier = "pro"
/// ```
///
/// `examples/limits.toml` of the repository shows every field; `docs/limits.schema.json` tells editors about
/// them. The file is validated whole: with one fault in it, nothing of it is taken, and what was in force
/// stays. The same holds when the file is deleted or cannot be read. Each refusal is logged once, and so is
/// the return of a good file. Clones share one file. Watching ends when the last clone, and the last limiter
/// that got its quotas here, is dropped.
///
/// # How changes are seen
///
/// The file is read once a second and compared with what was read last. The notifications of operating
/// systems would be faster, but they aren't everywhere: network and overlay file systems lose them, and a
/// Kubernetes ConfigMap changes by a symbolic link in the path being replaced, which a watch on the file
/// doesn't see. Reading sees every kind of change, at the price of a read from the page cache.
///
/// A new content is taken when it is the same a quarter of the interval later, so that a file which is being
/// written isn't taken for a whole one. A writer that pauses for longer should write another file and rename
/// it. So a change is in force after 1 to 1.25 intervals at the latest.
#[derive(Clone)]
pub struct LimitsFile {
    watched: Arc<Watched>,
    quotas: Arc<ArcSwap<Quotas>>,
}

impl LimitsFile {
    /// Reads the file at `path`, and watches it from then on.
    ///
    /// This waits for the file system: call it at the start of a service.
    ///
    /// # Errors
    ///
    /// If the file cannot be read or is not valid: all that is wrong, each with its line and field.
    ///
    /// # Panics
    ///
    /// Outside of a Tokio runtime that has time enabled.
    #[track_caller]
    pub fn open(path: impl AsRef<Path>) -> Result<Self, LimitsError> {
        Self::open_with_interval(path, DEFAULT_INTERVAL)
    }

    /// As [`open`](Self::open), with a look at the file every `interval` instead of every second; at least
    /// 10 ms.
    ///
    /// # Errors
    ///
    /// As for [`open`](Self::open).
    ///
    /// # Panics
    ///
    /// Outside of a Tokio runtime that has time enabled.
    #[track_caller]
    pub fn open_with_interval(
        path: impl AsRef<Path>,
        interval: Duration,
    ) -> Result<Self, LimitsError> {
        let (watched, quotas) = Watched::open(path.as_ref())?;
        let file = Self {
            watched: Arc::new(watched),
            quotas: Arc::new(ArcSwap::from_pointee(quotas)),
        };
        let (watched, quotas) = (file.watched.clone(), Arc::downgrade(&file.quotas));
        tokio::spawn(watch(watched, quotas, interval.max(MIN_INTERVAL)));
        Ok(file)
    }

    /// Reads the file at `path` once, as a tool does that checks it. No runtime is needed.
    ///
    /// # Errors
    ///
    /// As for [`open`](Self::open).
    pub fn read(path: impl AsRef<Path>) -> Result<ParsedLimits, LimitsError> {
        watched::read(path.as_ref())
    }

    /// Reads the content of a limits file, which errors call `name`.
    ///
    /// # Errors
    ///
    /// If the text is not valid: all that is wrong, each with its line and field.
    pub fn parse(text: &str, name: impl Into<String>) -> Result<ParsedLimits, LimitsError> {
        parse::parse(text).map_err(|faults| LimitsError {
            file: name.into(),
            faults,
        })
    }

    /// Reads the file now, as after a signal, and takes it as it is.
    ///
    /// This waits for the file system. A file that is not valid is not logged, only returned.
    ///
    /// # Errors
    ///
    /// As for [`open`](Self::open). What was in force stays.
    pub fn reload(&self) -> Result<(), LimitsError> {
        self.watched.reload(&self.quotas)
    }

    /// What is in force now.
    #[must_use]
    pub fn current(&self) -> Arc<Quotas> {
        self.quotas.load_full()
    }

    /// What is in force at any time. Watching goes on as long as this is held.
    pub(crate) fn quotas(&self) -> Arc<ArcSwap<Quotas>> {
        self.quotas.clone()
    }

    /// Has `listener` told of every reload, after its quotas are in force. A listener that holds this file or
    /// its quotas would keep both alive.
    pub(crate) fn listen(&self, listener: Listener) {
        self.watched.listen(listener);
    }
}

/// Looks at the file as long as anybody uses the quotas.
async fn watch(watched: Arc<Watched>, quotas: Weak<ArcSwap<Quotas>>, interval: Duration) {
    let mut pause = interval;
    loop {
        tokio::time::sleep(pause).await;
        let Some(quotas) = quotas.upgrade() else {
            return;
        };
        let watched = watched.clone();
        let look = tokio::task::spawn_blocking(move || watched.look(&quotas)).await;
        pause = match look {
            Ok(Look::Unsettled) => interval / 4,
            // A listener that panics ends its look, and no more.
            Ok(Look::Settled) | Err(_) => interval,
        };
    }
}

// === impl LimitsFile ===

impl fmt::Debug for LimitsFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LimitsFile")
            .field("path", &self.watched.path())
            .finish_non_exhaustive()
    }
}
