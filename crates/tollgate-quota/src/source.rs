//! Where the accounts of tenants come from.

use std::{error::Error, fmt, pin::Pin, sync::Arc};

use tokio::sync::broadcast;

use crate::Account;

/// Somewhere that accounts of tenants come from: a table, a control plane.
pub trait QuotaSource: Send + Sync + 'static {
    /// The name in logs and metrics, such as `postgres`.
    fn name(&self) -> &'static str;

    /// Loads the account of `tenant`. `None` if nothing is known of it, which is no failure. `known` is what
    /// this source gave last, for sources that can tell whether it has changed.
    ///
    /// # Errors
    ///
    /// If the source gives no answer. Then it is left alone for a while, for all tenants. If the answer makes no
    /// sense, of a kind that others need not get, that is an error [of the tenant](SourceError::of_tenant); so
    /// is an account of more than 64 limits, whoever returns it.
    ///
    /// # Cancel safety
    ///
    /// The future is dropped, and the source has failed, if it takes longer than 10 s. A source should give up
    /// earlier by itself: until then, this tenant is not asked for again.
    fn load<'a>(&'a self, tenant: &'a str, known: Option<&'a Account>) -> LoadFuture<'a>;

    /// What the source says by itself. `None` if it says nothing, and changes are seen when an account is
    /// loaded the next time.
    fn changes(&self) -> Option<broadcast::Receiver<Change>> {
        None
    }
}

/// An account to come.
pub type LoadFuture<'a> =
    Pin<Box<dyn Future<Output = Result<Option<Account>, SourceError>> + Send + 'a>>;

/// What has changed at a source.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    /// The account of this tenant.
    Tenant(Arc<str>),
    /// Anything, as after a lost connection.
    Anything,
}

/// Why a source gave no account.
#[derive(Clone, Debug)]
pub struct SourceError {
    cause: Arc<dyn Error + Send + Sync>,
    of_tenant: bool,
}

impl SourceError {
    /// No answer, for this cause. It is taken for a failure of the whole source.
    pub fn new(cause: impl Into<Box<dyn Error + Send + Sync>>) -> Self {
        Self {
            cause: cause.into().into(),
            of_tenant: false,
        }
    }

    /// An answer that makes no sense, for this cause: others may get better ones, so the source is asked on, and
    /// this tenant is asked for again after 1 s, then 2 s and so on up to 30 s.
    ///
    /// The cause goes to the log. It should say where the data is wrong, and not name the tenant.
    pub fn of_tenant(cause: impl Into<Box<dyn Error + Send + Sync>>) -> Self {
        Self {
            of_tenant: true,
            ..Self::new(cause)
        }
    }

    /// Whether it says nothing about other tenants.
    #[must_use]
    pub fn is_of_tenant(&self) -> bool {
        self.of_tenant
    }
}

// === impl SourceError ===

impl fmt::Display for SourceError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.cause.fmt(f)
    }
}

impl Error for SourceError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        self.cause.source()
    }
}
