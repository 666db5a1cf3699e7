//! Which node serves which slot.

use fred::types::{Value, config::Server};

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
pub(crate) fn read(reply: &Value, host: &str) -> Option<Layout> {
    let Value::Array(rows) = reply else {
        return None;
    };
    let mut layout = Layout::default();
    for row in rows {
        let Value::Array(row) = row else {
            return None;
        };
        let [first, last, primary, replicas @ ..] = row.as_slice() else {
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

fn slot(value: &Value) -> Option<usize> {
    let slot = usize::try_from(value.as_i64()?).ok()?;
    (slot < SLOTS).then_some(slot)
}

/// Reads `[host, port, id, …]`. A node whose preferred address is unknown is at the one that was asked.
fn server(value: &Value, asked: &str) -> Option<Server> {
    let Value::Array(parts) = value else {
        return None;
    };
    let [host, port, ..] = parts.as_slice() else {
        return None;
    };
    let host = match host.as_str() {
        Some(host) if !host.is_empty() && host != "?" => host.into_owned(),
        _ => asked.to_owned(),
    };
    Some(Server::new(host, u16::try_from(port.as_i64()?).ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node(host: Value, port: i64) -> Value {
        Value::Array(vec![host, port.into(), "id".into(), Value::Array(vec![])])
    }

    #[test]
    fn rows_are_read() {
        let row = vec![
            0.into(),
            5_460.into(),
            node("a".into(), 7_000),
            node("b".into(), 7_003),
        ];
        let unknown = vec![5_461.into(), 16_383.into(), node(Value::Null, 7_001)];
        let rows = Value::Array(vec![Value::Array(row), Value::Array(unknown)]);
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
            Value::Array(vec![Value::Array(vec![
                first.into(),
                last.into(),
                node("a".into(), 7_000),
            ])])
        };
        for value in [
            Value::Null,
            Value::Array(vec![1.into()]),
            row(0, 16_384),
            row(2, 1),
            row(-1, 1),
        ] {
            assert_eq!(read(&value, "here"), None, "{value:?}");
        }
    }
}
