//! A lane of fred's.

use std::time::Duration;

use fred::{
    clients,
    error::{Error, ErrorKind},
    interfaces::{ClientLike, LuaInterface},
    types::{ClusterHash, ConnectHandle, CustomCommand, Value, config::Config},
};
use tokio::time::sleep;
use tollgate_core::StoreError;

use crate::{
    config, fred_failure as failure,
    lane::{Client, Lane},
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
    type Config = Config;

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
    async fn evalsha(&self, args: Vec<String>, patience: Duration) -> Result<Reply, StoreError> {
        let client = self.with_options(&config::call_options(patience));
        // Not fred's `evalsha`: a client with options does not have it, but derefs to one without options
        // that does, and so would wait in the queue of a lost connection.
        let evalsha = CustomCommand::new_static("EVALSHA", ClusterHash::Random, false);
        let reply = client.custom(evalsha, args).await;
        reply.map(read).map_err(|error| failure::of_call(&error))
    }

    async fn script_load(&self, source: &'static str) -> Result<(), StoreError> {
        let loaded = LuaInterface::script_load(self, source).await;
        loaded.map_err(|error| failure::while_loading(&error))
    }
}

fn read(reply: Value) -> Reply {
    let number = |value| match value {
        Value::Integer(number) => Some(number),
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

    #[tokio::test]
    async fn a_client_whose_task_panics_has_ended() {
        let config = config::parse("redis://127.0.0.1:1").expect("a good URL");
        let mut lane = FredLane {
            client: config::client(config).expect("a client"),
            task: tokio::spawn(async { panic!("expected by the test") }),
        };
        let error = lane.ended().await;
        assert!(error.to_string().contains("panic"), "{error}");
    }

    #[test]
    fn only_whole_numbers_are_read() {
        let one = || Value::Integer(1);
        assert_eq!(read(one()), Reply::Number(1));
        let numbers = Value::Array(vec![one(), Value::Integer(-1)]);
        assert_eq!(read(numbers), Reply::Numbers(vec![1, -1]));
        for odd in [
            Value::Null,
            Value::String("OK".into()),
            Value::Array(vec![one(), Value::Null]),
            Value::Array(vec![one(), Value::Double(1.0)]),
            Value::Array(vec![one(), Value::Array(vec![one()])]),
        ] {
            assert_eq!(read(odd), Reply::Odd);
        }
    }
}
