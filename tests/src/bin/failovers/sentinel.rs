//! A primary under Sentinel, and its faults.

use std::thread;

use serde_json::{Value, json};
use tollgate_tests::{Login, Sentinels};

use crate::{
    fault::Fault,
    topology::{AHEAD, Broken, Group, Servers},
};

pub(crate) struct Watched {
    group: Sentinels,
    login: Login,
    broken: Option<Broken>,
}

impl Watched {
    pub(crate) fn start() -> Self {
        let (group, login) = (Sentinels::start(), Login::new());
        group.wait();
        for server in group.servers() {
            login.allow(server);
        }
        Self {
            group,
            login,
            broken: None,
        }
    }

    fn kill(&mut self, primary: usize) {
        self.group.server_mut(primary).kill();
        self.group.wait_for_another_than(primary);
        self.broken = Some(Broken::Killed(primary));
    }
}

// === impl Watched ===

impl Servers for Watched {
    fn settings(&self) -> Value {
        json!({
            "url": self.group.url(),
            "username": Login::USER,
            "password_file": self.login.file(),
        })
    }

    fn strike(&mut self, fault: Fault, _group: &Group) {
        let primary = self.group.primary_by(0);
        match fault {
            Fault::Frozen => {
                self.group.server(primary).pause();
                self.group.wait_for_another_than(primary);
                self.broken = Some(Broken::Frozen(primary));
            }
            Fault::Killed => self.kill(primary),
            Fault::KilledAhead => {
                self.group.server(primary).cut_off_replicas();
                thread::sleep(AHEAD);
                self.kill(primary);
            }
            Fault::FailedOver => self.group.fail_over(),
            Fault::PasswordRotated => self.login.rotate(self.group.servers()),
            _ => {}
        }
    }

    fn mend(&mut self) {
        match self.broken.take() {
            Some(Broken::Frozen(server)) => self.group.server(server).resume(),
            Some(Broken::Killed(server)) => {
                self.group.server_mut(server).restart();
                self.login.allow(self.group.server(server));
            }
            None => {}
        }
        self.group.wait();
    }
}
