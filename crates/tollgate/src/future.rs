//! The future of a [`RateLimit`](crate::RateLimit) service.

use std::{
    fmt,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
};

use http::{Request, Response};
use http_body::Body;
use pin_project_lite::pin_project;
use tollgate_core::{Decision, Verdict};
use tollgate_limiter::Checking;
use tower_service::Service;

use crate::{
    Rejection,
    refusal::{Reason, Refusal},
    settings::Settings,
};

pin_project! {
    /// The response to come: the inner service's with the limiter's headers, or a refusal.
    ///
    /// # Cancel safety
    ///
    /// A future that is dropped while the check is under way may or may not have charged the tenant; the
    /// inner service has not been called then.
    pub struct ResponseFuture<S, R, ReqBody, ResBody>
    where
        S: Service<Request<ReqBody>>,
    {
        #[pin]
        state: State<S, R, ReqBody, ResBody, S::Future>,
    }
}

pin_project! {
    #[project = StateProj]
    enum State<S, R, ReqBody, ResBody, F> {
        Checking { check: Option<Check<S, R, ReqBody>> },
        Serving { #[pin] future: F, charged: Option<(Decision, Arc<Settings>)> },
        Refused { response: Option<Response<ResBody>> },
    }
}

/// A request that waits for its decision, and what it needs then.
struct Check<S, R, ReqBody> {
    checking: Checking,
    request: Request<ReqBody>,
    ready: S,
    settings: Arc<Settings>,
    rejection: R,
}

impl<S, R, ReqBody, ResBody> ResponseFuture<S, R, ReqBody, ResBody>
where
    S: Service<Request<ReqBody>>,
{
    /// An uncharged request.
    pub(crate) const fn pass(future: S::Future) -> Self {
        Self {
            state: State::Serving {
                future,
                charged: None,
            },
        }
    }

    /// A refusal made already.
    pub(crate) const fn refused(response: Response<ResBody>) -> Self {
        Self {
            state: State::Refused {
                response: Some(response),
            },
        }
    }

    pub(crate) const fn checking(
        checking: Checking,
        request: Request<ReqBody>,
        ready: S,
        settings: Arc<Settings>,
        rejection: R,
    ) -> Self {
        Self {
            state: State::Checking {
                check: Some(Check {
                    checking,
                    request,
                    ready,
                    settings,
                    rejection,
                }),
            },
        }
    }
}

impl<S, R, ReqBody> Check<S, R, ReqBody> {
    fn conclude<ResBody>(mut self, decision: Decision) -> State<S, R, ReqBody, ResBody, S::Future>
    where
        S: Service<Request<ReqBody>, Response = Response<ResBody>>,
        R: Rejection<ResBody>,
        ReqBody: Body + Send + 'static,
        ReqBody::Data: Send,
    {
        Settings::trace(&self.request, &decision);
        let reason = match decision.verdict {
            Verdict::Allowed => {
                self.request.extensions_mut().insert(decision.clone());
                let future = self.ready.call(self.request);
                return State::Serving {
                    future,
                    charged: Some((decision, self.settings)),
                };
            }
            Verdict::Denied => Reason::QuotaExceeded,
            Verdict::Unavailable => Reason::StoreUnavailable,
        };
        let refusal = Refusal {
            reason,
            decision: Some(decision),
        };
        let response = self.settings.refuse(&self.rejection, refusal, self.request);
        State::Refused {
            response: Some(response),
        }
    }
}

// === impl ResponseFuture ===

impl<S, R, ReqBody, ResBody> Future for ResponseFuture<S, R, ReqBody, ResBody>
where
    S: Service<Request<ReqBody>, Response = Response<ResBody>>,
    R: Rejection<ResBody>,
    ReqBody: Body + Send + 'static,
    ReqBody::Data: Send,
{
    type Output = Result<Response<ResBody>, S::Error>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let mut state = self.project().state;
        loop {
            let next = match state.as_mut().project() {
                StateProj::Checking { check } => {
                    let waiting = check.as_mut().expect("ResponseFuture polled after a panic");
                    let decision = ready!(Pin::new(&mut waiting.checking).poll(cx));
                    check.take().expect("just there").conclude(decision)
                }
                StateProj::Serving { future, charged } => {
                    let mut response = ready!(future.poll(cx))?;
                    if let Some((decision, settings)) = charged.take() {
                        settings.annotate(&mut response, decision);
                    }
                    return Poll::Ready(Ok(response));
                }
                StateProj::Refused { response } => {
                    let response = response
                        .take()
                        .expect("ResponseFuture polled after completion");
                    return Poll::Ready(Ok(response));
                }
            };
            state.set(next);
        }
    }
}

impl<S, R, ReqBody, ResBody> fmt::Debug for ResponseFuture<S, R, ReqBody, ResBody>
where
    S: Service<Request<ReqBody>>,
{
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = match &self.state {
            State::Checking { .. } => "checking",
            State::Serving { .. } => "serving",
            State::Refused { .. } => "refused",
        };
        f.debug_struct("ResponseFuture")
            .field("state", &state)
            .finish_non_exhaustive()
    }
}
