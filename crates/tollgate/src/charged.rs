//! What a request carries of the limiters that have charged it.

use std::sync::Arc;

use http::Extensions;
use tollgate_core::Decision;
use tollgate_limiter::Limiter;

/// Left in the extensions of a request by the limiter that has charged it and let it through, for the service
/// behind it.
///
/// ```
/// use tollgate::Charged;
///
/// // In a handler of Axum: `charged: Extension<Charged>`.
/// fn is_nearly_drained(charged: &Charged) -> bool {
///     let tightest = charged.decision().tightest();
///     tightest.is_some_and(|limit| limit.share_left() < 0.1)
/// }
/// ```
#[derive(Clone, Debug)]
pub struct Charged {
    by: Limiter,
    decision: Decision,
    /// Whether it was the limiter's default, for want of a price.
    #[cfg_attr(
        not(feature = "axum"),
        expect(dead_code, reason = "only routers hand over prices")
    )]
    is_default: bool,
    outer: Option<Arc<Self>>,
}

impl Charged {
    /// What was decided, by the innermost limiter if there are several.
    #[must_use]
    pub const fn decision(&self) -> &Decision {
        &self.decision
    }

    /// What a limiter further outside has left, if there is one.
    #[must_use]
    pub fn outer(&self) -> Option<&Self> {
        self.outer.as_deref()
    }

    /// This one, and those further outside.
    fn all(&self) -> impl Iterator<Item = &Self> {
        std::iter::successors(Some(self), |it| it.outer())
    }

    /// Notes in a request that `limiter` has charged it, and whether that was its default for want of a price.
    /// Returns what the limiters further outside have left, if there are any.
    pub(crate) fn mark(
        extensions: &mut Extensions,
        limiter: &Limiter,
        decision: Decision,
        is_default: bool,
    ) -> Option<Arc<Self>> {
        let by = limiter.clone();
        let outer = extensions.insert(Self {
            by,
            decision,
            is_default,
            outer: None,
        });
        let outer = Arc::new(outer?);
        if let Some(own) = extensions.get_mut::<Self>() {
            own.outer = Some(outer.clone());
        }
        Some(outer)
    }

    /// The limiters, from the innermost.
    pub(crate) fn limiters(&self) -> impl Iterator<Item = &Limiter> {
        self.all().map(|it| &it.by)
    }
}

/// Whether `limiter` has charged the request already: layered twice, it charges once.
pub(crate) fn is_charged_by(extensions: &Extensions, limiter: &Limiter) -> bool {
    let charged = extensions.get::<Charged>();
    charged.is_some_and(|it| it.limiters().any(|by| by.is_same(limiter)))
}

/// Whether a limiter has charged its default for want of a price.
#[cfg(feature = "axum")]
pub(crate) fn is_charged_by_default(extensions: &Extensions) -> bool {
    let charged = extensions.get::<Charged>();
    charged.is_some_and(|it| it.all().any(|it| it.is_default))
}
