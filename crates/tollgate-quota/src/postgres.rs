//! Accounts in tables of Postgres.

use std::{fmt, num::NonZeroUsize, str::FromStr, time::Duration};

use sqlx::{ConnectOptions, Error, postgres::PgConnectOptions};
use tokio::{sync::broadcast, time::timeout};

use crate::{Account, Change, LoadFuture, QuotaSource, SourceError};

mod connections;
mod listening;
mod rows;

use self::{connections::Connections, listening::Listening};

const QUERY: &str = include_str!("postgres/tenant.sql");
/// SQLSTATEs of this class are data exceptions.
const DATA: &str = "22";
const CHANNEL: &str = "tollgate_quotas";
const TIMEOUT: Duration = Duration::from_secs(1);
const CONNECTIONS: NonZeroUsize = NonZeroUsize::new(4).expect("above 0");

/// Accounts in tables of Postgres: Tollgate's [own](Self::SCHEMA), or yours through a
/// [query](PostgresSourceBuilder::query). What notifications say of changes, it passes on.
///
/// It works without Postgres: until there is one, each load fails, and it tries to listen again and again,
/// at least each 5 s, with one line in the log when it starts to fail and one when it succeeds.
///
/// ```no_run
/// use tollgate_quota::PostgresSource;
///
/// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
/// let source = PostgresSource::connect("postgres://tollgate@localhost/customers").await?;
/// # Ok(())
/// # }
/// ```
pub struct PostgresSource {
    connections: Connections,
    query: String,
    timeout: Duration,
    listening: Listening,
}

/// Settings of a [`PostgresSource`].
#[must_use]
pub struct PostgresSourceBuilder {
    url: String,
    query: String,
    channel: String,
    timeout: Duration,
    connections: NonZeroUsize,
}

impl PostgresSource {
    /// The tables that the default query reads, and the triggers that notify: the statements of
    /// `migrations/0001_tollgate.sql` in this crate's package, to be applied once.
    ///
    /// ```no_run
    /// # async fn example(pool: &sqlx::PgPool) -> Result<(), sqlx::Error> {
    /// sqlx::raw_sql(tollgate_quota::PostgresSource::SCHEMA).execute(pool).await?;
    /// # Ok(())
    /// # }
    /// ```
    pub const SCHEMA: &'static str = include_str!("../migrations/0001_tollgate.sql");

    /// A source with default settings. See [`PostgresSourceBuilder::connect`].
    ///
    /// # Errors
    ///
    /// If `url` makes no sense.
    pub async fn connect(url: &str) -> Result<Self, SourceError> {
        Self::builder(url).connect().await
    }

    /// A source of the database at `url`, such as `postgres://user:password@host:5432/name`; parameters such
    /// as `sslmode=verify-full` and the environment's `PGPASSWORD` and `PGSSLROOTCERT` are honoured as usual.
    pub fn builder(url: &str) -> PostgresSourceBuilder {
        PostgresSourceBuilder {
            url: url.to_owned(),
            query: QUERY.to_owned(),
            channel: CHANNEL.to_owned(),
            timeout: TIMEOUT,
            connections: CONNECTIONS,
        }
    }

    async fn load(&self, tenant: &str) -> Result<Option<Account>, SourceError> {
        // No text in Postgres has such a byte, so no row can be this tenant's.
        if tenant.contains('\0') {
            return Ok(None);
        }
        let rows = timeout(self.timeout, self.connections.rows(&self.query, tenant)).await;
        let rows =
            rows.map_err(|_| SourceError::new(format!("no answer within {:?}", self.timeout)))?;
        let rows = rows.map_err(|error| {
            let told = describe(&error);
            if is_of_tenant(&error) {
                SourceError::of_tenant(told)
            } else {
                SourceError::new(told)
            }
        })?;
        rows::account(&rows).map_err(SourceError::of_tenant)
    }
}

impl PostgresSourceBuilder {
    /// A query of your own tables, instead of that of Tollgate's. `$1` is the tenant's id, as text. No row
    /// means that nothing is known of the tenant. The columns have these names; each may be NULL, or be left
    /// out:
    ///
    /// | column | meaning |
    /// |---|---|
    /// | `tier` | the tenant's tier; the same in all rows |
    /// | `home` | the region where it has its whole quotas; the same in all rows |
    /// | `shards` | over how many parts its buckets are spread, 1 to 255; the same in all rows |
    /// | `limit_name` | the limit of which the next three columns speak; `default` if NULL |
    /// | `capacity` | tokens, a whole number |
    /// | `rate` | tokens per second as a number, or text such as `1000/m`; as text without `capacity`, the tokens before the slash are the capacity |
    /// | `word` | `unlimited` or `blocked`, instead of `capacity` and `rate`; `default` says nothing |
    ///
    /// Another column, and a value that makes no sense, is an error. For a table `customers(id, plan)`:
    ///
    /// ```no_run
    /// # use tollgate_quota::PostgresSource;
    /// # async fn example(url: &str) -> Result<(), Box<dyn std::error::Error>> {
    /// let source = PostgresSource::builder(url)
    ///     .query("SELECT plan AS tier FROM customers WHERE id = $1")
    ///     .connect()
    ///     .await?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// Where `id` is not text, write `id::text = $1`. A tenant whose id is no number is then unknown, while
    /// `id = $1::bigint` would fail for it.
    pub fn query(mut self, query: impl Into<String>) -> Self {
        self.query = query.into();
        self
    }

    /// The channel to listen on, by default `tollgate_quotas`. The payload of a notification is the id of the
    /// tenant that has changed; an empty one says that anything may have.
    pub fn channel(mut self, channel: impl Into<String>) -> Self {
        self.channel = channel.into();
        self
    }

    /// How long one load may take, by default 1 s, connecting included. Postgres ends the query by then too
    /// (`statement_timeout`).
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = timeout;
        self
    }

    /// How many loads are under way at once, each on a connection of its own, by default 4. One more
    /// connection listens.
    pub fn connections(mut self, connections: NonZeroUsize) -> Self {
        self.connections = connections;
        self
    }

    /// Starts to listen in a task of its own, which ends when the source is dropped, and makes the source.
    /// That there is no Postgres yet is no error: it waits for at most the timeout, and starts without it.
    ///
    /// # Errors
    ///
    /// If the URL makes no sense, or the timeout is shorter than a millisecond.
    ///
    /// # Cancel safety
    ///
    /// If dropped, nothing has happened but a connection.
    pub async fn connect(self) -> Result<PostgresSource, SourceError> {
        // Whatever else it names, it would be taken for Postgres.
        if !self.url.starts_with("postgres://") && !self.url.starts_with("postgresql://") {
            let problem = "the URL of Postgres must start with postgres:// or postgresql://";
            return Err(SourceError::new(problem));
        }
        let options = PgConnectOptions::from_str(&self.url)
            .map_err(|error| SourceError::new(format!("the URL of Postgres: {error}")))?;
        if self.timeout < Duration::from_millis(1) {
            return Err(SourceError::new(
                "a load needs a timeout of at least a millisecond",
            ));
        }
        let options = options
            .application_name("tollgate")
            .disable_statement_logging();
        // A query that waits for a lock would go on without us, and more of them would come.
        let patience = [("statement_timeout", self.timeout.as_millis())];
        let loads = options.clone().options(patience);
        Ok(PostgresSource {
            connections: Connections::new(loads, self.connections.get()),
            query: wrap(&self.query),
            timeout: self.timeout,
            listening: Listening::start(options, self.channel, self.timeout).await,
        })
    }
}

// === impl PostgresSource ===

impl QuotaSource for PostgresSource {
    fn name(&self) -> &'static str {
        "postgres"
    }

    fn load<'a>(&'a self, tenant: &'a str, _known: Option<&'a Account>) -> LoadFuture<'a> {
        Box::pin(self.load(tenant))
    }

    fn changes(&self) -> Option<broadcast::Receiver<Change>> {
        Some(self.listening.subscribe())
    }
}

impl fmt::Debug for PostgresSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Nothing of the URL, which has the password.
        f.debug_struct("PostgresSource")
            .field("timeout", &self.timeout)
            .finish_non_exhaustive()
    }
}

// === impl PostgresSourceBuilder ===

impl fmt::Debug for PostgresSourceBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PostgresSourceBuilder")
            .field("query", &self.query)
            .field("channel", &self.channel)
            .field("timeout", &self.timeout)
            .field("connections", &self.connections)
            .finish_non_exhaustive()
    }
}

/// Has Postgres turn the columns into JSON: it knows all their types, whichever the table has.
fn wrap(query: &str) -> String {
    let query = query.trim_end().trim_end_matches(';');
    // On lines of its own, so that it may end with a comment.
    format!("SELECT to_jsonb(tollgate_row)::text FROM (\n{query}\n) AS tollgate_row")
}

/// Whether it comes from the tenant's id or its rows.
fn is_of_tenant(error: &Error) -> bool {
    match error {
        Error::Database(answer) => answer.code().is_some_and(|code| code.starts_with(DATA)),
        Error::Decode(_) => true,
        _ => false,
    }
}

/// The error, without what it may quote from the query's parameter.
fn describe(error: &Error) -> String {
    let Error::Database(answer) = error else {
        return error.to_string();
    };
    match answer.code() {
        // Data exceptions quote the value, which may be the tenant's id.
        Some(code) if code.starts_with(DATA) => {
            format!("a value has not the type that the query takes it for (SQLSTATE {code})")
        }
        Some(code) => format!("{} (SQLSTATE {code})", answer.message()),
        None => answer.message().to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_that_cannot_be_read_are_an_error_of_the_tenant() {
        assert!(is_of_tenant(&Error::Decode("no JSON".into())));
        assert!(!is_of_tenant(&Error::Protocol("no Postgres".into())));
        assert!(!is_of_tenant(&Error::PoolClosed));
    }
}
