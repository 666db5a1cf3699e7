//! All settings of a store as data.

use std::{fmt, path::PathBuf, sync::Arc, time::Duration};

#[cfg(feature = "tls")]
use crate::tls;
use crate::{
    ConnectError,
    login::{Login, Password},
    sentinel::Sentinels,
    target::{Access, Target},
    url::{self, Place, Topology},
};
use fred::types::{
    RespVersion,
    config::{Config, Server},
};
use tollgate_core::KeySpace;

/// More would serve nobody, and a mistake in the setting would take all that the servers have.
const MOST_CONNECTIONS: u8 = 64;

/// Settings of a [`RedisStore`](crate::RedisStore) as data, such as a section of a TOML file (with the feature
/// `serde`). Everything but the URL has a default. A password may stand in one place only.
///
/// `Debug` never shows a URL or a password.
#[derive(Clone, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(deny_unknown_fields))]
#[non_exhaustive]
pub struct RedisSettings {
    /// Where Redis is; the crate's page lists the forms.
    pub url: String,
    /// How long one check may take, end to end. 25 ms by default; in a file, `deadline_ms`.
    #[cfg_attr(
        feature = "serde",
        serde(
            rename = "deadline_ms",
            default = "default_deadline",
            deserialize_with = "from_millis"
        )
    )]
    pub deadline: Duration,
    /// Whether to fail if Redis cannot be reached at the start. `false` by default.
    #[cfg_attr(feature = "serde", serde(default))]
    pub strict: bool,
    /// The user to log in as; needs a password.
    #[cfg_attr(feature = "serde", serde(default))]
    pub username: Option<String>,
    /// The password itself.
    #[cfg_attr(feature = "serde", serde(default))]
    pub password: Option<String>,
    /// The environment variable that holds the password at the start.
    #[cfg_attr(feature = "serde", serde(default))]
    pub password_env: Option<String>,
    /// The file that holds the password. It is read for each connection, so that the password can be changed
    /// without a restart; line ends after it do not count.
    #[cfg_attr(feature = "serde", serde(default))]
    pub password_file: Option<PathBuf>,
    /// The number of the database. 0 by default, and always on a cluster.
    #[cfg_attr(feature = "serde", serde(default))]
    pub database: Option<u8>,
    /// The version of the protocol: 2, the default, or 3.
    #[cfg_attr(feature = "serde", serde(default = "default_resp"))]
    pub resp: u8,
    /// How many connections to keep to each server, 1 to 64. 1 by default.
    #[cfg_attr(feature = "serde", serde(default = "default_connections"))]
    pub connections: u8,
    /// What all keys start with. `tg` by default. Neither empty nor with braces.
    #[cfg_attr(feature = "serde", serde(default = "default_key_prefix"))]
    pub key_prefix: String,
    /// The word before the ids of tenants in the hash tag, `[a-z][a-z0-9_-]*`. By default `tenant`, as in
    /// `tg:{tenant:42}:default`.
    #[cfg_attr(feature = "serde", serde(default = "default_tag_scope"))]
    pub tag_scope: String,
    /// How to use TLS; only with a URL that asks for it, and with the feature `tls`.
    #[cfg_attr(feature = "serde", serde(default))]
    pub tls: TlsSettings,
    /// As whom to log in at the sentinels; only with a URL that names them.
    #[cfg_attr(feature = "serde", serde(default))]
    pub sentinel: SentinelSettings,
}

/// How to use TLS.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(default, deny_unknown_fields))]
#[non_exhaustive]
pub struct TlsSettings {
    /// Certificates of the authorities to trust, in PEM; by default, those of the system.
    pub ca_file: Option<PathBuf>,
    /// The client's own certificate, and what leads from it to an authority, in PEM; needs `key_file`.
    pub certificate_file: Option<PathBuf>,
    /// The key of that certificate, in PEM.
    pub key_file: Option<PathBuf>,
    /// The name that the servers' certificates have to show; by default, the host to which the connection
    /// leads.
    pub server_name: Option<String>,
}

/// As whom to log in at the sentinels.
#[derive(Clone, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(default, deny_unknown_fields))]
#[non_exhaustive]
pub struct SentinelSettings {
    /// The user; needs a password.
    pub username: Option<String>,
    /// The password itself.
    pub password: Option<String>,
    /// The environment variable that holds the password at the start.
    pub password_env: Option<String>,
    /// The file that holds the password, read for each connection.
    pub password_file: Option<PathBuf>,
}

impl RedisSettings {
    /// Default settings for the Redis at `url`.
    #[must_use]
    pub fn new(url: impl Into<String>) -> Self {
        Self {
            url: url.into(),
            deadline: default_deadline(),
            strict: false,
            username: None,
            password: None,
            password_env: None,
            password_file: None,
            database: None,
            resp: default_resp(),
            connections: default_connections(),
            key_prefix: default_key_prefix(),
            tag_scope: default_tag_scope(),
            tls: TlsSettings::default(),
            sentinel: SentinelSettings::default(),
        }
    }

    /// Checks them all, without a connection.
    pub(crate) fn read(&self) -> Result<Plan, ConnectError> {
        if self.deadline.is_zero() {
            return Err(ConnectError::ZeroDeadline);
        }
        let place = url::parse(&self.url)?;
        let config = Config {
            version: match self.resp {
                2 => RespVersion::RESP2,
                3 => RespVersion::RESP3,
                _ => return Err(ConnectError::setting("resp", "it must be 2 or 3")),
            },
            #[cfg(feature = "tls")]
            tls: place.tls.then(|| tls::config(&self.tls)).transpose()?,
            ..Config::default()
        };
        self.check_tls(&place)?;
        let access = Access {
            config,
            login: self.login(&place)?,
            #[cfg(feature = "tls")]
            server_name: self.tls.server_name.clone(),
        };
        let database = self.database(&place)?;
        if self.sentinel != SentinelSettings::default()
            && !matches!(place.topology, Topology::Sentinel { .. })
        {
            let problem = "the URL names no sentinels; write redis-sentinel://";
            return Err(ConnectError::setting("sentinel", problem));
        }
        let (servers, address) = match place.topology {
            Topology::Standalone(server) => {
                let address = server.hosts().first().map(ToString::to_string);
                let access = Arc::new(access.with_database(database));
                let target = Target::Server(access, server);
                (Servers::Single(target), address.unwrap_or_default())
            }
            Topology::Cluster(seeds) => {
                let (address, access) = (listed(&seeds), Arc::new(access));
                (Servers::Cluster { access, seeds }, address)
            }
            Topology::Sentinel { hosts, service } => {
                let address = format!("{service} by {}", listed(&hosts));
                let sentinels = Access {
                    login: self.sentinel.login()?,
                    ..access.clone()
                };
                let servers = access.with_database(database);
                let sentinels = Sentinels::new(hosts, service, sentinels, servers);
                let target = Target::Sentinels(Arc::new(sentinels));
                (Servers::Single(target), address)
            }
        };
        Ok(Plan {
            servers,
            address,
            connections: self.connections()?,
            deadline: self.deadline,
            keys: self.keys()?,
        })
    }

    fn connections(&self) -> Result<u8, ConnectError> {
        if (1..=MOST_CONNECTIONS).contains(&self.connections) {
            return Ok(self.connections);
        }
        let problem = format!("it must be 1 to {MOST_CONNECTIONS}");
        Err(ConnectError::setting("connections", problem))
    }

    fn keys(&self) -> Result<KeySpace, ConnectError> {
        let keys = KeySpace::new(&self.key_prefix)
            .map_err(|error| ConnectError::setting("key_prefix", error.to_string()))?;
        keys.with_tag_scope(&self.tag_scope)
            .map_err(|error| ConnectError::setting("tag_scope", error.to_string()))
    }

    fn check_tls(&self, place: &Place) -> Result<(), ConnectError> {
        if place.tls && cfg!(not(feature = "tls")) {
            let problem = "TLS needs the feature `tls` of the crate";
            return Err(ConnectError::Url(problem.to_owned()));
        }
        if !place.tls && self.tls != TlsSettings::default() {
            let problem = "the URL does not ask for TLS; write rediss://, rediss-cluster:// or rediss-sentinel://";
            return Err(ConnectError::setting("tls", problem));
        }
        Ok(())
    }

    fn login(&self, place: &Place) -> Result<Login, ConnectError> {
        if self.username.is_some() && place.username.is_some() {
            let problem = "the user name is given already, in the URL";
            return Err(ConnectError::setting("username", problem));
        }
        let username = self.username.clone().or_else(|| place.username.clone());
        let sources = [
            ("url", place.password.clone().map(Password::Given)),
            ("password", self.password.clone().map(Password::Given)),
            (
                "password_env",
                Password::from_env("password_env", self.password_env.as_deref())?,
            ),
            (
                "password_file",
                self.password_file.clone().map(Password::File),
            ),
        ];
        Login::new(username, "username", sources)
    }

    fn database(&self, place: &Place) -> Result<Option<u8>, ConnectError> {
        match (self.database, place.database) {
            (Some(_), Some(_)) => {
                let problem = "it is given already, in the URL";
                Err(ConnectError::setting("database", problem))
            }
            (Some(1..), None) if matches!(place.topology, Topology::Cluster(_)) => {
                let problem = "a cluster has no database but 0";
                Err(ConnectError::setting("database", problem))
            }
            (here, there) => Ok(here.or(there)),
        }
    }
}

/// What the settings come to.
#[derive(Debug)]
pub(crate) struct Plan {
    pub(crate) servers: Servers,
    /// For logs and errors.
    pub(crate) address: String,
    /// To each server.
    pub(crate) connections: u8,
    pub(crate) deadline: Duration,
    pub(crate) keys: KeySpace,
}

/// Where the servers are.
#[derive(Debug)]
pub(crate) enum Servers {
    Single(Target),
    Cluster {
        access: Arc<Access>,
        seeds: Vec<Server>,
    },
}

fn listed(servers: &[Server]) -> String {
    let servers: Vec<_> = servers.iter().map(ToString::to_string).collect();
    servers.join(",")
}

const fn default_deadline() -> Duration {
    Duration::from_millis(25)
}

const fn default_resp() -> u8 {
    2
}

const fn default_connections() -> u8 {
    1
}

fn default_key_prefix() -> String {
    "tg".to_owned()
}

fn default_tag_scope() -> String {
    "tenant".to_owned()
}

#[cfg(feature = "serde")]
fn from_millis<'de, D: serde::Deserializer<'de>>(deserializer: D) -> Result<Duration, D::Error> {
    <u64 as serde::Deserialize>::deserialize(deserializer).map(Duration::from_millis)
}

// === impl RedisSettings ===

impl fmt::Debug for RedisSettings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The URL may hold a password.
        f.debug_struct("RedisSettings")
            .field("deadline", &self.deadline)
            .field("strict", &self.strict)
            .field("password_env", &self.password_env)
            .field("password_file", &self.password_file)
            .field("database", &self.database)
            .field("resp", &self.resp)
            .field("connections", &self.connections)
            .field("key_prefix", &self.key_prefix)
            .field("tag_scope", &self.tag_scope)
            .field("tls", &self.tls)
            .finish_non_exhaustive()
    }
}

impl SentinelSettings {
    fn login(&self) -> Result<Login, ConnectError> {
        let sources = [
            (
                "sentinel.password",
                self.password.clone().map(Password::Given),
            ),
            (
                "sentinel.password_env",
                Password::from_env("sentinel.password_env", self.password_env.as_deref())?,
            ),
            (
                "sentinel.password_file",
                self.password_file.clone().map(Password::File),
            ),
        ];
        Login::new(self.username.clone(), "sentinel.username", sources)
    }
}

// === impl SentinelSettings ===

impl fmt::Debug for SentinelSettings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SentinelSettings")
            .field("password_env", &self.password_env)
            .field("password_file", &self.password_file)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    type Case<T> = (&'static str, fn(&mut T));

    fn read(change: impl FnOnce(&mut RedisSettings)) -> Result<Plan, ConnectError> {
        let mut settings = RedisSettings::new("redis://user:hunter2@host");
        change(&mut settings);
        settings.read()
    }

    #[test]
    fn what_is_wrong_is_named() {
        let cases: [Case<RedisSettings>; 18] = [
            ("resp", |it| it.resp = 4),
            ("password", |it| it.password = Some("hunter2".into())),
            ("username", |it| it.username = Some("other".into())),
            ("username", |it| {
                it.url = "redis://host".into();
                it.username = Some("other".into());
            }),
            ("password", |it| {
                it.url = "redis://host".into();
                it.password = Some(String::new());
            }),
            ("password_env", |it| {
                it.url = "redis://host".into();
                it.password_env = Some("TOLLGATE_THERE_IS_NO_SUCH_THING".into());
            }),
            ("password_file", |it| {
                it.url = "redis://host".into();
                it.password_file = Some("/there/is/no/such/thing".into());
            }),
            ("database", |it| {
                it.url = "redis-cluster://a,b".into();
                it.database = Some(1);
            }),
            ("database", |it| {
                it.url = "redis://host/1".into();
                it.database = Some(1);
            }),
            ("connections", |it| it.connections = 0),
            ("connections", |it| it.connections = 65),
            ("key_prefix", |it| it.key_prefix = String::new()),
            ("key_prefix", |it| it.key_prefix = "a{b}".into()),
            ("tag_scope", |it| it.tag_scope = "Tenant".into()),
            ("tag_scope", |it| it.tag_scope = "global".into()),
            ("tls", |it| it.tls.ca_file = Some("ca.pem".into())),
            ("sentinel", |it| {
                it.sentinel.password = Some("hunter2".into())
            }),
            ("sentinel.username", |it| {
                it.url = "redis-sentinel://a:1/primary".into();
                it.sentinel.username = Some("other".into());
            }),
        ];
        for (name, change) in cases {
            match read(change) {
                Err(ConnectError::Setting { field, problem }) => {
                    assert_eq!(field, name, "{problem}");
                    assert!(!problem.contains("hunter2"), "{problem}");
                }
                other => panic!("{name}: {other:?}"),
            }
        }
        let zero = read(|it| it.deadline = Duration::ZERO);
        assert_eq!(zero.err(), Some(ConnectError::ZeroDeadline));
    }

    #[cfg(not(feature = "tls"))]
    #[test]
    fn without_the_feature_a_url_with_tls_is_refused() {
        // Not connected to without TLS, with the password in the clear.
        let refused = read(|it| it.url = "rediss://:hunter2@host".into());
        assert!(matches!(refused, Err(ConnectError::Url(problem)) if problem.contains("feature")));
    }

    #[cfg(feature = "tls")]
    #[test]
    fn what_is_wrong_with_tls_is_named() {
        let cases: [Case<TlsSettings>; 4] = [
            ("tls.ca_file", |it| {
                it.ca_file = Some("/no/such/file".into())
            }),
            ("tls.key_file", |it| {
                it.certificate_file = Some("a.pem".into())
            }),
            ("tls.certificate_file", |it| {
                it.key_file = Some("a.key".into())
            }),
            ("tls.ca_file", |it| it.ca_file = Some("/dev/null".into())),
        ];
        for (name, change) in cases {
            let refused = read(|it| {
                it.url = "rediss://host".into();
                change(&mut it.tls);
            });
            match refused {
                Err(ConnectError::Setting { field, .. }) => assert_eq!(field, name),
                other => panic!("{name}: {other:?}"),
            }
        }
    }

    #[test]
    fn nothing_shows_a_secret() {
        let mut settings = RedisSettings::new("redis-sentinel://user:hunter2@a:1/primary");
        settings.sentinel.password = Some("hunter2".into());
        let builder = crate::RedisStoreBuilder::<crate::RedisStore>::from(settings.clone());
        let plan = settings.read().expect("good settings");
        let shown = format!("{settings:?} {:?} {builder:?} {plan:?}", settings.sentinel);
        assert!(!shown.contains("hunter2"), "{shown}");
        let plan = RedisSettings::new("redis-cluster://user:hunter2@a:1").read();
        assert!(!format!("{plan:?}").contains("hunter2"), "{plan:?}");
    }

    #[cfg(feature = "serde")]
    #[test]
    fn a_section_of_a_file_is_read() {
        let text = r#"
            url = "redis-sentinel://a:1,b:2/primary"
            deadline_ms = 40
            strict = true
            username = "tollgate"
            password_file = "/run/secrets/redis"
            database = 2
            resp = 3
            connections = 4
            key_prefix = "shop"
            tag_scope = "user"

            [sentinel]
            password = "other"
        "#;
        let settings: RedisSettings = toml::from_str(text).expect("good settings");
        let mut expected = RedisSettings::new("redis-sentinel://a:1,b:2/primary");
        expected.deadline = Duration::from_millis(40);
        expected.strict = true;
        expected.username = Some("tollgate".into());
        expected.password_file = Some("/run/secrets/redis".into());
        expected.database = Some(2);
        expected.resp = 3;
        expected.connections = 4;
        expected.key_prefix = "shop".into();
        expected.tag_scope = "user".into();
        expected.sentinel.password = Some("other".into());
        assert_eq!(settings, expected);

        let least: RedisSettings = toml::from_str(r#"url = "redis://a""#).expect("good settings");
        assert_eq!(least, RedisSettings::new("redis://a"));
        for (text, field) in [
            ("url = \"redis://a\"\npasword = \"b\"", "pasword"),
            ("url = \"redis://a\"\n[tls]\nca = \"b\"", "ca"),
            ("deadline_ms = 40", "url"),
            ("url = \"redis://a\"\nresp = \"three\"", "resp"),
        ] {
            let error = toml::from_str::<RedisSettings>(text).expect_err(field);
            assert!(error.to_string().contains(field), "{error}");
        }
    }
}
