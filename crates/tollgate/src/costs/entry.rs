//! The prices of one path, by method.

use http::Method;

use super::Price;

/// One price, and what is known about it.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Entry {
    pub(super) price: Price,
    /// The smallest of the largest capacities of the limiters around this route, as far as they are known.
    pub(super) bound: Option<u64>,
    /// Written into a table, not next to a handler.
    pub(super) by_hand: bool,
}

/// The prices of one path. No method means any.
#[derive(Clone, Debug, Default)]
pub(super) struct PathCosts {
    pub(super) entries: Vec<(Option<Method>, Entry)>,
    /// A router has told all methods that it serves here, so that another one is not allowed.
    pub(super) listed: bool,
}

/// A key that has two prices.
#[derive(Debug)]
pub(super) struct PricedTwice(pub(super) Option<Method>);

// === impl Entry ===

impl Entry {
    /// What a router was told next to a service.
    #[cfg(feature = "axum")]
    pub(super) const fn said(price: Price) -> Self {
        Self {
            price,
            bound: None,
            by_hand: false,
        }
    }

    pub(super) const fn by_hand(price: Price) -> Self {
        Self {
            price,
            bound: None,
            by_hand: true,
        }
    }

    pub(super) fn bind(&mut self, capacity: u64) {
        self.bound = Some(self.bound.map_or(capacity, |bound| bound.min(capacity)));
    }

    /// Whether both could be joined: at most one of them may say something.
    pub(super) fn absorb(&mut self, other: Self) -> bool {
        if self.price == Price::Default {
            self.price = other.price;
        } else if other.price != Price::Default {
            return false;
        }
        if let Some(capacity) = other.bound {
            self.bind(capacity);
        }
        self.by_hand |= other.by_hand;
        true
    }
}

// === impl PathCosts ===

impl PathCosts {
    pub(super) fn by_hand(method: Option<Method>, price: Price) -> Self {
        Self {
            entries: vec![(method, Entry::by_hand(price))],
            listed: false,
        }
    }

    /// What holds for `method`: its own entry; for `HEAD` that of `GET`, whose handler answers it; that of
    /// any method.
    pub(super) fn price(&self, method: &Method) -> Option<Price> {
        let head = (method == Method::HEAD).then_some(&Method::GET);
        let entry = self
            .get(Some(method))
            .or_else(|| self.get(Some(head?)))
            .or_else(|| self.get(None))?;
        Some(entry.price)
    }

    pub(super) fn get(&self, method: Option<&Method>) -> Option<&Entry> {
        let found = self.entries.iter().find(|(key, _)| key.as_ref() == method);
        found.map(|(_, entry)| entry)
    }

    pub(super) fn get_mut(&mut self, method: Option<&Method>) -> Option<&mut Entry> {
        let mut entries = self.entries.iter_mut();
        let found = entries.find(|(key, _)| key.as_ref() == method);
        found.map(|(_, entry)| entry)
    }

    /// Adds what another router or table says about the same path.
    pub(super) fn absorb(&mut self, other: Self) -> Result<(), PricedTwice> {
        self.listed |= other.listed;
        for (method, entry) in other.entries {
            match self.get_mut(method.as_ref()) {
                None => self.entries.push((method, entry)),
                Some(own) => {
                    if !own.absorb(entry) {
                        return Err(PricedTwice(method));
                    }
                }
            }
        }
        self.fill();
        Ok(())
    }

    /// A price for any method that was written by hand is meant for the handlers that say nothing. One that
    /// stands next to a handler is meant for that handler alone.
    fn fill(&mut self) {
        let Some(any) = self.get(None).copied().filter(|any| any.by_hand) else {
            return;
        };
        for (_, entry) in &mut self.entries {
            if entry.price == Price::Default {
                entry.price = any.price;
            }
        }
    }
}
