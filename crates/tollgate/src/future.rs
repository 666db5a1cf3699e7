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
use tollgate_core::Decision;
use tollgate_limiter::Checking;
use tower_service::Service;

use crate::{
    Rejection,
    settings::{Admitted, Charge, Settings},
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
        // In a box, since the whole future is moved around, and most never wait.
        Checking { check: Option<Box<Check<S, R, ReqBody>>> },
        Serving { #[pin] future: F, admitted: Option<Admitted> },
        Refused { response: Option<Response<ResBody>> },
    }
}

/// A request that waits for its decision, and what it needs then.
struct Check<S, R, ReqBody> {
    checking: Checking,
    charge: Charge,
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
                admitted: None,
            },
        }
    }

    /// A request that was charged.
    pub(crate) const fn admitted(future: S::Future, admitted: Admitted) -> Self {
        Self {
            state: State::Serving {
                future,
                admitted: Some(admitted),
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

    pub(crate) fn checking(
        checking: Checking,
        charge: Charge,
        request: Request<ReqBody>,
        ready: S,
        settings: Arc<Settings>,
        rejection: R,
    ) -> Self {
        let check = Check {
            checking,
            charge,
            request,
            ready,
            settings,
            rejection,
        };
        Self {
            state: State::Checking {
                check: Some(Box::new(check)),
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
        match self
            .settings
            .admit(self.charge, decision, &mut self.request)
        {
            Ok(admitted) => State::Serving {
                future: self.ready.call(self.request),
                admitted: Some(admitted),
            },
            Err(refusal) => {
                let response = self.settings.refuse(&self.rejection, refusal, self.request);
                State::Refused {
                    response: Some(response),
                }
            }
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
                StateProj::Serving { future, admitted } => {
                    let mut response = ready!(future.poll(cx))?;
                    if let Some(admitted) = admitted.take() {
                        admitted.annotate(&mut response);
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
