//! Who pays for a request.

use std::net::IpAddr;

use http::Extensions;
use tollgate_core::Tenant;

/// Finds the tenant in what earlier middleware has verified.
///
/// It sees the request's extensions and nothing else: whatever a client can set, such as a header, cannot
/// choose a bucket. Implemented for closures, for services that keep their own claim types there:
///
/// ```
/// use tollgate::{Identify, Tenant, http::Extensions};
///
/// #[derive(Clone)]
/// struct Claims { org: String, plan: String }
///
/// let identify = |extensions: &Extensions| {
///     let claims = extensions.get::<Claims>()?;
///     Tenant::new(claims.org.as_str(), claims.plan.as_str()).ok()
/// };
/// # fn check(_: impl Identify) {}
/// # check(identify);
/// ```
pub trait Identify: Send + Sync + 'static {
    /// The tenant, or `None` if nothing verified says who it is.
    fn identify(&self, extensions: &Extensions) -> Option<Tenant>;
}

impl<F> Identify for F
where
    F: Fn(&Extensions) -> Option<Tenant> + Send + Sync + 'static,
{
    fn identify(&self, extensions: &Extensions) -> Option<Tenant> {
        self(extensions)
    }
}

/// Takes the [`Tenant`] that verified middleware has put into the extensions.
pub(crate) fn tenant_extension(extensions: &Extensions) -> Option<Tenant> {
    extensions.get().cloned()
}

/// What a request without an identity gets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum MissingIdentity {
    /// `401` with a `WWW-Authenticate` header.
    #[default]
    Reject,
    /// The service, without any limit.
    Exempt,
    /// A bucket for its network address, in key class [`ANONYMOUS`](crate::ANONYMOUS). Without a known
    /// address it is rejected as above.
    ///
    /// Behind a proxy or a load balancer, the connection's address is theirs, and all strangers would share
    /// one bucket: see [`ClientAddress`](crate::ClientAddress), which
    /// [`with_client_address`](crate::RateLimitLayer::with_client_address) takes.
    Anonymous,
}

/// The network address of the connection's other end, as a request extension.
///
/// Under Axum, `into_make_service_with_connect_info::<SocketAddr>()` is enough. A service that is driven
/// by Hyper directly inserts this into each request, and so does one that knows the address from elsewhere,
/// such as the PROXY protocol. It comes before Axum's.
///
/// It must not be made from a header: see [`ClientAddress`](crate::ClientAddress) for these.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PeerAddress(pub IpAddr);

pub(crate) fn peer_address(extensions: &Extensions) -> Option<IpAddr> {
    let stated = extensions.get::<PeerAddress>().map(|peer| peer.0);
    #[cfg(feature = "axum")]
    let stated = stated.or_else(|| {
        let info = extensions.get::<axum::extract::ConnectInfo<std::net::SocketAddr>>();
        info.map(|info| info.0.ip())
    });
    stated
}
