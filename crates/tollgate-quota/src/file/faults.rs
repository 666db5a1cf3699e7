//! The faults found in a text, and where they stand.

use std::borrow::Cow;

use toml::de::{DeTable, DeValue};

use super::{Place, PlacedFault};
use crate::Fault;

/// Longer texts are cut where an error quotes them.
const QUOTED_CHARS: usize = 60;

/// A text, and what is wrong with it.
pub(super) struct Faults<'t> {
    text: &'t str,
    line_starts: Vec<usize>,
    found: Vec<PlacedFault>,
}

impl<'t> Faults<'t> {
    pub(super) fn new(text: &'t str) -> Self {
        let newlines = text.bytes().enumerate().filter(|(_, byte)| *byte == b'\n');
        let line_starts = [0].into_iter().chain(newlines.map(|(i, _)| i + 1));
        Self {
            text,
            line_starts: line_starts.collect(),
            found: Vec::new(),
        }
    }

    pub(super) fn text(&self) -> &'t str {
        self.text
    }

    pub(super) fn is_empty(&self) -> bool {
        self.found.is_empty()
    }

    /// Something is wrong at byte `offset`.
    pub(super) fn add<P>(&mut self, offset: usize, path: P, problem: impl Into<String>)
    where
        P: IntoIterator<Item: AsRef<str>>,
    {
        let place = Some(self.place(offset));
        let fault = Fault::new(path, in_one_line(problem.into()));
        self.found.push(PlacedFault { place, fault });
    }

    /// Where a fault of the quotas stands in the text that they were read from.
    pub(super) fn placed(&self, root: &DeTable<'_>, fault: Fault) -> PlacedFault {
        let place = locate(root, &fault.path).map(|offset| self.place(offset));
        PlacedFault { place, fault }
    }

    pub(super) fn push(&mut self, fault: PlacedFault) {
        self.found.push(fault);
    }

    /// All of them, from the first line to the last.
    pub(super) fn into_sorted(mut self) -> Vec<PlacedFault> {
        self.found.sort_by_key(|fault| fault.place);
        self.found
    }

    fn place(&self, offset: usize) -> Place {
        let line = self.line_starts.partition_point(|start| *start <= offset);
        let start = self.line_starts[line.saturating_sub(1)];
        let column = self
            .text
            .get(start..offset)
            .map_or(0, |it| it.chars().count())
            + 1;
        Place { line, column }
    }
}

/// Where the last of these keys that is written stands.
fn locate(root: &DeTable<'_>, path: &[String]) -> Option<usize> {
    let (first, rest) = path.split_first()?;
    let (key, value) = root
        .iter()
        .find(|(key, _)| key.get_ref().as_ref() == first.as_str())?;
    match value.get_ref() {
        DeValue::Table(table) => locate(table, rest).or(Some(key.span().start)),
        _ => Some(value.span().start),
    }
}

/// A text as an error quotes it: not all of a long one.
pub(super) fn quoted(text: &str) -> Cow<'_, str> {
    match text.char_indices().nth(QUOTED_CHARS) {
        Some((end, _)) => format!("{}…", &text[..end]).into(),
        None => text.into(),
    }
}

/// A fault is one line of a log, whatever the text was that it quotes.
fn in_one_line(problem: String) -> String {
    if !problem.contains(char::is_control) {
        return problem;
    }
    let mut line = String::with_capacity(problem.len());
    for c in problem.chars() {
        if c.is_control() {
            line.extend(c.escape_default());
        } else {
            line.push(c);
        }
    }
    line
}
