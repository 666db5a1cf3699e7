//! What fred's errors mean for a charge.

use fred::error::{Error as FredError, ErrorKind as FredKind};
use tollgate_core::{ChargeState, ErrorKind, StoreError};

use crate::failure::{code, failed, not_charged, of_reply, without_connection};

/// The failure of a script call.
pub(crate) fn of_call(error: &FredError) -> StoreError {
    let (kind, charge) = kind_and_charge(error);
    failed(kind, charge, error.details())
}

/// The failure of loading the script. The call before it was refused, so nothing is charged.
pub(crate) fn while_loading(error: &FredError) -> StoreError {
    not_charged(kind_and_charge(error).0, error.details())
}

/// Why there is no connection.
pub(crate) fn of_connection(error: &FredError) -> StoreError {
    without_connection(kind_and_charge(error).0, error.details())
}

fn kind_and_charge(error: &FredError) -> (ErrorKind, ChargeState) {
    let Some(code) = code(error.details()) else {
        return of_client(error.kind());
    };
    let charge = match code {
        // These make fred drop the connection and tell every call in flight the same, also those that the
        // server has run.
        "CLUSTERDOWN" | "NOAUTH" | "WRONGPASS" => ChargeState::Unknown,
        _ => ChargeState::NotCharged,
    };
    (of_reply(code, error.details()), charge)
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

#[cfg(test)]
mod tests {
    use super::*;
    use ChargeState::{NotCharged, Unknown};

    fn kind_and_charge(kind: FredKind, details: &'static str) -> (ErrorKind, ChargeState) {
        let error = of_call(&FredError::new(kind, details));
        (error.kind(), error.charge())
    }

    #[test]
    fn an_error_reply_says_that_nothing_was_charged() {
        let reply = "OOM command not allowed when used memory > 'maxmemory'.";
        let outcome = kind_and_charge(FredKind::Unknown, reply);
        assert_eq!(outcome, (ErrorKind::Oom, NotCharged));
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
        let error = while_loading(&FredError::new(FredKind::Timeout, "Request timed out."));
        assert_eq!(
            (error.kind(), error.charge()),
            (ErrorKind::Timeout, NotCharged)
        );
    }
}
