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

# chains of faults at random for so long; `just soak 10m --seed N` repeats one
soak LENGTH="10m" *ARGS:
    cargo run --release -p tollgate-tests --bin failovers -- --soak {{LENGTH}} {{ARGS}}

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
regions:
    cargo run --release -p tollgate-tests --bin regions
