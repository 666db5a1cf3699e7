//! How many allocations a request takes on each way through the layer, beyond those of the service alone.

use std::{alloc::System, collections::BTreeMap};

use stats_alloc::{INSTRUMENTED_SYSTEM, Region, StatsAlloc};
use tollgate_hot_path::Way;

#[global_allocator]
static ALLOCATOR: &StatsAlloc<System> = &INSTRUMENTED_SYSTEM;

const REQUESTS: usize = 10_000;

fn main() {
    let mut all = BTreeMap::new();
    println!(
        "| way through the layer | allocations per request | bytes per request |\n|---|---:|---:|"
    );
    for way in Way::ALL {
        let mut send = way.start();
        for _ in 0..100 {
            send();
        }
        let region = Region::new(ALLOCATOR);
        for _ in 0..REQUESTS {
            send();
        }
        let change = region.change();
        let per_request = |number: usize| number as f64 / REQUESTS as f64;
        let taken = (
            per_request(change.allocations + change.reallocations),
            per_request(change.bytes_allocated),
        );
        all.insert(way.name(), taken);
        // A floor comes before what stands on it.
        if let Some(floor) = way.floor() {
            let floor = all[floor.name()];
            let (count, bytes) = (taken.0 - floor.0, taken.1 - floor.1);
            println!("| {} | {count:.1} | {bytes:.0} |", way.name());
        }
    }
}
