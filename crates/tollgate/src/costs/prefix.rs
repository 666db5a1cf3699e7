//! Paths that stand for all that lies under them.

/// A path pattern and everything under it.
///
/// `/foo` covers `/foo`, `/foo/` and `/foo/x`, not `/foobar`; `/foo/` does not cover `/foo`. This is what
/// Axum's `nest_service` serves.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Prefix(Box<str>);

/// How one segment ranks against others that match the same text. The order of the variants matters.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
enum Rank {
    Literal,
    Capture,
    Slash,
    End,
}

impl Prefix {
    pub(super) fn new(path: &str) -> Self {
        Self(path.into())
    }

    pub(super) fn as_str(&self) -> &str {
        &self.0
    }

    pub(super) fn covers(&self, path: &str) -> bool {
        let (pattern, needs_slash) = match self.0.strip_suffix('/') {
            Some(pattern) => (pattern, true),
            None => (&*self.0, false),
        };
        let mut rest = Some(path);
        for segment in pattern.split('/').skip(1) {
            rest = rest.and_then(|rest| strip_segment(rest, segment));
        }
        rest.is_some_and(|rest| rest.starts_with('/') || (rest.is_empty() && !needs_slash))
    }

    /// Of two that cover one path, the one that the router would take comes first: segment by segment, a
    /// literal before a capture, and the longer before the one that has ended.
    pub(super) fn goes_before(&self, other: &Self) -> bool {
        self.ranks().lt(other.ranks())
    }

    fn ranks(&self) -> impl Iterator<Item = Rank> {
        let rank = |segment: &str| match captured(segment) {
            Some(_) => Rank::Capture,
            None if segment.is_empty() => Rank::Slash,
            None => Rank::Literal,
        };
        self.0.split('/').skip(1).map(rank).chain([Rank::End])
    }
}

/// What is left of `path` after a `/` and a segment that matches `pattern`.
fn strip_segment<'a>(path: &'a str, pattern: &str) -> Option<&'a str> {
    let path = path.strip_prefix('/')?;
    let (segment, rest) = path.split_at(path.find('/').unwrap_or(path.len()));
    segment_matches(segment, pattern).then_some(rest)
}

fn segment_matches(segment: &str, pattern: &str) -> bool {
    let Some((before, after)) = captured(pattern) else {
        return segment == pattern || (pattern.contains("{{") && segment == unescape(pattern));
    };
    segment.len() > before.len() + after.len()
        && segment.starts_with(before)
        && segment.ends_with(after)
}

/// The text around the capture of a segment that has one: `v{major}` is `v` and nothing.
fn captured(pattern: &str) -> Option<(&str, &str)> {
    let (before, rest) = pattern.split_once('{')?;
    let (name, after) = rest.split_once('}')?;
    // A doubled brace stands for itself.
    (!name.starts_with('{')).then_some((before, after))
}

fn unescape(pattern: &str) -> String {
    pattern.replace("{{", "{").replace("}}", "}")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn covers(prefix: &str, path: &str) -> bool {
        Prefix::new(prefix).covers(path)
    }

    #[test]
    fn a_prefix_ends_at_a_segment() {
        for path in ["/foo", "/foo/", "/foo/x", "/foo/x/y"] {
            assert!(covers("/foo", path), "{path}");
        }
        for path in ["/foobar", "/fo", "/", "", "/x/foo", "foo"] {
            assert!(!covers("/foo", path), "{path}");
        }
    }

    #[test]
    fn a_trailing_slash_must_be_there() {
        assert!(covers("/foo/", "/foo/"));
        assert!(covers("/foo/", "/foo/x"));
        assert!(!covers("/foo/", "/foo"));
        assert!(covers("/", "/anything"));
        // As in `OPTIONS *`.
        assert!(!covers("/", "*"));
    }

    #[test]
    fn captures_take_one_segment_that_is_not_empty() {
        assert!(covers("/{tenant}/files", "/acme/files/x"));
        assert!(!covers("/{tenant}/files", "//files/x"));
        assert!(!covers("/{tenant}/files", "/acme/eu/files"));
        assert!(covers("/v{major}/files", "/v2/files"));
        assert!(!covers("/v{major}/files", "/v/files"));
        assert!(covers("/{{x}}/y", "/{x}/y/z"));
        assert!(!covers("/{{x}}/y", "/a/y"));
    }

    #[test]
    fn the_router_s_choice_goes_first() {
        let order = [
            "/foo/bar", "/foo/{x}", "/foo/", "/foo", "/{a}/b", "/{a}", "/",
        ]
        .map(Prefix::new);
        for pair in order.windows(2) {
            assert!(pair[0].goes_before(&pair[1]), "{pair:?}");
            assert!(!pair[1].goes_before(&pair[0]), "{pair:?}");
        }
    }
}
