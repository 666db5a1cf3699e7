# Every task by name: `just` lists them.

_list:
    @just --list

# everything that must pass before a change lands
test:
    scripts/test

# what CI runs
ci:
    bash .ci/run

fmt:
    cargo fmt --all

lint:
    cargo clippy --workspace --all-targets -- -D warnings

# the documentation, in a browser
doc:
    cargo doc --workspace --no-deps --open

# the service to copy: `just quickstart --features postgres` asks a database, too
quickstart *ARGS:
    cargo run --example quickstart {{ARGS}}

# the proof that anyone can watch
fleet *ARGS:
    cargo run --release --example fleet -- {{ARGS}}

# the fault lab: every way in which Redis fails, under every policy (6 to 7 minutes)
faults *ARGS:
    cargo run --release -p tollgate-tests --bin faults -- --full {{ARGS}}

# what failovers of a cluster, under Sentinel and behind TLS cost, as the tables of docs/topologies.md (about 8 minutes)
failovers *ARGS:
    cargo run --release -p tollgate-tests --bin failovers -- {{ARGS}}

# chains of faults at random, for 10 minutes; `just soak 90s --seed N` repeats those of a seed for 90 seconds
soak *ARGS:
    cargo run --release -p tollgate-tests --bin failovers -- --soak {{ARGS}}

# licences, sources and advisories of the dependencies (needs cargo-deny)
deny:
    cargo deny check

# what a check costs through each client library
bench-clients:
    cargo bench -p tollgate-tests --bench clients

# what a check costs while the circuit breaker is open
bench-open-breaker:
    cargo bench -p tollgate-tests --bench open_breaker

# how many calls of Redis each stage saves, and what that costs (about 5 minutes; `--quick` for a look)
bench-trips *ARGS:
    cargo run --release -p tollgate-tests --bin trips -- {{ARGS}}

# several regions, simulated: one store, quotas split over regions, tenants with a home (seconds)
regions *ARGS:
    cargo run --release -p tollgate-tests --bin regions -- {{ARGS}}

# Features of the benchmarks: `limitador-redis` builds its storage in Redis, too (see benches/Cargo.toml).
bench_features := ""
# One of the others asks for a newer Rust than it needs.
_bench := "cargo build --release --locked --ignore-rust-version --manifest-path benches/Cargo.toml --features '" + bench_features + "'"

_hot_path := "cargo build --release --locked --manifest-path benches/hot-path/Cargo.toml --bins"

# Tollgate beside bare Axum, a limiter by hand and other limiters (about 15 minutes; `--quick` for a look; `--help`)
bench *ARGS:
    {{_bench}} --bin bench-app --bin bench
    benches/target/release/bench {{ARGS}}

# what the script costs Redis, beside the textbook's and plain commands
bench-script:
    {{_bench}} --bin bench-script
    benches/target/release/bench-script

# 1 to 30 replicas on one Redis and on a cluster of three, and a thousand to ten million buckets (about 3 minutes)
bench-scale:
    {{_bench}} --bin bench-scale --bin bench-replica
    benches/target/release/bench-scale

# the layer's own cost, and its allocations
bench-small:
    cargo bench --locked --manifest-path benches/hot-path/Cargo.toml --bench layer
    {{_hot_path}}
    benches/target/release/bench-allocations

# instructions of a request through the layer, beside those of the last release (`--store` writes them down; needs valgrind)
bench-instructions *ARGS:
    {{_hot_path}}
    benches/target/release/bench-instructions {{ARGS}}
