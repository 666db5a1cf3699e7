//! The servers of one run, and how the fault is brought about.

use std::{
    thread::{self, JoinHandle},
    time::Duration,
};

use redis::{Connection, RedisResult, cmd};
use serde_json::json;
use tollgate_tests::{
    Answer, Fault as Network, FaultProxy, RedisServer, StubServer, free_port,
    lab::{self, Client, Policy, Replica, Role},
};

use crate::{
    BoxError,
    fault::Kind,
    tenants::{AUDITED, TENANTS},
};

const PASSWORD: &str = "as-it-was";

/// How often a fault that repeats itself is looked at.
pub(crate) const STEP: Duration = Duration::from_millis(50);

pub(crate) struct Bench {
    kind: Kind,
    pub(crate) replicas: Vec<Replica>,
    proxy: FaultProxy,
    redis: RedisServer,
    /// What takes the place of Redis.
    other: Other,
    /// From before the password was set, if there is one.
    admin: Option<Connection>,
    endless: Option<JoinHandle<RedisResult<()>>>,
    steps: u32,
    _logs: tempfile::TempDir,
}

enum Other {
    None,
    Stub(StubServer),
    Primary(RedisServer),
}

impl Bench {
    pub(crate) fn start(kind: Kind, policy: Policy, client: Client) -> Result<Self, BoxError> {
        let redis = RedisServer::start();
        let mut admin = None;
        let mut login = "";
        if kind == Kind::Password {
            let mut connection = redis.connection();
            cmd("CONFIG")
                .arg(&["SET", "requirepass", PASSWORD])
                .exec(&mut connection)?;
            admin = Some(connection);
            login = ":as-it-was@";
        }
        let other = match kind {
            Kind::Reply(reply) => Other::Stub(StubServer::start(Answer::Raw(reply.into()))),
            Kind::Demoted => Other::Primary(RedisServer::start()),
            _ => Other::None,
        };
        let at_first = match kind {
            Kind::RefusedAtStart => Network::Refuse,
            Kind::SilentAtStart => Network::BlackHole,
            _ => Network::None,
        };
        let proxy = FaultProxy::start_with(redis.port(), at_first);
        let url = format!("redis://{login}127.0.0.1:{}", proxy.port());
        let logs = tempfile::tempdir()?;
        let role = Role {
            redis: json!({ "url": url }),
            policy,
            client,
            tenants: TENANTS.to_vec(),
        };
        let replicas = lab::start(&role, logs.path())?;
        Ok(Self {
            kind,
            replicas,
            proxy,
            redis,
            other,
            admin,
            endless: None,
            steps: 0,
            _logs: logs,
        })
    }

    pub(crate) fn begin(&mut self) -> Result<(), BoxError> {
        match self.kind {
            Kind::Killed => self.redis.kill(),
            Kind::Stopped => self.redis.pause(),
            Kind::BlackHole => self.proxy.set(Network::BlackHole),
            Kind::HeldReplies => self.proxy.set(Network::HoldReplies),
            Kind::DelayedReplies => self.proxy.set(Network::DelayReplies(Kind::delay())),
            Kind::Full => self.admin(&["CONFIG", "SET", "maxmemory", "1"])?,
            Kind::Password => {
                self.admin(&["CONFIG", "SET", "requirepass", "another"])?;
                self.kill_clients()?;
            }
            Kind::Busy => {
                self.admin(&["CONFIG", "SET", "lua-time-limit", "200"])?;
                let mut connection = self.redis.connection();
                self.endless = Some(thread::spawn(move || {
                    cmd("EVAL")
                        .arg(&["while true do end", "0"])
                        .exec(&mut connection)
                }));
            }
            // To a primary that is not there: it never gets any data, and keeps what it has.
            Kind::Demoted => {
                self.admin(&["REPLICAOF", "127.0.0.1", &free_port().to_string()])?;
            }
            Kind::Reply(_) => {
                if let Other::Stub(stub) = &self.other {
                    self.proxy.retarget(stub.port());
                    self.proxy.reset_present();
                }
            }
            Kind::RefusedAtStart
            | Kind::SilentAtStart
            | Kind::Reset
            | Kind::FlushedScripts
            | Kind::KilledClients
            | Kind::Flapping
            | Kind::FlappingSilent => {}
        }
        Ok(())
    }

    /// Called each [`STEP`] while the fault lasts.
    pub(crate) fn step(&mut self) -> Result<(), BoxError> {
        let step = self.steps;
        self.steps += 1;
        let is_every = |millis: u32| (step * 50).is_multiple_of(millis);
        match self.kind {
            Kind::Reset => self.proxy.set(if is_every(500) {
                Network::CutReplies
            } else {
                Network::None
            }),
            Kind::FlushedScripts if is_every(200) => self.admin(&["SCRIPT", "FLUSH"])?,
            Kind::KilledClients if is_every(500) => self.kill_clients()?,
            Kind::Flapping | Kind::FlappingSilent if is_every(1_000) => {
                let fault = if self.kind == Kind::Flapping {
                    Network::Refuse
                } else {
                    Network::BlackHole
                };
                let is_away = (step * 50 / 1_000).is_multiple_of(2);
                self.proxy.set(if is_away { fault } else { Network::None });
            }
            _ => {}
        }
        Ok(())
    }

    pub(crate) fn end(&mut self) -> Result<(), BoxError> {
        match self.kind {
            Kind::Killed => self.redis.restart(),
            Kind::Stopped => self.redis.resume(),
            Kind::BlackHole | Kind::SilentAtStart | Kind::FlappingSilent => {
                self.proxy.silence_present();
                self.proxy.set(Network::None);
            }
            Kind::RefusedAtStart
            | Kind::HeldReplies
            | Kind::DelayedReplies
            | Kind::Reset
            | Kind::Flapping => self.proxy.set(Network::None),
            Kind::Full => self.admin(&["CONFIG", "SET", "maxmemory", "0"])?,
            Kind::Password => self.admin(&["CONFIG", "SET", "requirepass", PASSWORD])?,
            Kind::Busy => {
                self.admin(&["SCRIPT", "KILL"])?;
                if let Some(endless) = self.endless.take() {
                    // An error: it was killed.
                    let _ = endless.join();
                }
            }
            Kind::Demoted => {
                if let Other::Primary(primary) = &self.other {
                    self.proxy.retarget(primary.port());
                }
            }
            Kind::Reply(_) => {
                self.proxy.retarget(self.redis.port());
                self.proxy.reset_present();
            }
            Kind::FlushedScripts | Kind::KilledClients => {}
        }
        Ok(())
    }

    /// How many tokens Redis has taken from the audited tenant; `None` if it has lost some buckets.
    pub(crate) fn charged(&mut self) -> Result<Option<f64>, BoxError> {
        if self.kind.loses_buckets() {
            return Ok(None);
        }
        let profile = &TENANTS[AUDITED];
        let key = format!("tg:{{tenant:{}}}:default", profile.name);
        let mut fresh;
        let connection = if let Some(admin) = &mut self.admin {
            admin
        } else {
            fresh = self.redis.connection();
            &mut fresh
        };
        // None: nothing was ever taken.
        let value: Option<Vec<u8>> = cmd("GET").arg(key).query(connection)?;
        #[expect(clippy::cast_precision_loss, reason = "a small number")]
        let capacity = profile.capacity as f64;
        let tokens = match &value {
            Some(value) => f64::from_le_bytes(*value.first_chunk().ok_or("not a bucket")?),
            None => capacity,
        };
        Ok(Some(capacity - tokens))
    }

    fn kill_clients(&mut self) -> Result<(), BoxError> {
        self.admin(&["CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes"])
    }

    fn admin(&mut self, command: &[&str]) -> Result<(), BoxError> {
        let mut sent = cmd(command[0]);
        sent.arg(&command[1..]);
        match &mut self.admin {
            Some(admin) => sent.exec(admin)?,
            None => sent.exec(&mut self.redis.connection())?,
        }
        Ok(())
    }
}
