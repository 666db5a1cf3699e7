//! A lane of redis-rs's.

use std::time::Duration;

use fred::types::{RespVersion, config::Config};
use redis::{
    AsyncConnectionConfig, Cmd, ErrorKind as RedisKind, ProtocolVersion, RedisConnectionInfo,
    RedisError, RedisResult, ServerError, Value, aio::MultiplexedConnection, cmd, pipe,
};
use tokio::{
    sync::mpsc,
    task::JoinHandle,
    time::{error::Elapsed, timeout},
};
use tollgate_core::{ChargeState, ErrorKind, StoreError};

use crate::{
    arguments::Arguments,
    config::SETUP_TIMEOUT,
    failure::{not_charged, without_connection},
    lane::{Asking, Client, Lane},
    redis_rs::{
        failure,
        stream::{self, Stream},
    },
    reply::Reply,
};

/// Calls that wait until the connection's task takes them up. More wait before it, and none is sent once its
/// caller has given up, so an outage cannot fill the memory.
const MAX_QUEUED: usize = 1_024;

/// A multiplexed connection, whose task is ours: it ends with the connection, and the connection with it.
pub(crate) struct RedisRsLane {
    client: RedisRsClient,
    task: JoinHandle<()>,
    useless: mpsc::Receiver<StoreError>,
}

/// What is sent to the task.
#[derive(Clone)]
pub(crate) struct RedisRsClient {
    connection: MultiplexedConnection,
    /// Where to tell that the server wants another login.
    useless: mpsc::Sender<StoreError>,
}

impl RedisRsLane {
    async fn log_in(user: &RedisConnectionInfo, stream: impl Stream) -> RedisResult<Self> {
        let config = AsyncConnectionConfig::new()
            // Each call has a deadline of its own.
            .set_response_timeout(None)
            .set_pipeline_buffer_size(MAX_QUEUED);
        let (connection, task) =
            MultiplexedConnection::new_with_config(user, stream, config).await?;
        let (complain, useless) = mpsc::channel(1);
        let lane = Self {
            client: RedisRsClient {
                connection,
                useless: complain,
            },
            task: tokio::spawn(task),
            useless,
        };
        // The library says nothing to the server if there is no password. Without a word from it, a black
        // hole would pass for a Redis.
        match lane.client.send(&cmd("PING")).await? {
            Value::ServerError(error) if wants_login(&error) => Err(error.into()),
            // Any other answer is one, also that the user may not ask this.
            _ => Ok(lane),
        }
    }
}

impl RedisRsClient {
    async fn send(&self, command: &Cmd) -> RedisResult<Value> {
        self.connection.clone().send_packed_command(command).await
    }

    /// The library writes a pipeline without anything in between.
    async fn send_after_asking(&self, command: Cmd) -> RedisResult<Value> {
        let mut both = pipe();
        both.cmd("ASKING").add_command(command);
        let mut connection = self.connection.clone();
        let last = connection.send_packed_commands(&both, 0, 2).await?.pop();
        last.ok_or_else(|| RedisError::from((RedisKind::UnexpectedReturnType, "no reply")))
    }

    fn refused(&self, error: &ServerError) -> StoreError {
        let failure = failure::of_server(error);
        if wants_login(error) {
            // One complaint is enough.
            let _ = self.useless.try_send(failure.clone());
        }
        failure
    }
}

// === impl RedisRsLane ===

impl Lane for RedisRsLane {
    type Client = RedisRsClient;

    async fn open(config: Config) -> Result<Self, StoreError> {
        let late = |_: Elapsed| without_connection(ErrorKind::Io, "Redis did not answer in time");
        let stream = timeout(SETUP_TIMEOUT, stream::open(&config)).await;
        let stream = stream.map_err(late)?.map_err(RedisError::from);
        let stream = stream.map_err(|error| failure::of_connection(&error))?;
        let lane = timeout(SETUP_TIMEOUT, Self::log_in(&user(&config), stream)).await;
        lane.map_err(late)?
            .map_err(|error| failure::of_connection(&error))
    }

    fn client(&self) -> &RedisRsClient {
        &self.client
    }

    async fn ended(&mut self) -> StoreError {
        tokio::select! {
            ended = &mut self.task => {
                let reason = match ended {
                    Ok(()) => "the connection was closed".to_owned(),
                    Err(broken) => format!("the connection's task ended: {broken}"),
                };
                without_connection(ErrorKind::Io, reason)
            }
            Some(error) = self.useless.recv() => error,
        }
    }
}

impl Drop for RedisRsLane {
    fn drop(&mut self) {
        // Clones of the client would keep it going.
        self.task.abort();
    }
}

impl Client for RedisRsClient {
    async fn evalsha(
        &self,
        args: Arguments,
        asking: Asking,
        patience: Duration,
    ) -> Result<Reply, StoreError> {
        let mut command = cmd("EVALSHA");
        for word in args.iter() {
            command.arg(word);
        }
        let reply = async {
            match asking {
                Asking::No => self.send(&command).await,
                Asking::Yes => self.send_after_asking(command).await,
            }
        };
        match timeout(patience, reply).await {
            Ok(Ok(Value::ServerError(error))) => Err(self.refused(&error)),
            Ok(Ok(value)) => Ok(read(value)),
            Ok(Err(error)) => Err(failure::of_call(&error)),
            Err(_) => Err(StoreError::new(
                ErrorKind::Timeout,
                ChargeState::Unknown,
                "no answer within the deadline",
            )),
        }
    }

    async fn script_load(&self, source: &str) -> Result<(), StoreError> {
        let mut command = cmd("SCRIPT");
        command.arg("LOAD").arg(source);
        match timeout(SETUP_TIMEOUT, self.send(&command)).await {
            Ok(Ok(Value::ServerError(error))) => Err(self.refused(&error)),
            Ok(Ok(_)) => Ok(()),
            Ok(Err(error)) => Err(not_charged(
                failure::of_call(&error).kind(),
                error.to_string(),
            )),
            Err(_) => Err(not_charged(ErrorKind::Timeout, "no answer within a second")),
        }
    }

    async fn ask(
        &self,
        command: &'static str,
        args: Vec<String>,
        patience: Duration,
    ) -> Result<Reply, StoreError> {
        let mut command = cmd(command);
        command.arg(args);
        match timeout(patience, self.send(&command)).await {
            Ok(Ok(Value::ServerError(error))) => Err(self.refused(&error)),
            Ok(Ok(value)) => Ok(read(value)),
            Ok(Err(error)) => Err(failure::of_connection(&error)),
            Err(_) => Err(without_connection(ErrorKind::Io, "no answer in time")),
        }
    }
}

/// As whom to log in, and to what.
fn user(config: &Config) -> RedisConnectionInfo {
    let mut user = RedisConnectionInfo::default()
        // It is another command that the user on the server would need a permission for.
        .set_skip_set_lib_name()
        .set_protocol(match config.version {
            RespVersion::RESP2 => ProtocolVersion::RESP2,
            RespVersion::RESP3 => ProtocolVersion::RESP3,
        })
        .set_db(config.database.unwrap_or_default().into());
    if let Some(password) = &config.password {
        // A server without a password takes any for this user, but refuses one that comes without a name: fred gets
        // over that refusal, and version 3 of the protocol always names the user.
        let name = config.username.as_deref().unwrap_or("default");
        user = user.set_username(name).set_password(password);
    }
    user
}

/// Whether the server wants to know again who asks, as after its password was changed.
fn wants_login(error: &ServerError) -> bool {
    error.code() == "NOAUTH"
}

fn read(reply: Value) -> Reply {
    match reply {
        Value::Int(number) => Reply::Number(number),
        Value::Array(values) => Reply::List(values.into_iter().map(read).collect()),
        Value::SimpleString(text) | Value::VerbatimString { text, .. } => Reply::Text(text),
        Value::BulkString(bytes) => String::from_utf8(bytes).map_or(Reply::Odd, Reply::Text),
        _ => Reply::Odd,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_texts_and_lists_of_them_are_read() {
        let one = || Value::Int(1);
        let text = || Reply::Text("a".to_owned());
        assert_eq!(read(one()), Reply::Number(1));
        let values = vec![
            one(),
            Value::BulkString(b"a".to_vec()),
            Value::SimpleString("a".to_owned()),
            Value::Array(vec![one()]),
            Value::Nil,
        ];
        let inner = Reply::List(vec![Reply::Number(1)]);
        assert_eq!(
            read(Value::Array(values)),
            Reply::List(vec![Reply::Number(1), text(), text(), inner, Reply::Odd])
        );
        for odd in [
            Value::Nil,
            Value::Okay,
            Value::Double(1.0),
            Value::BulkString(vec![0xff]),
        ] {
            assert_eq!(read(odd), Reply::Odd);
        }
    }

    #[test]
    fn the_settings_say_as_whom() {
        let user = user(&Config {
            username: Some("user".to_owned()),
            password: Some("p@ss".to_owned()),
            database: Some(3),
            ..Config::default()
        });
        assert_eq!(
            (user.username(), user.password(), user.db()),
            (Some("user"), Some("p@ss"), 3)
        );
    }

    #[test]
    fn without_a_password_nobody_logs_in() {
        let user = user(&Config::default());
        assert_eq!((user.username(), user.password()), (None, None));
    }
}
