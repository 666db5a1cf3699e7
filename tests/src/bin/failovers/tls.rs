//! A server behind TLS, and its faults.

use std::{slice, thread, time::Duration};

use serde_json::{Value, json};
use tollgate_tests::{Authority, Login, Pair, TlsServer, Validity};

use crate::{
    fault::Fault,
    topology::{Group, Servers},
};

const EXPIRED_FOR: Duration = Duration::from_secs(3);

pub(crate) struct Encrypted {
    server: TlsServer,
    good: Pair,
    authority: Authority,
    login: Login,
}

impl Encrypted {
    pub(crate) fn start() -> Self {
        let (authority, login) = (Authority::new(), Login::new());
        let good = authority.sign("localhost", Validity::Current);
        let server = TlsServer::start(&good, &authority, false);
        login.allow(server.plain());
        Self {
            server,
            good,
            authority,
            login,
        }
    }
}

// === impl Encrypted ===

impl Servers for Encrypted {
    fn settings(&self) -> Value {
        json!({
            "url": self.server.url("localhost"),
            "username": Login::USER,
            "password_file": self.login.file(),
            "tls": { "ca_file": self.authority.certificate() },
        })
    }

    fn strike(&mut self, fault: Fault, _group: &Group) {
        match fault {
            Fault::CertificateExpired => {
                let expired = self.authority.sign("localhost", Validity::Expired);
                self.server.show(&expired);
                thread::sleep(EXPIRED_FOR);
                self.server.show(&self.good);
            }
            Fault::PasswordRotated => self.login.rotate(slice::from_ref(self.server.plain())),
            _ => {}
        }
    }
}
