//! What is done to a topology.

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    None,
    Frozen,
    Killed,
    /// After its replicas have heard of nothing for a while.
    KilledAhead,
    /// As a replica, after it was killed before the round.
    BroughtBack,
    FailedOver,
    SlotsMoved,
    ScriptsFlushed,
    PasswordRotated,
    CertificateExpired,
}

impl Fault {
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Frozen => "primary frozen",
            Self::Killed => "primary killed",
            Self::KilledAhead => "primary killed 2 s ahead of its replicas",
            Self::BroughtBack => "killed primary brought back",
            Self::FailedOver => "failover in good order",
            Self::SlotsMoved => "node added, 100 slots moved to it",
            Self::ScriptsFlushed => "scripts flushed on a primary",
            Self::PasswordRotated => "password rotated",
            Self::CertificateExpired => "certificate expired for 3 s",
        }
    }

    /// How many replicas take over because of it.
    pub(crate) const fn failovers(self) -> u32 {
        match self {
            Self::Frozen | Self::Killed | Self::KilledAhead | Self::FailedOver => 1,
            _ => 0,
        }
    }

    /// Whether the policy must have decided something, or else nothing was tested.
    pub(crate) const fn needs_the_policy(self) -> bool {
        matches!(
            self,
            Self::Frozen | Self::Killed | Self::KilledAhead | Self::CertificateExpired
        )
    }
}
