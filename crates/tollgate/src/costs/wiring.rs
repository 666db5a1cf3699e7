//! How a router learns the capacity of a limiter that is being layered onto it.
//!
//! A cost that no tier's bucket can hold would deny its route for ever, so it should fail the build of the
//! app. But costs and capacities only meet in `.layer(layer)`, where the limiter may be any layer deep in a
//! stack whose type says nothing about it. What always happens there is that Axum calls `Layer::layer`, on
//! the same thread and before `.layer` returns. So the router opens a scope around such a call, and the
//! limiter's `Layer::layer` announces its largest capacity to the scope that is open, if one is.
//!
//! Scopes do not reach beyond a thread or a call, and nothing is announced to a scope that is closed: layers
//! that Axum applies later, to handlers that wait for their state, tell nobody.

use std::cell::Cell;

#[derive(Clone, Copy)]
enum Scope {
    Closed,
    Open(Option<u64>),
}

thread_local! {
    static SCOPE: Cell<Scope> = const { Cell::new(Scope::Closed) };
}

/// Tells the router that is layering this limiter, if any is, the largest capacity of all its tiers.
pub(crate) fn announce(largest_capacity: u64) {
    if let Scope::Open(smallest) = SCOPE.get() {
        let smallest = smallest.map_or(largest_capacity, |it| it.min(largest_capacity));
        SCOPE.set(Scope::Open(Some(smallest)));
    }
}

/// Runs `build` and returns the smallest capacity announced meanwhile: a request must fit every limiter that
/// it passes.
#[cfg(any(feature = "axum", test))]
pub(crate) fn collect(build: impl FnOnce()) -> Option<u64> {
    /// Restores the scope around this one, also when `build` panics.
    struct Restore(Scope);

    impl Drop for Restore {
        fn drop(&mut self) {
            SCOPE.set(self.0);
        }
    }

    let _restore = Restore(SCOPE.replace(Scope::Open(None)));
    build();
    match SCOPE.get() {
        Scope::Open(smallest) => smallest,
        Scope::Closed => None,
    }
}

#[cfg(test)]
mod tests {
    use std::panic::{AssertUnwindSafe, catch_unwind};

    use super::*;

    #[test]
    fn the_smallest_of_several_is_kept() {
        let smallest = collect(|| {
            announce(100);
            announce(10);
            announce(50);
        });
        assert_eq!(smallest, Some(10));
        assert_eq!(collect(|| {}), None);
    }

    #[test]
    fn nothing_is_heard_outside_of_a_scope() {
        announce(1);
        assert_eq!(collect(|| {}), None);
        let smallest = collect(|| {
            std::thread::scope(|scope| {
                scope.spawn(|| announce(1));
            });
        });
        assert_eq!(smallest, None);
    }

    #[test]
    fn an_inner_scope_keeps_to_itself() {
        let outer = collect(|| {
            announce(10);
            assert_eq!(collect(|| announce(5)), Some(5));
            announce(20);
        });
        assert_eq!(outer, Some(10));
    }

    #[test]
    fn a_panic_restores_the_scope_around() {
        let outer = collect(|| {
            let panicked = catch_unwind(AssertUnwindSafe(|| {
                collect(|| {
                    announce(1);
                    panic!("while building");
                })
            }));
            assert!(panicked.is_err());
            announce(7);
        });
        assert_eq!(outer, Some(7));
        announce(3);
        assert!(matches!(SCOPE.get(), Scope::Closed));
    }
}
