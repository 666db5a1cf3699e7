//! What redis-rs's errors mean for a charge.

use redis::{ErrorKind as RedisKind, RedisError, ServerError};
use tollgate_core::{ChargeState, ErrorKind, StoreError};

use crate::failure::{code, failed, of_reply, of_text, without_connection};

/// The failure of a script call without a reply.
pub(crate) fn of_call(error: &RedisError) -> StoreError {
    let kind = match error.kind() {
        RedisKind::Io => ErrorKind::Io,
        _ => ErrorKind::Other,
    };
    failed(kind, ChargeState::Unknown, error.to_string())
}

/// An error reply. Unlike fred, the library hands it to the one call that it answers, so it always says that
/// nothing was written.
pub(crate) fn of_server(error: &ServerError) -> StoreError {
    of_text(&text(error.code(), error.details()))
}

/// Why there is no connection.
pub(crate) fn of_connection(error: &RedisError) -> StoreError {
    let (kind, text) = match (error.kind(), error.code()) {
        (RedisKind::AuthenticationFailed, _) => (ErrorKind::Auth, error.to_string()),
        (_, Some(code)) => {
            let text = text(code, error.detail());
            (kind(&text), text)
        }
        (_, None) => (ErrorKind::Io, error.to_string()),
    };
    without_connection(kind, text)
}

/// The reply as the server wrote it.
fn text(code: &str, details: Option<&str>) -> String {
    match details {
        Some(details) => format!("{code} {details}"),
        None => code.to_owned(),
    }
}

fn kind(reply: &str) -> ErrorKind {
    code(reply).map_or(ErrorKind::Other, |code| of_reply(code, reply))
}

#[cfg(test)]
mod tests {
    use std::io;

    use redis::{Value, parse_redis_value};

    use super::*;
    use ChargeState::{NotCharged, Unknown};

    fn refused(reply: &str) -> StoreError {
        let reply = parse_redis_value(format!("-{reply}\r\n").as_bytes());
        let Ok(Value::ServerError(error)) = reply else {
            panic!("not an error reply: {reply:?}");
        };
        of_server(&error)
    }

    #[test]
    fn an_error_reply_is_read_whole_and_charges_nothing() {
        for (reply, kind) in [
            (
                "NOSCRIPT No matching script. Please use EVAL.",
                ErrorKind::NoScript,
            ),
            (
                "LOADING Redis is loading the dataset in memory",
                ErrorKind::Loading,
            ),
            (
                "READONLY You can't write against a read only replica.",
                ErrorKind::ReadOnly,
            ),
            (
                "OOM command not allowed when used memory > 'maxmemory'.",
                ErrorKind::Oom,
            ),
            (
                "ERR Error running script (call to f_5f): @user_script:132: @user_script: 132: -OOM command not allowed when used memory > 'maxmemory'.",
                ErrorKind::Oom,
            ),
            (
                "ERR tollgate: the value of key 1 is not a bucket",
                ErrorKind::NotABucket,
            ),
            ("WRONGTYPE Operation against a key", ErrorKind::NotABucket),
            ("NOAUTH Authentication required.", ErrorKind::Auth),
            ("NOPERM this user has no permissions", ErrorKind::Auth),
            ("CLUSTERDOWN The cluster is down", ErrorKind::Cluster),
            ("MOVED 3999 127.0.0.1:6381", ErrorKind::Cluster),
            ("BUSY Redis is busy running a script.", ErrorKind::Other),
            ("what is this", ErrorKind::Other),
        ] {
            let error = refused(reply);
            assert_eq!(
                (error.kind(), error.charge()),
                (kind, NotCharged),
                "{reply}"
            );
            assert!(error.to_string().ends_with(reply), "{error}");
        }
    }

    #[test]
    fn a_lost_connection_leaves_the_charge_open() {
        let lost = RedisError::from(io::Error::from(io::ErrorKind::ConnectionReset));
        let error = of_call(&lost);
        assert_eq!((error.kind(), error.charge()), (ErrorKind::Io, Unknown));
        let garbage = RedisError::from((RedisKind::Parse, "bad bytes"));
        let error = of_call(&garbage);
        assert_eq!((error.kind(), error.charge()), (ErrorKind::Other, Unknown));
    }

    #[test]
    fn without_a_connection_nothing_is_charged() {
        for (error, kind) in [
            (
                RedisError::from(io::Error::from(io::ErrorKind::ConnectionRefused)),
                ErrorKind::Io,
            ),
            (
                RedisError::from((RedisKind::AuthenticationFailed, "wrong")),
                ErrorKind::Auth,
            ),
            (
                RedisError::from((RedisKind::UnexpectedReturnType, "odd")),
                ErrorKind::Io,
            ),
        ] {
            let error = of_connection(&error);
            assert_eq!(
                (error.kind(), error.charge()),
                (kind, NotCharged),
                "{error}"
            );
        }
    }
}
