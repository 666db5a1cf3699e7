//! The syntax of `Forwarded` ([RFC 7239]).
//!
//! [RFC 7239]: https://www.rfc-editor.org/rfc/rfc7239

/// What ends a value that is not quoted. Blanks next to semicolons are not in the standard, but in use.
const SEPARATORS: [char; 3] = [';', ' ', '\t'];

/// Where the last element of a line begins: at its last comma outside of a quoted string.
///
/// The search goes backwards. From the start, a quote that a client has opened and not closed would reach
/// into what the proxies have appended, and take their entries out of the list.
pub(super) fn last_comma(line: &[u8]) -> Option<usize> {
    let mut is_quoted = false;
    for (index, byte) in line.iter().enumerate().rev() {
        match byte {
            b',' if !is_quoted => return Some(index),
            b'"' if !is_quoted => is_quoted = true,
            // The quote that opens a string follows `=`; one after a backslash is a part of the string.
            b'"' if !line[..index].ends_with(b"\\") => is_quoted = false,
            _ => {}
        }
    }
    None
}

/// The value of the `for` parameter of an element, if the element is a valid one that has it once.
pub(super) fn for_parameter(element: &str) -> Option<String> {
    let mut node = None;
    let mut rest = element;
    loop {
        // Semicolons may stand anywhere between parameters.
        rest = rest.trim_start_matches(SEPARATORS);
        if rest.is_empty() {
            return node;
        }
        let (name, after) = rest.split_once('=')?;
        let (value, after) = value(after)?;
        if !is_token(name) || !(after.is_empty() || after.starts_with(SEPARATORS)) {
            return None;
        }
        if name.eq_ignore_ascii_case("for") && node.replace(value).is_some() {
            return None;
        }
        rest = after;
    }
}

/// A value at the start of `text`, and what comes after it.
fn value(text: &str) -> Option<(String, &str)> {
    let Some(quoted) = text.strip_prefix('"') else {
        let end = text.find(SEPARATORS).unwrap_or(text.len());
        let (value, after) = text.split_at(end);
        // Addresses of IPv6 and ports ought to be quoted, but are not by all proxies.
        return (!value.contains('"')).then(|| (value.to_owned(), after));
    };
    let mut value = String::new();
    let mut characters = quoted.chars();
    loop {
        match characters.next()? {
            '"' => return Some((value, characters.as_str())),
            '\\' => value.push(characters.next()?),
            other => value.push(other),
        }
    }
}

fn is_token(name: &str) -> bool {
    let is_token = |byte: u8| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte);
    !name.is_empty() && name.bytes().all(is_token)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_element_is_found_whatever_is_before_it() {
        for (line, last) in [
            ("for=a", "for=a"),
            ("for=a,for=b", "for=b"),
            ("for=a,", ""),
            (r#"for="a,b""#, r#"for="a,b""#),
            (r#"for=a,for="b,c";by=d"#, r#"for="b,c";by=d"#),
            // Quotes inside of quotes.
            (r#"x,for="a\",b""#, r#"for="a\",b""#),
            (r#"x,for="\",a""#, r#"for="\",a""#),
            (r#"x,for=",\\""#, r#"for=",\\""#),
            (r#"x,for="\\\",a""#, r#"for="\\\",a""#),
            // Quotes that a client has left open.
            (r#"for="a,for=b"#, "for=b"),
            (r#"for="a\,for=b"#, "for=b"),
            (r#"for="a,for="b,c""#, r#"for="b,c""#),
        ] {
            let start = last_comma(line.as_bytes()).map_or(0, |comma| comma + 1);
            assert_eq!(&line[start..], last, "{line}");
        }
    }

    #[test]
    fn an_element_has_one_for() {
        for (element, expected) in [
            ("for=192.0.2.7", Some("192.0.2.7")),
            ("FOR=192.0.2.7", Some("192.0.2.7")),
            ("for=192.0.2.7;proto=https;by=_x", Some("192.0.2.7")),
            ("proto=https; For=192.0.2.7 ;", Some("192.0.2.7")),
            (";;for=192.0.2.7", Some("192.0.2.7")),
            (r#"for="[2001:db8::1]:4711""#, Some("[2001:db8::1]:4711")),
            ("for=[2001:db8::1]:4711", Some("[2001:db8::1]:4711")),
            (r#"for="19\2.0.2.7""#, Some("192.0.2.7")),
            (
                r#"host="a;for=1.1.1.1, \"x";for=192.0.2.7"#,
                Some("192.0.2.7"),
            ),
            ("for=unknown", Some("unknown")),
            ("for=", Some("")),
            ("", None),
            ("for", None),
            ("proto=https", None),
            ("192.0.2.7", None),
            ("for=192.0.2.7;for=192.0.2.8", None),
            ("for =192.0.2.7", None),
            ("proto;for=192.0.2.7", None),
            ("for=192.0.2.7 192.0.2.8", None),
            (r#"for="192.0.2.7"#, None),
            (r#"for="192.0.2.7\"#, None),
            (r#"for=192.0.2.7""#, None),
            (r#"for="192.0.2.7"x"#, None),
            (r#"x="y;for=192.0.2.7"#, None),
            (r#"x="for=192.0.2.7""#, None),
        ] {
            assert_eq!(for_parameter(element).as_deref(), expected, "{element}");
        }
    }
}
