//! The connections of the moment to one server, and whoever looks after them.

use std::{
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use tokio::{
    runtime::Handle,
    sync::{mpsc, watch},
    task::{AbortHandle, coop::consume_budget},
    time::{Instant, timeout, timeout_at},
};
use tollgate_core::{ChargeState, ErrorKind, StoreError};

use crate::{journal::Journal, lane::Lane, supervisor::Supervisor, target::Target};

/// Connections side by side, in each place one after the other, each with a client of its own.
///
/// The libraries' ways to reconnect are not used: fred's may replay what was in flight, queue calls while it
/// is away, wait for ever on a peer that is silent, or stop trying without a word. So a client ends with its
/// connection, and a supervisor for each place builds the next one, with the same settings. Dropping this
/// value ends the supervisors and closes what is open.
pub(crate) struct Connections<L: Lane> {
    /// One for each place.
    current: watch::Receiver<Box<[Current<L::Client>]>>,
    complaints: Box<[mpsc::Sender<Complaint>]>,
    supervisors: Box<[AbortHandle]>,
    /// Counts the calls, which take turns.
    turn: AtomicUsize,
}

/// What a call is to use now.
#[derive(Clone)]
pub(crate) struct Current<C> {
    /// Which of the connections side by side it is, from 0.
    pub(crate) place: usize,
    /// Tells connections in the same place apart.
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

impl<L: Lane> Connections<L> {
    /// Starts to make as many as `number`, and never stops.
    pub(crate) fn start(target: &Target, address: String, number: u8, runtime: &Handle) -> Self {
        let none = StoreError::new(
            ErrorKind::Io,
            ChargeState::NotCharged,
            "not yet connected to Redis",
        );
        let places = 0..usize::from(number);
        let first = |place| Current {
            place,
            number: 0,
            client: Err(none.clone()),
            connecting: true,
        };
        let (publish, current) = watch::channel(places.clone().map(first).collect());
        // They are about the same server, and so are the lines in the log.
        let journal = Arc::new(Mutex::new(Journal::new(address)));
        let supervised = places.map(|place| {
            // More complaints than one about the same connection say nothing new.
            let (complaints, heard) = mpsc::channel(1);
            let (publish, journal) = (publish.clone(), journal.clone());
            let supervisor = Supervisor::<L>::new(target.clone(), place, publish, heard, journal);
            (complaints, runtime.spawn(supervisor.run()).abort_handle())
        });
        let (complaints, supervisors): (Vec<_>, Vec<_>) = supervised.unzip();
        Self {
            current,
            complaints: complaints.into(),
            supervisors: supervisors.into(),
            turn: AtomicUsize::new(0),
        }
    }

    /// The next in turn of the best that there are: up; if not, about to be.
    pub(crate) fn current(&self) -> Current<L::Client> {
        let all = self.current.borrow();
        let turn = self.turn.fetch_add(1, Ordering::Relaxed);
        let in_turn = (0..all.len()).map(|i| &all[turn.wrapping_add(i) % all.len()]);
        // One that is up and about to be replaced leads to a server that has something wrong with it.
        let best = in_turn.min_by_key(|it| (it.client.is_err(), it.connecting));
        best.expect("at least one").clone()
    }

    /// What to use now; while there is none and one is being made, what comes of that, as far as it is there
    /// by the deadline. So a connection that is lost and made again within milliseconds fails nobody, and
    /// between two attempts nobody waits.
    pub(crate) async fn settled(&self, deadline: Instant) -> Current<L::Client> {
        let is_up = |it: &Current<_>| it.client.is_ok();
        let current = self.current();
        if is_up(&current) {
            // A caller that asks again and again would not let the runtime connect.
            consume_budget().await;
            return current;
        }
        let mut changes = self.current.clone();
        let settled =
            changes.wait_for(|all| all.iter().any(is_up) || all.iter().all(|it| !it.connecting));
        let _ = timeout_at(deadline, settled).await;
        self.current()
    }

    /// Waits until all are there.
    ///
    /// # Errors
    ///
    /// If there is none within `patience`; with the latest reason.
    pub(crate) async fn wait(&self, patience: Duration) -> Result<(), StoreError> {
        let mut changes = self.current.clone();
        let are_up = changes.wait_for(|all| all.iter().all(|it| it.client.is_ok()));
        // Whatever ends the wait, the state says how it went.
        let _ = timeout(patience, are_up).await;
        self.current().client.map(drop)
    }

    /// Where to complain about the present connection in a place. Complaints about former ones are not heard.
    pub(crate) fn complaints(&self, place: usize) -> mpsc::Sender<Complaint> {
        self.complaints[place].clone()
    }
}

// === impl Connections ===

impl<L: Lane> Drop for Connections<L> {
    fn drop(&mut self) {
        for supervisor in &self.supervisors {
            supervisor.abort();
        }
    }
}
