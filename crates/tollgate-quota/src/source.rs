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
    /// If the source gives no answer, or one that makes no sense. It must fail within seconds: until then,
    /// this tenant is not asked for again.
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
pub struct SourceError(Arc<dyn Error + Send + Sync>);

impl SourceError {
    /// An error with this cause.
    pub fn new(cause: impl Into<Box<dyn Error + Send + Sync>>) -> Self {
        Self(cause.into().into())
    }
}

// === impl SourceError ===

impl fmt::Display for SourceError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl Error for SourceError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        self.0.source()
    }
}
