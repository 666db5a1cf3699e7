//! The rules that every store keeps, on a real Redis.

use std::time::Duration;

use tokio::time::sleep;
use tollgate_core::{
    Store,
    conformance::{self, Harness},
};
use tollgate_tests::{RedisClient, RedisServer, with_each_client};

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

with_each_client! {
    #[tokio::test] a_single_server
}
