//! What a refused client gets.

use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Response, StatusCode, header};
use tollgate_core::{Decision, LimitDecision, Wait};

use crate::headers;

/// As long as a body mostly is at most, in bytes.
const PROBLEM: usize = 320;

/// Why a request was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Reason {
    /// A limit lacks the tokens: `429`.
    QuotaExceeded,
    /// The store gives no answer, and the policy for that is to refuse: `503`.
    StoreUnavailable,
    /// Nothing verified says who pays: `401`.
    Unidentified,
}

/// A refused request, as a [`Rejection`] sees it.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Refusal {
    /// Why.
    pub reason: Reason,
    /// The decision, unless the request was refused before there was one.
    pub decision: Option<Decision>,
}

impl Refusal {
    /// `429`, `503` or `401`.
    #[must_use]
    pub const fn status(&self) -> StatusCode {
        match self.reason {
            Reason::QuotaExceeded => StatusCode::TOO_MANY_REQUESTS,
            Reason::StoreUnavailable => StatusCode::SERVICE_UNAVAILABLE,
            Reason::Unidentified => StatusCode::UNAUTHORIZED,
        }
    }

    /// Whole seconds after which a retry can succeed, as `Retry-After` says.
    ///
    /// `None` if waiting is of no use: the cost exceeds the capacity, or there is no identity.
    #[must_use]
    pub fn retry_after(&self) -> Option<u64> {
        match self.reason {
            Reason::QuotaExceeded => self.decision.as_ref().and_then(headers::retry_after),
            Reason::StoreUnavailable => Some(1),
            Reason::Unidentified => None,
        }
    }

    /// The default response: an `application/problem+json` body ([RFC 9457]) with the problem types of
    /// draft-ietf-httpapi-ratelimit-headers-11.
    ///
    /// [RFC 9457]: https://www.rfc-editor.org/rfc/rfc9457
    #[must_use]
    pub fn to_response(&self) -> Response<Bytes> {
        let mut response = Response::new(self.problem().into());
        *response.status_mut() = self.status();
        // At once for all that are to come.
        response.headers_mut().reserve(headers::MOST_OF_A_REFUSAL);
        let json = HeaderValue::from_static("application/problem+json");
        response.headers_mut().insert(header::CONTENT_TYPE, json);
        response
    }

    /// The headers that every refusal carries, whatever its body is.
    pub(crate) fn write_headers(&self, headers: &mut HeaderMap) {
        let no_store = HeaderValue::from_static("no-store");
        headers.entry(header::CACHE_CONTROL).or_insert(no_store);
        if let Some(seconds) = self.retry_after() {
            headers
                .entry(header::RETRY_AFTER)
                .or_insert_with(|| seconds.into());
        }
        if self.reason == Reason::Unidentified {
            // RFC 9110, section 15.5.2: a 401 must say how to authenticate.
            let bearer = HeaderValue::from_static("Bearer");
            headers.entry(header::WWW_AUTHENTICATE).or_insert(bearer);
        }
    }

    fn problem(&self) -> String {
        // Every part is a constant, a number or a limit's name, so nothing needs escaping.
        let (kind, title) = match self.reason {
            Reason::QuotaExceeded => (
                "https://iana.org/assignments/http-problem-types#quota-exceeded",
                "Quota Exceeded",
            ),
            Reason::StoreUnavailable => (
                "https://iana.org/assignments/http-problem-types#temporary-reduced-capacity",
                "Temporary Reduced Capacity",
            ),
            Reason::Unidentified => ("about:blank", "Unauthorized"),
        };
        // Put together by hand: under attack this is most of what a request costs.
        let mut body = String::with_capacity(PROBLEM);
        let mut digits = itoa::Buffer::new();
        push_all(&mut body, [r#"{"type":""#, kind, r#"","title":""#, title]);
        push_all(&mut body, [r#"","status":"#, self.status().as_str()]);
        body.push_str(r#","detail":""#);
        self.push_detail(&mut body, &mut digits);
        body.push('"');
        if let Some(decision) = &self.decision {
            body.push_str(r#","violated-policies":["#);
            for (i, limit) in violated(decision, self.reason).enumerate() {
                let quote = if i == 0 { "\"" } else { ",\"" };
                push_all(&mut body, [quote, limit.name.as_str(), "\""]);
            }
            body.push(']');
        }
        body.push('}');
        body
    }

    fn push_detail(&self, body: &mut String, digits: &mut itoa::Buffer) {
        let tightest = self.decision.as_ref().and_then(Decision::tightest);
        let limit = match (self.reason, tightest) {
            (Reason::QuotaExceeded, Some(limit)) => limit,
            (Reason::QuotaExceeded, None) => return body.push_str("A limit was exceeded."),
            (Reason::StoreUnavailable, _) => {
                return body.push_str(
                    "Requests cannot be counted at the moment, so none are let through. Retry later.",
                );
            }
            (Reason::Unidentified, _) => {
                return body.push_str("This request has no verified identity to be limited by.");
            }
        };
        let name = limit.name.as_str();
        if limit.quota.is_none() {
            let rest = " lets none of your requests through. Waiting does not help.";
            return push_all(body, ["The limit ", name, rest]);
        }
        let cost = digits.format(limit.cost.tokens());
        push_all(body, ["This request costs ", cost]);
        if limit.wait == Wait::Never {
            push_all(body, [", more than the limit ", name, " can ever hold ("]);
            return push_all(
                body,
                [digits.format(limit.capacity()), "). Waiting does not help."],
            );
        }
        push_all(body, [", and the limit ", name, " has "]);
        body.push_str(digits.format(limit.remaining.unwrap_or(0)));
        let retry_after = digits.format(self.retry_after().unwrap_or(1));
        push_all(body, [" left. Retry after ", retry_after, " s."]);
    }
}

fn push_all<const N: usize>(text: &mut String, parts: [&str; N]) {
    for part in parts {
        text.push_str(part);
    }
}

/// The limits that denied, or those of which the store did not say.
fn violated(decision: &Decision, reason: Reason) -> impl Iterator<Item = &LimitDecision> {
    let unknown = reason == Reason::StoreUnavailable;
    decision.enforcing().filter(move |limit| {
        if unknown {
            limit.remaining.is_none()
        } else {
            limit.lacked_tokens()
        }
    })
}

/// Makes the response to a refused request.
///
/// Whatever it makes, the layer adds the headers of the decision, and `Retry-After`, `Cache-Control` and
/// `WWW-Authenticate` where they are due and missing.
///
/// Implemented by [`ProblemJson`], [`EmptyBody`], and closures from [`&Refusal`](Refusal) to a response:
///
/// ```
/// use http_body_util::{BodyExt, Full, combinators::BoxBody};
/// use tollgate::{Refusal, bytes::Bytes, http::Response};
///
/// // For a body type that cannot be made from bytes by itself.
/// let boxed = |refusal: &Refusal| -> Response<BoxBody<Bytes, std::convert::Infallible>> {
///     refusal.to_response().map(|bytes| Full::new(bytes).boxed())
/// };
/// # fn check<B>(_: impl tollgate::Rejection<B>) {}
/// # check(boxed);
/// ```
pub trait Rejection<B>: Clone {
    /// Makes the response.
    fn respond(&self, refusal: &Refusal) -> Response<B>;
}

impl<F, B> Rejection<B> for F
where
    F: Fn(&Refusal) -> Response<B> + Clone,
{
    fn respond(&self, refusal: &Refusal) -> Response<B> {
        self(refusal)
    }
}

/// The default: `application/problem+json`, see [`Refusal::to_response`].
#[derive(Clone, Copy, Debug, Default)]
#[non_exhaustive]
pub struct ProblemJson;

impl<B: From<Bytes>> Rejection<B> for ProblemJson {
    fn respond(&self, refusal: &Refusal) -> Response<B> {
        refusal.to_response().map(B::from)
    }
}

/// The status without a body, for body types that cannot be made from bytes.
#[derive(Clone, Copy, Debug, Default)]
#[non_exhaustive]
pub struct EmptyBody;

impl<B: Default> Rejection<B> for EmptyBody {
    fn respond(&self, refusal: &Refusal) -> Response<B> {
        let mut response = Response::new(B::default());
        *response.status_mut() = refusal.status();
        response
    }
}
