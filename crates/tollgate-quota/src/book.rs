//! Limits, and the sources of what single tenants get.

use std::{fmt, sync::Arc, time::Duration};

use arc_swap::ArcSwap;

#[cfg(feature = "file")]
use crate::LimitsFile;
use crate::{Directory, LimitRule, QuotaSource, Quotas, event::Listener};

/// Limits and tiers, and where the accounts of tenants come from: all that a limiter is to know about quotas.
///
/// Made from [`Quotas`] that stay as they are, or from a limits file that is read again when it changes.
/// What is written there about a tenant goes before what sources say, and a source goes before those added
/// after it.
#[must_use]
pub struct QuotaBook {
    quotas: Arc<ArcSwap<Quotas>>,
    sources: Vec<Arc<dyn QuotaSource>>,
    cache: CacheSettings,
    #[cfg(feature = "file")]
    file: Option<LimitsFile>,
}

/// How accounts from sources are kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct CacheSettings {
    /// How long an account counts before it is loaded again, give or take a tenth; by default 45 s. A source
    /// that tells of changes is faster than that.
    pub ttl: Duration,
    /// How long it is remembered that no source knows a tenant; by default 10 s.
    pub unknown_ttl: Duration,
    /// How long the first request of a tenant waits for its account; by default 10 ms, and at most half of the
    /// limiter's deadline. A request that has
    /// waited in vain is decided by the tenant's tier or the default, and the load goes on for the next.
    pub patience: Duration,
    /// So many tenants are kept, by default 100 000; of more, those asked for least are forgotten. Also so many
    /// of what a limiter has worked out for requests, of about 500 bytes each for a tenant with one limit.
    pub max_tenants: usize,
}

impl QuotaBook {
    /// Quotas that stay as they are.
    pub fn new(quotas: Quotas) -> Self {
        Self {
            quotas: Arc::new(ArcSwap::from_pointee(quotas)),
            sources: Vec::new(),
            cache: CacheSettings::default(),
            #[cfg(feature = "file")]
            file: None,
        }
    }

    /// Looks tenants up in `source`, too.
    pub fn source(mut self, source: impl QuotaSource) -> Self {
        self.sources.push(Arc::new(source));
        self
    }

    /// How what sources say is kept.
    pub fn cache(mut self, settings: CacheSettings) -> Self {
        self.cache = settings;
        self
    }

    /// Lets no request wait for an account longer than this.
    pub fn with_patience_up_to(mut self, most: Duration) -> Self {
        self.cache.patience = self.cache.patience.min(most);
        self
    }

    /// The quotas as they are now.
    #[must_use]
    pub fn quotas(&self) -> Arc<Quotas> {
        self.quotas.load_full()
    }

    /// Starts to look tenants up. `listener` is told what happens.
    ///
    /// # Panics
    ///
    /// Outside of a Tokio runtime, if a source tells of changes.
    pub fn open(self, listener: impl Fn(crate::QuotaEvent) + Send + Sync + 'static) -> Directory {
        let listener: Listener = Arc::new(listener);
        #[cfg(feature = "file")]
        if let Some(file) = &self.file {
            file.listen(listener.clone());
        }
        Directory::open(self.quotas, self.sources, self.cache, listener)
    }
}

// === impl QuotaBook ===

impl From<Quotas> for QuotaBook {
    fn from(quotas: Quotas) -> Self {
        Self::new(quotas)
    }
}

/// Quotas that change when the file does.
#[cfg(feature = "file")]
#[cfg_attr(docsrs, doc(cfg(feature = "file")))]
impl From<LimitsFile> for QuotaBook {
    fn from(file: LimitsFile) -> Self {
        Self {
            quotas: file.quotas(),
            file: Some(file),
            ..Self::new(Quotas::default())
        }
    }
}

impl From<LimitRule> for QuotaBook {
    fn from(limit: LimitRule) -> Self {
        Self::new(limit.into())
    }
}

impl fmt::Debug for QuotaBook {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let sources: Vec<_> = self.sources.iter().map(|source| source.name()).collect();
        f.debug_struct("QuotaBook")
            .field("quotas", &self.quotas.load())
            .field("sources", &sources)
            .field("cache", &self.cache)
            .finish()
    }
}

// === impl CacheSettings ===

impl Default for CacheSettings {
    fn default() -> Self {
        Self {
            ttl: Duration::from_secs(45),
            unknown_ttl: Duration::from_secs(10),
            patience: Duration::from_millis(10),
            max_tenants: 100_000,
        }
    }
}
