//! The functions of [`axum::routing`], for handlers with costs.
//!
//! Use these in place of Axum's to write `get(search).cost(5)`.

use axum::{handler::Handler, routing::MethodFilter};

use super::CostMethodRouter;

macro_rules! top_level {
    ($($name:ident $method:ident,)*) => {$(
        #[doc = concat!("Routes `", stringify!($method), "` requests to a handler, as [`axum::routing::", stringify!($name), "`] does.")]
        pub fn $name<H, T, S>(handler: H) -> CostMethodRouter<S>
        where
            H: Handler<T, S>,
            T: 'static,
            S: Clone + Send + Sync + 'static,
        {
            on(MethodFilter::$method, handler)
        }
    )*};
}

top_level! {
    connect CONNECT,
    delete DELETE,
    get GET,
    head HEAD,
    options OPTIONS,
    patch PATCH,
    post POST,
    put PUT,
    trace TRACE,
}

/// Routes requests with the methods of `filter` to a handler, as [`axum::routing::on`] does.
pub fn on<H, T, S>(filter: MethodFilter, handler: H) -> CostMethodRouter<S>
where
    H: Handler<T, S>,
    T: 'static,
    S: Clone + Send + Sync + 'static,
{
    CostMethodRouter::empty().on(filter, handler)
}

/// Routes requests with any method to a handler, as [`axum::routing::any`] does.
pub fn any<H, T, S>(handler: H) -> CostMethodRouter<S>
where
    H: Handler<T, S>,
    T: 'static,
    S: Clone + Send + Sync + 'static,
{
    CostMethodRouter::from(axum::routing::any(handler))
}
