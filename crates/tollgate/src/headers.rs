//! The headers that tell a client where it stands.

use std::{
    ops::Range,
    time::{SystemTime, UNIX_EPOCH},
};

use bytes::Bytes;
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

/// The most that are written to one response here, and one for the length, which servers add: what is made room
/// for together is moved once.
const MOST_FIELDS: usize = 6;

/// The most that a refusal has, with those of its own.
pub(crate) const MOST_OF_A_REFUSAL: usize = MOST_FIELDS + 3;

/// As long as all values together mostly are at most for one limit, in bytes.
const VALUES: usize = 112;

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
    if which == Headers::RetryAfterOnly {
        return;
    }
    headers.reserve(MOST_FIELDS);
    let mut values = Values(Vec::with_capacity(VALUES));
    let none = 0..0;
    let lists = if which == Headers::Legacy {
        [none.clone(), none.clone()]
    } else {
        [
            values.add(|text| write_policies(text, decision)),
            values.add(|text| write_states(text, decision)),
        ]
    };
    let tightest = if which == Headers::Ietf {
        None
    } else {
        tightest(headers, inner, decision)
    };
    let numbers = tightest.map(|(limit, remaining)| {
        [
            values.add(|text| push_number(text, limit.capacity())),
            values.add(|text| push_number(text, remaining)),
            // Who is blocked waits in vain, and no date is the right one.
            match reset_at(limit, remaining, reset) {
                Some(reset) => values.add(|text| push_number(text, reset)),
                None => none,
            },
        ]
    });

    let values = Bytes::from(values.0);
    let value = |range| HeaderValue::from_maybe_shared(values.slice(range)).expect("visible ASCII");
    for (name, list) in [RATELIMIT_POLICY, RATELIMIT].into_iter().zip(lists) {
        // An empty list is not sent.
        if !list.is_empty() {
            append(headers, name, value(list));
        }
    }
    for (name, number) in [LIMIT, REMAINING, RESET]
        .into_iter()
        .zip(numbers.into_iter().flatten())
    {
        if number.is_empty() {
            headers.remove(name);
        } else {
            headers.insert(name, value(number));
        }
    }
}

/// The values of several fields, in one allocation.
struct Values(Vec<u8>);

impl Values {
    /// Where the one is that `write` writes.
    fn add(&mut self, write: impl FnOnce(&mut Vec<u8>)) -> Range<usize> {
        let start = self.0.len();
        write(&mut self.0);
        start..self.0.len()
    }
}

/// Whether `decision` is what a client should see rather than `inner`, that of an inner limiter.
pub(crate) fn is_tighter(decision: &Decision, inner: &Decision) -> bool {
    let share = |decision: &Decision| decision.tightest().map_or(1.0, LimitDecision::share_left);
    inner.is_allowed() && share(decision) < share(inner)
}

/// The tightest limit and what it has left, unless that is not known, or the headers are those of one at least as
/// tight.
fn tightest<'a>(
    headers: &HeaderMap,
    inner: Option<&Decision>,
    decision: &'a Decision,
) -> Option<(&'a LimitDecision, u64)> {
    let tightest = decision.tightest()?;
    let remaining = tightest.remaining?;
    let number = |name| headers.get(name)?.to_str().ok()?.trim().parse::<f64>().ok();
    if let Some(limit) = number(LIMIT)
        && let Some(remaining) = number(REMAINING)
    {
        let inner_denied = inner.is_some_and(|inner| !inner.is_allowed());
        if inner_denied || remaining / limit <= tightest.share_left() {
            return None;
        }
    }
    Some((tightest, remaining))
}

/// What `X-RateLimit-Reset` says. `None` for a limit that blocks.
fn reset_at(limit: &LimitDecision, remaining: u64, reset: Reset) -> Option<u64> {
    let missing = limit.capacity().saturating_sub(remaining);
    let full_in = whole_seconds(limit.quota?.seconds_for(missing));
    Some(match reset {
        Reset::Seconds => full_in,
        Reset::Epoch => {
            let now = SystemTime::now()
                .duration_since(UNIX_EPOCH)
                .unwrap_or_default();
            full_in + whole_seconds(now.as_secs_f64())
        }
    })
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
fn write_policies(line: &mut Vec<u8>, decision: &Decision) {
    for (i, limit) in decision.enforcing().enumerate() {
        begin(line, i == 0, limit);
        push(line, b";q=", limit.capacity());
        // A blocked tenant has nothing in any window.
        if let Some(quota) = limit.quota {
            let window = whole_seconds(quota.seconds_for(quota.capacity()));
            push(line, b";w=", window.max(1));
        }
    }
}

/// `"default";r=60;t=6` for each limit whose state is known: tokens left, and the seconds over which to
/// spread them.
///
/// For a limit that denied, `t` is the wait, so that `Retry-After` never points before it. For one that
/// did not, it is the time in which the quota refills what is left, at least one token: the ratio of both
/// never exceeds the rate.
fn write_states(line: &mut Vec<u8>, decision: &Decision) {
    let mut is_first = true;
    for limit in decision.enforcing() {
        let Some(remaining) = limit.remaining else {
            continue;
        };
        begin(line, is_first, limit);
        is_first = false;
        push(line, b";r=", remaining);
        let window = match (limit.wait, limit.quota) {
            (Wait::None, Some(quota)) => quota.seconds_for(remaining.max(1)),
            (Wait::For(wait), _) => wait.as_secs_f64(),
            (Wait::Never, _) | (Wait::None, None) => continue,
        };
        push(line, b";t=", whole_seconds(window).max(1));
    }
}

/// Starts a member of a list. Names of limits need no escapes.
fn begin(line: &mut Vec<u8>, is_first: bool, limit: &LimitDecision) {
    if !is_first {
        line.extend_from_slice(b", ");
    }
    line.push(b'"');
    line.extend_from_slice(limit.name.as_str().as_bytes());
    line.push(b'"');
}

fn push(line: &mut Vec<u8>, parameter: &[u8; 3], value: u64) {
    line.extend_from_slice(parameter);
    push_number(line, value);
}

fn push_number(text: &mut Vec<u8>, number: u64) {
    text.extend_from_slice(itoa::Buffer::new().format(number).as_bytes());
}

/// Adds to a list-valued field, and joins what is there into one line.
fn append(headers: &mut HeaderMap, name: HeaderName, ours: HeaderValue) {
    match headers.entry(name) {
        Entry::Vacant(entry) => {
            entry.insert(ours);
        }
        Entry::Occupied(mut entry) => {
            let all = entry.iter().chain([&ours]);
            let line: Vec<_> = all.filter_map(|value| value.to_str().ok()).collect();
            let line = HeaderValue::from_str(&line.join(", ")).expect("visible ASCII");
            entry.insert(line);
        }
    }
}

/// Rounds up. A microsecond less is none, so that rounding noise does not add a second.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_precision_loss,
    clippy::cast_sign_loss,
    reason = "clamped at 0; far below 2^53"
)]
fn whole_seconds(seconds: f64) -> u64 {
    // `ceil` is a call on processors of the oldest kind, which is what is compiled for by default.
    let seconds = (seconds - 1e-6).max(0.0);
    let down = seconds as u64;
    down + u64::from((down as f64) < seconds)
}
