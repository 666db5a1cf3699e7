//! A lane of redis-rs's.

use std::{io, time::Duration};

use fred::types::config::Config as FredConfig;
use redis::{
    AsyncConnectionConfig, Cmd, RedisConnectionInfo, RedisError, RedisResult, ServerError, Value,
    aio::MultiplexedConnection, cmd,
};
use socket2::SockRef;
use tokio::{
    net::TcpStream,
    sync::mpsc,
    task::JoinHandle,
    time::{error::Elapsed, timeout},
};
use tollgate_core::{ChargeState, ErrorKind, StoreError};

use crate::{
    config::{self, SETUP_TIMEOUT},
    failure::{not_charged, without_connection},
    lane::{Client, Lane},
    redis_rs::failure,
    reply::Reply,
};

/// Calls that wait until the connection's task takes them up. More wait before it, and none is sent once its
/// caller has given up, so an outage cannot fill the memory.
const MAX_QUEUED: usize = 1_024;

/// Where a connection leads, and as whom.
#[derive(Clone)]
pub(crate) struct Target {
    host: String,
    port: u16,
    user: RedisConnectionInfo,
}

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

impl Target {
    pub(crate) fn new(config: &FredConfig) -> Self {
        let hosts = config.server.hosts();
        let server = &hosts[0];
        let mut user = RedisConnectionInfo::default()
            // It is another command that the user on the server would need a permission for.
            .set_skip_set_lib_name()
            .set_db(config.database.unwrap_or_default().into());
        if let Some(name) = &config.username {
            user = user.set_username(name);
        }
        if let Some(password) = &config.password {
            user = user.set_password(password);
        }
        Self {
            // An IPv6 address stands in brackets in a URL, and nowhere else.
            host: server.host.trim_matches(['[', ']']).to_owned(),
            port: server.port,
            user,
        }
    }

    async fn connect(&self) -> io::Result<TcpStream> {
        let stream = TcpStream::connect((self.host.as_str(), self.port)).await?;
        // Calls are gathered by the task; what it writes is not to wait for more.
        stream.set_nodelay(true)?;
        let socket = SockRef::from(&stream);
        socket.set_tcp_keepalive(&config::keepalive())?;
        #[cfg(target_os = "linux")]
        socket.set_tcp_user_timeout(Some(config::USER_TIMEOUT))?;
        Ok(stream)
    }

    async fn log_in(&self, stream: TcpStream) -> RedisResult<RedisRsLane> {
        let config = AsyncConnectionConfig::new()
            // Each call has a deadline of its own.
            .set_response_timeout(None)
            .set_pipeline_buffer_size(MAX_QUEUED);
        let (connection, task) =
            MultiplexedConnection::new_with_config(&self.user, stream, config).await?;
        let (complain, useless) = mpsc::channel(1);
        let lane = RedisRsLane {
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
    type Config = Target;

    async fn open(target: Target) -> Result<Self, StoreError> {
        let late = |_: Elapsed| without_connection(ErrorKind::Io, "Redis did not answer in time");
        let stream = timeout(SETUP_TIMEOUT, target.connect()).await;
        let stream = stream.map_err(late)?.map_err(RedisError::from);
        let stream = stream.map_err(|error| failure::of_connection(&error))?;
        let lane = timeout(SETUP_TIMEOUT, target.log_in(stream)).await;
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
    async fn evalsha(&self, args: Vec<String>, patience: Duration) -> Result<Reply, StoreError> {
        let mut command = cmd("EVALSHA");
        command.arg(args);
        match timeout(patience, self.send(&command)).await {
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

    async fn script_load(&self, source: &'static str) -> Result<(), StoreError> {
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
}

/// Whether the server wants to know again who asks, as after its password was changed.
fn wants_login(error: &ServerError) -> bool {
    error.code() == "NOAUTH"
}

fn read(reply: Value) -> Reply {
    let number = |value| match value {
        Value::Int(number) => Some(number),
        _ => None,
    };
    match reply {
        Value::Array(values) => {
            let numbers: Option<_> = values.into_iter().map(number).collect();
            numbers.map_or(Reply::Odd, Reply::Numbers)
        }
        value => number(value).map_or(Reply::Odd, Reply::Number),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_whole_numbers_are_read() {
        let one = || Value::Int(1);
        assert_eq!(read(one()), Reply::Number(1));
        let numbers = Value::Array(vec![one(), Value::Int(-1)]);
        assert_eq!(read(numbers), Reply::Numbers(vec![1, -1]));
        for odd in [
            Value::Nil,
            Value::Okay,
            Value::Array(vec![one(), Value::Nil]),
            Value::Array(vec![one(), Value::Double(1.0)]),
            Value::Array(vec![one(), Value::Array(vec![one()])]),
        ] {
            assert_eq!(read(odd), Reply::Odd);
        }
    }

    #[test]
    fn a_url_says_where_and_as_whom() {
        let config = config::parse("redis://user:p%40ss@[::1]:7000/3").expect("a good URL");
        let target = Target::new(&config);
        assert_eq!((target.host.as_str(), target.port), ("::1", 7000));
        let user = &target.user;
        assert_eq!(
            (user.username(), user.password(), user.db()),
            (Some("user"), Some("p@ss"), 3)
        );
    }
}
