//! Which requests are meant.

use std::{
    fmt,
    str::{FromStr, Split},
};

use percent_encoding::percent_decode_str;

/// What a request asks for, as far as limits can tell it from others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Route<'a> {
    /// The method, such as `GET`.
    pub method: &'a str,
    /// The whole path, as the client wrote it.
    pub path: &'a str,
    /// The pattern by which the router has matched the path, such as `/reports/{id}`, if it says so.
    pub template: Option<&'a str>,
}

/// Routes meant by one line: `/reports/{id}`, `POST /reports`, or everything under a path, `/reports/{*rest}`.
///
/// A `{name}` stands for one segment, `{*name}` for the rest of a path, at least one segment of it. A pattern
/// covers a request if it matches the path, percent-decoded segment by segment, or the pattern by which the router has matched it. `GET` covers
/// `HEAD` too, whose requests the same handlers answer.
///
/// ```
/// use tollgate_quota::{Route, RoutePattern};
///
/// let pattern: RoutePattern = "POST /reports/{*rest}".parse()?;
/// assert!(pattern.covers(&Route { method: "POST", path: "/reports/7/export", template: None }));
/// assert!(!pattern.covers(&Route { method: "POST", path: "/reports", template: None }));
/// # Ok::<(), tollgate_quota::InvalidPattern>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct RoutePattern {
    method: Option<Box<str>>,
    path: Box<str>,
}

impl RoutePattern {
    /// Whether the request is one of those meant.
    #[must_use]
    pub fn covers(&self, route: &Route<'_>) -> bool {
        self.covers_method(route.method)
            && (route
                .template
                .is_some_and(|path| self.covers_template(path))
                || self.covers_path(route.path))
    }

    fn covers_method(&self, method: &str) -> bool {
        match self.method.as_deref() {
            None => true,
            Some("GET") => matches!(method, "GET" | "HEAD"),
            Some(own) => own == method,
        }
    }

    fn covers_path(&self, path: &str) -> bool {
        self.matches(path, |_| true)
    }

    /// One segment is not the rest of a path, which only the router's pattern can stand for: in a path, braces
    /// are letters like others.
    fn covers_template(&self, template: &str) -> bool {
        self.matches(template, |segment| !is_rest(segment))
    }

    fn matches(&self, path: &str, is_segment: impl Fn(&str) -> bool) -> bool {
        let mut segments = path.split('/');
        for own in self.path.split('/') {
            match segments.next() {
                Some(rest) if is_rest(own) => return !rest.is_empty() || segments.next().is_some(),
                Some(segment) if is_placeholder(own) => {
                    if segment.is_empty() || !is_segment(segment) {
                        return false;
                    }
                }
                Some(segment) if segment == own || is_same(segment, own) => {}
                _ => return false,
            }
        }
        segments.next().is_none()
    }

    /// A request that the pattern covers.
    pub(crate) fn sample(&self) -> Route<'_> {
        Route {
            method: self.method.as_deref().unwrap_or(ANY_METHOD),
            path: "",
            template: Some(&self.path),
        }
    }

    /// The pattern of all requests that both cover. `None` if there are none.
    pub(crate) fn meet(&self, other: &Self) -> Option<Self> {
        let method = match (&self.method, &other.method) {
            (None, one) | (one, None) => one.clone(),
            (Some(one), Some(other)) if one == other => Some(one.clone()),
            (Some(one), Some(other)) => match (&**one, &**other) {
                ("GET", "HEAD") | ("HEAD", "GET") => Some("HEAD".into()),
                _ => return None,
            },
        };
        let path = meet(self.path.split('/'), other.path.split('/'))?;
        let path = path.join("/").into();
        Some(Self { method, path })
    }
}

/// The segments of the paths that both have in common, with placeholders that have no names.
fn meet<'a>(mut ones: Split<'a, char>, mut others: Split<'a, char>) -> Option<Vec<&'a str>> {
    let mut met = Vec::new();
    loop {
        let (one, other) = match (ones.next(), others.next()) {
            (None, None) => return Some(met),
            (one, other) => (one?, other?),
        };
        if is_rest(one) || is_rest(other) {
            let (first, more) = if is_rest(one) {
                (other, others)
            } else {
                (one, ones)
            };
            met.push(nameless(first));
            let before = met.len();
            met.extend(more.map(nameless));
            // The rest of a path is something.
            return (!first.is_empty() || met.len() > before).then_some(met);
        }
        let common = match (is_placeholder(one), is_placeholder(other)) {
            (true, _) if !other.is_empty() => other,
            (_, true) if !one.is_empty() => one,
            _ if one == other => one,
            _ => return None,
        };
        met.push(nameless(common));
    }
}

fn nameless(segment: &str) -> &str {
    match segment {
        it if is_rest(it) => "{*}",
        it if is_placeholder(it) => "{}",
        it => it,
    }
}

fn is_rest(segment: &str) -> bool {
    segment.starts_with("{*") && segment.ends_with('}')
}

/// No method, so that only patterns for all methods cover it.
const ANY_METHOD: &str = "";

/// Whether both stand for the same bytes. A handler gets its segments decoded, so a client that writes `%65` for
/// `e` asks for the same thing.
fn is_same(segment: &str, own: &str) -> bool {
    (segment.contains('%') || own.contains('%'))
        && percent_decode_str(segment).eq(percent_decode_str(own))
}

fn is_placeholder(segment: &str) -> bool {
    segment.starts_with('{') && segment.ends_with('}')
}

// === impl RoutePattern ===

impl FromStr for RoutePattern {
    type Err = InvalidPattern;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let invalid = |reason| InvalidPattern {
            pattern: text.to_owned(),
            reason,
        };
        let (method, path) = match text.split_once(' ') {
            Some((method, path)) => (Some(method), path.trim_start()),
            None => (None, text),
        };
        if method.is_some_and(|it| it.is_empty() || !it.bytes().all(|b| b.is_ascii_uppercase())) {
            return Err(invalid("a method is written in capital letters"));
        }
        if !path.starts_with('/') {
            return Err(invalid("a path starts with `/`"));
        }
        if path.contains(['?', '#', ' ']) {
            return Err(invalid("a path has no query, fragment or space"));
        }
        let segments: Vec<_> = path.split('/').collect();
        for (i, segment) in segments.iter().enumerate() {
            if segment.starts_with([':', '*']) {
                return Err(invalid(
                    "write `{name}` for a segment, `{*name}` for the rest",
                ));
            }
            if segment.contains(['{', '}'])
                && (!is_placeholder(segment) || segment[1..segment.len() - 1].contains(['{', '}']))
            {
                return Err(invalid("braces are around a whole segment"));
            }
            if is_rest(segment) && i + 1 < segments.len() {
                return Err(invalid("`{*name}` stands last"));
            }
        }
        Ok(Self {
            method: method.map(Into::into),
            path: path.into(),
        })
    }
}

impl fmt::Display for RoutePattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(method) = &self.method {
            write!(f, "{method} ")?;
        }
        f.write_str(&self.path)
    }
}

/// A text that is no [`RoutePattern`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InvalidPattern {
    pattern: String,
    reason: &'static str,
}

impl fmt::Display for InvalidPattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { pattern, reason } = self;
        write!(
            f,
            "`{pattern}` is not a route such as `/reports/{{id}}` or `POST /reports/{{*rest}}`: {reason}"
        )
    }
}

impl std::error::Error for InvalidPattern {}

#[cfg(test)]
mod tests {
    use super::*;

    fn covers(pattern: &str, method: &str, path: &str) -> bool {
        let pattern: RoutePattern = pattern.parse().expect("a pattern");
        let template = None;
        pattern.covers(&Route {
            method,
            path,
            template,
        })
    }

    #[test]
    fn patterns_cover_what_the_router_would_match() {
        for (pattern, method, path) in [
            ("/", "GET", "/"),
            ("/a", "POST", "/a"),
            ("GET /a", "GET", "/a"),
            ("GET /a", "HEAD", "/a"),
            ("/a/{id}", "GET", "/a/7"),
            ("/a/{id}", "GET", "/a/{id}"),
            ("/a/{id}", "GET", "/a/{other}"),
            ("/a/{*rest}", "GET", "/a/7/8"),
            ("/a/{*rest}", "GET", "/a/{id}/8"),
            ("/a/{*rest}", "GET", "/a//b"),
            ("/a/{id}", "GET", "/a/{*id}"),
            ("/{*rest}", "GET", "/a"),
            ("/reports/export", "GET", "/reports/%65xp%6Frt"),
            ("/a%20b", "GET", "/a%20b"),
            ("/caf%C3%A9", "GET", "/caf%c3%a9"),
        ] {
            assert!(covers(pattern, method, path), "{pattern} {method} {path}");
        }
        for (pattern, method, path) in [
            ("/", "GET", "/a"),
            ("/a", "GET", "/a/"),
            ("/a", "GET", "/A"),
            ("POST /a", "GET", "/a"),
            ("HEAD /a", "GET", "/a"),
            ("/a/{id}", "GET", "/a"),
            ("/a/{id}", "GET", "/a/"),
            ("/a/{id}", "GET", "/a/7/8"),
            ("/a/{*rest}", "GET", "/a"),
            ("/a/{*rest}", "GET", "/a/"),
            ("/a/{*rest}", "GET", "/ab"),
            ("/a/b", "GET", "/a%2Fb"),
            ("/a", "GET", "/%"),
        ] {
            assert!(!covers(pattern, method, path), "{pattern} {method} {path}");
        }
    }

    #[test]
    fn a_pattern_covers_the_routers_pattern_or_the_path() {
        let pattern: RoutePattern = "/pkg.Reports/Export".parse().expect("a pattern");
        let route = Route {
            method: "POST",
            path: "/pkg.Reports/Export",
            template: Some("/pkg.Reports/{*rest}"),
        };
        assert!(pattern.covers(&route));
        // One segment is not the rest of a path.
        let route = Route {
            method: "GET",
            path: "/a/7/8",
            template: Some("/a/{*rest}"),
        };
        let covers = |pattern: &str| {
            let pattern: RoutePattern = pattern.parse().expect("a pattern");
            pattern.covers(&route)
        };
        assert!(covers("/a/{*all}") && covers("/a/{x}/8") && !covers("/a/{x}"));
    }

    #[test]
    fn patterns_meet_where_both_cover() {
        for (one, other, met) in [
            ("/a", "/a", Some("/a")),
            ("/a", "/b", None),
            ("/a", "/a/b", None),
            ("/a/{x}", "/{y}/b", Some("/a/b")),
            ("/a/{x}", "/a/{y}", Some("/a/{}")),
            ("/a/{x}", "/a/", None),
            ("/a/{*rest}", "/{y}/b/{z}", Some("/a/b/{}")),
            ("/a/{*rest}", "/{*all}", Some("/a/{*}")),
            ("/a/{*rest}", "/a", None),
            ("/a/{*rest}", "/a/", None),
            ("/a/{*rest}", "/a/{x}", Some("/a/{}")),
            ("GET /a", "/{x}", Some("GET /a")),
            ("GET /a", "HEAD /a", Some("HEAD /a")),
            ("GET /a", "POST /a", None),
        ] {
            let [a, b]: [RoutePattern; 2] = [one, other].map(|it| it.parse().expect("a pattern"));
            let expected = met.map(|it| it.parse().expect("a pattern"));
            assert_eq!(a.meet(&b), expected, "{one} {other}");
            assert_eq!(b.meet(&a), expected, "{other} {one}");
            if let Some(met) = expected {
                assert!(a.covers(&met.sample()) && b.covers(&met.sample()), "{met}");
            }
        }
    }

    #[test]
    fn what_could_never_match_is_refused() {
        for bad in [
            "",
            "a",
            "get /a",
            " /a",
            "GET a",
            "/a?b",
            "/a b",
            "/:id",
            "/*rest",
            "/{*rest}/a",
            "/a{id}",
            "/{a}{b}",
            "/{",
        ] {
            assert!(bad.parse::<RoutePattern>().is_err(), "{bad}");
        }
    }
}
