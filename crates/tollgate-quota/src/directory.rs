//! Accounts by tenant, kept in memory.

use std::{
    convert::Infallible,
    fmt,
    pin::Pin,
    sync::{Arc, Mutex, PoisonError, Weak},
    task::{Context, Poll},
    time::Duration,
};

use arc_swap::ArcSwap;
use quick_cache::sync::Cache;
use tokio::{
    runtime::Handle,
    sync::{Semaphore, broadcast},
    time::timeout,
};
use tollgate_core::Tenant;

use crate::{
    Account, CacheSettings, Change, QuotaEvent, QuotaSource, Quotas, SourceError,
    event::Listener,
    health::Health,
    slot::{Answer, Said, Slot},
    sparse::Sparse,
};

/// So many accounts are loaded at a time: a source that is slow shall not be buried in questions.
const MOST_LOADS: usize = 64;

/// A load that takes longer has failed: the others wait for its place.
const LONGEST_LOAD: Duration = Duration::from_secs(10);

/// What is told of a source that fails right after it was heard.
const SHORTEST_AGE: Duration = Duration::from_millis(1);

/// More limits than anybody has. Those that the quotas do not have cost memory all the same.
const MOST_LIMITS: usize = 64;

/// Looks up the accounts of tenants: at once when they are in memory, which they are once a tenant has been
/// seen. Clones are cheap and share everything.
///
/// 1. A tenant is loaded once at a time, however many requests wait for it.
/// 2. An account in use is loaded again in the background shortly before its time is up, so no request waits
///    for it. One that was not asked for in that time is waited for, as if it were new.
/// 3. While a source fails, what it said last counts, however old. After 1 s, then 2 s and so on up to 30 s, it is
///    asked again for one tenant, and for all once it has answered.
/// 4. That no source knows a tenant is remembered, too.
/// 5. A load is waited for once, for at most [`CacheSettings::patience`], and given up after 10 s.
/// 6. Callers known only by their address are not looked up.
#[derive(Clone)]
pub struct Directory {
    inner: Arc<Inner>,
}

struct Inner {
    quotas: Arc<ArcSwap<Quotas>>,
    sources: Vec<Source>,
    settings: CacheSettings,
    slots: Cache<Arc<str>, Arc<Slot>>,
    loads: Semaphore,
    listener: Listener,
    /// Held while the listener is told of it, so that it hears the latest last.
    stale: Mutex<()>,
}

struct Source {
    source: Arc<dyn QuotaSource>,
    health: Health,
    /// Lines in the log on answers that make no sense for one tenant.
    senseless: Sparse,
}

/// What is known of a tenant, now or soon.
#[derive(Debug)]
pub enum Lookup {
    /// The account; `None` if no source knows the tenant.
    Known(Option<Arc<Account>>),
    /// It is being loaded.
    Loading(Loading),
}

impl Directory {
    pub(crate) fn open(
        quotas: Arc<ArcSwap<Quotas>>,
        sources: Vec<Arc<dyn QuotaSource>>,
        settings: CacheSettings,
        listener: Listener,
    ) -> Self {
        let source = |source| Source {
            source,
            health: Health::new(),
            senseless: Sparse::default(),
        };
        let sources = sources.into_iter().map(source).collect();
        let inner = Arc::new(Inner {
            quotas,
            sources,
            settings,
            slots: Cache::new(settings.max_tenants),
            loads: Semaphore::new(MOST_LOADS),
            listener,
            stale: Mutex::default(),
        });
        for source in &inner.sources {
            if let Some(changes) = source.source.changes() {
                tokio::spawn(follow(Arc::downgrade(&inner), changes));
            }
        }
        Self { inner }
    }

    /// The largest cost of a route that any tenant could pay. Where sources are asked, that is not known.
    #[must_use]
    pub fn largest_capacity(&self) -> u64 {
        if self.inner.sources.is_empty() {
            self.quotas().largest_capacity()
        } else {
            u64::MAX
        }
    }

    /// The quotas as they are now.
    #[must_use]
    pub fn quotas(&self) -> arc_swap::Guard<Arc<Quotas>> {
        self.inner.quotas.load()
    }

    /// Of how many tenants what is known of them is kept.
    #[must_use]
    pub fn max_tenants(&self) -> usize {
        self.inner.settings.max_tenants
    }

    /// What sources say about `tenant`.
    ///
    /// # Panics
    ///
    /// Outside of a Tokio runtime, if there are sources.
    #[must_use]
    pub fn look_up(&self, tenant: &Tenant) -> Lookup {
        if self.inner.sources.is_empty() || tenant.is_anonymous() {
            return Lookup::Known(None);
        }
        let slots = &self.inner.slots;
        let slot = slots.get(tenant.id()).unwrap_or_else(|| {
            // Of those who come at the same time, one makes it.
            let id = Arc::from(tenant.id());
            let made = slots.get_or_insert_with(&id, || Ok::<_, Infallible>(Arc::default()));
            made.unwrap_or_else(|never| match never {})
        });
        let Answer {
            account,
            heard,
            load,
            wait,
        } = slot.ask(self.inner.settings.patience);
        if load {
            self.inner.load(tenant.id().into(), slot.clone());
        }
        if let Some(wait) = wait {
            let inner = self.inner.clone();
            return Lookup::Loading(Loading(Box::pin(async move {
                let _ = timeout(wait, slot.loaded()).await;
                let (account, heard) = slot.peek();
                if !heard {
                    (inner.listener)(QuotaEvent::Unknown);
                }
                account
            })));
        }
        if !heard {
            (self.inner.listener)(QuotaEvent::Unknown);
        }
        Lookup::Known(account)
    }
}

impl Inner {
    /// Loads the account of one tenant, in a task that belongs to nobody in particular.
    fn load(self: &Arc<Self>, tenant: Arc<str>, slot: Arc<Slot>) {
        let this = self.clone();
        let unfinished = slot.loading();
        Handle::current().spawn(async move {
            let mut again = true;
            while again {
                let known = slot.parts();
                let mut answers = Vec::with_capacity(this.sources.len());
                for (i, source) in this.sources.iter().enumerate() {
                    let known = known.get(i).and_then(Option::as_deref);
                    answers.push(this.ask(source, &tenant, known).await);
                }
                let settings = &this.settings;
                again = slot.finish(answers, settings.ttl, settings.unknown_ttl);
            }
            unfinished.done();
        });
    }

    async fn ask(&self, source: &Source, tenant: &str, known: Option<&Account>) -> Said {
        // First of all: a pause is nothing to queue for.
        if let Some(until) = source.health.pause() {
            self.note_age();
            return Said::Paused(until);
        }
        // Never closed.
        let _permit = self.loads.acquire().await;
        let attempt = match source.health.attempt() {
            Ok(attempt) => attempt,
            Err(until) => return Said::Paused(until),
        };
        let answer = source.ask(tenant, known).await;
        let name = source.source.name();
        let ok = answer.is_ok();
        (self.listener)(QuotaEvent::Loaded { source: name, ok });
        match answer {
            Ok(account) => {
                if attempt.succeeded() {
                    tracing::info!(source = name, "the source of quotas answers again");
                    self.note_age();
                }
                Said::Account(account)
            }
            Err(error) if error.is_of_tenant() => {
                if let Some(suppressed) = source.senseless.tell() {
                    tracing::warn!(
                        source = name,
                        %error,
                        suppressed,
                        "what the source of quotas says of a tenant makes no sense; what it said last counts, or else the tenant's tier or the default"
                    );
                }
                Said::Failed
            }
            Err(error) => {
                if attempt.failed() {
                    tracing::warn!(
                        source = name,
                        %error,
                        "the source of quotas fails; what it said last counts, and for new tenants their tier or the default"
                    );
                }
                self.note_age();
                Said::Failed
            }
        }
    }

    fn note_age(&self) {
        let _telling = self.stale.lock().unwrap_or_else(PoisonError::into_inner);
        let ages = self.sources.iter().map(|it| it.health.failing_for());
        // Zero would say that none fails.
        let age = ages.max().flatten().map(|age| age.max(SHORTEST_AGE));
        (self.listener)(QuotaEvent::Stale(age.unwrap_or_default()));
    }

    fn note_change(self: &Arc<Self>, change: &Change) {
        match change {
            Change::Tenant(tenant) => {
                if let Some(slot) = self.slots.get(&**tenant)
                    && slot.expire()
                {
                    self.load(tenant.clone(), slot);
                }
            }
            Change::Anything => {
                for (_, slot) in self.slots.iter() {
                    slot.age();
                }
            }
        }
    }
}

impl Source {
    async fn ask(
        &self,
        tenant: &str,
        known: Option<&Account>,
    ) -> Result<Option<Account>, SourceError> {
        let answer = timeout(LONGEST_LOAD, self.source.load(tenant, known)).await;
        let account = answer
            .map_err(|_| SourceError::new(format!("no answer within {LONGEST_LOAD:?}")))??;
        match account.as_ref().map(|it| it.limits.len()) {
            Some(limits) if limits > MOST_LIMITS => Err(SourceError::of_tenant(format!(
                "{limits} limits, of which there may be {MOST_LIMITS}"
            ))),
            _ => Ok(account),
        }
    }
}

/// Passes on what a source says by itself, until the source or the directory is gone.
async fn follow(directory: Weak<Inner>, mut changes: broadcast::Receiver<Change>) {
    loop {
        let change = match changes.recv().await {
            Ok(change) => change,
            // Which ones were missed is not known.
            Err(broadcast::error::RecvError::Lagged(_)) => Change::Anything,
            Err(broadcast::error::RecvError::Closed) => return,
        };
        let Some(inner) = directory.upgrade() else {
            return;
        };
        inner.note_change(&change);
    }
}

// === impl Directory ===

impl fmt::Debug for Directory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Directory")
            .field("tenants", &self.inner.slots.len())
            .finish_non_exhaustive()
    }
}

/// An account to come, for at most [`CacheSettings::patience`].
///
/// # Cancel safety
///
/// It may be dropped at any time; the account is loaded all the same.
#[must_use = "futures do nothing unless polled"]
pub struct Loading(Pin<Box<dyn Future<Output = Option<Arc<Account>>> + Send>>);

impl Future for Loading {
    type Output = Option<Arc<Account>>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        self.0.as_mut().poll(cx)
    }
}

impl fmt::Debug for Loading {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Loading").finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests;
