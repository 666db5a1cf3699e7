//! The figures, in Markdown.

use std::fmt::{self, Write};

use crate::{
    round::Sample,
    traffic::{ALONE, ATTACK, HOT, Traffic},
    variant::Variant,
};

/// The rounds of each variant, in the order of the variants; the first of these is the plain store.
pub(crate) type Rounds = Vec<Vec<Sample>>;

/// The middle of some numbers, and how far they go apart.
struct Spread {
    least: f64,
    median: f64,
    most: f64,
}

impl Spread {
    fn of(numbers: impl Iterator<Item = f64>) -> Self {
        let mut numbers: Vec<_> = numbers.collect();
        numbers.sort_by(f64::total_cmp);
        Self {
            least: numbers[0],
            median: numbers[numbers.len() / 2],
            most: numbers[numbers.len() - 1],
        }
    }
}

impl fmt::Display for Spread {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [median, least, most] = [self.median, self.least, self.most].map(number);
        if least == most {
            f.write_str(&median)
        } else {
            write!(f, "{median} ({least} to {most})")
        }
    }
}

/// Three digits that matter.
fn number(it: f64) -> String {
    if it >= 99.95 {
        format!("{it:.0}")
    } else if it >= 9.995 {
        format!("{it:.1}")
    } else {
        format!("{it:.2}")
    }
}

pub(crate) fn table(traffic: &Traffic, variants: &[Variant], rounds: &Rounds) -> String {
    let is_timed = traffic.name == ALONE;
    let mut text = format!("\n**{}**: {}.\n\n", capital(traffic.name), traffic.about);
    text += "| stages | calls per 1 000 requests | Redis CPU per request | requests per second | rejected |";
    text += if is_timed { " latency |\n" } else { "\n" };
    text += "|---|---:|---:|---:|---:|";
    text += if is_timed { "---:|\n" } else { "\n" };
    let plain = &rounds[0];
    for (variant, samples) in variants.iter().zip(rounds) {
        let ratio = |of: fn(&Sample) -> f64| {
            Spread::of(
                samples
                    .iter()
                    .zip(plain)
                    .map(move |(it, plain)| of(it) / of(plain)),
            )
        };
        let calls = Spread::of(samples.iter().map(|it| 1_000.0 * it.calls_per_request()));
        let rejected = Spread::of(samples.iter().map(|it| 100.0 * it.rejected / it.requests));
        let _ = write!(
            text,
            "| {} | {calls} | {} | {} | {:.0} % |",
            variant.name,
            ratio(Sample::cpu_per_request),
            ratio(Sample::requests_per_second),
            rejected.median,
        );
        if is_timed {
            let _ = write!(text, " {} |", ratio(|it| it.latency));
        }
        text.push('\n');
    }
    let cpu = Spread::of(plain.iter().map(Sample::cpu_per_request));
    let speed = Spread::of(plain.iter().map(Sample::requests_per_second));
    let _ = write!(
        text,
        "\nPlain: {cpu} µs of Redis and {speed} requests per second"
    );
    if is_timed {
        let latency = Spread::of(plain.iter().map(|it| it.latency));
        let _ = write!(text, ", {latency} µs each");
    }
    text += ".\n";
    text
}

fn capital(text: &str) -> String {
    let mut chars = text.chars();
    chars.next().map_or_else(String::new, |first| {
        first.to_uppercase().chain(chars).collect()
    })
}

/// What is expected, and whether it is met.
pub(crate) fn verdicts(
    traffic: &Traffic,
    variants: &[Variant],
    rounds: &Rounds,
) -> Vec<(bool, String)> {
    let expected: &[(&str, f64)] = match traffic.name {
        ATTACK => &[("both (default)", 0.05)],
        HOT => &[("coalescing", 0.10), ("leases of 50", 0.03)],
        _ => &[],
    };
    let verdicts = expected.iter().filter_map(|(name, most)| {
        let position = variants.iter().position(|it| it.name == *name)?;
        let calls = Spread::of(rounds[position].iter().map(Sample::calls_per_request)).median;
        let is_met = calls <= *most;
        Some((
            is_met,
            format!(
                "{}: {name}, {}: {:.2} % of requests reach Redis, at most {:.0} % expected",
                if is_met { "met" } else { "MISSED" },
                traffic.name,
                100.0 * calls,
                100.0 * most,
            ),
        ))
    });
    verdicts.collect()
}
