//! Where a cluster's node sends us instead.

use std::error::Error as _;

use fred::types::config::Server;
use tollgate_core::{ErrorKind, StoreError};

/// A refusal that names the node to ask. Nothing ran.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Redirect {
    /// The slot has moved there.
    Moved(u16, Server),
    /// The slot is on its way there, and so is this key, or it does not exist yet.
    Ask(Server),
}

impl Redirect {
    /// Reads `MOVED 3999 127.0.0.1:6381` or `ASK 3999 127.0.0.1:6381`, from a node at `host`.
    pub(crate) fn read(error: &StoreError, host: &str) -> Option<Self> {
        if error.kind() != ErrorKind::Cluster {
            return None;
        }
        parse(&error.source()?.to_string(), host)
    }
}

fn parse(text: &str, host: &str) -> Option<Redirect> {
    let mut words = text.split(' ');
    let (code, slot, address) = (words.next()?, words.next()?, words.next()?);
    // An IPv6 address has colons of its own.
    let (named, port) = address.rsplit_once(':')?;
    // A node that does not know its own address means the one at which it was asked.
    let host = if named.is_empty() { host } else { named };
    let server = Server::new(host, port.parse().ok()?);
    match code {
        "MOVED" => Some(Redirect::Moved(slot.parse().ok()?, server)),
        "ASK" => Some(Redirect::Ask(server)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn redirections_are_read() {
        let server = |host: &str| Server::new(host, 6381);
        for (text, redirect) in [
            (
                "MOVED 3999 a:6381",
                Some(Redirect::Moved(3_999, server("a"))),
            ),
            (
                "MOVED 3999 :6381",
                Some(Redirect::Moved(3_999, server("here"))),
            ),
            (
                "ASK 3999 fe80::1:6381",
                Some(Redirect::Ask(server("fe80::1"))),
            ),
            ("TRYAGAIN Multiple keys request", None),
            ("CLUSTERDOWN The cluster is down", None),
            ("MOVED 3999", None),
            ("MOVED x a:6381", None),
        ] {
            assert_eq!(parse(text, "here"), redirect, "{text}");
        }
    }
}
