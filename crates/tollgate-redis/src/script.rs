//! A script on the server.

use std::{fmt, sync::Arc};

use tokio::{
    runtime::Handle,
    time::{Instant, timeout, timeout_at},
};
use tollgate_core::{ErrorKind, StoreError};

use crate::{
    arguments::Arguments,
    config,
    failure::not_charged,
    lane::{Asking, Client},
    reply::Reply,
    single_flight::SingleFlight,
};

const TOKEN_BUCKET: &str = include_str!("../lua/token_bucket.lua");

/// The line of `token_bucket.lua` in whose place `gather.lua` has the head of a function.
const WHERE: &str = "local key, k, arg, m = 0, #KEYS, 0, #ARGV\n";

/// The scripts as one server has them.
#[derive(Debug)]
pub(crate) struct Scripts {
    token_bucket: Script,
    gather: Script,
    adjust: Script,
    replicas: Script,
}

/// Which script.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Name {
    /// `token_bucket.lua`.
    TokenBucket,
    /// `gather.lua`, with `token_bucket.lua` inside.
    Gather,
    /// `adjust.lua`.
    Adjust,
    /// `replicas.lua`.
    Replicas,
}

/// A script, called by its hash and loaded when the server does not know it.
pub(crate) struct Script {
    source: Arc<str>,
    runtime: Handle,
    sha: String,
    loading: SingleFlight<Result<(), StoreError>>,
}

impl Scripts {
    pub(crate) fn new(runtime: &Handle) -> Self {
        let script = |source: &str| Script::new(source.into(), runtime.clone());
        Self {
            token_bucket: script(TOKEN_BUCKET),
            gather: script(&gather()),
            adjust: script(include_str!("../lua/adjust.lua")),
            replicas: script(include_str!("../lua/replicas.lua")),
        }
    }

    pub(crate) const fn get(&self, name: Name) -> &Script {
        match name {
            Name::TokenBucket => &self.token_bucket,
            Name::Gather => &self.gather,
            Name::Adjust => &self.adjust,
            Name::Replicas => &self.replicas,
        }
    }
}

impl Script {
    fn new(source: Arc<str>, runtime: Handle) -> Self {
        Self {
            sha: fred::util::sha1_hash(&source),
            source,
            runtime,
            loading: SingleFlight::new(),
        }
    }

    /// Calls the script with what `args` makes of its hash; if the server lost it, loads it and calls it
    /// once more. No other failure leads to a second call, because no other says for certain that nothing
    /// ran.
    pub(crate) async fn call(
        &self,
        client: &impl Client,
        args: &(impl Fn(&str) -> Arguments + Sync),
        asking: Asking,
        deadline: Instant,
    ) -> Result<Reply, StoreError> {
        let call = || call_once(client, args(&self.sha), asking, deadline);
        match call().await {
            Err(error) if error.kind() == ErrorKind::NoScript => {
                // Rare, and a future that would make that of each call larger.
                let load = || Box::pin(self.load(client, deadline));
                match load().await {
                    // It may have been another connection that was lost over it.
                    Err(error) if error.kind() == ErrorKind::Io => load().await?,
                    loaded => loaded?,
                }
                Box::pin(call()).await
            }
            outcome => outcome,
        }
    }

    /// Loads the script, together with all who want that now. The task behind it is nobody's in particular
    /// and has more time than a check, so that a slow load ends one day.
    pub(crate) async fn load(
        &self,
        client: &impl Client,
        deadline: Instant,
    ) -> Result<(), StoreError> {
        let (client, source) = (client.clone(), self.source.clone());
        let loading = self.loading.join(
            &self.runtime,
            async move { client.script_load(&source).await },
        );
        match timeout_at(deadline, loading.wait()).await {
            Ok(Some(outcome)) => outcome,
            Ok(None) => Err(not_charged(ErrorKind::Io, "the runtime is shutting down")),
            Err(_) => Err(not_charged(
                ErrorKind::Timeout,
                "the script could not be loaded within the deadline",
            )),
        }
    }

    /// Whether the connection answers nothing for much longer than a check. A server that is merely slow does
    /// answer, and loading again is what every user of the script may do.
    pub(crate) async fn is_silent(&self, client: &impl Client) -> bool {
        // Not together with others, who may have other connections.
        match timeout(config::SETUP_TIMEOUT, client.script_load(&self.source)).await {
            // An error without a reply means that the queue is full, or the connection gone already.
            Ok(Err(error)) => matches!(error.kind(), ErrorKind::Timeout | ErrorKind::Io),
            Ok(Ok(())) => false,
            Err(_) => true,
        }
    }
}

// === impl Script ===

impl fmt::Debug for Script {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Script")
            .field("sha", &self.sha)
            .finish_non_exhaustive()
    }
}

/// The code of `token_bucket.lua` as a function, and `gather.lua`, which calls it for each check.
fn gather() -> String {
    let (head, body) = TOKEN_BUCKET.split_once(WHERE).expect("the line is there");
    let driver = include_str!("../lua/gather.lua");
    format!("{head}local function decide(key, k, arg, m)\n{body}\nend\n{driver}")
}

async fn call_once(
    client: &impl Client,
    args: Arguments,
    asking: Asking,
    deadline: Instant,
) -> Result<Reply, StoreError> {
    let left = deadline.saturating_duration_since(Instant::now());
    if left.is_zero() {
        return Err(not_charged(
            ErrorKind::Timeout,
            "the deadline had passed already",
        ));
    }
    client.evalsha(args, asking, left).await
}
