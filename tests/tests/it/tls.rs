//! Redis behind TLS: who is trusted, and who is not.

use std::time::Duration;

use tokio::time::{Instant, sleep};
use tollgate_core::{Store, conformance};
use tollgate_redis::{ConnectError, RedisStoreBuilder};
use tollgate_tests::{
    Authority, Cluster, RedisClient, TlsServer, Validity, check, quota, with_each_client,
};

use crate::conformance::OnServer;

fn builder<S: RedisClient>(url: &str, authority: &Authority) -> RedisStoreBuilder<S> {
    let builder = S::builder(url).strict(true);
    let builder = builder.deadline(Duration::from_secs(10));
    builder.ca_file(authority.certificate())
}

async fn decides(store: &impl Store) -> bool {
    store.check(check("a", quota(100, "1/h"), 1)).await.is_ok()
}

async fn refusal<S: RedisClient>(builder: RedisStoreBuilder<S>) -> String {
    match S::open(builder).await {
        Err(ConnectError::Unreachable { reason, .. }) => reason.to_lowercase(),
        other => panic!("{other:?}"),
    }
}

async fn only_a_server_with_a_good_certificate_is_trusted<S: RedisClient>() {
    let authority = Authority::new();
    let pair = authority.sign("localhost", Validity::Current);
    let server = TlsServer::start(&pair, &authority, false);

    let store = S::open(builder(&server.url("localhost"), &authority)).await;
    assert!(decides(&store.expect("a store")).await);
    // By address, with the name that its certificate shows.
    let by_address = builder::<S>(&server.url("127.0.0.1"), &authority);
    let named = S::open(by_address.clone().server_name("localhost")).await;
    assert!(decides(&named.expect("a store")).await);

    assert!(refusal(by_address).await.contains("certificate"));
    let stranger = Authority::new();
    assert!(
        refusal(builder::<S>(&server.url("localhost"), &stranger))
            .await
            .contains("unknownissuer")
    );
    let plain = format!("redis://localhost:{}", server.port());
    let plain = S::open(S::builder(&plain).strict(true)).await;
    assert!(plain.is_err(), "without TLS");
}

async fn a_certificate_that_expires_is_refused_and_its_successor_accepted<S: RedisClient>() {
    let authority = Authority::new();
    let pair = authority.sign("localhost", Validity::Current);
    let server = TlsServer::start(&pair, &authority, false);
    let store = S::open(builder(&server.url("localhost"), &authority)).await;
    let store = store.expect("a store");
    assert!(decides(&store).await);

    server.show(&authority.sign("localhost", Validity::Expired));
    let reason = refusal(builder::<S>(&server.url("localhost"), &authority)).await;
    assert!(reason.contains("expired"), "{reason}");
    let lost = Instant::now();
    while decides(&store).await {
        assert!(lost.elapsed() < Duration::from_secs(5), "still connected");
    }

    server.show(&pair);
    let shown = Instant::now();
    while !decides(&store).await {
        assert!(shown.elapsed() < Duration::from_secs(5), "not back");
        sleep(Duration::from_millis(10)).await;
    }
}

async fn a_server_that_wants_a_certificate_gets_it<S: RedisClient>() {
    let authority = Authority::new();
    let pair = authority.sign("localhost", Validity::Current);
    let server = TlsServer::start(&pair, &authority, true);
    let own = authority.sign("client", Validity::Current);
    let anonymous = builder::<S>(&server.url("localhost"), &authority);
    let with = |pair: &tollgate_tests::Pair| {
        anonymous
            .clone()
            .client_certificate(&pair.certificate, &pair.key)
    };
    let store = S::open(with(&own)).await.expect("a store");
    assert!(decides(&store).await);
    assert!(S::open(anonymous.clone()).await.is_err());
    let strangers = Authority::new().sign("client", Validity::Current);
    // Its files are gone with the authority.
    let error = S::open(with(&strangers)).await.expect_err("no such file");
    assert!(
        error.to_string().contains("tls.certificate_file"),
        "{error}"
    );
    let other = Authority::new();
    let strange = with(&other.sign("client", Validity::Current));
    assert!(S::open(strange).await.is_err());
}

/// Its nodes tell their addresses, and show certificates for a name.
async fn a_cluster_is_trusted_by_the_name_of_its_nodes<S: RedisClient>() {
    let authority = Authority::new();
    let pair = authority.sign("localhost", Validity::Current);
    let cluster = Cluster::start_behind_tls(&pair, &authority);
    let by_address = builder::<S>(&cluster.url(), &authority);
    let named = S::open(by_address.clone().server_name("localhost").resp(3)).await;
    conformance::run(&OnServer(named.expect("a store"))).await;
    let calls = (0..3).map(|node| cluster.node(node).calls("evalsha"));
    assert!(calls.min() > Some(0), "all primaries were asked");

    let reason = refusal(by_address).await;
    assert!(reason.contains("certificate"), "{reason}");
    let stranger = Authority::new();
    let strange = builder::<S>(&cluster.url(), &stranger);
    let reason = refusal(strange.server_name("localhost")).await;
    assert!(reason.contains("unknownissuer"), "{reason}");
}

with_each_client! {
    #[tokio::test(flavor = "multi_thread", worker_threads = 2)] a_cluster_is_trusted_by_the_name_of_its_nodes
    #[tokio::test] only_a_server_with_a_good_certificate_is_trusted
    #[tokio::test] a_certificate_that_expires_is_refused_and_its_successor_accepted
    #[tokio::test] a_server_that_wants_a_certificate_gets_it
}
