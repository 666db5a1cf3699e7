//! A primary that Sentinel looks after.

use std::{error::Error, sync::Arc, time::Duration};

use fred::types::config::Server;
use tokio::{
    sync::{Mutex, watch},
    task::JoinSet,
    time::{Instant, sleep, timeout_at},
};

use tollgate_core::{ErrorKind, StoreError};

use crate::{
    config::SETUP_TIMEOUT,
    failure,
    lane::{Client, Lane},
    reply::Reply,
    target::Access,
};

/// How long to wait for sentinels that are slow or frozen while others have answered.
const PATIENCE: Duration = Duration::from_millis(500);

/// How often to ask, while all is well, whether another server has become the primary: Sentinel tells a former
/// primary that it is none any more only seconds later, and until then nothing else would show.
const LOOK: Duration = Duration::from_secs(3);

/// The sentinels, and how to get into them and into what they name.
#[derive(Debug)]
pub(crate) struct Sentinels {
    hosts: Vec<Server>,
    service: String,
    /// To the sentinels.
    sentinels: Access,
    /// To the servers.
    servers: Access,
    /// Whom the latest connection of all led to.
    latest: watch::Sender<Option<Server>>,
    /// Held by the one connection that looks for another primary, for all.
    looking: Mutex<()>,
}

impl Sentinels {
    pub(crate) fn new(
        hosts: Vec<Server>,
        service: String,
        sentinels: Access,
        servers: Access,
    ) -> Self {
        Self {
            hosts,
            service,
            sentinels,
            servers,
            latest: watch::Sender::new(None),
            looking: Mutex::new(()),
        }
    }

    /// Asks the sentinels for the primary and connects to it.
    ///
    /// All are asked at the same time. What most of them say is tried first, so that one whose knowledge is
    /// old is not believed before the others; and a server that says of itself that it is no primary is not
    /// used whoever named it.
    pub(crate) async fn open<L: Lane>(self: &Arc<Self>) -> Result<(L, Server), StoreError> {
        let mut last = None;
        for server in self.ask::<L>().await? {
            match self.servers.open_at::<L>(server.clone()).await {
                Ok(lane) if is_primary(&lane).await => {
                    self.latest.send_replace(Some(server.clone()));
                    return Ok((lane, server));
                }
                Ok(_) => last = Some(unknown("the sentinels name a server that is no primary")),
                Err(error) => last = Some(error),
            }
        }
        Err(last.unwrap_or_else(|| unknown("no sentinel knows the primary")))
    }

    /// Waits until a sentinel names another server than `current` that says of itself that it is a primary, or
    /// another connection leads elsewhere.
    ///
    /// One connection looks for all, and one sentinel is asked at a time, so that a fleet is no burden to them.
    /// If its knowledge is old, all of them decide when the next connection is made.
    pub(crate) async fn replaced<L: Lane>(&self, current: &Server) {
        let mut latest = self.latest.subscribe();
        let elsewhere = latest.wait_for(|server| server.as_ref() != Some(current));
        tokio::select! {
            _ = elsewhere => {}
            () = self.look::<L>(current) => {}
        }
    }

    async fn look<L: Lane>(&self, current: &Server) {
        let _alone = self.looking.lock().await;
        loop {
            sleep(LOOK.mul_f64(0.5 + 0.5 * fastrand::f64())).await;
            if let Some(named) = self.ask_any::<L>().await
                && named != *current
                && let Ok(lane) = self.servers.open_at::<L>(named).await
                && is_primary(&lane).await
            {
                return;
            }
        }
    }

    /// Whom the first of them names that answers, in any order: one that is gone must not cost a look.
    async fn ask_any<L: Lane>(&self) -> Option<Server> {
        let mut hosts = self.hosts.clone();
        fastrand::shuffle(&mut hosts);
        for host in hosts {
            if let Ok(Some(named)) = self.ask_one::<L>(host).await {
                return Some(named);
            }
        }
        None
    }

    /// Whom it names; `None` if it does not know the name of the primary.
    async fn ask_one<L: Lane>(&self, sentinel: Server) -> Result<Option<Server>, StoreError> {
        let lane = self.sentinels.open_at::<L>(sentinel).await?;
        let args = vec!["GET-MASTER-ADDR-BY-NAME".to_owned(), self.service.clone()];
        let reply = lane.client().ask("SENTINEL", args, SETUP_TIMEOUT).await?;
        Ok(address(&reply))
    }

    /// Whom they name, the most often named first.
    async fn ask<L: Lane>(self: &Arc<Self>) -> Result<Vec<Server>, StoreError> {
        let mut asked = JoinSet::new();
        for host in &self.hosts {
            let (this, host) = (self.clone(), host.clone());
            asked.spawn(async move { this.ask_one::<L>(host).await });
        }
        let majority = self.hosts.len() / 2 + 1;
        let (mut votes, mut last) = (Vec::<(Server, usize)>::new(), None);
        // Without any answer there is nothing to do but wait: each attempt ends by itself.
        let mut patience = None;
        loop {
            let next = match patience {
                None => asked.join_next().await,
                Some(patience) => match timeout_at(patience, asked.join_next()).await {
                    Ok(next) => next,
                    Err(_) => break,
                },
            };
            match next {
                None => break,
                Some(Ok(Ok(Some(server)))) => {
                    let known = votes.iter_mut().find(|(named, _)| *named == server);
                    match known {
                        Some((_, votes)) => *votes += 1,
                        None => votes.push((server, 1)),
                    }
                    patience.get_or_insert_with(|| Instant::now() + PATIENCE);
                    if votes.iter().any(|(_, votes)| *votes >= majority) {
                        break;
                    }
                }
                Some(Ok(Ok(None))) => {
                    last = Some(unknown("the sentinels know no primary of this name"));
                }
                Some(Ok(Err(error))) => last = Some(error),
                Some(Err(_)) => {}
            }
        }
        votes.sort_by_key(|(_, votes)| std::cmp::Reverse(*votes));
        let servers: Vec<_> = votes.into_iter().map(|(server, _)| server).collect();
        match last {
            Some(error) if servers.is_empty() => Err(error),
            _ => Ok(servers),
        }
    }
}

/// Reads `[host, port]`; `None` if there is no such name.
fn address(reply: &Reply) -> Option<Server> {
    let [host, port] = reply.list()? else {
        return None;
    };
    Some(Server::new(host.text()?, port.text()?.parse().ok()?))
}

/// Asks it. One that does not let us ask is believed.
async fn is_primary(lane: &impl Lane) -> bool {
    match lane.client().ask("ROLE", Vec::new(), SETUP_TIMEOUT).await {
        Ok(reply) => {
            let role = reply.list().and_then(<[_]>::first);
            role.and_then(Reply::text) == Some("master")
        }
        Err(error) => error
            .source()
            .is_some_and(|reply| reply.to_string().starts_with("NOPERM")),
    }
}

fn unknown(problem: &'static str) -> StoreError {
    failure::without_connection(ErrorKind::Io, problem)
}
