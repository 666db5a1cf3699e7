//! The headers that tell a client where it stands.

use std::{
    fmt::Write,
    time::{SystemTime, UNIX_EPOCH},
};

use http::{HeaderMap, HeaderName, HeaderValue, header::RETRY_AFTER};
use tollgate_core::{Decision, LimitDecision, Verdict, Wait};

const LIMIT: HeaderName = HeaderName::from_static("x-ratelimit-limit");
const REMAINING: HeaderName = HeaderName::from_static("x-ratelimit-remaining");
const RESET: HeaderName = HeaderName::from_static("x-ratelimit-reset");
const RATELIMIT: HeaderName = HeaderName::from_static("ratelimit");
const RATELIMIT_POLICY: HeaderName = HeaderName::from_static("ratelimit-policy");

/// The response headers to name in `Access-Control-Expose-Headers`, so that scripts in a browser may read
/// them. Goes into `CorsLayer::expose_headers` of tower-http as it is.
///
/// The CORS layer must be outside of the limiter; else a denial looks like a network error there.
pub const EXPOSED_HEADERS: [HeaderName; 6] = [
    RETRY_AFTER,
    RATELIMIT,
    RATELIMIT_POLICY,
    LIMIT,
    REMAINING,
    RESET,
];

/// Which families of headers are sent, on allowed and denied responses alike.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Headers {
    /// Both families below.
    #[default]
    Both,
    /// `RateLimit-Policy` and `RateLimit`, in the syntax of [draft-ietf-httpapi-ratelimit-headers-11], for
    /// all limits.
    ///
    /// [draft-ietf-httpapi-ratelimit-headers-11]: https://datatracker.ietf.org/doc/draft-ietf-httpapi-ratelimit-headers/11/
    Ietf,
    /// `X-RateLimit-Limit`, `X-RateLimit-Remaining` and `X-RateLimit-Reset`, for the tightest limit.
    Legacy,
    /// None, but for `Retry-After` on denials.
    RetryAfterOnly,
}

/// What `X-RateLimit-Reset` says of the instant at which the bucket is full.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Reset {
    /// In how many seconds, rounded up. It needs no clock to be right at both ends.
    #[default]
    Seconds,
    /// Its UTC time in seconds since 1970, rounded up, by this machine's clock.
    Epoch,
}

/// Adds the headers of `decision` to a response that may have some of an inner limiter, or of a service
/// behind this one. Lists are joined into one line; the single-valued ones stay with the tightest limit.
/// `inner` is the decision of an inner limiter.
pub(crate) fn write(
    headers: &mut HeaderMap,
    inner: Option<&Decision>,
    decision: &Decision,
    which: Headers,
    reset: Reset,
) {
    if matches!(which, Headers::Both | Headers::Ietf) {
        append(headers, RATELIMIT_POLICY, &policies(decision));
        append(headers, RATELIMIT, &states(decision));
    }
    if matches!(which, Headers::Both | Headers::Legacy) {
        let tightest = decision.tightest();
        let Some((limit, remaining)) = tightest.and_then(|limit| Some((limit, limit.remaining?)))
        else {
            return;
        };
        let inner_denied = inner.is_some_and(|inner| !inner.is_allowed());
        if !shows_tighter(headers, limit.share_left(), inner_denied) {
            write_legacy(headers, limit, remaining, reset);
        }
    }
}

/// Whether `decision` is what a client should see rather than `inner`, that of an inner limiter.
pub(crate) fn is_tighter(decision: &Decision, inner: &Decision) -> bool {
    let share = |decision: &Decision| decision.tightest().map_or(1.0, LimitDecision::share_left);
    inner.is_allowed() && share(decision) < share(inner)
}

/// Whether the headers are already those of a limit at least as tight as one with `share` left.
fn shows_tighter(headers: &HeaderMap, share: f64, inner_denied: bool) -> bool {
    let number = |name| headers.get(name)?.to_str().ok()?.trim().parse::<f64>().ok();
    match (number(LIMIT), number(REMAINING)) {
        (Some(limit), Some(remaining)) => inner_denied || remaining / limit <= share,
        _ => false,
    }
}

fn write_legacy(headers: &mut HeaderMap, limit: &LimitDecision, remaining: u64, reset: Reset) {
    let capacity = limit.capacity();
    headers.insert(LIMIT, capacity.into());
    headers.insert(REMAINING, remaining.into());
    // Who is blocked waits in vain, and no date is the right one.
    let Some(quota) = limit.quota else {
        headers.remove(RESET);
        return;
    };
    let full_in = whole_seconds(quota.seconds_for(capacity.saturating_sub(remaining)));
    let reset = match reset {
        Reset::Seconds => full_in,
        Reset::Epoch => {
            let now = SystemTime::now()
                .duration_since(UNIX_EPOCH)
                .unwrap_or_default();
            full_in + whole_seconds(now.as_secs_f64())
        }
    };
    headers.insert(RESET, reset.into());
}

/// Whole seconds until a retry can succeed, at least 1: a client reads 0 as "at once". `None` if there is
/// nothing to wait for, or no wait is long enough.
pub(crate) fn retry_after(decision: &Decision) -> Option<u64> {
    match (decision.verdict, decision.tightest()?.wait) {
        (Verdict::Denied, Wait::For(wait)) => Some(whole_seconds(wait.as_secs_f64()).max(1)),
        _ => None,
    }
}

/// `"default";q=100;w=10` for each limit: capacity, and the seconds in which that much is refilled.
fn policies(decision: &Decision) -> String {
    list(decision.enforcing(), |line, limit| {
        write!(line, r#""{}";q={}"#, limit.name, limit.capacity())?;
        // A blocked tenant has nothing in any window.
        let Some(quota) = limit.quota else {
            return Ok(());
        };
        let window = whole_seconds(quota.seconds_for(quota.capacity())).max(1);
        write!(line, ";w={window}")
    })
}

/// `"default";r=60;t=6` for each limit whose state is known: tokens left, and the seconds over which to
/// spread them.
///
/// For a limit that denied, `t` is the wait, so that `Retry-After` never points before it. For one that
/// did not, it is the time in which the quota refills what is left, at least one token: the ratio of both
/// never exceeds the rate.
fn states(decision: &Decision) -> String {
    let known = decision
        .enforcing()
        .filter_map(|limit| Some((limit, limit.remaining?)));
    list(known, |line, (limit, remaining)| {
        write!(line, r#""{}";r={remaining}"#, limit.name)?;
        let window = match (limit.wait, limit.quota) {
            (Wait::None, Some(quota)) => quota.seconds_for(remaining.max(1)),
            (Wait::For(wait), _) => wait.as_secs_f64(),
            (Wait::Never, _) | (Wait::None, None) => return Ok(()),
        };
        write!(line, ";t={}", whole_seconds(window).max(1))
    })
}

fn list<T>(
    items: impl Iterator<Item = T>,
    mut write: impl FnMut(&mut String, T) -> std::fmt::Result,
) -> String {
    let mut line = String::new();
    for item in items {
        if !line.is_empty() {
            line.push_str(", ");
        }
        write(&mut line, item).expect("writing to a String");
    }
    line
}

/// Adds to a list-valued field, and joins what is there into one line. An empty list is not sent.
fn append(headers: &mut HeaderMap, name: HeaderName, ours: &str) {
    if ours.is_empty() {
        return;
    }
    let theirs = headers
        .get_all(&name)
        .iter()
        .filter_map(|value| value.to_str().ok());
    let line = list(theirs.chain([ours]), |line, value| write!(line, "{value}"));
    // Names are checked when a limit is named, and what came before was a header value.
    headers.insert(name, HeaderValue::try_from(line).expect("visible ASCII"));
}

/// Rounds up. A microsecond less is none, so that rounding noise does not add a second.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "clamped at 0; far below 2^53"
)]
fn whole_seconds(seconds: f64) -> u64 {
    (seconds - 1e-6).ceil().max(0.0) as u64
}
