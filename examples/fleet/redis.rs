//! The Redis that the fleet shares.

use std::{
    env,
    path::{Path, PathBuf},
};

use crate::{
    BoxError,
    servers::Servers,
    topology::{self, Topology},
};

/// The Redis of `REDIS_URL`, or one of our own, which ends with this value.
#[derive(Debug)]
pub(crate) struct Redis {
    url: String,
    ca_file: Option<PathBuf>,
    _servers: Option<Servers>,
}

impl Redis {
    /// Starts one of this topology, or else finds one, if there is none.
    pub(crate) fn find_or_start(topology: Option<Topology>) -> Result<Self, BoxError> {
        match (env::var("REDIS_URL"), topology) {
            (Ok(_), Some(_)) => Err("with REDIS_URL set, there is no --topology to start".into()),
            (Ok(url), None) => Ok(Self {
                url,
                ca_file: None,
                _servers: None,
            }),
            (Err(_), topology) => Self::start(topology.unwrap_or(Topology::Single)),
        }
    }

    fn start(topology: Topology) -> Result<Self, BoxError> {
        let mut servers = Servers::new()?;
        let url = match topology {
            Topology::Single => topology::single(&mut servers),
            Topology::Cluster => topology::cluster(&mut servers),
            Topology::Sentinel => topology::sentinel(&mut servers),
            Topology::Tls => topology::tls(&mut servers),
        }?;
        Ok(Self {
            url,
            ca_file: (topology == Topology::Tls).then(|| servers.file(topology::CERTIFICATE)),
            _servers: Some(servers),
        })
    }

    pub(crate) fn url(&self) -> &str {
        &self.url
    }

    /// The certificate to trust, if not one of the system's.
    pub(crate) fn ca_file(&self) -> Option<&Path> {
        self.ca_file.as_deref()
    }

    pub(crate) fn url_without_password(&self) -> &str {
        self.url
            .rsplit_once('@')
            .map_or(&*self.url, |(_, host)| host)
    }
}
