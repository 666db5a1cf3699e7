//! What a URL says.

use fred::types::config::{Config, Server, ServerConfig};

use crate::ConnectError;

const PORT: u16 = 6379;
const SENTINEL_PORT: u16 = 26379;

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
    if let Some((_, path)) = rest.split_once('/')
        && scheme != "unix"
        && path.contains('@')
    {
        // Part of a password would pass for a port, a name or a database.
        return bad(
            "an `@` stands behind the hosts; a `/` in a user name or password is written %2F",
        );
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
    place(rest, tls, PORT, |mut hosts| {
        match (hosts.pop(), hosts.is_empty()) {
            (Some(server), true) => Ok(Topology::Standalone(ServerConfig::Centralized { server })),
            _ => bad("several hosts are for `redis-cluster` and `redis-sentinel`"),
        }
    })
}

fn cluster(rest: &str, tls: bool) -> Result<Place, ConnectError> {
    let place = place(rest, tls, PORT, |hosts| Ok(Topology::Cluster(hosts)))?;
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
    let rest = format!("{authority}/{database}");
    place(&rest, tls, SENTINEL_PORT, |hosts| {
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

/// Reads `[[user]:password@]host[:port],…[/database]`, with the port of hosts that have none.
fn place(
    rest: &str,
    tls: bool,
    port: u16,
    topology: impl FnOnce(Vec<Server>) -> Result<Topology, ConnectError>,
) -> Result<Place, ConnectError> {
    let (authority, path) = rest.split_once('/').unwrap_or((rest, ""));
    let (user, hosts) = authority.rsplit_once('@').unwrap_or(("", authority));
    let (username, password) = login(user)?;
    let servers = hosts.split(',').map(|host| server(host, port));
    let topology = topology(servers.collect::<Result<_, _>>()?)?;
    Ok(Place {
        topology,
        tls,
        username,
        password,
        database: database(path)?,
    })
}

/// Reads `[user]:password`, or nothing.
fn login(text: &str) -> Result<(Option<String>, Option<String>), ConnectError> {
    if text.contains(['@', ',']) {
        return bad(
            "user and password stand once, before the first host; percent-encode what is odd in them",
        );
    }
    let Ok(config) = read(&format!("{text}@host")) else {
        return bad("the user name or the password is not percent-encoded UTF-8");
    };
    if config.username.is_some() && config.password.is_none() {
        // fred would ignore the name, and be somebody else than was meant.
        return bad("it has a user name without a password");
    }
    Ok((config.username, config.password))
}

/// Reads `host[:port]`.
fn server(text: &str, default: u16) -> Result<Server, ConnectError> {
    let (host, port) = match text.rsplit_once(':') {
        // Those of an IPv6 address stand in brackets.
        Some((host, port)) if !port.ends_with(']') => (host, Some(port)),
        _ => (text, None),
    };
    let Ok(port) = port.map_or(Ok(default), str::parse::<u16>) else {
        return bad("a port is not a number from 0 to 65535");
    };
    let named = read(&format!("{host}:{port}")).map(|config| config.server.hosts());
    match named.ok().and_then(|mut servers| servers.pop()) {
        Some(server) => Ok(server),
        None => bad("a host is missing, or is none"),
    }
}

fn database(path: &str) -> Result<Option<u8>, ConnectError> {
    match path {
        "" => Ok(None),
        _ => path
            .parse()
            .map(Some)
            .or_else(|_| bad("the database is not a number from 0 to 255")),
    }
}

/// Reads `[login@]host[:port]`, without TLS: with it, fred would load certificates of its own.
fn read(authority: &str) -> Result<Config, fred::error::Error> {
    Config::from_url_centralized(&format!("redis://{authority}"))
}

fn bad<T>(problem: &str) -> Result<T, ConnectError> {
    Err(ConnectError::Url(problem.to_owned()))
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
            ("redis://user:hunter2@", "host"),
            ("redis://user:hunter2@::1", "host"),
            ("redis://user:hunter2@a b", "host"),
            ("redis://user:hunter2@host:port", "port"),
            ("redis://user:hunter2@host:65536", "port"),
            ("redis://user:hunter2@host:", "port"),
            ("redis://user:hunter2@host:1:2", "host"),
            ("redis://user:hunter2@host/zero", "database"),
            ("redis://user:hunter2@host/300", "database"),
            ("redis://user:hunter2@host/1/2", "database"),
            ("redis://user:hunter2%ff@host", "percent-encoded"),
            ("redis://user:123/hunter2@host", "%2F"),
            ("redis://user:hunter2/3@host", "%2F"),
            ("redis-cluster://user:123/hunter2@host", "%2F"),
            ("redis-sentinel://user:123/hunter2@host:1", "%2F"),
            ("redis-sentinel://user:123/hunter2@host:1/primary", "%2F"),
            ("redis-sentinel://user:123/a/hunter2@host:1/primary", "%2F"),
            ("redis://user:hunt@hunter2@host", "once"),
            ("redis://user:a,hunter2@host", "once"),
            ("redis-cluster://user:hunter2@a:1,user:hunter2@b:2", "once"),
            ("redis-cluster://a:1,user:hunter2@b:2", "once"),
            ("redis-sentinel://:hunter2@a,:hunter2@b/primary", "once"),
            ("redis://user@host", "user name"),
            ("redis://user:hunter2@host?tls=yes", "query"),
            ("redis://:hunter2@a,b", "several hosts"),
            ("redis-cluster://:hunter2@a,,b", "host"),
            ("redis-cluster://:hunter2@a/3", "database"),
            ("redis-sentinel://:hunter2@a:1,b:2", "name of the primary"),
            ("redis-sentinel://:hunter2@a:1/primary/zero", "database"),
            ("unix://user:hunter2@", "socket"),
        ] {
            let error = parse(url).expect_err(url);
            let text = format!("{error} {error:?}");
            assert!(
                text.to_lowercase().contains(&problem.to_lowercase()),
                "{url}: {error}"
            );
            assert!(!text.contains("hunt"), "{error}");
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
        for (url, server) in [
            ("redis://:secret@[::1]", "[::1]:6379"),
            ("redis://[::1]:7000", "[::1]:7000"),
            ("redis://:a%2Cb%2F%40@host", "host:6379"),
            ("redis://host/", "host:6379"),
        ] {
            let place = parse(url).expect(url);
            let Topology::Standalone(read) = &place.topology else {
                panic!("{place:?}");
            };
            assert_eq!(read.hosts()[0].to_string(), server);
        }
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

        let place = parse("redis-sentinel://a:1,b/primary/4").expect("a good URL");
        let Topology::Sentinel { hosts, service } = &place.topology else {
            panic!("{place:?}");
        };
        assert_eq!(
            (ports(hosts), service.as_str()),
            (vec!["a:1".to_owned(), "b:26379".to_owned()], "primary")
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
