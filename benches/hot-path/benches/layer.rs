//! The layer's own cost, in the small: `just bench-small`.

use divan::{Bencher, black_box};
use tollgate::{KeySpace, LimitName, Tenant};
use tollgate_hot_path::Way;

fn main() {
    divan::main();
}

/// A request through the layer over a store in memory; `Floor` is the service alone.
#[divan::bench(args = Way::ALL)]
fn request(bencher: Bencher<'_, '_>, way: Way) {
    bencher.bench_local(way.start());
}

/// The name of a bucket.
#[divan::bench]
fn key(bencher: Bencher<'_, '_>) {
    let (keys, limit) = (KeySpace::default(), LimitName::default());
    let tenant = Tenant::new("acme", "pro").expect("an id");
    bencher.bench_local(|| keys.bucket(black_box(&tenant), &limit));
}
