//! Accounts from a control plane.

use std::{error::Error, fmt, path::PathBuf, sync::Arc, time::Duration};

use bytes::Bytes;
use http::{HeaderValue, Request, Response, StatusCode, Uri, header, request};
use http_body::Body;
use http_body_util::{BodyExt, Empty, LengthLimitError, Limited};
use hyper_rustls::{ConfigBuilderExt, HttpsConnector, HttpsConnectorBuilder};
use hyper_util::{
    client::legacy::{Client, connect::HttpConnector},
    rt::{TokioExecutor, TokioTimer},
};
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use rustls::{ClientConfig, RootCertStore, crypto::ring};
use serde_json::{Map, Value};
use tokio::time::timeout;

use crate::{Account, LoadFuture, QuotaSource, SourceError, wire::no_json};

mod body;
mod token;

use self::token::Token;

const TIMEOUT: Duration = Duration::from_secs(1);
/// An account is a few hundred bytes.
const LARGEST_BODY: usize = 64 * 1024;
/// Shorter than what servers and load balancers usually grant.
const IDLE: Duration = Duration::from_secs(30);
/// All that RFC 3986 does not call unreserved.
const ESCAPED: &AsciiSet = &NON_ALPHANUMERIC
    .remove(b'-')
    .remove(b'.')
    .remove(b'_')
    .remove(b'~');

/// Accounts from a control plane that answers `GET {base}/tenants/{id}` with JSON:
///
/// ```json
/// {
///   "tier": "pro",
///   "shards": 4,
///   "limits": {
///     "default": {"capacity": 10, "rate": "2/s"},
///     "burst": "50/s",
///     "reports": "unlimited"
///   }
/// }
/// ```
///
/// Everything may be left out or null. The value of a limit is a quota (`{"capacity", "rate"}`, the rate as a number of tokens
/// per second or as `"1000/m"`), a plain rate that is the capacity as well, or `"unlimited"`, `"blocked"` or `"default"`, which
/// says nothing. Fields that it does not know are passed over, as a control plane grows, but not within a
/// quota. A value that makes no sense is an error.
///
/// | the answer | what it means |
/// |---|---|
/// | `200` | the account; its `ETag` comes back as `If-None-Match` the next time |
/// | `304` | the account is as it was |
/// | `404` | nothing is known of the tenant |
/// | a body that makes no sense or is above 64 KiB, `400`, `410`, `414`, `422` | the load fails [for this tenant](SourceError::of_tenant) |
/// | all else, also a redirect, and none in time | no answer: the source fails |
///
/// The id is percent-encoded, all but `A–Z a–z 0–9 - . _ ~`. HTTPS trusts the certificates of the operating
/// system, or those that `SSL_CERT_FILE` or `SSL_CERT_DIR` names. Changes are seen when an account is loaded
/// the next time.
///
/// ```
/// use tollgate_quota::HttpSource;
///
/// let source = HttpSource::builder("http://control-plane.internal/v1")
///     .token_file("/var/run/secrets/tokens/control-plane")
///     .build()?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct HttpSource {
    client: Client<HttpsConnector<HttpConnector>, Empty<Bytes>>,
    /// Without a slash at the end.
    base: String,
    token: Option<Token>,
    timeout: Duration,
}

/// Settings of an [`HttpSource`].
#[derive(Clone)]
#[must_use]
pub struct HttpSourceBuilder {
    base: String,
    token: Option<Token>,
    timeout: Duration,
}

impl HttpSource {
    /// A source of the control plane at `base`, such as `https://control.example.com/v1`.
    pub fn builder(base: impl Into<String>) -> HttpSourceBuilder {
        HttpSourceBuilder {
            base: base.into(),
            token: None,
            timeout: TIMEOUT,
        }
    }

    async fn load(
        &self,
        tenant: &str,
        known: Option<&Account>,
    ) -> Result<Option<Account>, SourceError> {
        let request = self.request(tenant, known).await?;
        let conditional = request.headers().contains_key(header::IF_NONE_MATCH);
        let response = self.client.request(request).await;
        let response = response.map_err(|error| SourceError::new(with_causes(&error)))?;
        match (response.status(), known) {
            (StatusCode::OK, _) => account(response).await.map(Some),
            (StatusCode::NOT_FOUND, _) => Ok(None),
            (StatusCode::NOT_MODIFIED, Some(known)) if conditional => Ok(Some(known.clone())),
            (status, _) if status.is_redirection() && status != StatusCode::NOT_MODIFIED => {
                let problem = format!("the answer is {status}, and redirects are not followed");
                Err(SourceError::new(problem))
            }
            (status, _) if is_of_tenant(status) => {
                Err(SourceError::of_tenant(format!("the answer is {status}")))
            }
            (status, _) => Err(SourceError::new(format!("the answer is {status}"))),
        }
    }

    async fn request(
        &self,
        tenant: &str,
        known: Option<&Account>,
    ) -> Result<Request<Empty<Bytes>>, SourceError> {
        if matches!(tenant, "." | "..") {
            let problem = "the tenant's id would lead to another path";
            return Err(SourceError::of_tenant(problem));
        }
        let id = utf8_percent_encode(tenant, ESCAPED);
        let mut request = Request::get(format!("{}/tenants/{id}", self.base))
            .header(header::ACCEPT, "application/json")
            .header(
                header::USER_AGENT,
                concat!("tollgate/", env!("CARGO_PKG_VERSION")),
            );
        if let Some(token) = &self.token {
            request = request.header(
                header::AUTHORIZATION,
                token.header().await.map_err(SourceError::new)?,
            );
        }
        if let Some(version) = known.and_then(|it| it.version.as_deref()) {
            request = condition(request, version);
        }
        // The rest was valid before: it is the id that is too long for a path.
        request.body(Empty::new()).map_err(SourceError::of_tenant)
    }
}

fn condition(request: request::Builder, version: &str) -> request::Builder {
    match HeaderValue::from_str(version) {
        Ok(version) => request.header(header::IF_NONE_MATCH, version),
        // Not what a control plane has sent.
        Err(_) => request,
    }
}

/// Whether others may get a better answer. What it says of the request may be due to the id.
fn is_of_tenant(status: StatusCode) -> bool {
    matches!(
        status,
        StatusCode::BAD_REQUEST
            | StatusCode::GONE
            | StatusCode::URI_TOO_LONG
            | StatusCode::UNPROCESSABLE_ENTITY
    )
}

async fn account<B>(response: Response<B>) -> Result<Account, SourceError>
where
    B: Body<Data = Bytes>,
    B::Error: Into<Box<dyn Error + Send + Sync>>,
{
    let version = response.headers().get(header::ETAG);
    let version: Option<Arc<str>> = version.and_then(|it| it.to_str().ok()).map(Into::into);
    let body = Limited::new(response.into_body(), LARGEST_BODY)
        .collect()
        .await;
    let body = body.map_err(|error| {
        if error.is::<LengthLimitError>() {
            SourceError::of_tenant(format!("the body is larger than {LARGEST_BODY} bytes"))
        } else {
            SourceError::new(format!("the body ends early: {}", with_causes(&*error)))
        }
    })?;
    let object: Map<String, Value> = serde_json::from_slice(&body.to_bytes()).map_err(|error| {
        let problem = format!("the body is not a JSON object: {}", no_json(&error));
        SourceError::of_tenant(problem)
    })?;
    let account = body::account(&object).map_err(SourceError::of_tenant)?;
    Ok(Account { version, ..account })
}

/// Of hyper's errors, the outermost only says where it happened.
fn with_causes(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(inner) = cause {
        text.push_str(": ");
        text.push_str(&inner.to_string());
        cause = inner.source();
    }
    text
}

impl HttpSourceBuilder {
    /// Sends `Authorization: Bearer <token>`. It appears in no error, log or `Debug`.
    pub fn token(mut self, token: impl Into<String>) -> Self {
        self.token = Some(Token::Value(token.into()));
        self
    }

    /// Sends the token in this file, which is read for each request, so that it may be replaced at any time.
    pub fn token_file(mut self, path: impl Into<PathBuf>) -> Self {
        self.token = Some(Token::File(path.into()));
        self
    }

    /// How long one load may take, by default 1 s, connecting included.
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = timeout;
        self
    }

    /// Makes the source. It connects when the first account is loaded.
    ///
    /// # Errors
    ///
    /// If the base is not an absolute URL of `http` or `https` without credentials, query and fragment, if
    /// the timeout is zero, or, for HTTPS, if the operating system has no certificates.
    pub fn build(self) -> Result<HttpSource, SourceError> {
        let secure = is_secure(&self.base).map_err(SourceError::new)?;
        if self.timeout.is_zero() {
            return Err(SourceError::new("a load needs a timeout above zero"));
        }
        // Named, not taken from the process: what others have installed or enabled must not matter.
        let tls = ClientConfig::builder_with_provider(ring::default_provider().into())
            .with_safe_default_protocol_versions()
            .map_err(SourceError::new)?;
        let tls = if secure {
            tls.with_native_roots().map_err(SourceError::new)?
        } else {
            tls.with_root_certificates(RootCertStore::empty())
        };
        let mut tcp = HttpConnector::new();
        tcp.enforce_http(false);
        tcp.set_nodelay(true);
        tcp.set_connect_timeout(Some(self.timeout));
        let connector = HttpsConnectorBuilder::new()
            .with_tls_config(tls.with_no_client_auth())
            .https_or_http()
            .enable_http1()
            .wrap_connector(tcp);
        let client = Client::builder(TokioExecutor::new())
            .pool_timer(TokioTimer::new())
            .pool_idle_timeout(IDLE)
            .build(connector);
        Ok(HttpSource {
            client,
            base: self.base.trim_end_matches('/').to_owned(),
            token: self.token,
            timeout: self.timeout,
        })
    }
}

/// Whether a base is one of HTTPS; an error if it is none at all. Errors do not quote it: it may have a
/// password.
fn is_secure(base: &str) -> Result<bool, String> {
    let uri: Uri = base
        .parse()
        .map_err(|error| format!("the URL of the control plane: {error}"))?;
    let plain = uri.query().is_none() && !base.contains('#');
    if uri.authority().is_none_or(|it| it.as_str().contains('@')) || !plain {
        return Err("the URL of the control plane must be absolute, without credentials, query and fragment".to_owned());
    }
    match uri.scheme_str() {
        Some("https") => Ok(true),
        Some("http") => Ok(false),
        _ => Err("the URL of the control plane must start with http:// or https://".to_owned()),
    }
}

// === impl HttpSource ===

impl QuotaSource for HttpSource {
    fn name(&self) -> &'static str {
        "http"
    }

    fn load<'a>(&'a self, tenant: &'a str, known: Option<&'a Account>) -> LoadFuture<'a> {
        Box::pin(async move {
            let loaded = timeout(self.timeout, self.load(tenant, known)).await;
            loaded.unwrap_or_else(|_| {
                let problem = format!("no answer within {:?}", self.timeout);
                Err(SourceError::new(problem))
            })
        })
    }
}

// === impl HttpSourceBuilder ===

impl fmt::Debug for HttpSourceBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Nothing of the URL, which has not been checked for a password yet.
        f.debug_struct("HttpSourceBuilder")
            .field("token", &self.token)
            .field("timeout", &self.timeout)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests;
