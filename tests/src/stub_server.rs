//! A Redis that answers every script call in one way.

use std::{
    net::{self, Ipv4Addr},
    sync::{Arc, Mutex, PoisonError},
};

use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
};

use crate::{background::Background, resp::Commands};

/// What a [`StubServer`] answers to each `EVALSHA`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    /// The request is granted, and each bucket has so many tokens left.
    Granted(u64),
    /// An error reply, such as `OOM command not allowed when used memory > 'maxmemory'.`
    Error(String),
    /// These bytes.
    Raw(Vec<u8>),
    /// Nothing.
    Silence,
}

/// A server on a free port of loopback, in a thread of its own, that shakes hands as Redis does, loads any
/// script, and answers each `EVALSHA` in one way, which can be changed at any time.
#[derive(Debug)]
pub struct StubServer {
    port: u16,
    state: Arc<Mutex<State>>,
    _thread: Background,
}

#[derive(Debug)]
struct State {
    answer: Answer,
    calls: u64,
    /// The port that it names when it is asked as a sentinel.
    primary: Option<u16>,
}

impl StubServer {
    /// A server that gives this answer.
    ///
    /// # Panics
    ///
    /// If no port can be bound.
    #[must_use]
    pub fn start(answer: Answer) -> Self {
        let listener = net::TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a free port");
        listener.set_nonblocking(true).expect("a socket option");
        let port = listener.local_addr().expect("its address").port();
        let state = Arc::new(Mutex::new(State {
            answer,
            calls: 0,
            primary: None,
        }));
        let thread = Background::run({
            let state = state.clone();
            move || async move {
                let listener = TcpListener::from_std(listener).expect("a socket");
                loop {
                    let (client, _) = listener.accept().await.expect("a connection");
                    tokio::spawn(serve(client, state.clone()));
                }
            }
        });
        Self {
            port,
            state,
            _thread: thread,
        }
    }

    /// The port it listens on.
    #[must_use]
    pub const fn port(&self) -> u16 {
        self.port
    }

    /// `redis://127.0.0.1:<port>`.
    #[must_use]
    pub fn url(&self) -> String {
        format!("redis://127.0.0.1:{}", self.port)
    }

    /// Gives this answer from now on.
    pub fn set(&self, answer: Answer) {
        self.state
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .answer = answer;
    }

    /// Names the server on this port of loopback as the primary from now on, whatever the name, when it is asked
    /// as a sentinel.
    pub fn name_primary(&self, port: u16) {
        self.state
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .primary = Some(port);
    }

    /// How many `EVALSHA` came.
    #[must_use]
    pub fn calls(&self) -> u64 {
        self.state
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .calls
    }
}

async fn serve(mut client: TcpStream, state: Arc<Mutex<State>>) {
    // As Redis does: a reply does not wait for the one before it to be acknowledged.
    let _ = client.set_nodelay(true);
    let mut commands = Commands::default();
    let mut bytes = vec![0; 16 * 1024];
    while let Ok(length @ 1..) = client.read(&mut bytes).await {
        commands.feed(&bytes[..length]);
        let mut replies = Vec::new();
        for command in commands.by_ref() {
            let words: Vec<_> = command
                .iter()
                .map(|word| String::from_utf8_lossy(word).to_ascii_uppercase())
                .collect();
            let words: Vec<_> = words.iter().map(String::as_str).collect();
            replies.extend(reply(&words, &state));
        }
        if client.write_all(&replies).await.is_err() {
            return;
        }
    }
}

fn reply(command: &[&str], state: &Mutex<State>) -> Vec<u8> {
    match command {
        ["EVALSHA", _, keys, ..] => {
            let mut state = state.lock().unwrap_or_else(PoisonError::into_inner);
            state.calls += 1;
            state.answer.to_bytes(keys.parse().unwrap_or(0))
        }
        ["SENTINEL", "GET-MASTER-ADDR-BY-NAME", _] => {
            let state = state.lock().unwrap_or_else(PoisonError::into_inner);
            state.primary.map_or_else(
                || b"*-1\r\n".to_vec(),
                |port| [&b"*2\r\n"[..], &bulk("127.0.0.1"), &bulk(&port.to_string())].concat(),
            )
        }
        ["HELLO", "3", ..] => hello("%7"),
        ["HELLO", ..] => hello("*14"),
        ["PING", ..] => b"+PONG\r\n".to_vec(),
        ["INFO", ..] => bulk("# Server\r\nredis_version:7.0.15\r\nredis_mode:standalone\r\n"),
        ["SCRIPT", "LOAD", _] => bulk(&"0".repeat(40)),
        ["CLIENT", "ID"] => b":1\r\n".to_vec(),
        ["AUTH" | "CLIENT" | "SELECT" | "QUIT", ..] => b"+OK\r\n".to_vec(),
        _ => b"-ERR unknown command\r\n".to_vec(),
    }
}

fn hello(start: &str) -> Vec<u8> {
    let proto = if start == "%7" { 3 } else { 2 };
    format!(
        "{start}\r\n+server\r\n+redis\r\n+version\r\n+7.0.15\r\n+proto\r\n:{proto}\r\n+id\r\n:1\r\n\
         +mode\r\n+standalone\r\n+role\r\n+master\r\n+modules\r\n*0\r\n"
    )
    .into_bytes()
}

fn bulk(text: &str) -> Vec<u8> {
    format!("${}\r\n{text}\r\n", text.len()).into_bytes()
}

// === impl Answer ===

impl Answer {
    fn to_bytes(&self, keys: usize) -> Vec<u8> {
        match self {
            Self::Granted(remaining) => {
                let state = format!(":{remaining}\r\n:0\r\n").repeat(keys);
                format!("*{}\r\n:1\r\n{state}", 1 + 2 * keys).into_bytes()
            }
            Self::Error(error) => format!("-{error}\r\n").into_bytes(),
            Self::Raw(bytes) => bytes.clone(),
            Self::Silence => Vec::new(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_shakes_hands_and_then_answers_as_told() {
        let stub = StubServer::start(Answer::Granted(7));
        let client = redis::Client::open(stub.url()).expect("a URL");
        let mut connection = client.get_connection().expect("a handshake");
        let mut call = || {
            let mut command = redis::cmd("EVALSHA");
            command.arg("0".repeat(40)).arg(1).arg("key").arg("10 1 1");
            command.query::<Vec<i64>>(&mut connection)
        };
        assert_eq!(call().expect("a grant"), [1, 7, 0]);
        stub.set(Answer::Error("OOM command not allowed".to_owned()));
        assert_eq!(call().expect_err("an error").code(), Some("OOM"));
        stub.set(Answer::Raw(b":1\r\n".to_vec()));
        assert!(call().is_err());
        assert_eq!(stub.calls(), 3);
    }
}
