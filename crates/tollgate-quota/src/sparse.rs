//! Not more than one line in the log per minute.

use std::{
    sync::{Mutex, PoisonError},
    time::Duration,
};

use tokio::time::Instant;

const SPAN: Duration = Duration::from_secs(60);

/// Counts what happens too often for a line each.
#[derive(Default)]
pub(crate) struct Sparse(Mutex<State>);

#[derive(Default)]
struct State {
    told: Option<Instant>,
    untold: u64,
}

impl Sparse {
    /// Whether this is to be told; if so, how many were not since the last one that was.
    pub(crate) fn tell(&self) -> Option<u64> {
        // Nothing in here panics half-way.
        let mut state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if state.told.is_some_and(|told| told.elapsed() < SPAN) {
            state.untold += 1;
            return None;
        }
        state.told = Some(Instant::now());
        Some(std::mem::take(&mut state.untold))
    }
}

#[cfg(test)]
mod tests {
    use tokio::time::advance;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn one_per_minute_with_the_number_of_the_others() {
        let sparse = Sparse::default();
        assert_eq!(sparse.tell(), Some(0));
        for _ in 0..3 {
            advance(SPAN / 4).await;
            assert_eq!(sparse.tell(), None);
        }
        advance(SPAN / 4).await;
        assert_eq!(sparse.tell(), Some(3));
        assert_eq!(sparse.tell(), None);
    }
}
