//! Who replaces connections.

use std::{
    pin::pin,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use fred::types::config::Server;
use tokio::{
    sync::{mpsc, watch},
    time::{sleep, timeout},
};
use tollgate_core::StoreError;

use crate::{
    connections::{Complaint, Current, Fault},
    failure,
    journal::Journal,
    lane::Lane,
    pauses::{LASTING, Pauses},
    target::Target,
};

/// Keeps one place filled: when the connection in it ends, or is of no use, it makes the next one.
///
/// Never more than one attempt at a time for a place, with the pauses of [`Pauses`] between them, so that a fleet
/// of replicas does not storm a server that comes back.
pub(crate) struct Supervisor<L: Lane> {
    target: Target,
    place: usize,
    /// For all places.
    publish: watch::Sender<Box<[Current<L::Client>]>>,
    complaints: mpsc::Receiver<Complaint>,
    pauses: Pauses,
    journal: Arc<Mutex<Journal>>,
    number: u64,
}

/// Why a connection is given up.
enum End {
    /// It, or the client's task, ended by itself.
    Lost(StoreError),
    /// It is still up.
    Useless(Fault),
}

impl<L: Lane> Supervisor<L> {
    pub(crate) fn new(
        target: Target,
        place: usize,
        publish: watch::Sender<Box<[Current<L::Client>]>>,
        complaints: mpsc::Receiver<Complaint>,
        journal: Arc<Mutex<Journal>>,
    ) -> Self {
        Self {
            target,
            place,
            publish,
            complaints,
            pauses: Pauses::new(),
            journal,
            number: 0,
        }
    }

    /// Runs until it is dropped, which closes the connection.
    pub(crate) async fn run(mut self) {
        // A server that is none to use any more still answers, if only reads and denials, so it is kept until
        // there is a better one.
        let mut kept = None;
        loop {
            self.publish.send_if_modified(|all| {
                let now = &mut all[self.place];
                // To those who use a connection that is still up, another one is no news.
                let news = now.client.is_err() && !now.connecting;
                now.connecting = true;
                news
            });
            match self.target.open::<L>().await {
                Ok((lane, primary)) => {
                    self.up(lane.client().clone());
                    kept = self.watch(lane, primary.as_ref(), kept.take()).await;
                }
                Err(error) => {
                    drop(kept.take());
                    self.down(&error);
                }
            }
            let pause = self.pauses.next_pause();
            if !pause.is_zero() {
                self.publish.send_if_modified(|all| {
                    std::mem::replace(&mut all[self.place].connecting, false)
                });
                sleep(pause).await;
            }
        }
    }

    /// Watches a connection until it is to be replaced; gives back one that is better than none meanwhile.
    /// The `former` one is closed later: there may be calls in flight on it.
    async fn watch(
        &mut self,
        mut lane: L,
        primary: Option<&Server>,
        former: Option<L>,
    ) -> Option<L> {
        let early = self.end(&mut lane, primary);
        let end = if let Ok(end) = timeout(LASTING, early).await {
            end
        } else {
            drop(former);
            self.pauses.reset();
            self.journal().up();
            self.end(&mut lane, primary).await
        };
        match end {
            End::Lost(error) => {
                self.down(&error);
                None
            }
            End::Useless(Fault::Silent) => {
                self.down(&failure::silent());
                None
            }
            End::Useless(Fault::ReadOnly) => {
                self.journal().read_only();
                Some(lane)
            }
            End::Useless(Fault::Replaced) => {
                self.journal().replaced();
                Some(lane)
            }
        }
    }

    async fn end(&mut self, lane: &mut L, primary: Option<&Server>) -> End {
        let mut replaced = pin!(self.target.replaced::<L>(primary));
        loop {
            tokio::select! {
                () = &mut replaced => return End::Useless(Fault::Replaced),
                error = lane.ended() => return End::Lost(error),
                complaint = self.complaints.recv() => match complaint {
                    Some(complaint) if complaint.number == self.number => return End::Useless(complaint.fault),
                    Some(_) => {}
                    // The store is gone, and this task is about to be.
                    None => std::future::pending().await,
                },
            }
        }
    }

    fn up(&mut self, client: L::Client) {
        self.number += 1;
        self.publish(Ok(client), false);
    }

    fn down(&self, error: &StoreError) {
        // Connecting, until it turns out that there is a pause first.
        self.publish(Err(error.clone()), true);
        let others = self.publish.borrow().iter().any(|it| it.client.is_ok());
        self.journal().down(error, others);
    }

    fn publish(&self, client: Result<L::Client, StoreError>, connecting: bool) {
        let current = Current {
            place: self.place,
            number: self.number,
            client,
            connecting,
        };
        self.publish.send_modify(|all| all[self.place] = current);
    }

    fn journal(&self) -> MutexGuard<'_, Journal> {
        self.journal.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
