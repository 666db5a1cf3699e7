//! Who makes a request, the same way for every variant.

use std::{
    sync::{Arc, LazyLock},
    task::{Context, Poll},
};

use http::{Extensions, Request};
use tollgate::Tenant;
use tower::{Layer, Service};

static CLASS: LazyLock<Arc<str>> = LazyLock::new(|| "bench".into());

/// Turns the header `x-tenant` into the extension that authentication would leave. A benchmark may believe a
/// header; a service must not.
#[derive(Clone, Copy)]
pub(crate) struct Authenticate;

#[derive(Clone)]
pub(crate) struct Authenticated<S> {
    inner: S,
}

/// The tenant of a request, for whoever keys by it.
pub(crate) fn tenant(extensions: &Extensions) -> &Tenant {
    extensions.get().expect("authenticated")
}

// === impl Authenticate ===

impl<S> Layer<S> for Authenticate {
    type Service = Authenticated<S>;

    fn layer(&self, inner: S) -> Self::Service {
        Authenticated { inner }
    }
}

// === impl Authenticated ===

impl<S: Service<Request<B>>, B> Service<Request<B>> for Authenticated<S> {
    type Response = S::Response;
    type Error = S::Error;
    type Future = S::Future;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, mut request: Request<B>) -> Self::Future {
        let id = request.headers().get("x-tenant");
        let id = id.and_then(|id| id.to_str().ok()).unwrap_or("t0");
        let tenant = Tenant::new(id, CLASS.clone()).expect("not empty");
        request.extensions_mut().insert(tenant);
        self.inner.call(request)
    }
}
