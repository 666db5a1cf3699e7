//! How many allocations a request takes on each way through the layer, beyond those of the service alone.

use std::alloc::System;

use stats_alloc::{INSTRUMENTED_SYSTEM, Region, StatsAlloc};
use tollgate_hot_path::Way;

#[global_allocator]
static ALLOCATOR: &StatsAlloc<System> = &INSTRUMENTED_SYSTEM;

const REQUESTS: usize = 10_000;

fn main() {
    let mut floor = (0.0, 0.0);
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
        let all = (
            per_request(change.allocations + change.reallocations),
            per_request(change.bytes_allocated),
        );
        if way == Way::Floor {
            floor = all;
        } else {
            let (count, bytes) = (all.0 - floor.0, all.1 - floor.1);
            println!("| {} | {count:.1} | {bytes:.0} |", way.name());
        }
    }
}
