//! A lane of fred's.

use std::time::Duration;

use fred::{
    bytes::Bytes,
    clients,
    error::{Error, ErrorKind},
    interfaces::{ClientLike, LuaInterface, Resp3Frame},
    types::{
        ClusterHash, ConnectHandle, CustomCommand, Value,
        config::{Config, Options},
    },
};
use tokio::time::sleep;
use tollgate_core::StoreError;

use crate::{
    arguments::Arguments,
    config, fred_failure as failure,
    lane::{Asking, Client, Lane},
    reply::Reply,
};

/// How often to look whether the client is connected.
const GLANCE: Duration = Duration::from_millis(2);

/// A client with one connection in its life.
#[derive(Debug)]
pub(crate) struct FredLane {
    client: clients::Client,
    /// fred's task: the connection lives in it.
    task: ConnectHandle,
}

impl FredLane {
    async fn closed(&mut self) -> Error {
        match (&mut self.task).await {
            Ok(Err(error)) => error,
            Ok(Ok(())) => Error::new(ErrorKind::IO, "the connection was closed"),
            Err(broken) => Error::new(
                ErrorKind::Unknown,
                format!("the client's task ended: {broken}"),
            ),
        }
    }
}

// === impl FredLane ===

impl Lane for FredLane {
    type Client = clients::Client;

    async fn open(config: Config) -> Result<Self, StoreError> {
        let client = config::client(config).map_err(|error| failure::of_connection(&error))?;
        let mut lane = Self {
            task: client.connect(),
            client,
        };
        // fred tells the event only to those who waited before, and drops it if it comes in between.
        while !lane.client.is_connected() {
            tokio::select! {
                error = lane.ended() => return Err(error),
                () = sleep(GLANCE) => {}
            }
        }
        Ok(lane)
    }

    fn client(&self) -> &clients::Client {
        &self.client
    }

    async fn ended(&mut self) -> StoreError {
        failure::of_connection(&self.closed().await)
    }
}

impl Drop for FredLane {
    fn drop(&mut self) {
        // fred's task holds a client of its own, so it would go on for ever.
        self.task.abort();
    }
}

impl Client for clients::Client {
    async fn evalsha(
        &self,
        args: Arguments,
        asking: Asking,
        patience: Duration,
    ) -> Result<Reply, StoreError> {
        let options = config::call_options(patience);
        // Not fred's `evalsha`: a client with options does not have it, but derefs to one without options
        // that does, and so would wait in the queue of a lost connection.
        let evalsha = custom("EVALSHA");
        let args = args.into_bytes().collect();
        let reply = match asking {
            Asking::No => {
                let client = self.with_options(&options);
                // What it makes of a reply on the way to values of its own is not needed.
                client.custom_raw(evalsha, args).await.and_then(read_raw)
            }
            // Rare, and a future that is much larger.
            Asking::Yes => Box::pin(after_asking(self, &options, evalsha, args))
                .await
                .map(read),
        };
        reply.map_err(|error| failure::of_call(&error))
    }

    async fn script_load(&self, source: &str) -> Result<(), StoreError> {
        let loaded = LuaInterface::script_load(self, source.to_owned()).await;
        loaded.map_err(|error| failure::while_loading(&error))
    }

    async fn ask(
        &self,
        command: &'static str,
        args: Vec<String>,
        patience: Duration,
    ) -> Result<Reply, StoreError> {
        let client = self.with_options(&config::call_options(patience));
        let reply = client.custom(custom(command), args).await;
        reply
            .map(read)
            .map_err(|error| failure::of_connection(&error))
    }
}

fn custom(name: &'static str) -> CustomCommand {
    CustomCommand::new_static(name, ClusterHash::Random, false)
}

/// fred writes a pipeline without anything in between.
async fn after_asking(
    client: &clients::Client,
    options: &Options,
    command: CustomCommand,
    args: Vec<Bytes>,
) -> Result<Value, Error> {
    let pipeline = client.pipeline();
    let both = pipeline.with_options(options);
    let no_args = Vec::<String>::new();
    // The replies come at the end; until then, all that there is to know is that it has a place.
    both.custom::<Value, _>(custom("ASKING"), no_args).await?;
    both.custom::<Value, _>(command, args).await?;
    let last = pipeline.try_all::<Value>().await.pop();
    last.unwrap_or_else(|| Err(Error::new(ErrorKind::Protocol, "no reply")))
}

/// Reads what came from the server.
///
/// # Errors
///
/// If it is an error.
fn read_raw(reply: Resp3Frame) -> Result<Reply, Error> {
    match reply {
        Resp3Frame::Number { data, .. } => Ok(Reply::Number(data)),
        Resp3Frame::Array { data, .. } => {
            let replies = data.into_iter().map(read_raw);
            Ok(Reply::List(replies.collect::<Result<_, _>>()?))
        }
        other => Value::try_from(other).map(read),
    }
}

fn read(reply: Value) -> Reply {
    match reply {
        Value::Integer(number) => Reply::Number(number),
        Value::Array(values) => Reply::List(values.into_iter().map(read).collect()),
        Value::String(text) => Reply::Text(text.to_string()),
        _ => Reply::Odd,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_client_whose_task_panics_has_ended() {
        let config = Config::default();
        let mut lane = FredLane {
            client: config::client(config).expect("a client"),
            task: tokio::spawn(async { panic!("expected by the test") }),
        };
        let error = lane.ended().await;
        assert!(error.to_string().contains("panic"), "{error}");
    }

    #[test]
    fn numbers_texts_and_lists_of_them_are_read() {
        let one = || Value::Integer(1);
        assert_eq!(read(one()), Reply::Number(1));
        let values = vec![
            one(),
            Value::String("a".into()),
            Value::Array(vec![one()]),
            Value::Null,
        ];
        let text = Reply::Text("a".to_owned());
        let inner = Reply::List(vec![Reply::Number(1)]);
        assert_eq!(
            read(Value::Array(values)),
            Reply::List(vec![Reply::Number(1), text, inner, Reply::Odd])
        );
        for odd in [Value::Null, Value::Double(1.0), Value::Boolean(true)] {
            assert_eq!(read(odd), Reply::Odd);
        }
    }
}
