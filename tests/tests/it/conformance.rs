//! The rules that every store keeps, on a real Redis.

use std::time::Duration;

use tokio::time::sleep;
use tollgate_core::{
    Store,
    conformance::{self, Harness},
};
use tollgate_redis::RedisStoreBuilder;
use tollgate_tests::{Cluster, RedisClient, RedisServer, Sentinels, with_each_client};

use crate::support::store_of;

/// A store whose server has a clock of its own, which runs as ours does.
pub(crate) struct OnServer<S>(pub(crate) S);

impl<S: Store> Harness for OnServer<S> {
    fn store(&self) -> &dyn Store {
        &self.0
    }

    async fn sleep(&self, time: Duration) {
        sleep(time).await;
    }
}

async fn a_single_server<S: RedisClient>() {
    let server = RedisServer::start();
    conformance::run(&OnServer(store_of::<S>(&server).await)).await;
}

async fn several_connections_to_a_server<S: RedisClient>() {
    let server = RedisServer::start();
    conformance::run(&OnServer(
        on::<S>(&server.url(), |it| it.connections(3)).await,
    ))
    .await;
}

async fn a_cluster<S: RedisClient>() {
    let cluster = Cluster::start();
    conformance::run(&OnServer(on::<S>(&cluster.url(), |it| it).await)).await;
}

async fn a_primary_under_sentinel<S: RedisClient>() {
    let group = Sentinels::start();
    conformance::run(&OnServer(on::<S>(&group.url(), |it| it).await)).await;
}

/// A store with further settings and a deadline that a busy machine meets as well.
pub(crate) async fn on<S: RedisClient>(
    url: &str,
    set: impl FnOnce(RedisStoreBuilder<S>) -> RedisStoreBuilder<S>,
) -> S {
    let builder = set(S::builder(url)).strict(true);
    let store = S::open(builder.deadline(Duration::from_secs(10))).await;
    store.expect("a store on the test's own servers")
}

with_each_client! {
    #[tokio::test] a_single_server
    #[tokio::test] several_connections_to_a_server
    #[tokio::test] a_cluster
    #[tokio::test] a_primary_under_sentinel
}
