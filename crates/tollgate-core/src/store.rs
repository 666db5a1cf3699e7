//! Anything that can decide a check.

use std::{
    error::Error,
    fmt,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
};

use crate::{Adjustment, Check, Decision, KeySpace};

/// Anything that can decide a check: Redis, memory, or a stage that wraps another store.
///
/// A store answers from its own knowledge or fails; it never makes a decision up. What happens after a
/// failure is the business of the limiter's policy.
pub trait Store: Send + Sync + 'static {
    /// Decides `check`, and charges what it grants.
    ///
    /// # Cancel safety
    ///
    /// A future that is dropped before it is ready may or may not have charged the check.
    fn check(&self, check: Check) -> CheckFuture;

    /// Adds tokens to buckets or takes some out, whatever they hold, and tells how many each has then, rounded
    /// down: for what a check granted and nobody used, and for costs known only afterwards.
    ///
    /// An adjustment that failed is not to be tried again, unless the error says that nothing was written.
    ///
    /// # Cancel safety
    ///
    /// A future that is dropped before it is ready may or may not have changed the buckets.
    fn adjust(&self, adjustment: Adjustment) -> AdjustFuture;

    /// Which of its servers has the buckets under a hash tag: a small number, 0 if there is but one.
    ///
    /// A limiter's circuit breaker keeps the servers apart by it, so that one that fails does not keep the
    /// others' tenants from theirs. The number of a tag may change at any time, as when a bucket moves, and
    /// that of a server which has left be given to another.
    fn node(&self, tag: &str) -> usize {
        let _ = tag;
        0
    }

    /// Whether the buckets are in this process, so that an answer costs no call: `false` unless the store says
    /// so. A limiter then leaves out what spares calls and what watches a connection.
    fn is_local(&self) -> bool {
        false
    }

    /// How the buckets in it are named: what a limiter uses that was told nothing else. The default prefix
    /// unless the store was set up with another.
    fn keys(&self) -> KeySpace {
        KeySpace::default()
    }
}

impl<S: Store + ?Sized> Store for Arc<S> {
    fn check(&self, check: Check) -> CheckFuture {
        (**self).check(check)
    }

    fn adjust(&self, adjustment: Adjustment) -> AdjustFuture {
        (**self).adjust(adjustment)
    }

    fn node(&self, tag: &str) -> usize {
        (**self).node(tag)
    }

    fn is_local(&self) -> bool {
        (**self).is_local()
    }

    fn keys(&self) -> KeySpace {
        (**self).keys()
    }
}

impl<S: Store + ?Sized> Store for Box<S> {
    fn check(&self, check: Check) -> CheckFuture {
        (**self).check(check)
    }

    fn adjust(&self, adjustment: Adjustment) -> AdjustFuture {
        (**self).adjust(adjustment)
    }

    fn node(&self, tag: &str) -> usize {
        (**self).node(tag)
    }

    fn is_local(&self) -> bool {
        (**self).is_local()
    }

    fn keys(&self) -> KeySpace {
        (**self).keys()
    }
}

/// What [`Store::check`] returns.
pub type CheckFuture = StoreFuture<Decision>;

/// What [`Store::adjust`] returns: the tokens in each bucket, in the order of the changes.
pub type AdjustFuture = StoreFuture<Vec<i64>>;

/// What a [`Store`] returns: the answer, or a future of it.
///
/// A store that knows the answer at once costs no allocation.
#[must_use = "futures do nothing unless polled"]
pub struct StoreFuture<T>(Inner<T>);

enum Inner<T> {
    Ready(Option<Result<T, StoreError>>),
    Pending {
        future: Pin<Box<dyn Future<Output = Result<T, StoreError>> + Send>>,
        look: Option<Look<T>>,
    },
}

/// What all the stages that the answer passes do with it. One future is polled for them all: with one around the
/// other, each would be polled, and move the answer, once more.
type Look<T> = Box<dyn FnOnce(&Result<T, StoreError>) + Send>;

impl<T> StoreFuture<T> {
    /// An answer known already.
    pub const fn ready(answer: Result<T, StoreError>) -> Self {
        Self(Inner::Ready(Some(answer)))
    }

    /// Tells `look` the answer when it is there, after all who were to be told before. If it never is, `look` is
    /// dropped.
    pub fn inspect(self, look: impl FnOnce(&Result<T, StoreError>) + Send + 'static) -> Self
    where
        T: 'static,
    {
        match self.0 {
            Inner::Ready(answer) => {
                if let Some(answer) = &answer {
                    look(answer);
                }
                Self(Inner::Ready(answer))
            }
            Inner::Pending {
                future,
                look: former,
            } => {
                let look: Look<T> = match former {
                    None => Box::new(look),
                    Some(former) => Box::new(move |answer| {
                        former(answer);
                        look(answer);
                    }),
                };
                let look = Some(look);
                Self(Inner::Pending { future, look })
            }
        }
    }

    /// The answer, if it is known already; else the future of it.
    ///
    /// # Errors
    ///
    /// This future, if the answer is yet to come.
    pub fn into_ready(self) -> Result<Result<T, StoreError>, Self> {
        match self.0 {
            Inner::Ready(answer) => Ok(answer.expect("StoreFuture asked after completion")),
            pending @ Inner::Pending { .. } => Err(Self(pending)),
        }
    }

    /// An answer to come.
    pub fn new(future: impl Future<Output = Result<T, StoreError>> + Send + 'static) -> Self {
        Self(Inner::Pending {
            future: Box::pin(future),
            look: None,
        })
    }
}

// === impl StoreFuture ===

// What it holds is moved out whole, or pinned in a box of its own.
impl<T> Unpin for StoreFuture<T> {}

impl<T> Future for StoreFuture<T> {
    type Output = Result<T, StoreError>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        match &mut self.0 {
            Inner::Ready(answer) => {
                Poll::Ready(answer.take().expect("StoreFuture polled after completion"))
            }
            Inner::Pending { future, look } => {
                let answer = ready!(future.as_mut().poll(cx));
                if let Some(look) = look.take() {
                    look(&answer);
                }
                Poll::Ready(answer)
            }
        }
    }
}

impl<T: fmt::Debug> fmt::Debug for StoreFuture<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            Inner::Ready(answer) => f.debug_tuple("Ready").field(answer).finish(),
            Inner::Pending { .. } => f.debug_struct("Pending").finish_non_exhaustive(),
        }
    }
}

/// Why a store gave no answer, and whether the charge may have happened all the same.
#[derive(Clone, Debug)]
pub struct StoreError {
    kind: ErrorKind,
    charge: ChargeState,
    source: Arc<dyn Error + Send + Sync>,
}

impl StoreError {
    /// An error of `kind`, caused by `source`.
    #[must_use]
    pub fn new(
        kind: ErrorKind,
        charge: ChargeState,
        source: impl Into<Box<dyn Error + Send + Sync>>,
    ) -> Self {
        Self {
            kind,
            charge,
            source: source.into().into(),
        }
    }

    /// What went wrong, coarsely enough for a metric label.
    #[must_use]
    pub const fn kind(&self) -> ErrorKind {
        self.kind
    }

    /// Whether the check may have been charged.
    #[must_use]
    pub const fn charge(&self) -> ChargeState {
        self.charge
    }
}

// === impl StoreError ===

impl fmt::Display for StoreError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let charge = match self.charge {
            ChargeState::NotCharged => "nothing was charged",
            ChargeState::Unknown => "the charge may have happened",
        };
        write!(
            f,
            "store failed ({}, {charge}): {}",
            self.kind.as_str(),
            self.source
        )
    }
}

impl Error for StoreError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        Some(&*self.source)
    }
}

/// Whether a failed check may have been charged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ChargeState {
    /// The store said that it wrote nothing, or was never asked.
    NotCharged,
    /// The answer was lost: the charge may have happened. Asking again could charge twice.
    Unknown,
}

/// The kinds of store failures, as the label `kind` of `ratelimit_store_errors_total` shows them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ErrorKind {
    /// No answer within the deadline.
    Timeout,
    /// The connection is down, was refused or broke.
    Io,
    /// The script is not on the server, and loading it did not help.
    NoScript,
    /// The server is a read-only replica.
    ReadOnly,
    /// The server is loading its data.
    Loading,
    /// The store is out of memory for new buckets.
    Oom,
    /// The cluster is down, or the slot cannot be served.
    Cluster,
    /// The credentials are wrong, or lack a permission.
    Auth,
    /// What the store has under this bucket's key is not a bucket. It is about one bucket, not about the
    /// store; in metrics, `other`.
    NotABucket,
    /// The circuit breaker is open, and the store was not asked. Not counted as a failure of the store.
    BreakerOpen,
    /// Anything else.
    Other,
}

impl ErrorKind {
    /// One kind for each value of the metric label.
    pub const LABELS: [Self; 9] = [
        Self::Timeout,
        Self::Io,
        Self::NoScript,
        Self::ReadOnly,
        Self::Loading,
        Self::Oom,
        Self::Cluster,
        Self::Auth,
        Self::Other,
    ];

    /// The value of the metric label.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Timeout => "timeout",
            Self::Io => "io",
            Self::NoScript => "noscript",
            Self::ReadOnly => "readonly",
            Self::Loading => "loading",
            Self::Oom => "oom",
            Self::Cluster => "cluster",
            Self::Auth => "auth",
            Self::NotABucket | Self::Other => "other",
            Self::BreakerOpen => "breaker_open",
        }
    }
}

#[cfg(test)]
mod tests {
    use std::{
        future::{pending, poll_fn},
        pin::pin,
        sync::Mutex,
        task::Waker,
    };

    use super::*;

    type Log = Arc<Mutex<Vec<String>>>;

    /// Writes down that it was dropped.
    struct Looker(&'static str, Log);

    impl Looker {
        fn write(&self, what: &str) {
            let line = format!("{} {what}", self.0);
            self.1.lock().expect("no panic").push(line);
        }
    }

    impl Drop for Looker {
        fn drop(&mut self) {
            self.write("goes");
        }
    }

    fn looked_at(future: StoreFuture<u8>, log: &Log) -> StoreFuture<u8> {
        let look = |name| {
            let looker = Looker(name, log.clone());
            move |answer: &Result<u8, StoreError>| {
                looker.write(&format!("sees {:?}", answer.as_ref().ok()));
            }
        };
        future.inspect(look("first")).inspect(look("second"))
    }

    fn poll<T>(future: &mut StoreFuture<T>) -> Poll<Result<T, StoreError>> {
        pin!(future).poll(&mut Context::from_waker(Waker::noop()))
    }

    #[test]
    fn all_who_look_see_the_answer_once_in_their_order() {
        let log = Log::default();
        let mut polls = 0;
        let later = StoreFuture::new(poll_fn(move |_| {
            polls += 1;
            if polls < 2 {
                Poll::Pending
            } else {
                Poll::Ready(Ok(1))
            }
        }));
        let mut later = looked_at(later, &log);
        assert!(poll(&mut later).is_pending());
        assert!(log.lock().expect("no panic").is_empty());
        assert!(matches!(poll(&mut later), Poll::Ready(Ok(1))));
        drop(later);
        let seen = [
            "first sees Some(1)",
            "first goes",
            "second sees Some(1)",
            "second goes",
        ];
        assert_eq!(*log.lock().expect("no panic"), seen);

        log.lock().expect("no panic").clear();
        let _ready = looked_at(StoreFuture::ready(Ok(1)), &log);
        assert_eq!(*log.lock().expect("no panic"), seen);
    }

    #[test]
    fn those_who_have_seen_nothing_go_with_the_future() {
        let log = Log::default();
        let mut never = looked_at(StoreFuture::new(pending()), &log);
        assert!(poll(&mut never).is_pending());
        drop(never);
        let gone = ["first goes", "second goes"];
        assert_eq!(*log.lock().expect("no panic"), gone);
    }
}
