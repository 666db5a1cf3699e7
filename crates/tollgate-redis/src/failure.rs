//! What fred's errors mean for a charge.

use std::{error::Error, fmt};

use fred::error::{Error as FredError, ErrorKind as FredKind};
use tollgate_core::{ChargeState, ErrorKind, StoreError};

/// The failure of a script call.
pub(crate) fn of_call(error: FredError) -> StoreError {
    let (kind, charge) = match code(error.details()) {
        Some(code) => of_reply(code, error.details()),
        None => of_client(error.kind()),
    };
    StoreError::new(kind, charge, Cause(error))
}

/// The failure of loading the script. The call before it was refused, so nothing is charged.
pub(crate) fn while_loading(error: FredError) -> StoreError {
    let failure = of_call(error.clone());
    StoreError::new(failure.kind(), ChargeState::NotCharged, Cause(error))
}

/// Why there is no connection. What is asked meanwhile is not sent at all.
pub(crate) fn of_connection(error: FredError) -> StoreError {
    let kind = match of_call(error.clone()).kind() {
        // It was no check that took too long.
        ErrorKind::Timeout | ErrorKind::Other => ErrorKind::Io,
        kind => kind,
    };
    StoreError::new(kind, ChargeState::NotCharged, Cause(error))
}

/// A connection was given up because nothing came back.
pub(crate) fn silent() -> StoreError {
    StoreError::new(
        ErrorKind::Io,
        ChargeState::NotCharged,
        "Redis had fallen silent",
    )
}

/// The error code of a reply, such as `OOM`; `None` for the client's own errors, which are sentences.
///
/// Before version 7, Redis wraps what a command inside a script answered:
/// `ERR Error running script (call to f_…): @user_script:1: @user_script: 1: -OOM command not allowed …`.
fn code(details: &str) -> Option<&str> {
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

/// An error reply says that nothing was written: the script reads and validates everything before its first
/// write, and only that one can be refused.
fn of_reply(code: &str, details: &str) -> (ErrorKind, ChargeState) {
    let kind = match code {
        "NOSCRIPT" => ErrorKind::NoScript,
        // The latter from a replica that has lost its primary and may not answer from old data.
        "READONLY" | "MASTERDOWN" => ErrorKind::ReadOnly,
        "LOADING" => ErrorKind::Loading,
        "OOM" => ErrorKind::Oom,
        "CLUSTERDOWN" | "MOVED" | "ASK" | "TRYAGAIN" | "CROSSSLOT" => ErrorKind::Cluster,
        "NOAUTH" | "WRONGPASS" | "NOPERM" => ErrorKind::Auth,
        "WRONGTYPE" => ErrorKind::NotABucket,
        "ERR" if details.contains("is not a bucket") => ErrorKind::NotABucket,
        // An ACL that lets the user call scripts, but not what they call.
        "ERR" if details.contains("can't run this command") => ErrorKind::Auth,
        _ => ErrorKind::Other,
    };
    let charge = match code {
        // These make fred drop the connection and tell every call in flight the same, also those that the
        // server has run.
        "CLUSTERDOWN" | "NOAUTH" | "WRONGPASS" => ChargeState::Unknown,
        _ => ChargeState::NotCharged,
    };
    (kind, charge)
}

fn of_client(kind: &FredKind) -> (ErrorKind, ChargeState) {
    match kind {
        FredKind::Timeout => (ErrorKind::Timeout, ChargeState::Unknown),
        // There was no connection, or no room in the queue: never sent.
        FredKind::Canceled | FredKind::Backpressure => (ErrorKind::Io, ChargeState::NotCharged),
        // The slots of the keys are looked up before anything is sent, and a redirection did not run.
        FredKind::Cluster | FredKind::Routing => (ErrorKind::Cluster, ChargeState::NotCharged),
        FredKind::Protocol | FredKind::Parse | FredKind::InvalidArgument => {
            (ErrorKind::Other, ChargeState::Unknown)
        }
        // Whatever else ends a call without a reply: fred's kind for most of these is "unknown".
        _ => (ErrorKind::Io, ChargeState::Unknown),
    }
}

/// Keeps fred's type out of the chain of sources.
struct Cause(FredError);

// === impl Cause ===

impl fmt::Display for Cause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.0.details())
    }
}

impl fmt::Debug for Cause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Cause").field(&self.0.details()).finish()
    }
}

impl Error for Cause {}

#[cfg(test)]
mod tests {
    use super::*;
    use ChargeState::{NotCharged, Unknown};

    fn kind_and_charge(kind: FredKind, details: &'static str) -> (ErrorKind, ChargeState) {
        let error = of_call(FredError::new(kind, details));
        (error.kind(), error.charge())
    }

    #[test]
    fn each_error_reply_has_its_kind_and_says_that_nothing_was_charged() {
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
            assert_eq!(
                kind_and_charge(FredKind::Unknown, reply),
                (kind, NotCharged),
                "{reply}"
            );
        }
    }

    #[test]
    fn errors_that_end_the_connection_for_all_leave_the_charge_open() {
        for (reply, kind) in [
            ("CLUSTERDOWN The cluster is down", ErrorKind::Cluster),
            ("NOAUTH Authentication required.", ErrorKind::Auth),
            (
                "WRONGPASS invalid username-password pair or user is disabled.",
                ErrorKind::Auth,
            ),
        ] {
            assert_eq!(
                kind_and_charge(FredKind::Auth, reply),
                (kind, Unknown),
                "{reply}"
            );
        }
    }

    #[test]
    fn the_clients_own_errors_leave_the_charge_open_unless_nothing_was_sent() {
        for (kind, details, outcome) in [
            (
                FredKind::Timeout,
                "Request timed out.",
                (ErrorKind::Timeout, Unknown),
            ),
            (FredKind::IO, "Connection closed.", (ErrorKind::Io, Unknown)),
            (FredKind::IO, "Os { code: 104 }", (ErrorKind::Io, Unknown)),
            (
                FredKind::Unknown,
                "Too many failed write attempts.",
                (ErrorKind::Io, Unknown),
            ),
            (
                FredKind::Canceled,
                "Connection closed unexpectedly.",
                (ErrorKind::Io, NotCharged),
            ),
            (
                FredKind::Backpressure,
                "Max in-flight commands reached.",
                (ErrorKind::Io, NotCharged),
            ),
            (
                FredKind::Protocol,
                "Unexpected byte",
                (ErrorKind::Other, Unknown),
            ),
        ] {
            assert_eq!(kind_and_charge(kind, details), outcome, "{details}");
        }
    }

    #[test]
    fn a_load_that_fails_charges_nothing() {
        let error = while_loading(FredError::new(FredKind::Timeout, "Request timed out."));
        assert_eq!(
            (error.kind(), error.charge()),
            (ErrorKind::Timeout, NotCharged)
        );
    }
}
