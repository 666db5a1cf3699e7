//! Some numbers in brief.

use std::fmt;

use serde::Serialize;

/// The middle of some numbers, and how far they go apart.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Spread {
    pub median: f64,
    pub least: f64,
    pub most: f64,
}

impl Spread {
    /// `None` of no numbers.
    pub fn of(numbers: impl IntoIterator<Item = f64>) -> Option<Self> {
        let mut numbers: Vec<_> = numbers.into_iter().collect();
        numbers.sort_by(f64::total_cmp);
        let (least, most) = (*numbers.first()?, *numbers.last()?);
        let (low, high) = ((numbers.len() - 1) / 2, numbers.len() / 2);
        Some(Self {
            median: f64::midpoint(numbers[low], numbers[high]),
            least,
            most,
        })
    }
}

impl fmt::Display for Spread {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [median, least, most] = [self.median, self.least, self.most].map(number);
        if least == most {
            f.write_str(&median)
        } else {
            write!(f, "{median} ({least}…{most})")
        }
    }
}

/// Three digits that matter.
#[must_use]
pub fn number(it: f64) -> String {
    if it.abs() >= 99.95 {
        format!("{it:.0}")
    } else if it.abs() >= 9.995 {
        format!("{it:.1}")
    } else {
        format!("{it:.2}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_middle_of_an_even_number_is_between_two() {
        let spread = Spread::of([4.0, 1.0, 3.0, 2.0]).expect("numbers");
        assert_eq!(spread.to_string(), "2.50 (1.00…4.00)");
        assert_eq!(Spread::of([]), None);
    }
}
