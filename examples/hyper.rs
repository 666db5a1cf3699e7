//! The layer around a plain Hyper service: no router, costs by path, buckets per address.
//!
//! ```text
//! cargo run --example hyper
//! curl -i http://127.0.0.1:3000/     # costs 1
//! curl -i http://127.0.0.1:3000/big  # costs 5
//! ```

use std::{convert::Infallible, error::Error, net::SocketAddr};

use bytes::Bytes;
use http_body_util::Full;
use hyper::{Method, Request, Response, body::Incoming, server::conn::http1};
use hyper_util::{rt::TokioIo, service::TowerToHyperService};
use tokio::net::{TcpListener, TcpStream};
use tollgate::{
    FailurePolicy, Limiter, MemoryStore, MissingIdentity, PeerAddress, Quota, Quotas,
    RateLimitLayer, RouteCosts,
};
use tower::{ServiceBuilder, service_fn};

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let limiter = Limiter::builder(MemoryStore::new())
        .quotas(Quotas::new(Quota::new(20, "2/s")?))
        .on_store_failure(FailurePolicy::Open)
        .build()?;
    let rate_limit = RateLimitLayer::new(limiter)
        .on_missing_identity(MissingIdentity::Anonymous)
        .with_costs(RouteCosts::new().set(Method::GET, "/big", 5))?;

    let listener = TcpListener::bind("127.0.0.1:3000").await?;
    println!("Listening on http://{}", listener.local_addr()?);
    loop {
        let (stream, peer) = listener.accept().await?;
        tokio::spawn(serve(stream, peer, rate_limit.clone()));
    }
}

async fn serve(stream: TcpStream, peer: SocketAddr, rate_limit: RateLimitLayer) {
    let service = ServiceBuilder::new()
        .map_request(move |mut request: Request<Incoming>| {
            request.extensions_mut().insert(PeerAddress(peer.ip()));
            request
        })
        .layer(rate_limit)
        .service(service_fn(answer));
    let connection = http1::Builder::new()
        .serve_connection(TokioIo::new(stream), TowerToHyperService::new(service));
    if let Err(error) = connection.await {
        eprintln!("{peer}: {error}");
    }
}

async fn answer(_: Request<Incoming>) -> Result<Response<Full<Bytes>>, Infallible> {
    Ok(Response::new(Full::from("hello\n")))
}
