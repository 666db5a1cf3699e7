//! The headers that tell a client where it stands.

use std::time::{SystemTime, UNIX_EPOCH};

use http::{
    HeaderMap, HeaderName, HeaderValue,
    header::{Entry, RETRY_AFTER},
};
use tollgate_core::{Decision, LimitDecision, Verdict, Wait};

const LIMIT: HeaderName = HeaderName::from_static("x-ratelimit-limit");
const REMAINING: HeaderName = HeaderName::from_static("x-ratelimit-remaining");
const RESET: HeaderName = HeaderName::from_static("x-ratelimit-reset");
const RATELIMIT: HeaderName = HeaderName::from_static("ratelimit");
const RATELIMIT_POLICY: HeaderName = HeaderName::from_static("ratelimit-policy");

/// The most that are written to one response here.
const MOST_FIELDS: usize = 5;

/// As long as a line for one limit mostly is at most, in bytes.
const LINE: usize = 64;

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
    if which != Headers::RetryAfterOnly {
        headers.reserve(MOST_FIELDS);
    }
    if matches!(which, Headers::Both | Headers::Ietf) {
        let mut line = String::with_capacity(LINE);
        write_policies(&mut line, decision);
        append(headers, RATELIMIT_POLICY, &line);
        line.clear();
        write_states(&mut line, decision);
        append(headers, RATELIMIT, &line);
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
    headers.insert(LIMIT, number(capacity));
    headers.insert(REMAINING, number(remaining));
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
    headers.insert(RESET, number(reset));
}

/// Digits, in one allocation.
fn number(number: u64) -> HeaderValue {
    let mut digits = itoa::Buffer::new();
    HeaderValue::from_str(digits.format(number)).expect("digits")
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
fn write_policies(line: &mut String, decision: &Decision) {
    for limit in decision.enforcing() {
        begin(line, limit);
        push(line, 'q', limit.capacity());
        // A blocked tenant has nothing in any window.
        if let Some(quota) = limit.quota {
            let window = whole_seconds(quota.seconds_for(quota.capacity()));
            push(line, 'w', window.max(1));
        }
    }
}

/// `"default";r=60;t=6` for each limit whose state is known: tokens left, and the seconds over which to
/// spread them.
///
/// For a limit that denied, `t` is the wait, so that `Retry-After` never points before it. For one that
/// did not, it is the time in which the quota refills what is left, at least one token: the ratio of both
/// never exceeds the rate.
fn write_states(line: &mut String, decision: &Decision) {
    for limit in decision.enforcing() {
        let Some(remaining) = limit.remaining else {
            continue;
        };
        begin(line, limit);
        push(line, 'r', remaining);
        let window = match (limit.wait, limit.quota) {
            (Wait::None, Some(quota)) => quota.seconds_for(remaining.max(1)),
            (Wait::For(wait), _) => wait.as_secs_f64(),
            (Wait::Never, _) | (Wait::None, None) => continue,
        };
        push(line, 't', whole_seconds(window).max(1));
    }
}

/// Starts a member of a list. Names of limits need no escapes.
fn begin(line: &mut String, limit: &LimitDecision) {
    if !line.is_empty() {
        line.push_str(", ");
    }
    line.push('"');
    line.push_str(limit.name.as_str());
    line.push('"');
}

fn push(line: &mut String, parameter: char, value: u64) {
    line.extend([';', parameter, '=']);
    line.push_str(itoa::Buffer::new().format(value));
}

/// Adds to a list-valued field, and joins what is there into one line. An empty list is not sent.
fn append(headers: &mut HeaderMap, name: HeaderName, ours: &str) {
    if ours.is_empty() {
        return;
    }
    let field = |line: &str| HeaderValue::from_str(line).expect("visible ASCII");
    match headers.entry(name) {
        Entry::Vacant(entry) => {
            entry.insert(field(ours));
        }
        Entry::Occupied(mut entry) => {
            let theirs = entry.iter().filter_map(|value| value.to_str().ok());
            let line: Vec<_> = theirs.chain([ours]).collect();
            entry.insert(field(&line.join(", ")));
        }
    }
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
