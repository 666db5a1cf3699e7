//! The faults.

use std::time::Duration;

use tollgate_tests::lab::DEADLINE;

/// A way in which Redis, or the way to it, fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    RefusedAtStart,
    SilentAtStart,
    Killed,
    Stopped,
    BlackHole,
    HeldReplies,
    DelayedReplies,
    Reset,
    /// A stub in the place of Redis, which answers each script call with these bytes.
    Reply(&'static str),
    FlushedScripts,
    KilledClients,
    Full,
    Busy,
    Password,
    Demoted,
    Flapping,
    FlappingSilent,
}

/// One row of the lab.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Fault {
    pub(crate) name: &'static str,
    pub(crate) about: &'static str,
    pub(crate) kind: Kind,
}

const fn fault(name: &'static str, kind: Kind, about: &'static str) -> Fault {
    Fault { name, about, kind }
}

pub(crate) const FAULTS: [Fault; 28] = [
    fault(
        "refused-at-start",
        Kind::RefusedAtStart,
        "connections are refused when the replicas start; Redis comes later",
    ),
    fault(
        "silent-at-start",
        Kind::SilentAtStart,
        "connections are accepted and stay silent for good; later ones are well",
    ),
    fault(
        "killed",
        Kind::Killed,
        "kill -9, and an empty Redis later on the same port",
    ),
    fault("stopped", Kind::Stopped, "SIGSTOP, then SIGCONT"),
    fault(
        "black-hole",
        Kind::BlackHole,
        "nothing passes and all stays open; the old connections stay silent for good",
    ),
    fault(
        "held-replies",
        Kind::HeldReplies,
        "scripts run, answers come only when the fault ends",
    ),
    fault(
        "delayed-replies",
        Kind::DelayedReplies,
        "answers come 5 ms after the deadline",
    ),
    fault(
        "reset",
        Kind::Reset,
        "connections are reset in mid-reply, twice a second",
    ),
    fault(
        "reply-oom",
        Kind::Reply("-OOM command not allowed when used memory > 'maxmemory'.\r\n"),
        "every script call answers OOM",
    ),
    fault(
        "reply-loading",
        Kind::Reply("-LOADING Redis is loading the dataset in memory\r\n"),
        "every script call answers LOADING",
    ),
    fault(
        "reply-busy",
        Kind::Reply(
            "-BUSY Redis is busy running a script. You can only call SCRIPT KILL or SHUTDOWN NOSAVE.\r\n",
        ),
        "every script call answers BUSY",
    ),
    fault(
        "reply-readonly",
        Kind::Reply("-READONLY You can't write against a read only replica.\r\n"),
        "every script call answers READONLY",
    ),
    fault(
        "reply-misconf",
        Kind::Reply(
            "-MISCONF Redis is configured to save RDB snapshots, but it's currently unable to persist to disk.\r\n",
        ),
        "every script call answers MISCONF",
    ),
    fault(
        "reply-clusterdown",
        Kind::Reply("-CLUSTERDOWN The cluster is down\r\n"),
        "every script call answers CLUSTERDOWN",
    ),
    fault(
        "reply-noperm",
        Kind::Reply("-NOPERM this user has no permissions to run the 'evalsha' command\r\n"),
        "every script call answers NOPERM",
    ),
    fault(
        "reply-noauth",
        Kind::Reply("-NOAUTH Authentication required.\r\n"),
        "every script call answers NOAUTH",
    ),
    fault(
        "reply-wrongpass",
        Kind::Reply("-WRONGPASS invalid username-password pair or user is disabled.\r\n"),
        "every script call answers WRONGPASS",
    ),
    fault(
        "reply-wrongtype",
        Kind::Reply("-WRONGTYPE Operation against a key holding the wrong kind of value\r\n"),
        "every script call answers WRONGTYPE",
    ),
    fault(
        "reply-noscript",
        Kind::Reply("-NOSCRIPT No matching script. Please use EVAL.\r\n"),
        "every script call answers NOSCRIPT, whatever was loaded",
    ),
    fault(
        "reply-malformed",
        Kind::Reply("$5\r\nhello\r\n"),
        "every script call answers something else than a decision",
    ),
    fault(
        "scripts-flushed",
        Kind::FlushedScripts,
        "SCRIPT FLUSH, five times a second",
    ),
    fault(
        "clients-killed",
        Kind::KilledClients,
        "CLIENT KILL of all clients, twice a second",
    ),
    fault("full", Kind::Full, "maxmemory reached, with noeviction"),
    fault(
        "busy",
        Kind::Busy,
        "a script that does not end: silence, then BUSY",
    ),
    fault(
        "password",
        Kind::Password,
        "password changed and clients killed; later changed back",
    ),
    fault(
        "demoted",
        Kind::Demoted,
        "the primary becomes a replica and keeps its connections; later new ones lead to another",
    ),
    fault(
        "flapping",
        Kind::Flapping,
        "a second refused, a second well",
    ),
    fault(
        "flapping-silent",
        Kind::FlappingSilent,
        "a second of black hole, a second well",
    ),
];

// === impl Fault ===

impl Fault {
    /// How long it lasts.
    pub(crate) fn length(&self, usual: Duration, full: bool) -> Duration {
        match self.kind {
            Kind::Stopped if full => Duration::from_secs(20),
            Kind::Flapping | Kind::FlappingSilent if full => Duration::from_secs(60),
            _ => usual,
        }
    }
}

// === impl Kind ===

impl Kind {
    /// Whether it is there when the replicas start.
    pub(crate) const fn is_at_start(self) -> bool {
        matches!(self, Self::RefusedAtStart | Self::SilentAtStart)
    }

    /// Whether the buckets are lost, so that all are full afterwards.
    pub(crate) const fn loses_buckets(self) -> bool {
        matches!(self, Self::Killed | Self::Demoted)
    }

    /// Whether the policy must have decided something, or else the lab has tested nothing.
    pub(crate) const fn needs_the_policy(self) -> bool {
        !matches!(
            self,
            Self::FlushedScripts | Self::KilledClients | Self::Reset
        )
    }

    pub(crate) const fn delay() -> Duration {
        DEADLINE.saturating_add(Duration::from_millis(5))
    }
}
