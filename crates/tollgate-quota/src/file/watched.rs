//! The file itself: reading it, and seeing that it has changed.

use std::{
    fs::{self, File},
    io::Read,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use arc_swap::ArcSwap;

use super::{LimitsError, ParsedLimits, PlacedFault, parse};
use crate::{QuotaEvent, Quotas, event::Listener};

/// A file that is larger is not one of limits. A ConfigMap has at most a sixteenth of this.
const MAX_BYTES: u64 = 16 * 1024 * 1024;

/// What is at the path: a content, or why there is none.
type Sight = Result<Vec<u8>, String>;

/// A path, and what was last read there.
pub(super) struct Watched {
    path: PathBuf,
    sights: Mutex<Sights>,
    listeners: Mutex<Vec<Listener>>,
}

struct Sights {
    /// What was taken last, be it in force or refused: seen again, it says nothing new.
    taken: Sight,
    /// Something else that was there at the last look. Its writer may not be done.
    unsettled: Option<Sight>,
}

/// What a look at the file has brought.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Look {
    /// Nothing new, or something new that was taken.
    Settled,
    /// Something new. It is taken if it is the same at the next look.
    Unsettled,
}

impl Watched {
    /// Reads the file for the first time.
    pub(super) fn open(path: &Path) -> Result<(Self, Quotas), LimitsError> {
        let taken = see(path);
        let parsed = parse_sight(path, &taken)?;
        announce(path, &parsed);
        let watched = Self {
            path: path.to_owned(),
            sights: Mutex::new(Sights {
                taken,
                unsettled: None,
            }),
            listeners: Mutex::default(),
        };
        Ok((watched, parsed.quotas))
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    pub(super) fn listen(&self, listener: Listener) {
        lock(&self.listeners).push(listener);
    }

    /// Takes what is there if it is new and was the same at the last look.
    pub(super) fn look(&self, quotas: &ArcSwap<Quotas>) -> Look {
        let mut sights = lock(&self.sights);
        let seen = see(&self.path);
        if seen == sights.taken {
            sights.unsettled = None;
            return Look::Settled;
        }
        if sights.unsettled.as_ref() != Some(&seen) {
            sights.unsettled = Some(seen);
            return Look::Unsettled;
        }
        if let Err(error) = self.take(&mut sights, seen, quotas) {
            tracing::error!("the limits file is refused, what was in force stays: {error}");
        }
        Look::Settled
    }

    /// Takes what is there.
    pub(super) fn reload(&self, quotas: &ArcSwap<Quotas>) -> Result<(), LimitsError> {
        let mut sights = lock(&self.sights);
        let seen = see(&self.path);
        self.take(&mut sights, seen, quotas)
    }

    fn take(
        &self,
        sights: &mut Sights,
        seen: Sight,
        quotas: &ArcSwap<Quotas>,
    ) -> Result<(), LimitsError> {
        let parsed = parse_sight(&self.path, &seen);
        *sights = Sights {
            taken: seen,
            unsettled: None,
        };
        let result = parsed.map(|parsed| {
            announce(&self.path, &parsed);
            // A comment that was edited is no reason to look up every tenant anew.
            if **quotas.load() != parsed.quotas {
                quotas.store(Arc::new(parsed.quotas));
            }
        });
        let event = QuotaEvent::Reloaded { ok: result.is_ok() };
        for listener in lock(&self.listeners).iter() {
            listener(event);
        }
        result
    }
}

/// Reads and parses the file at `path`.
pub(super) fn read(path: &Path) -> Result<ParsedLimits, LimitsError> {
    parse_sight(path, &see(path))
}

fn see(path: &Path) -> Sight {
    let unreadable = |error: std::io::Error| format!("cannot be read: {error}");
    // Looked at before it is opened: to open a pipe would wait for its writer.
    let metadata = fs::metadata(path).map_err(unreadable)?;
    if metadata.is_dir() {
        return Err("is a directory, not a limits file".to_owned());
    }
    if !metadata.is_file() {
        return Err("is not a regular file".to_owned());
    }
    let mut content = Vec::new();
    let file = File::open(path).map_err(unreadable)?;
    let read = file.take(MAX_BYTES + 1).read_to_end(&mut content);
    let length = read.map_err(unreadable)?;
    if u64::try_from(length).is_ok_and(|length| length <= MAX_BYTES) {
        Ok(content)
    } else {
        Err("is larger than 16 MiB, too large for a limits file".to_owned())
    }
}

fn parse_sight(path: &Path, seen: &Sight) -> Result<ParsedLimits, LimitsError> {
    let parsed = match seen {
        Ok(content) => match str::from_utf8(content) {
            Ok(text) => parse::parse(text),
            Err(error) => {
                let problem = format!("is not UTF-8 text: byte {} is wrong", error.valid_up_to());
                Err(vec![PlacedFault::of_file(problem)])
            }
        },
        Err(problem) => Err(vec![PlacedFault::of_file(problem)]),
    };
    parsed.map_err(|faults| LimitsError {
        file: path.display().to_string(),
        faults,
    })
}

fn announce(path: &Path, parsed: &ParsedLimits) {
    let file = path.display();
    for warning in &parsed.warnings {
        tracing::warn!("{file}:{warning}");
    }
    tracing::info!("the limits file {file} is in force");
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
