//! The figures, in Markdown, JSON and SVG.

use std::{fmt::Write, fs, path::Path};

use serde::Serialize;
use tollgate_benches::{Bar, BoxError, Costs, Figure, Spread, Verdict, bars, number};

use crate::{
    loads::{FLOOR, caveat, holds_bound, limits_of},
    measured::{Measured, Row},
    round::Sample,
};

/// All that was measured.
#[derive(Serialize)]
pub(crate) struct Report {
    pub(crate) about: String,
    pub(crate) loads: Vec<Measured>,
    pub(crate) script: Option<Costs>,
    pub(crate) targets: Vec<Verdict>,
}

impl Report {
    /// Writes `bench.json`, `bench.md` and a chart for each load.
    pub(crate) fn write(&self, folder: &Path) -> Result<(), BoxError> {
        let write = |name: &str, text: String| {
            let file = folder.join(name);
            fs::write(&file, text).map_err(|error| format!("{}: {error}", file.display()))
        };
        fs::create_dir_all(folder).map_err(|error| format!("{}: {error}", folder.display()))?;
        write("bench.json", serde_json::to_string_pretty(self)?)?;
        write("bench.md", self.markdown())?;
        for measured in &self.loads {
            write(&format!("{}.svg", measured.load), self.chart(measured))?;
        }
        Ok(())
    }

    /// Whether a variant of Tollgate broke. What others do is theirs.
    pub(crate) fn has_broken(&self) -> bool {
        let mut rows = self.loads.iter().flat_map(|it| &it.variants);
        rows.any(|row| row.broke.is_some() && row.variant.starts_with("tollgate"))
    }

    pub(crate) fn meets_all(&self) -> bool {
        self.targets.iter().all(|it| it.is_met)
    }

    pub(crate) fn markdown(&self) -> String {
        let mut text = format!("{}\n", self.about);
        for measured in &self.loads {
            text += &table(measured);
        }
        if let Some(script) = &self.script {
            text += "\n**The script**, called in pipelines of 100.\n";
            text += &script.markdown();
        }
        text + &Verdict::table(&self.targets)
    }

    fn chart(&self, measured: &Measured) -> String {
        let bar = |row: &Row| {
            let spread = measured.figure(Figure::Throughput, row.variant, Some(FLOOR))?;
            Some(Bar {
                label: row.variant.to_owned(),
                spread,
                color: match row.variant {
                    "bare" | "by-hand" => "#94a3b8",
                    it if it.starts_with("tollgate") => "#1d4ed8",
                    _ => "#c2410c",
                },
            })
        };
        let all: Vec<_> = measured.variants.iter().filter_map(bar).collect();
        let unit = "requests per second, of bare Axum's";
        bars(measured.about, unit, &all, &self.about)
    }
}

fn table(measured: &Measured) -> String {
    let mut text = format!("\n**{}**: {}.\n\n", measured.load, measured.about);
    text += "| variant | req/s of bare | req/s | p50 / p90 / p99 / p99.9 µs | app CPU µs | Redis CPU µs | calls per 100 | bytes | not 200 | what it enforces |\n";
    text += "|---|---:|---:|---:|---:|---:|---:|---:|---:|---|\n";
    for row in &measured.variants {
        let why = match (&row.unable, &row.broke) {
            (Some(why), _) => Some(why.clone()),
            (None, why) => why.as_ref().map(|why| format!("**broke**: {why}")),
        };
        if let Some(why) = why {
            let why = why.replace('|', "\\|").replace('\n', " ");
            let _ = writeln!(text, "| {} | | | | | | | | | {why} |", row.variant);
            continue;
        }
        let median = |of: fn(&Sample) -> f64| {
            let spread = Spread::of(row.samples.iter().map(of));
            spread.map_or(0.0, |it| it.median)
        };
        let figure = |figure| measured.figure(figure, row.variant, None);
        let ratio = measured.figure(Figure::Throughput, row.variant, Some(FLOOR));
        let show = |spread: Option<Spread>| spread.map_or_else(String::new, |it| number(it.median));
        let _ = writeln!(
            text,
            "| {} | {} | {:.0} | {:.0} / {:.0} / {:.0} / {:.0} | {} | {} | {} | {} | {:.1} % | {} |",
            row.variant,
            ratio.map_or_else(String::new, |it| it.to_string()),
            median(Sample::per_second),
            median(|it| it.p50),
            median(|it| it.p90),
            median(|it| it.p99),
            median(|it| it.p999),
            show(figure(Figure::AppCpu)),
            show(figure(Figure::RedisCpu)),
            number(100.0 * median(|it| it.calls)),
            row.appended
                .map_or_else(String::new, |it| format!("{it:.0}")),
            100.0 * median(|it| it.rejected),
            enforces(row),
        );
    }
    text
}

/// What a variant says of itself, and whether it kept to it.
fn enforces(row: &Row) -> String {
    let (name, _) = limits_of(row.variant);
    let most = row.samples.iter().map(|it| it.of_bound).fold(0.0, f64::max);
    let caveat = caveat(name);
    if holds_bound(name) && most > 1.0 {
        let excess = format!("admitted {} of the bound", number(most));
        return [caveat, &excess]
            .join("; ")
            .trim_start_matches("; ")
            .to_owned();
    }
    caveat.to_owned()
}
