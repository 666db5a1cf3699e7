//! The connection of the moment, and whoever looks after it.

use std::time::Duration;

use tokio::{
    runtime::Handle,
    sync::{mpsc, watch},
    task::{AbortHandle, coop::consume_budget},
    time::{Instant, timeout, timeout_at},
};
use tollgate_core::{ChargeState, ErrorKind, StoreError};

use crate::{lane::Lane, supervisor::Supervisor, target::Target};

/// One connection after the other, each with a client of its own.
///
/// The libraries' ways to reconnect are not used: fred's may replay what was in flight, queue calls while it
/// is away, wait for ever on a peer that is silent, or stop trying without a word. So a client ends with its
/// connection, and a supervisor builds the next one, with the same settings. Dropping this value ends the
/// supervisor and closes what is open.
pub(crate) struct Connection<L: Lane> {
    current: watch::Receiver<Current<L::Client>>,
    complaints: mpsc::Sender<Complaint>,
    supervisor: AbortHandle,
}

/// What calls are to use now.
#[derive(Clone)]
pub(crate) struct Current<C> {
    /// Tells connections apart.
    pub(crate) number: u64,
    /// The client, or why there is none.
    pub(crate) client: Result<C, StoreError>,
    /// Whether one is being connected at this moment.
    pub(crate) connecting: bool,
}

/// A connection that is up, and of no use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Complaint {
    pub(crate) number: u64,
    pub(crate) fault: Fault,
}

/// Why a connection is of no use although it is up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    /// Nothing comes back.
    Silent,
    /// The server has become a replica. Behind the same name, a new connection may lead to the new primary.
    ReadOnly,
    /// The sentinels name another primary.
    Replaced,
}

impl<L: Lane> Connection<L> {
    /// Starts to connect, and never stops.
    pub(crate) fn start(target: Target, address: String, runtime: &Handle) -> Self {
        let none = StoreError::new(
            ErrorKind::Io,
            ChargeState::NotCharged,
            "not yet connected to Redis",
        );
        let (publish, current) = watch::channel(Current {
            number: 0,
            client: Err(none),
            connecting: true,
        });
        // More complaints than one about the same connection say nothing new.
        let (complaints, heard) = mpsc::channel(1);
        let supervisor = Supervisor::<L>::new(target, address, publish, heard);
        Self {
            current,
            complaints,
            supervisor: runtime.spawn(supervisor.run()).abort_handle(),
        }
    }

    pub(crate) fn current(&self) -> Current<L::Client> {
        self.current.borrow().clone()
    }

    /// What to use now; while a connection is being made, what comes of that, as far as it is there by the
    /// deadline. So a connection that is lost and made again within milliseconds fails nobody, and between
    /// two attempts nobody waits.
    pub(crate) async fn settled(&self, deadline: Instant) -> Current<L::Client> {
        let is_settled = |now: &Current<_>| now.client.is_ok() || !now.connecting;
        let current = self.current();
        if is_settled(&current) {
            // A caller that asks again and again would not let the runtime connect.
            consume_budget().await;
            return current;
        }
        let mut changes = self.current.clone();
        let _ = timeout_at(deadline, changes.wait_for(is_settled)).await;
        self.current()
    }

    /// Waits until there is a connection.
    ///
    /// # Errors
    ///
    /// If there is none within `patience`; with the latest reason.
    pub(crate) async fn wait(&self, patience: Duration) -> Result<(), StoreError> {
        let mut current = self.current.clone();
        // Whatever ends the wait, the state says how it went.
        let _ = timeout(patience, current.wait_for(|now| now.client.is_ok())).await;
        self.current().client.map(drop)
    }

    /// Where to complain about the present connection. Complaints about former ones are not heard.
    pub(crate) fn complaints(&self) -> mpsc::Sender<Complaint> {
        self.complaints.clone()
    }
}

// === impl Connection ===

impl<L: Lane> Drop for Connection<L> {
    fn drop(&mut self) {
        self.supervisor.abort();
    }
}
