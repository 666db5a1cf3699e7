//! What a URL says.

use fred::types::config::{Config, Server, ServerConfig};

use crate::ConnectError;

/// Where Redis is, and as whom to log in there.
// No `Debug` outside of tests: it holds the password.
#[cfg_attr(test, derive(Debug))]
pub(crate) struct Place {
    pub(crate) topology: Topology,
    pub(crate) tls: bool,
    pub(crate) username: Option<String>,
    pub(crate) password: Option<String>,
    pub(crate) database: Option<u8>,
}

/// What stands there.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Topology {
    /// One server, by address or socket.
    Standalone(ServerConfig),
    /// A cluster, and some of its nodes.
    Cluster(Vec<Server>),
    /// Sentinels, and what they call the primary.
    Sentinel { hosts: Vec<Server>, service: String },
}

/// Reads a URL without ever repeating it, since it may hold a password.
pub(crate) fn parse(url: &str) -> Result<Place, ConnectError> {
    let Some((scheme, rest)) = url.split_once("://") else {
        return bad("it has no scheme");
    };
    if rest.contains(['?', '#']) {
        return bad("it has a query or a fragment; the rest is set by name");
    }
    match scheme {
        "redis" | "valkey" => standalone(rest, false),
        "rediss" | "valkeys" => standalone(rest, true),
        "redis-cluster" | "valkey-cluster" => cluster(rest, false),
        "rediss-cluster" | "valkeys-cluster" => cluster(rest, true),
        "redis-sentinel" | "valkey-sentinel" => sentinel(rest, false),
        "rediss-sentinel" | "valkeys-sentinel" => sentinel(rest, true),
        "unix" => unix(rest),
        _ => bad(
            "the scheme must be `redis`, `rediss`, `redis-cluster`, `rediss-cluster`, `redis-sentinel`, \
             `rediss-sentinel` (or `valkey` for `redis` in each) or `unix`",
        ),
    }
}

fn standalone(rest: &str, tls: bool) -> Result<Place, ConnectError> {
    place(rest, tls, |mut hosts| {
        match (hosts.pop(), hosts.is_empty()) {
            (Some(server), true) => Ok(Topology::Standalone(ServerConfig::Centralized { server })),
            _ => bad("several hosts are for `redis-cluster` and `redis-sentinel`"),
        }
    })
}

fn cluster(rest: &str, tls: bool) -> Result<Place, ConnectError> {
    let place = place(rest, tls, |hosts| Ok(Topology::Cluster(hosts)))?;
    match place.database {
        None | Some(0) => Ok(place),
        Some(_) => bad("a cluster has no database but 0"),
    }
}

fn sentinel(rest: &str, tls: bool) -> Result<Place, ConnectError> {
    let (authority, path) = rest.split_once('/').unwrap_or((rest, ""));
    let (service, database) = path.split_once('/').unwrap_or((path, ""));
    if service.is_empty() {
        return bad("the name of the primary is missing: redis-sentinel://host:port,…/<name>");
    }
    place(&format!("{authority}/{database}"), tls, |hosts| {
        let service = service.to_owned();
        Ok(Topology::Sentinel { hosts, service })
    })
}

fn unix(path: &str) -> Result<Place, ConnectError> {
    if !path.starts_with('/') || path.len() < 2 {
        return bad("write unix:///path/to/socket; user, password and database are set by name");
    }
    Ok(Place {
        topology: Topology::Standalone(ServerConfig::Unix { path: path.into() }),
        tls: false,
        username: None,
        password: None,
        database: None,
    })
}

/// Reads `[[user]:password@]host[:port],…[/database]`.
fn place(
    rest: &str,
    tls: bool,
    topology: impl FnOnce(Vec<Server>) -> Result<Topology, ConnectError>,
) -> Result<Place, ConnectError> {
    let (authority, database) = rest.split_once('/').unwrap_or((rest, ""));
    let (login, hosts) = match authority.rsplit_once('@') {
        Some((login, hosts)) => (format!("{login}@"), hosts),
        None => (String::new(), authority),
    };
    let mut servers = Vec::new();
    let mut first = None;
    for host in hosts.split(',') {
        // fred reads one host at a time, without TLS: with it, it would load certificates of its own.
        let url = format!("redis://{login}{host}/{database}");
        let config = Config::from_url_centralized(&url).map_err(|error| refused(&error))?;
        servers.extend(config.server.hosts());
        first.get_or_insert(config);
    }
    match first {
        Some(config) => of_config(&config, topology(servers)?, tls),
        None => bad("it has no host"),
    }
}

fn of_config(config: &Config, topology: Topology, tls: bool) -> Result<Place, ConnectError> {
    if config.username.is_some() && config.password.is_none() {
        // fred would ignore the name, and be somebody else than was meant.
        return bad("it has a user name without a password");
    }
    Ok(Place {
        topology,
        tls,
        username: config.username.clone(),
        password: config.password.clone(),
        database: config.database,
    })
}

fn bad<T>(problem: &str) -> Result<T, ConnectError> {
    Err(ConnectError::Url(problem.to_owned()))
}

fn refused(error: &fred::error::Error) -> ConnectError {
    ConnectError::Url(error.details().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ports(servers: &[Server]) -> Vec<String> {
        servers.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn bad_urls_are_refused_without_repeating_the_password() {
        for (url, problem) in [
            ("", "no scheme"),
            ("localhost:6379", "no scheme"),
            ("http://user:hunter2@host", "scheme"),
            ("redis://:hunter2@", "host"),
            ("redis://user:hunter2@host:port", "port"),
            ("redis://user:hunter2@host/zero", "integer"),
            ("redis://user@host", "user name"),
            ("redis://user:hunter2@host?tls=yes", "query"),
            ("redis://:hunter2@a,b", "several hosts"),
            ("redis-cluster://:hunter2@a,,b", "host"),
            ("redis-cluster://:hunter2@a/3", "database"),
            ("redis-sentinel://:hunter2@a:1,b:2", "name of the primary"),
            ("redis-sentinel://:hunter2@a:1/primary/zero", "integer"),
            ("unix://user:hunter2@", "socket"),
        ] {
            let error = parse(url).expect_err(url);
            let text = format!("{error} {error:?}");
            assert!(
                text.to_lowercase().contains(&problem.to_lowercase()),
                "{url}: {error}"
            );
            assert!(!text.contains("hunter2"), "{error}");
        }
    }

    #[test]
    fn one_server_is_read() {
        let place = parse("valkey://user:p%40ss@host:7000/3").expect("a good URL");
        let Topology::Standalone(server) = &place.topology else {
            panic!("{place:?}");
        };
        assert_eq!(server.hosts()[0].to_string(), "host:7000");
        assert_eq!(
            (
                place.username.as_deref(),
                place.password.as_deref(),
                place.database,
                place.tls
            ),
            (Some("user"), Some("p@ss"), Some(3), false)
        );
        assert!(parse("redis://:secret@[::1]").is_ok());
        assert!(parse("rediss://host").expect("a good URL").tls);
    }

    #[test]
    fn several_hosts_are_read() {
        let place = parse("rediss-cluster://:pass@a:1,b:2,c").expect("a good URL");
        let Topology::Cluster(hosts) = &place.topology else {
            panic!("{place:?}");
        };
        assert_eq!(ports(hosts), ["a:1", "b:2", "c:6379"]);
        assert_eq!((place.password.as_deref(), place.tls), (Some("pass"), true));

        let place = parse("redis-sentinel://a:1,b:2/primary/4").expect("a good URL");
        let Topology::Sentinel { hosts, service } = &place.topology else {
            panic!("{place:?}");
        };
        assert_eq!(
            (ports(hosts), service.as_str()),
            (vec!["a:1".to_owned(), "b:2".to_owned()], "primary")
        );
        assert_eq!(place.database, Some(4));
    }

    #[test]
    fn a_socket_is_read() {
        let place = parse("unix:///run/redis.sock").expect("a good URL");
        let Topology::Standalone(ServerConfig::Unix { path }) = &place.topology else {
            panic!("{place:?}");
        };
        assert_eq!(path.to_str(), Some("/run/redis.sock"));
    }
}
