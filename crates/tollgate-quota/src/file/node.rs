//! A value in a TOML text, with the keys that lead to it.

use std::fmt::Display;

use toml::{
    Spanned,
    de::{DeString, DeTable, DeValue},
};

use super::faults::{Faults, quoted};

/// A value, where it stands, and by which keys it is reached.
///
/// Reading it as something that it is not records a fault and gives `None`.
pub(super) struct Node<'a> {
    path: Vec<String>,
    key_offset: usize,
    /// Where faults point: to the value, or to the key of a table.
    offset: usize,
    value: &'a DeValue<'a>,
    /// As written.
    raw: &'a str,
}

impl<'a> Node<'a> {
    fn new(
        parent: &[String],
        key: &Spanned<DeString<'a>>,
        value: &'a Spanned<DeValue<'a>>,
        text: &'a str,
    ) -> Self {
        let name = key.get_ref().as_ref().to_owned();
        let key_offset = key.span().start;
        let is_table = value.get_ref().is_table();
        Self {
            path: parent.iter().cloned().chain([name]).collect(),
            key_offset,
            offset: if is_table {
                key_offset
            } else {
                value.span().start
            },
            value: value.get_ref(),
            raw: text.get(value.span()).unwrap_or_default(),
        }
    }

    /// The key that it stands under.
    pub(super) fn key(&self) -> &str {
        self.path.last().map_or("", String::as_str)
    }

    /// Says what is wrong with the key.
    pub(super) fn key_fault(&self, problem: impl Display, faults: &mut Faults<'_>) {
        faults.add(self.key_offset, &self.path, problem.to_string());
    }

    /// Says what is wrong with the value.
    pub(super) fn fault(&self, problem: impl Display, faults: &mut Faults<'_>) {
        faults.add(self.offset, &self.path, problem.to_string());
    }

    /// Says that the value is not `wanted`.
    pub(super) fn misfit<T>(&self, wanted: &str, faults: &mut Faults<'_>) -> Option<T> {
        self.fault(format_args!("`{}` is not {wanted}", self.quoted()), faults);
        None
    }

    /// The value as it is written, for an error. The text of a number is in quotes, which may be the fault.
    pub(super) fn quoted(&self) -> String {
        quoted(self.raw).into_owned()
    }

    /// The text, if it is one.
    pub(super) fn as_str(&self) -> Option<&'a str> {
        match self.value {
            DeValue::String(text) => Some(text.as_ref()),
            _ => None,
        }
    }

    pub(super) fn text(&self, wanted: &str, faults: &mut Faults<'_>) -> Option<&'a str> {
        self.as_str().or_else(|| self.misfit(wanted, faults))
    }

    pub(super) fn boolean(&self, faults: &mut Faults<'_>) -> Option<bool> {
        let found = self.value.as_bool();
        found.or_else(|| self.misfit("`true` or `false`", faults))
    }

    /// A whole number, not below 0. `None` without a fault if it is something else.
    pub(super) fn as_whole(&self) -> Option<u64> {
        match self.value {
            DeValue::Integer(it) => u64::from_str_radix(it.as_str(), it.radix()).ok(),
            _ => None,
        }
    }

    /// A whole number of which something can be made.
    pub(super) fn whole<T>(
        &self,
        wanted: &str,
        make: impl FnOnce(u64) -> Option<T>,
        faults: &mut Faults<'_>,
    ) -> Option<T> {
        let found = self.as_whole().and_then(make);
        found.or_else(|| self.misfit(wanted, faults))
    }

    /// A number, perhaps not finite. `None` without a fault if it is something else.
    pub(super) fn as_number(&self) -> Option<f64> {
        match self.value {
            DeValue::Float(it) => it.as_str().parse().ok(),
            DeValue::Integer(it) if it.radix() == 10 => it.as_str().parse().ok(),
            DeValue::Integer(it) => {
                let number = u32::from_str_radix(it.as_str(), it.radix()).ok()?;
                Some(number.into())
            }
            _ => None,
        }
    }

    /// The members of a list.
    pub(super) fn members(&self, wanted: &str, faults: &mut Faults<'a>) -> Option<Vec<Self>> {
        let DeValue::Array(list) = self.value else {
            return self.misfit(wanted, faults);
        };
        let member = |value: &'a Spanned<DeValue<'a>>| Self {
            path: self.path.clone(),
            key_offset: value.span().start,
            offset: value.span().start,
            value: value.get_ref(),
            raw: faults.text().get(value.span()).unwrap_or_default(),
        };
        Some(list.iter().map(member).collect())
    }

    /// The entries of a table, in the order of the file.
    pub(super) fn entries(&self, wanted: &str, faults: &mut Faults<'a>) -> Option<Vec<Self>> {
        match self.value {
            DeValue::Table(table) => Some(entries(table, &self.path, faults.text())),
            _ => self.misfit(wanted, faults),
        }
    }

    /// The fields of a table, of which there are only these.
    pub(super) fn fields(
        &self,
        wanted: &str,
        known: &[&str],
        faults: &mut Faults<'a>,
    ) -> Option<Vec<Self>> {
        let entries = self.entries(wanted, faults)?;
        Some(only(entries, known, faults))
    }
}

/// The fields of the whole text, of which there are only these.
pub(super) fn root<'a>(
    table: &'a DeTable<'a>,
    known: &[&str],
    faults: &mut Faults<'a>,
) -> Vec<Node<'a>> {
    only(entries(table, &[], faults.text()), known, faults)
}

fn entries<'a>(table: &'a DeTable<'a>, path: &[String], text: &'a str) -> Vec<Node<'a>> {
    let mut entries: Vec<_> = table.iter().collect();
    entries.sort_by_key(|(key, _)| key.span().start);
    let node = |(key, value): (&Spanned<DeString<'a>>, _)| Node::new(path, key, value, text);
    entries.into_iter().map(node).collect()
}

fn only<'a>(nodes: Vec<Node<'a>>, known: &[&str], faults: &mut Faults<'_>) -> Vec<Node<'a>> {
    let (good, unknown): (Vec<_>, Vec<_>) = nodes
        .into_iter()
        .partition(|node| known.contains(&node.key()));
    for node in unknown {
        let key = quoted(node.key());
        let mut hint = suggestion(node.key(), known.iter().copied());
        if let [.., parent, key] = node.path.as_slice()
            && node.path.len() > 2
            && node.value.is_table()
            && nearest(key, known.iter().copied()).is_none()
        {
            // `[tenants.acme.com]` is a table `com` of the tenant `acme`.
            hint += &format!("; a name with a dot in it is quoted: \"{parent}.{key}\"");
        }
        node.key_fault(format_args!("there is no field `{key}` here{hint}"), faults);
    }
    good
}

/// What may have been meant, of all that there is: the rest of a sentence.
pub(super) fn suggestion<'k>(given: &str, known: impl Iterator<Item = &'k str> + Clone) -> String {
    if let Some(near) = nearest(given, known.clone()) {
        return format!("; did you mean `{near}`?");
    }
    let names: Vec<_> = known.take(10).map(|it| format!("`{it}`")).collect();
    match names.as_slice() {
        [] => String::new(),
        names => format!("; there are {}", names.join(", ")),
    }
}

/// The one that differs by a slip of the keyboard.
fn nearest<'k>(given: &str, known: impl Iterator<Item = &'k str>) -> Option<&'k str> {
    let distances = known.map(|it| (strsim::osa_distance(given, it), it));
    let (distance, near) = distances.min_by_key(|(distance, _)| *distance)?;
    (distance <= (near.len() / 3).max(1)).then_some(near)
}
