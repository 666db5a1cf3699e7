//! Bars as SVG.

use std::fmt::Write;

use crate::{Spread, number};

const WIDTH: f64 = 900.0;
const LEFT: f64 = 230.0;
const RIGHT: f64 = 790.0;
const TOP: f64 = 66.0;
const ROW: f64 = 24.0;
/// Of small print: letters that fit into a line, and its height.
const LINE: usize = 130;
const LEADING: f64 = 15.0;

/// One bar, with the range that it was measured in.
#[derive(Clone, Debug)]
pub struct Bar {
    pub label: String,
    pub spread: Spread,
    pub color: &'static str,
}

/// Draws bars below each other, from 0, with `unit` above and `about` in small print below.
#[must_use]
pub fn bars(title: &str, unit: &str, bars: &[Bar], about: &str) -> String {
    let most = bars.iter().map(|bar| bar.spread.most).fold(0.0, f64::max);
    let most = if most > 0.0 { most * 1.05 } else { 1.0 };
    let x = |value: f64| LEFT + (RIGHT - LEFT) * value / most;
    let mut y = TOP;
    let mut rows = String::new();
    for bar in bars {
        let Spread {
            median,
            least,
            most,
        } = bar.spread;
        let middle = y + ROW / 2.0;
        let _ = write!(
            rows,
            "<text x=\"{:.0}\" y=\"{:.1}\" text-anchor=\"end\">{}</text>\n\
             <rect x=\"{LEFT}\" y=\"{:.1}\" width=\"{:.1}\" height=\"{:.1}\" fill=\"{}\"/>\n\
             <path d=\"M{:.1} {middle:.1}H{:.1}\" stroke=\"#222\"/>\n\
             <text x=\"{:.1}\" y=\"{:.1}\">{}</text>\n",
            LEFT - 8.0,
            middle + 4.0,
            escape(&bar.label),
            y + 4.0,
            x(median) - LEFT,
            ROW - 8.0,
            bar.color,
            x(least),
            x(most),
            x(most) + 6.0,
            middle + 4.0,
            number(median),
        );
        y += ROW;
    }
    let mut small = String::new();
    let mut height = y + 13.0;
    for line in lines(about) {
        height += LEADING;
        let _ = writeln!(
            small,
            "<text x=\"16\" y=\"{height:.1}\" font-size=\"11\" fill=\"#666\">{}</text>",
            escape(&line)
        );
    }
    height += 12.0;
    format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height}\" font-family=\"sans-serif\" font-size=\"13\" fill=\"#222\">\n\
         <title>{title}</title>\n\
         <rect width=\"{WIDTH}\" height=\"{height}\" fill=\"#fff\"/>\n\
         <text x=\"16\" y=\"28\" font-size=\"15\">{title}</text>\n\
         <text x=\"16\" y=\"47\" fill=\"#666\">{unit}</text>\n\
         {rows}<path d=\"M{LEFT} {}V{:.1}\" stroke=\"#222\"/>\n\
         {small}</svg>\n",
        TOP - 6.0,
        y + 6.0,
        title = escape(title),
        unit = escape(unit),
    )
}

/// Breaks a text between words.
fn lines(text: &str) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    for word in text.split_whitespace() {
        match lines.last_mut() {
            Some(line) if line.chars().count() + word.chars().count() < LINE => {
                line.push(' ');
                line.push_str(word);
            }
            _ => lines.push(word.to_owned()),
        }
    }
    lines
}

fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn small_print_is_broken_and_what_xml_means_is_not_taken_for_it() {
        let spread = Spread::of([0.5, 1.0]).expect("numbers");
        let bar = Bar {
            label: "a<b".to_owned(),
            spread,
            color: "#000",
        };
        let svg = bars("this & that", "unit", &[bar], &"word ".repeat(60));
        assert!(svg.contains(">a&lt;b</text>") && svg.contains(">this &amp; that</text>"));
        let words: Vec<_> = svg.lines().filter(|it| it.contains("word")).collect();
        assert_eq!(words.len(), 3, "{svg}");
        assert!(words.iter().all(|it| it.matches("word").count() <= 26));
    }
}
