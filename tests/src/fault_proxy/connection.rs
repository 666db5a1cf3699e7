//! One connection through the proxy.

use std::{collections::VecDeque, future::pending, net::Ipv4Addr, sync::Arc, time::Duration};

use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
    sync::watch,
    time::{Instant, sleep_until},
};

use super::{Fault, Orders, Seen};
use crate::resp::Commands;

const CHUNK: usize = 16 * 1024;

pub(super) struct Connection {
    number: u64,
    client: TcpStream,
    seen: Arc<Seen>,
    commands: Commands,
    /// Requests that have been read and not passed on.
    requests: Vec<u8>,
    /// Replies that are on their way, and when they came.
    replies: VecDeque<(Instant, Vec<u8>)>,
    has_lost_replies: bool,
}

/// Why a connection ends.
enum End {
    /// In order.
    Close,
    /// By RST, to the client and to Redis.
    Reset,
}

impl Connection {
    pub(super) fn new(number: u64, client: TcpStream, seen: Arc<Seen>) -> Self {
        Self {
            number,
            client,
            seen,
            commands: Commands::default(),
            requests: Vec::new(),
            replies: VecDeque::new(),
            has_lost_replies: false,
        }
    }

    pub(super) async fn run(mut self, mut ordered: watch::Receiver<Orders>) {
        let mut server = None;
        if matches!(self.pass(&mut server, &mut ordered).await, End::Reset) {
            // An error means that it is closed already.
            for stream in [Some(self.client), server].into_iter().flatten() {
                let _ = stream.set_zero_linger();
            }
        }
    }

    async fn pass(
        &mut self,
        server: &mut Option<TcpStream>,
        ordered: &mut watch::Receiver<Orders>,
    ) -> End {
        let _ = self.client.set_nodelay(true);
        let mut from_client = vec![0; CHUNK];
        let mut from_server = vec![0; CHUNK];
        loop {
            let orders = *ordered.borrow_and_update();
            let fault = orders.fault;
            if matches!(fault, Fault::Reset | Fault::Refuse) || self.number < orders.reset_below {
                return End::Reset;
            }
            if fault == Fault::BlackHole || self.number < orders.silent_below {
                if ordered.changed().await.is_err() {
                    return End::Close;
                }
                continue;
            }
            if self.has_lost_replies && fault != Fault::LoseReplies {
                return End::Reset;
            }
            let server = if let Some(server) = server {
                server
            } else {
                let connected = TcpStream::connect((Ipv4Addr::LOCALHOST, orders.target)).await;
                // Behind a proxy, a server that is away looks like this.
                let Ok(connected) = connected else {
                    return End::Reset;
                };
                let _ = connected.set_nodelay(true);
                server.insert(connected)
            };
            // Here, so that orders that came before these bytes hold for them.
            if !self.requests.is_empty() {
                self.commands.feed(&self.requests);
                self.seen.count(&mut self.commands);
                if server.write_all(&self.requests).await.is_err() {
                    return End::Reset;
                }
                self.requests.clear();
            }
            let due = self.next_due(fault);
            tokio::select! {
                biased;
                changed = ordered.changed() => if changed.is_err() { return End::Close },
                read = self.client.read(&mut from_client) => match read {
                    Ok(0) => return End::Close,
                    Ok(length) => self.requests.extend_from_slice(&from_client[..length]),
                    Err(_) => return End::Reset,
                },
                read = server.read(&mut from_server) => match read {
                    Ok(0) => return End::Close,
                    Ok(length) => {
                        if self.reply(fault, &from_server[..length]).await.is_err() {
                            return End::Reset;
                        }
                    }
                    Err(_) => return End::Reset,
                },
                () = wait_until(due) => {
                    let (_, reply) = self.replies.pop_front().expect("one is due");
                    if self.client.write_all(&reply).await.is_err() {
                        return End::Reset;
                    }
                }
            }
        }
    }

    /// Takes a reply from Redis. An error ends the connection.
    async fn reply(&mut self, fault: Fault, reply: &[u8]) -> Result<(), ()> {
        match fault {
            Fault::LoseReplies => self.has_lost_replies = true,
            Fault::CutReplies => {
                let _ = self.client.write_all(&reply[..1]).await;
                // Otherwise the reset overtakes the byte.
                tokio::time::sleep(Duration::from_millis(1)).await;
                return Err(());
            }
            _ => self.replies.push_back((Instant::now(), reply.to_vec())),
        }
        Ok(())
    }

    /// When the next reply goes to the client, if one does.
    fn next_due(&self, fault: Fault) -> Option<Instant> {
        let (came, _) = self.replies.front()?;
        match fault {
            Fault::HoldReplies | Fault::LoseReplies => None,
            Fault::DelayReplies(delay) => Some(*came + delay),
            _ => Some(*came),
        }
    }
}

async fn wait_until(due: Option<Instant>) {
    match due {
        Some(due) => sleep_until(due).await,
        None => pending().await,
    }
}
