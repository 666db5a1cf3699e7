//! One line in the log for each change of the connection.

use std::time::Duration;

use tokio::time::Instant;
use tollgate_core::{ErrorKind, StoreError};

/// The same trouble again within this time is no news.
const NEWS: Duration = Duration::from_secs(10);

/// Tells when the connection is lost and why, and when it is back; not each attempt.
#[derive(Debug)]
pub(crate) struct Journal {
    address: String,
    /// What was told last, and when.
    told: Option<(Trouble, Instant)>,
    /// Whether the latest line is one of trouble.
    in_trouble: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Trouble {
    Down(ErrorKind),
    /// One of several connections.
    Fewer(ErrorKind),
    ReadOnly,
    Replaced,
}

impl Journal {
    pub(crate) const fn new(address: String) -> Self {
        Self {
            address,
            told: None,
            in_trouble: false,
        }
    }

    /// A connection is lost or cannot be made, while there are `others` or none.
    pub(crate) fn down(&mut self, error: &StoreError, others: bool) {
        let kind = error.kind();
        let (trouble, what) = if others {
            let fewer =
                "fewer connections to Redis than there should be; trying until they are complete";
            (Trouble::Fewer(kind), fewer)
        } else {
            let none = "no connection to Redis; trying until there is one";
            (Trouble::Down(kind), none)
        };
        if self.is_news(trouble) {
            let reason = std::error::Error::source(error).map(ToString::to_string);
            tracing::warn!(address = %self.address, reason = reason.as_deref(), "{what}");
        }
    }

    pub(crate) fn read_only(&mut self) {
        if self.is_news(Trouble::ReadOnly) {
            tracing::warn!(
                address = %self.address,
                "Redis is read-only; connecting again in search of the primary"
            );
        }
    }

    pub(crate) fn replaced(&mut self) {
        if self.is_news(Trouble::Replaced) {
            tracing::warn!(address = %self.address, "the sentinels name another primary; connecting to it");
        }
    }

    /// A connection has proven itself.
    pub(crate) fn up(&mut self) {
        if std::mem::take(&mut self.in_trouble) {
            tracing::info!(address = %self.address, "connected to Redis again");
        }
    }

    /// Another kind of trouble than the last, or the first after a good while.
    fn is_news(&mut self, trouble: Trouble) -> bool {
        let now = Instant::now();
        let same = self.told.filter(|(told, _)| *told == trouble);
        // As long as it lasts it stays told, however long that is.
        let told = same.is_some_and(|(_, at)| self.in_trouble || now - at < NEWS);
        if !told {
            self.told = Some((trouble, now));
            self.in_trouble = true;
        }
        !told
    }
}

#[cfg(test)]
mod tests {
    use tokio::time::advance;

    use super::*;

    const REFUSED: Trouble = Trouble::Down(ErrorKind::Io);

    #[tokio::test(start_paused = true)]
    async fn each_change_is_told_once_however_long_it_lasts() {
        let mut journal = Journal::new("host:6379".to_owned());
        assert!(journal.is_news(REFUSED));
        for _ in 0..100 {
            advance(Duration::from_secs(1)).await;
            assert!(!journal.is_news(REFUSED));
        }
        assert!(journal.is_news(Trouble::Down(ErrorKind::Auth)));
        journal.up();
        advance(Duration::from_secs(11)).await;
        assert!(journal.is_news(REFUSED));
        // From some to none is news, whatever the reason.
        assert!(journal.is_news(Trouble::Fewer(ErrorKind::Io)));
        assert!(journal.is_news(REFUSED));
    }

    #[tokio::test(start_paused = true)]
    async fn what_comes_and_goes_each_second_is_told_now_and_then() {
        let mut journal = Journal::new("host:6379".to_owned());
        let mut told = 0;
        for _ in 0..60 {
            told += u32::from(journal.is_news(Trouble::ReadOnly));
            journal.up();
            advance(Duration::from_secs(1)).await;
        }
        assert_eq!(told, 6);
    }
}
