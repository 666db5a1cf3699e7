//! What error replies and lost connections mean for a charge, and how much of them is told.

use std::borrow::Cow;

use tollgate_core::{ChargeState, ErrorKind, StoreError};

/// A connection was given up because nothing came back.
pub(crate) fn silent() -> StoreError {
    not_charged(ErrorKind::Io, "Redis had fallen silent")
}

pub(crate) fn not_charged(kind: ErrorKind, reason: impl AsRef<str>) -> StoreError {
    failed(kind, ChargeState::NotCharged, reason)
}

/// Every reply of a server, and whatever a library says of one, becomes an error here and nowhere else.
pub(crate) fn failed(kind: ErrorKind, charge: ChargeState, reason: impl AsRef<str>) -> StoreError {
    StoreError::new(kind, charge, without_secrets(reason.as_ref()))
}

/// A reply without the words of ours that it repeats: a server that does not know a command shows what came with
/// it, such as a password, the ids of tenants or a script, and one that refuses names the user.
fn without_secrets(reply: &str) -> String {
    let told = reply.split(", with args").next().unwrap_or_default();
    without_user(told).into_owned()
}

/// `NOPERM User alice has no permissions …`, as Redis 8 and Valkey have it, in the words of Redis 7.
fn without_user(reply: &str) -> Cow<'_, str> {
    // A name has no spaces.
    let named = reply
        .split_once("User ")
        .and_then(|(before, rest)| Some((before, rest.split_once(' ')?.1)));
    match named {
        Some((before, rest)) if rest.starts_with("has ") => {
            Cow::Owned(format!("{before}this user {rest}"))
        }
        _ => Cow::Borrowed(reply),
    }
}

/// Why there is no connection. What is asked meanwhile is not sent at all.
pub(crate) fn without_connection(kind: ErrorKind, reason: impl AsRef<str>) -> StoreError {
    let kind = match kind {
        // It was no check that took too long.
        ErrorKind::Timeout | ErrorKind::Other => ErrorKind::Io,
        kind => kind,
    };
    not_charged(kind, reason)
}

/// An error reply in words.
pub(crate) fn of_text(reply: &str) -> StoreError {
    let kind = code(reply).map_or(ErrorKind::Other, |code| of_reply(code, reply));
    not_charged(kind, reply)
}

/// The error code of a reply, such as `OOM`; `None` for a client's own errors, which are sentences.
///
/// Before version 7, Redis wraps what a command inside a script answered:
/// `ERR Error running script (call to f_…): @user_script:1: @user_script: 1: -OOM command not allowed …`.
pub(crate) fn code(details: &str) -> Option<&str> {
    let reply = match details.strip_prefix("ERR Error running script") {
        Some(wrapped) => wrapped
            .split_once(": -")
            .map_or(details, |(_, inner)| inner),
        None => details,
    };
    let code = reply.split(' ').next()?;
    let is_code = code.len() > 1 && code.bytes().all(|byte| byte.is_ascii_uppercase());
    is_code.then_some(code)
}

/// The kind of an error reply. Each says that nothing was written: the script reads and validates everything
/// before its first write, and only that one can be refused.
pub(crate) fn of_reply(code: &str, details: &str) -> ErrorKind {
    match code {
        "NOSCRIPT" => ErrorKind::NoScript,
        // The latter from a replica that has lost its primary and may not answer from old data.
        "READONLY" | "MASTERDOWN" => ErrorKind::ReadOnly,
        "LOADING" => ErrorKind::Loading,
        "OOM" => ErrorKind::Oom,
        "CLUSTERDOWN" | "MOVED" | "ASK" | "TRYAGAIN" | "CROSSSLOT" => ErrorKind::Cluster,
        "NOAUTH" | "WRONGPASS" | "NOPERM" => ErrorKind::Auth,
        "WRONGTYPE" => ErrorKind::NotABucket,
        "ERR" if details.contains("is not a bucket") => ErrorKind::NotABucket,
        // An ACL that lets the user call scripts, but not what they call: as Redis 7.0 says it, and later ones and
        // Valkey.
        "ERR"
            if details.contains("can't run this command")
                || details.contains("ACL failure in script") =>
        {
            ErrorKind::Auth
        }
        _ => ErrorKind::Other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_error_reply_has_its_kind() {
        for (reply, kind) in [
            (
                "NOSCRIPT No matching script. Please use EVAL.",
                ErrorKind::NoScript,
            ),
            (
                "READONLY You can't write against a read only replica. script: 5f, on @user_script:132.",
                ErrorKind::ReadOnly,
            ),
            (
                "MASTERDOWN Link with MASTER is down and replica-serve-stale-data is set to 'no'.",
                ErrorKind::ReadOnly,
            ),
            (
                "LOADING Redis is loading the dataset in memory",
                ErrorKind::Loading,
            ),
            (
                "OOM command not allowed when used memory > 'maxmemory'. script: 5f, on @user_script:132.",
                ErrorKind::Oom,
            ),
            (
                "ERR Error running script (call to f_5f): @user_script:132: @user_script: 132: -OOM command not allowed when used memory > 'maxmemory'.",
                ErrorKind::Oom,
            ),
            ("MOVED 3999 127.0.0.1:6381", ErrorKind::Cluster),
            ("ASK 3999 127.0.0.1:6381", ErrorKind::Cluster),
            (
                "TRYAGAIN Multiple keys request during rehashing of slot",
                ErrorKind::Cluster,
            ),
            (
                "CROSSSLOT Keys in request don't hash to the same slot",
                ErrorKind::Cluster,
            ),
            (
                "NOPERM this user has no permissions to run the 'evalsha' command",
                ErrorKind::Auth,
            ),
            (
                "ERR The user executing the script can't run this command or subcommand script: 5f, on @user_script:104.",
                ErrorKind::Auth,
            ),
            (
                "ERR ACL failure in script: User tollgate has no permissions to run the 'get' command script: 5f, on @user_script:99.",
                ErrorKind::Auth,
            ),
            ("BUSY Redis is busy running a script.", ErrorKind::Other),
            (
                "MISCONF Redis is configured to save RDB snapshots",
                ErrorKind::Other,
            ),
            (
                "WRONGTYPE Operation against a key holding the wrong kind of value",
                ErrorKind::NotABucket,
            ),
            (
                "ERR tollgate: the value of key 1 is not a bucket",
                ErrorKind::NotABucket,
            ),
            ("ERR tollgate: takes 1 to 8 keys", ErrorKind::Other),
        ] {
            let code = code(reply).expect("a code");
            assert_eq!(of_reply(code, reply), kind, "{reply}");
        }
    }

    #[test]
    fn what_a_reply_repeats_is_not_told() {
        for (reply, told) in [
            (
                "ERR unknown command 'HELLO', with args beginning with: '3' 'AUTH' 'default' 'hunter2' ",
                "ERR unknown command 'HELLO'",
            ),
            // Redis 5.
            (
                "ERR unknown command `AUTH`, with args beginning with: `hunter2`, ",
                "ERR unknown command `AUTH`",
            ),
            (
                "Pipeline failure: [(Index 0, error: ERR: unknown command 'EVALSHA', with args beginning with: 'hunter2')]",
                "Pipeline failure: [(Index 0, error: ERR: unknown command 'EVALSHA'",
            ),
            (
                "NOPERM User hunter2 has no permissions to run the 'evalsha' command",
                "NOPERM this user has no permissions to run the 'evalsha' command",
            ),
            (
                "ERR ACL failure in script: User hunter2 has no permissions to run the 'get' command script: 5f, on @user_script:99.",
                "ERR ACL failure in script: this user has no permissions to run the 'get' command script: 5f, on @user_script:99.",
            ),
            (
                "NOPERM this user has no permissions to run the 'evalsha' command",
                "NOPERM this user has no permissions to run the 'evalsha' command",
            ),
            ("Os { code: 104 }", "Os { code: 104 }"),
        ] {
            for error in [
                of_text(reply),
                without_connection(ErrorKind::Io, reply),
                failed(ErrorKind::Other, ChargeState::Unknown, reply),
            ] {
                let text = format!("{error} {error:?}");
                assert!(error.to_string().ends_with(&format!(": {told}")), "{text}");
                assert!(!text.contains("hunter2"), "{text}");
            }
        }
    }

    #[test]
    fn sentences_are_no_codes() {
        for text in ["", "Request timed out.", "Os { code: 104 }", "A"] {
            assert_eq!(code(text), None, "{text}");
        }
    }
}
