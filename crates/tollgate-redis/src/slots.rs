//! Which node serves which slot.

use fred::types::config::Server;

use crate::reply::Reply;

/// How many slots there are.
pub(crate) const SLOTS: usize = 16_384;

/// What `CLUSTER SLOTS` says.
#[derive(Debug, Default, PartialEq)]
pub(crate) struct Layout {
    /// Slots from first to last, and their primary.
    pub(crate) ranges: Vec<(usize, usize, Server)>,
    /// Primaries' stand-ins, which know the layout as well.
    pub(crate) replicas: Vec<Server>,
}

/// Reads the reply of a node at `host`; `None` if it is anything else.
pub(crate) fn read(reply: &Reply, host: &str) -> Option<Layout> {
    let mut layout = Layout::default();
    for row in reply.list()? {
        let [first, last, primary, replicas @ ..] = row.list()? else {
            return None;
        };
        let (first, last) = (slot(first)?, slot(last)?);
        if first > last {
            return None;
        }
        layout.ranges.push((first, last, server(primary, host)?));
        layout
            .replicas
            .extend(replicas.iter().filter_map(|it| server(it, host)));
    }
    Some(layout)
}

fn slot(reply: &Reply) -> Option<usize> {
    let slot = usize::try_from(reply.number()?).ok()?;
    (slot < SLOTS).then_some(slot)
}

/// Reads `[host, port, id, …]`. A node whose preferred address is unknown is at the one that was asked.
fn server(reply: &Reply, asked: &str) -> Option<Server> {
    let [host, port, ..] = reply.list()? else {
        return None;
    };
    let host = match host.text() {
        Some(host) if !host.is_empty() && host != "?" => host,
        _ => asked,
    };
    Some(Server::new(host, u16::try_from(port.number()?).ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(text: &str) -> Reply {
        Reply::Text(text.to_owned())
    }

    fn node(host: Reply, port: i64) -> Reply {
        let more = Reply::List(vec![]);
        Reply::List(vec![host, Reply::Number(port), text("id"), more])
    }

    #[test]
    fn rows_are_read() {
        let row = vec![
            Reply::Number(0),
            Reply::Number(5_460),
            node(text("a"), 7_000),
            node(text("b"), 7_003),
        ];
        let unknown = vec![
            Reply::Number(5_461),
            Reply::Number(16_383),
            node(Reply::Odd, 7_001),
        ];
        let rows = Reply::List(vec![Reply::List(row), Reply::List(unknown)]);
        let layout = read(&rows, "here").expect("a layout");
        assert_eq!(
            layout.ranges,
            [
                (0, 5_460, Server::new("a", 7_000)),
                (5_461, 16_383, Server::new("here", 7_001))
            ]
        );
        assert_eq!(layout.replicas, [Server::new("b", 7_003)]);
    }

    #[test]
    fn anything_else_is_no_layout() {
        let row = |first: i64, last: i64| {
            Reply::List(vec![Reply::List(vec![
                Reply::Number(first),
                Reply::Number(last),
                node(text("a"), 7_000),
            ])])
        };
        for reply in [
            Reply::Odd,
            Reply::List(vec![Reply::Number(1)]),
            row(0, 16_384),
            row(2, 1),
            row(-1, 1),
        ] {
            assert_eq!(read(&reply, "here"), None, "{reply:?}");
        }
    }
}
