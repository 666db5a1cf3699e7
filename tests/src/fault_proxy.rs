//! A network between a client and Redis that fails on demand.

use std::{
    collections::HashMap,
    net::{self, Ipv4Addr},
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    thread,
    time::Duration,
};

use tokio::{
    net::{TcpListener, TcpSocket},
    sync::watch,
};

use crate::{background::Background, resp::Commands};

mod connection;

use self::connection::Connection;

/// What a [`FaultProxy`] does.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Fault {
    /// Passes everything on.
    #[default]
    None,
    /// Passes replies on so much later. Their order and their distances stay as they are.
    DelayReplies(Duration),
    /// Requests reach Redis, replies wait until the mode changes.
    HoldReplies,
    /// Requests reach Redis, replies are lost. When the mode changes, connections that lost one are reset:
    /// what came next would be taken for the answer to something else.
    LoseReplies,
    /// Requests reach Redis; the first reply is cut off after a byte, and the connection is reset.
    CutReplies,
    /// Nothing passes in either direction and nothing is read. Connections stay open, new ones are accepted,
    /// and all go on when the mode changes.
    BlackHole,
    /// Connections are reset at once, also new ones.
    Reset,
    /// Connections are reset at once, and new ones are refused, as if nobody listened on the port.
    Refuse,
}

/// A TCP proxy on a free port of loopback in front of a Redis, in a thread of its own. Its behaviour can be
/// changed at any time, for connections that exist and for new ones.
#[derive(Debug)]
pub struct FaultProxy {
    port: u16,
    orders: watch::Sender<Orders>,
    seen: Arc<Seen>,
    _thread: Background,
}

/// What all connections are told.
#[derive(Clone, Copy, Debug, Default)]
struct Orders {
    fault: Fault,
    /// The Redis for new connections.
    target: u16,
    /// Connections with a lower number are silent for good.
    silent_below: u64,
    /// Connections with a lower number are reset.
    reset_below: u64,
    /// Counts the changes.
    version: u64,
}

/// What came from clients.
#[derive(Debug, Default)]
struct Seen {
    connections: Mutex<u64>,
    /// By name, in capitals.
    commands: Mutex<HashMap<String, u64>>,
    /// The version of the orders that new connections meet.
    applied: AtomicU64,
}

impl FaultProxy {
    /// A proxy in front of the Redis on `target` that passes everything on.
    #[must_use]
    pub fn start(target: u16) -> Self {
        Self::start_with(target, Fault::None)
    }

    /// A proxy that starts with a fault.
    ///
    /// # Panics
    ///
    /// If no port can be bound.
    #[must_use]
    pub fn start_with(target: u16, fault: Fault) -> Self {
        // Bound and never listening: keeps the port ours while connections are refused.
        let reserved = socket(0);
        let port = reserved.local_addr().expect("its address").port();
        let listener = (fault != Fault::Refuse).then(|| {
            // Not from within the thread: whoever starts a proxy can connect at once.
            let listener =
                net::TcpListener::bind((Ipv4Addr::LOCALHOST, port)).expect("our own port");
            listener.set_nonblocking(true).expect("a socket option");
            listener
        });
        let (orders, ordered) = watch::channel(Orders {
            fault,
            target,
            ..Orders::default()
        });
        let seen = Arc::new(Seen::default());
        let thread = Background::run({
            let seen = seen.clone();
            move || async move {
                let listener = listener.map(|it| TcpListener::from_std(it).expect("a socket"));
                accept(port, listener, ordered, seen).await;
                drop(reserved);
            }
        });
        Self {
            port,
            orders,
            seen,
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

    /// Does this from now on.
    pub fn set(&self, fault: Fault) {
        self.order(|orders| orders.fault = fault);
    }

    /// Leads new connections to the Redis on `target`. Existing ones stay where they are.
    pub fn retarget(&self, target: u16) {
        self.order(|orders| orders.target = target);
    }

    /// Lets the present connections fall silent for good, whatever the mode: open, but nothing passes, as
    /// after a firewall forgot them. New ones are not concerned.
    pub fn silence_present(&self) {
        let below = self.connections() + 1;
        self.order(|orders| orders.silent_below = below);
    }

    /// Resets the present connections. New ones are not concerned.
    pub fn reset_present(&self) {
        let below = self.connections() + 1;
        self.order(|orders| orders.reset_below = below);
    }

    /// Returns once nothing happens any more by the orders from before.
    ///
    /// # Panics
    ///
    /// If the proxy's thread has.
    fn order(&self, change: impl FnOnce(&mut Orders)) {
        self.orders.send_modify(|orders| {
            change(orders);
            orders.version += 1;
        });
        let version = self.orders.borrow().version;
        while self.seen.applied.load(Ordering::SeqCst) < version {
            assert!(
                self.orders.receiver_count() > 0,
                "the proxy's thread has ended"
            );
            thread::sleep(Duration::from_micros(50));
        }
    }

    /// How many connections were accepted.
    #[must_use]
    pub fn connections(&self) -> u64 {
        *self
            .seen
            .connections
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    /// How many commands of this name clients have sent, such as `"EVALSHA"`. While nothing is read, as in a
    /// black hole, nothing is counted.
    #[must_use]
    pub fn commands(&self, name: &str) -> u64 {
        let commands = self.seen.commands();
        commands
            .get(&name.to_ascii_uppercase())
            .copied()
            .unwrap_or(0)
    }

    /// How many commands clients have sent, whatever their names.
    #[must_use]
    pub fn requests(&self) -> u64 {
        self.seen.commands().values().sum()
    }
}

async fn accept(
    port: u16,
    mut listener: Option<TcpListener>,
    mut ordered: watch::Receiver<Orders>,
    seen: Arc<Seen>,
) {
    loop {
        let orders = *ordered.borrow_and_update();
        let refuses = orders.fault == Fault::Refuse;
        if refuses {
            listener = None;
        } else if listener.is_none() {
            listener = Some(socket(port).listen(1_024).expect("our own port"));
        }
        seen.applied.store(orders.version, Ordering::SeqCst);
        let Some(listener) = &listener else {
            if ordered.changed().await.is_err() {
                return;
            }
            continue;
        };
        tokio::select! {
            biased;
            changed = ordered.changed() => if changed.is_err() { return },
            accepted = listener.accept() => {
                let (client, _) = accepted.expect("a connection");
                let connection = Connection::new(seen.connection(), client, seen.clone());
                tokio::spawn(connection.run(ordered.clone()));
            }
        }
    }
}

/// Bound, and not listening yet. Another may be bound to the same port, as long as it does not listen.
fn socket(port: u16) -> TcpSocket {
    let socket = TcpSocket::new_v4().expect("a socket");
    socket.set_reuseaddr(true).expect("a socket option");
    let bound = socket.bind((Ipv4Addr::LOCALHOST, port).into());
    bound.expect("a port");
    socket
}

// === impl Seen ===

impl Seen {
    fn connection(&self) -> u64 {
        let mut connections = self
            .connections
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        *connections += 1;
        *connections
    }

    fn count(&self, commands: &mut Commands) {
        for command in commands {
            let name = command
                .first()
                .map(|name| String::from_utf8_lossy(name).to_ascii_uppercase());
            *self.commands().entry(name.unwrap_or_default()).or_default() += 1;
        }
    }

    fn commands(&self) -> MutexGuard<'_, HashMap<String, u64>> {
        self.commands.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests;
