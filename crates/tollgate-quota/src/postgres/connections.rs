//! A few connections, each for one query at a time.

use std::sync::{Mutex, MutexGuard, PoisonError};

use sqlx::{Connection, Error, PgConnection, postgres::PgConnectOptions};
use tokio::sync::Semaphore;

use super::rows::Row;
use crate::wire::no_json;

/// Connections that are made when they are needed and kept while they work.
///
/// The pool of `sqlx` waits for an answer before it takes back a connection whose query was given up, so a
/// network that swallows packets would use it up. Here, a query that is dropped takes its connection along.
pub(super) struct Connections {
    options: PgConnectOptions,
    permits: Semaphore,
    idle: Mutex<Vec<PgConnection>>,
}

impl Connections {
    pub(super) fn new(options: PgConnectOptions, most: usize) -> Self {
        Self {
            options,
            permits: Semaphore::new(most),
            idle: Mutex::default(),
        }
    }

    /// The rows of `query` for `tenant`, each as text of JSON.
    pub(super) async fn rows(&self, query: &str, tenant: &str) -> Result<Vec<Row>, Error> {
        let _permit = self
            .permits
            .acquire()
            .await
            .map_err(|_| Error::PoolClosed)?;
        let kept = self.idle().pop();
        if let Some(connection) = kept {
            match self.rows_from(connection, query, tenant).await {
                // It died in the meantime, as after a restart of the server, and so did the others.
                Err(error) if !is_answer(&error) => self.idle().clear(),
                answer => return answer,
            }
        }
        let connection = PgConnection::connect_with(&self.options).await?;
        self.rows_from(connection, query, tenant).await
    }

    async fn rows_from(
        &self,
        mut connection: PgConnection,
        query: &str,
        tenant: &str,
    ) -> Result<Vec<Row>, Error> {
        let rows = sqlx::query_scalar(query)
            .bind(tenant)
            .fetch_all(&mut connection)
            .await;
        let keep = rows.as_ref().map_or_else(is_answer, |_| true);
        if keep {
            self.idle().push(connection);
        }
        let rows: Vec<String> = rows?;
        let rows = rows.iter().map(|row| serde_json::from_str(row));
        rows.collect::<Result<_, _>>()
            .map_err(|error| Error::Decode(no_json(&error).into()))
    }

    fn idle(&self) -> MutexGuard<'_, Vec<PgConnection>> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Whether the connection works all the same.
fn is_answer(error: &Error) -> bool {
    match error {
        // A server that goes down says so in an error of class 57P, and closes.
        Error::Database(error) => !error.code().is_some_and(|code| code.starts_with("57P")),
        _ => false,
    }
}
