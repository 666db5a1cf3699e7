//! A cluster under faults.

use std::thread;

use serde_json::{Value, json};
use tollgate_tests::{Cluster, Login};

use crate::{
    fault::Fault,
    pause,
    topology::{AHEAD, Broken, Group, Servers},
};

const MOVED: usize = 100;

pub(crate) struct Nodes {
    cluster: Cluster,
    login: Login,
    broken: Option<Broken>,
}

impl Nodes {
    pub(crate) fn start() -> Self {
        let (cluster, login) = (Cluster::start(), Login::new());
        for node in cluster.nodes() {
            login.allow(node);
        }
        Self {
            cluster,
            login,
            broken: None,
        }
    }

    /// Does something to a primary, and waits until its replica has taken over.
    fn replace(&mut self, primary: usize, strike: impl FnOnce(&mut Cluster)) {
        let replica = self.cluster.replica_of(primary);
        strike(&mut self.cluster);
        pause::until(|| self.cluster.is_primary(replica));
    }

    fn kill(&mut self, primary: usize) {
        self.replace(primary, |cluster| cluster.node_mut(primary).kill());
        self.broken = Some(Broken::Killed(primary));
    }

    fn add_node(&mut self, group: &Group) {
        let new = self.cluster.add_node();
        self.login.allow(self.cluster.node(new));
        let own: Vec<_> = group
            .keys
            .iter()
            .map(|key| self.cluster.slot(key))
            .collect();
        let from = self.cluster.owner(own[0]);
        // Those of the tenants among them.
        // From one of theirs on, since neighbours share a primary.
        let others = (own[0]..16_384).chain(0..own[0]);
        let others = others.filter(|slot| !own.contains(slot));
        let others = others.filter(|&slot| self.cluster.owner(slot) == from);
        let others: Vec<_> = others.take(MOVED - own.len()).collect();
        for slot in own.iter().copied().chain(others) {
            self.cluster.move_slot(slot, new);
        }
        self.cluster.wait();
    }
}

// === impl Nodes ===

impl Servers for Nodes {
    fn settings(&self) -> Value {
        json!({
            "url": self.cluster.url(),
            "username": Login::USER,
            "password_file": self.login.file(),
        })
    }

    fn primary_of(&self, key: &str) -> usize {
        self.cluster.owner_of(key)
    }

    fn prepare(&mut self, fault: Fault, group: &Group) {
        if fault == Fault::BroughtBack {
            self.kill(self.cluster.owner_of(&group.keys[0]));
        }
    }

    fn strike(&mut self, fault: Fault, group: &Group) {
        let primary = self.cluster.owner_of(&group.keys[0]);
        match fault {
            Fault::Frozen => {
                self.replace(primary, |cluster| cluster.node(primary).pause());
                self.broken = Some(Broken::Frozen(primary));
            }
            Fault::Killed => self.kill(primary),
            Fault::KilledAhead => {
                let replica = self.cluster.replica_of(primary);
                self.cluster.node(primary).cut_off_replicas();
                thread::sleep(AHEAD);
                self.cluster.node_mut(primary).kill();
                pause::until(|| self.cluster.is_primary(replica));
                self.broken = Some(Broken::Killed(primary));
            }
            Fault::BroughtBack => self.mend(),
            Fault::FailedOver => {
                let replica = self.cluster.replica_of(primary);
                self.replace(primary, |cluster| {
                    cluster.run(replica, &["CLUSTER", "FAILOVER"]);
                });
            }
            Fault::SlotsMoved => self.add_node(group),
            Fault::ScriptsFlushed => self.cluster.flush_scripts(primary),
            Fault::PasswordRotated => self.login.rotate(self.cluster.nodes()),
            Fault::None | Fault::CertificateExpired => {}
        }
    }

    fn mend(&mut self) {
        match self.broken.take() {
            Some(Broken::Frozen(node)) => self.cluster.node(node).resume(),
            Some(Broken::Killed(node)) => {
                self.cluster.node_mut(node).restart();
                self.login.allow(self.cluster.node(node));
            }
            None => {}
        }
        self.cluster.wait();
    }
}
