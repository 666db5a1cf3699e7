//! A primary that Sentinel looks after.

use std::{sync::Arc, time::Duration};

use fred::{
    error::{Error, ErrorKind},
    types::{Value, config::Server},
};
use tokio::{
    task::JoinSet,
    time::{Instant, sleep, timeout_at},
};

use crate::{lane::Lane, target::Access};

/// How long to wait for sentinels that are slow or frozen while others have answered.
const PATIENCE: Duration = Duration::from_millis(500);

/// How often to ask, while all is well, whether another server has become the primary: Sentinel tells a former
/// primary that it is none any more only seconds later, and until then nothing else would show.
const LOOK: Duration = Duration::from_secs(3);

/// The sentinels, and how to get into them and into what they name.
#[derive(Debug)]
pub(crate) struct Sentinels {
    pub(crate) hosts: Vec<Server>,
    pub(crate) service: String,
    /// To the sentinels.
    pub(crate) sentinels: Access,
    /// To the servers.
    pub(crate) servers: Access,
}

impl Sentinels {
    /// Asks the sentinels for the primary and connects to it.
    ///
    /// All are asked at the same time. What most of them say is tried first, so that one whose knowledge is
    /// old is not believed before the others; and a server that says of itself that it is no primary is not
    /// used whoever named it.
    pub(crate) async fn open(self: &Arc<Self>) -> Result<Lane, Error> {
        let mut last = None;
        for server in self.ask().await? {
            match self.servers.open_at(server).await {
                Ok(lane) if is_primary(&lane).await => return Ok(lane),
                Ok(_) => last = Some(unknown("the sentinels name a server that is no primary")),
                Err(error) => last = Some(error),
            }
        }
        Err(last.unwrap_or_else(|| unknown("no sentinel knows the primary")))
    }

    /// Waits until a sentinel names another server than `current` that says of itself that it is a primary.
    ///
    /// One of them is asked at a time, so that a fleet is no burden to them. If its knowledge is old, all of
    /// them decide when the next connection is made.
    pub(crate) async fn replaced(&self, current: &Server) {
        loop {
            sleep(LOOK.mul_f64(0.5 + 0.5 * fastrand::f64())).await;
            let host = &self.hosts[fastrand::usize(..self.hosts.len())];
            match self.ask_one(host.clone()).await {
                Ok(Some(named)) if named != *current => {
                    if let Ok(lane) = self.servers.open_at(named).await
                        && is_primary(&lane).await
                    {
                        return;
                    }
                }
                _ => {}
            }
        }
    }

    /// Whom it names; `None` if it does not know the name of the primary.
    async fn ask_one(&self, sentinel: Server) -> Result<Option<Server>, Error> {
        let lane = self.sentinels.open_at(sentinel).await?;
        let args = vec!["GET-MASTER-ADDR-BY-NAME".to_owned(), self.service.clone()];
        Ok(address(&lane.ask("SENTINEL", args).await?))
    }

    /// Whom they name, the most often named first.
    async fn ask(self: &Arc<Self>) -> Result<Vec<Server>, Error> {
        let mut asked = JoinSet::new();
        for host in &self.hosts {
            let (this, host) = (self.clone(), host.clone());
            asked.spawn(async move { this.ask_one(host).await });
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
fn address(reply: &Value) -> Option<Server> {
    let Value::Array(parts) = reply else {
        return None;
    };
    let [host, port] = parts.as_slice() else {
        return None;
    };
    let port = port.as_string()?.parse().ok()?;
    Some(Server::new(host.as_string()?, port))
}

/// Asks it. One that does not let us ask is believed.
async fn is_primary(lane: &Lane) -> bool {
    match lane.ask("ROLE", Vec::new()).await {
        Ok(Value::Array(role)) => {
            matches!(role.first().and_then(Value::as_str), Some(name) if name == "master")
        }
        Ok(_) => false,
        Err(error) => error.details().starts_with("NOPERM"),
    }
}

fn unknown(problem: &'static str) -> Error {
    Error::new(ErrorKind::IO, problem)
}
