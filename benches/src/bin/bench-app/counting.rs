//! What reached the handler, by tenant: the truth about what a limiter has admitted.

use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering},
};

use axum::{Extension, Router, extract::State, routing::get};
use tollgate::Tenant;

/// One counter for each tenant; `t0` is the first.
pub(crate) struct Counts(Box<[AtomicU64]>);

impl Counts {
    pub(crate) fn new(tenants: usize) -> Self {
        let zero = || AtomicU64::new(0);
        Self(std::iter::repeat_with(zero).take(tenants).collect())
    }

    fn count(&self, tenant: &Tenant) {
        let number = tenant.id()[1..].parse::<usize>().ok();
        if let Some(count) = number.and_then(|number| self.0.get(number)) {
            count.fetch_add(1, Ordering::Relaxed);
        }
    }
}

/// The handler.
pub(crate) async fn admitted(
    State(counts): State<Arc<Counts>>,
    Extension(tenant): Extension<Tenant>,
) -> &'static str {
    counts.count(&tenant);
    "ok"
}

/// Outside of all limiters: how many were admitted, of all tenants and of the one with the most; and to count anew.
pub(crate) fn routes() -> Router<Arc<Counts>> {
    let counted = |State(counts): State<Arc<Counts>>| async move {
        let counts = counts.0.iter().map(|count| count.load(Ordering::Relaxed));
        let (sum, most) = counts.fold((0, 0), |(sum, most), it| (sum + it, most.max(it)));
        format!("{sum} {most}")
    };
    let reset = |State(counts): State<Arc<Counts>>| async move {
        for count in &counts.0 {
            count.store(0, Ordering::Relaxed);
        }
    };
    Router::new()
        .route("/counted", get(counted))
        .route("/reset", get(reset))
}
