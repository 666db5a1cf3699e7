//! A layer that looks up prices as the limiter does, in real apps.

#[cfg(feature = "axum")]
mod build;
#[cfg(feature = "axum")]
mod nested;
mod plain;
#[cfg(feature = "axum")]
mod routed;

#[cfg(feature = "axum")]
mod probe {
    use std::{
        sync::{Arc, Mutex},
        task::{Context, Poll},
    };

    use axum::{Router, body::Body, extract::MatchedPath};
    use http::{Method, Request, StatusCode};
    use tower::{Layer, Service, ServiceExt};

    use crate::{
        Charged, Decision, FailurePolicy, Limiter, MemoryStore, Quota, Quotas, Verdict,
        costs::{Resolved, RouteCosts, resolve, wiring},
    };

    /// What the layer saw of one request.
    #[derive(Clone, Debug, PartialEq)]
    pub(crate) struct Seen {
        pub(crate) route: Option<String>,
        pub(crate) resolved: Resolved,
    }

    /// Stands where the limiter would.
    #[derive(Clone, Debug, Default)]
    pub(crate) struct Probe {
        table: Option<Arc<RouteCosts>>,
        capacity: Option<u64>,
        seen: Arc<Mutex<Vec<Seen>>>,
    }

    #[derive(Clone, Debug)]
    pub(crate) struct Probed<S> {
        probe: Probe,
        inner: S,
    }

    impl Probe {
        pub(crate) fn with_costs(costs: RouteCosts) -> Self {
            Self {
                table: Some(Arc::new(costs)),
                ..Self::default()
            }
        }

        pub(crate) fn with_capacity(capacity: u64) -> Self {
            Self {
                capacity: Some(capacity),
                ..Self::default()
            }
        }

        /// What was seen since the last call.
        pub(crate) fn take(&self) -> Vec<Seen> {
            std::mem::take(&mut self.seen.lock().expect("not poisoned"))
        }

        /// Sends a request and tells what the layer, which must have run once, saw of it.
        pub(crate) async fn ask(&self, app: &Router, method: Method, path: &str) -> Seen {
            let _ = send(app, method, path).await;
            let mut seen = self.take();
            assert_eq!(seen.len(), 1, "{path}: {seen:?}");
            seen.remove(0)
        }

        pub(crate) async fn resolved(&self, app: &Router, method: Method, path: &str) -> Resolved {
            self.ask(app, method, path).await.resolved
        }
    }

    impl<S> Layer<S> for Probe {
        type Service = Probed<S>;

        fn layer(&self, inner: S) -> Probed<S> {
            if let Some(capacity) = self.capacity {
                wiring::announce(capacity);
            }
            Probed {
                probe: self.clone(),
                inner,
            }
        }
    }

    impl<S: Service<Request<B>>, B> Service<Request<B>> for Probed<S> {
        type Response = S::Response;
        type Error = S::Error;
        type Future = S::Future;

        fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
            self.inner.poll_ready(cx)
        }

        fn call(&mut self, mut request: Request<B>) -> S::Future {
            let resolved = resolve(self.probe.table.as_deref(), &request);
            let route = request.extensions().get::<MatchedPath>();
            let route = route.map(|route| route.as_str().to_owned());
            let mut all = self.probe.seen.lock().expect("not poisoned");
            all.push(Seen { route, resolved });
            drop(all);
            if matches!(resolved, Resolved::Unpriced | Resolved::NoTable) {
                let decision = Decision::without_store(Verdict::Allowed, Vec::new());
                Charged::mark(request.extensions_mut(), &limiter(), decision, true);
            }
            self.inner.call(request)
        }
    }

    fn limiter() -> Limiter {
        let quota = Quota::new(1, 1).expect("a quota");
        let builder = Limiter::builder(MemoryStore::new()).quotas(Quotas::new(quota));
        let builder = builder.on_store_failure(FailurePolicy::Open);
        builder.build().expect("a limiter")
    }

    pub(crate) async fn send(app: &Router, method: Method, path: &str) -> StatusCode {
        let request = Request::builder().method(method).uri(path);
        let request = request.body(Body::empty()).expect("a request");
        let response = app.clone().oneshot(request).await;
        response.expect("infallible").status()
    }

    /// A path that matches a pattern.
    pub(crate) fn example(pattern: &str) -> String {
        pattern
            .replace("{*rest}", "r/s")
            .replace('{', "x-")
            .replace('}', "")
    }

    pub(crate) const fn price(tokens: u32) -> Resolved {
        Resolved::Price(tollgate_core::Cost::new(tokens))
    }

    pub(crate) async fn ok() {}
}
