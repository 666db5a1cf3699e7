//! Hearing what Postgres says by itself.

use std::time::Duration;

use sqlx::{
    Connection, Error, Executor, PgConnection,
    postgres::{PgConnectOptions, PgListener, PgPoolOptions},
};
use tokio::{
    sync::broadcast,
    task::AbortHandle,
    time::{sleep, timeout},
};

use super::describe;
use crate::Change;

/// Changes that a receiver may lag behind before it misses some, which it is told.
const BACKLOG: usize = 1_024;
/// A connection on which nothing came for so long is asked whether it lives: a network that lost it does not
/// tell.
const SILENCE: Duration = Duration::from_secs(15);
const FIRST_PAUSE: Duration = Duration::from_millis(100);
const LONGEST_PAUSE: Duration = Duration::from_secs(5);

/// A task that turns notifications into changes, until this is dropped.
pub(super) struct Listening {
    changes: broadcast::Sender<Change>,
    task: AbortHandle,
}

struct Listener {
    options: PgConnectOptions,
    channel: String,
    timeout: Duration,
    changes: broadcast::Sender<Change>,
}

impl Listening {
    /// Returns once the first attempt has succeeded or failed.
    pub(super) async fn start(
        options: PgConnectOptions,
        channel: String,
        timeout: Duration,
    ) -> Self {
        let (changes, _) = broadcast::channel(BACKLOG);
        let listener = Listener {
            options,
            channel,
            timeout,
            changes: changes.clone(),
        };
        let first = listener.connect().await;
        let task = tokio::spawn(listener.run(first)).abort_handle();
        Self { changes, task }
    }

    pub(super) fn subscribe(&self) -> broadcast::Receiver<Change> {
        self.changes.subscribe()
    }
}

impl Drop for Listening {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Listener {
    async fn run(self, first: Result<PgListener, String>) {
        let mut listening = first;
        loop {
            let reason = match listening {
                Ok(mut connection) => self.listen(&mut connection).await,
                Err(reason) => reason,
            };
            tracing::warn!(
                channel = self.channel,
                reason,
                "cannot hear of changed quotas from Postgres; trying until it can, and changes come when accounts are loaded again"
            );
            listening = Ok(self.reconnect().await);
            tracing::info!(
                channel = self.channel,
                "hears of changed quotas from Postgres"
            );
            // What was said in the meantime, nobody has heard. An error means that nobody wants to.
            let _ = self.changes.send(Change::Anything);
        }
    }

    /// Passes changes on until the connection is lost, and says why it was.
    async fn listen(&self, connection: &mut PgListener) -> String {
        loop {
            // Messages are read whole or not at all, so none is lost with a wait that ends.
            let heard = match timeout(SILENCE, connection.try_recv()).await {
                Ok(heard) => heard,
                Err(_) => match timeout(self.timeout, connection.execute("SELECT 1")).await {
                    Ok(Ok(_)) => continue,
                    Ok(Err(error)) => Err(error),
                    Err(_) => return "the connection has fallen silent".to_owned(),
                },
            };
            let change = match heard {
                Ok(Some(heard)) if heard.payload().is_empty() => Change::Anything,
                Ok(Some(heard)) => Change::Tenant(heard.payload().into()),
                Ok(None) => return "the connection was closed".to_owned(),
                Err(error) => return describe(&error),
            };
            let _ = self.changes.send(change);
        }
    }

    async fn reconnect(&self) -> PgListener {
        let mut pause = FIRST_PAUSE;
        loop {
            // From half of it on, so that the replicas of a fleet do not come all at once.
            sleep(pause.mul_f64(0.5 + fastrand::f64() / 2.0)).await;
            match self.connect().await {
                Ok(connection) => return connection,
                Err(reason) => tracing::debug!(reason, "still cannot listen to Postgres"),
            }
            pause = LONGEST_PAUSE.min(pause * 2);
        }
    }

    async fn connect(&self) -> Result<PgListener, String> {
        let connected = timeout(self.timeout, self.try_connect()).await;
        let connected = connected.map_err(|_| format!("no answer within {:?}", self.timeout))?;
        connected.map_err(|error| describe(&error))
    }

    async fn try_connect(&self) -> Result<PgListener, Error> {
        // A pool tries again and again and then does not tell the reason, so it is called when there is none.
        PgConnection::connect_with(&self.options)
            .await?
            .close()
            .await?;
        let pool = PgPoolOptions::new()
            .max_connections(1)
            .idle_timeout(None)
            .max_lifetime(None)
            // It serves for this connection only. Without this, it asks of a lost one whether it lives.
            .after_release(|_, _| Box::pin(async { Ok(false) }))
            .connect_lazy_with(self.options.clone());
        let mut listener = PgListener::connect_with(&pool).await?;
        listener.eager_reconnect(false);
        listener.listen(&self.channel).await?;
        Ok(listener)
    }
}
