//! The service.

use std::{
    fmt, mem,
    sync::Arc,
    task::{Context, Poll},
};

use http::{Request, Response};
use http_body::Body;
use tollgate_limiter::Begun;
use tower_service::Service;

use crate::{
    ProblemJson, Rejection,
    future::ResponseFuture,
    settings::{Settings, Start},
};

/// A service behind a [`RateLimitLayer`](crate::RateLimitLayer).
///
/// It is ready when the inner service is, and reserves nothing of its own. So a refusal, too, waits for a
/// busy inner service that makes its callers wait in `poll_ready`, such as tower's `ConcurrencyLimit`; put
/// `LoadShed` around that one, or limit concurrency in the handler, if denials must be at once then. Axum's
/// routes are always ready.
#[derive(Clone)]
pub struct RateLimit<S, R = ProblemJson> {
    inner: S,
    settings: Arc<Settings>,
    rejection: R,
}

impl<S, R> RateLimit<S, R> {
    pub(crate) const fn new(inner: S, settings: Arc<Settings>, rejection: R) -> Self {
        Self {
            inner,
            settings,
            rejection,
        }
    }

    /// The service that was made ready, to be called later or dropped; its clone stays behind. See tower's
    /// [notes on cloning](tower_service::Service#be-careful-when-cloning-inner-services).
    fn take_ready(&mut self) -> S
    where
        S: Clone,
    {
        let clone = self.inner.clone();
        mem::replace(&mut self.inner, clone)
    }

    /// The inner service.
    pub const fn get_ref(&self) -> &S {
        &self.inner
    }

    /// The inner service, to change it.
    pub const fn get_mut(&mut self) -> &mut S {
        &mut self.inner
    }

    /// Gives the inner service back.
    pub fn into_inner(self) -> S {
        self.inner
    }
}

// === impl RateLimit ===

impl<S, R, ReqBody, ResBody> Service<Request<ReqBody>> for RateLimit<S, R>
where
    S: Service<Request<ReqBody>, Response = Response<ResBody>> + Clone,
    R: Rejection<ResBody>,
    ReqBody: Body + Send + 'static,
    ReqBody::Data: Send,
{
    type Response = Response<ResBody>;
    type Error = S::Error;
    type Future = ResponseFuture<S, R, ReqBody, ResBody>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, mut request: Request<ReqBody>) -> Self::Future {
        let refusal = match self.settings.start(&request) {
            Start::Pass => return ResponseFuture::pass(self.inner.call(request)),
            Start::Refuse(refusal) => refusal,
            Start::Check(charge, Begun::Waiting(checking)) => {
                let ready = self.take_ready();
                let settings = self.settings.clone();
                let rejection = self.rejection.clone();
                return ResponseFuture::checking(
                    checking, charge, request, ready, settings, rejection,
                );
            }
            // Nothing to wait for, and so nothing to keep for later.
            Start::Check(charge, Begun::Decided(decision)) => {
                match self.settings.admit(charge, decision, &mut request) {
                    Ok(admitted) => {
                        let future = self.inner.call(request);
                        return ResponseFuture::admitted(future, admitted);
                    }
                    Err(refusal) => refusal,
                }
            }
        };
        // A place that the inner service reserved is for others now.
        drop(self.take_ready());
        ResponseFuture::refused(self.settings.refuse(&self.rejection, refusal, request))
    }
}

impl<S: fmt::Debug, R> fmt::Debug for RateLimit<S, R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RateLimit")
            .field("inner", &self.inner)
            .field("settings", &self.settings)
            .finish_non_exhaustive()
    }
}
