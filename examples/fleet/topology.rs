//! What a fleet's Redis may look like; each at its smallest.

use std::str::FromStr;

use crate::{
    BoxError,
    servers::{Servers, ask, free_port, until},
};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Topology {
    Single,
    Cluster,
    Sentinel,
    Tls,
}

impl FromStr for Topology {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        match name {
            "single" => Ok(Self::Single),
            "cluster" => Ok(Self::Cluster),
            "sentinel" => Ok(Self::Sentinel),
            "tls" => Ok(Self::Tls),
            _ => Err(format!(
                "no topology `{name}`; there are single, cluster, sentinel and tls"
            )),
        }
    }
}

/// The file with the certificate that a server behind TLS shows, and by which it is known.
pub(crate) const CERTIFICATE: &str = "server.pem";
const KEY: &str = "server.key";

/// A server that forgets all in the end.
fn server(servers: &mut Servers, more: &[&str]) -> Result<u16, BoxError> {
    let port = free_port()?;
    let number = port.to_string();
    let mut args = vec!["--port", &number, "--bind", "127.0.0.1"];
    args.extend(["--save", "", "--appendonly", "no", "--loglevel", "warning"]);
    args.extend(more);
    servers.start(port, &args)?;
    Ok(port)
}

pub(crate) fn single(servers: &mut Servers) -> Result<String, BoxError> {
    let port = server(servers, &[])?;
    Ok(format!("redis://127.0.0.1:{port}"))
}

/// Three primaries.
pub(crate) fn cluster(servers: &mut Servers) -> Result<String, BoxError> {
    let mut ports = Vec::new();
    for slots in ["0 5460", "5461 10922", "10923 16383"] {
        let bus = free_port()?.to_string();
        let file = format!("nodes-{bus}.conf");
        let port = server(
            servers,
            &[
                "--cluster-enabled",
                "yes",
                "--cluster-port",
                &bus,
                "--cluster-config-file",
                &file,
            ],
        )?;
        ask(port, &format!("CLUSTER ADDSLOTSRANGE {slots}"))?;
        ports.push((port, bus));
    }
    let first = ports[0].0;
    for (port, bus) in &ports[1..] {
        ask(first, &format!("CLUSTER MEET 127.0.0.1 {port} {bus}"))?;
    }
    until("the nodes of the cluster agree", || {
        ports.iter().all(|(port, _)| {
            let info = ask(*port, "CLUSTER INFO").unwrap_or_default();
            info.contains("cluster_state:ok") && info.contains("cluster_slots_ok:16384")
        })
    })?;
    let ports = ports.iter().map(|(port, _)| *port);
    Ok(format!("redis-cluster://{}", addresses(ports)))
}

/// A primary with a replica, and three sentinels that know them by the name `fleet`.
pub(crate) fn sentinel(servers: &mut Servers) -> Result<String, BoxError> {
    let primary = server(servers, &[])?;
    server(servers, &["--replicaof", "127.0.0.1", &primary.to_string()])?;
    let mut sentinels = Vec::new();
    for _ in 0..3 {
        let port = free_port()?;
        let file = format!("sentinel-{port}.conf");
        let settings = format!(
            "port {port}\nbind 127.0.0.1\nloglevel warning\nsentinel monitor fleet 127.0.0.1 {primary} 2\n"
        );
        servers.write(&file, &settings)?;
        servers.start(port, &[&file, "--sentinel"])?;
        sentinels.push(port);
    }
    Ok(format!(
        "redis-sentinel://{}/fleet",
        addresses(sentinels.into_iter())
    ))
}

/// One server with a certificate of its own.
pub(crate) fn tls(servers: &mut Servers) -> Result<String, BoxError> {
    let own = rcgen::generate_simple_self_signed(["localhost".to_owned()])?;
    servers.write(CERTIFICATE, &own.cert.pem())?;
    servers.write(KEY, &own.signing_key.serialize_pem())?;
    let port = free_port()?;
    servers.start(
        port,
        &[
            "--port",
            "0",
            "--bind",
            "127.0.0.1",
            "--save",
            "",
            "--loglevel",
            "warning",
            "--tls-port",
            &port.to_string(),
            "--tls-cert-file",
            CERTIFICATE,
            "--tls-key-file",
            KEY,
            "--tls-auth-clients",
            "no",
        ],
    )?;
    Ok(format!("rediss://localhost:{port}"))
}

fn addresses(ports: impl Iterator<Item = u16>) -> String {
    let addresses: Vec<_> = ports.map(|port| format!("127.0.0.1:{port}")).collect();
    addresses.join(",")
}
