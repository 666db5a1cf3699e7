//! Calls saved against tokens beyond the plain bound, as SVG.

use std::fmt::Write;

use crate::excess::{CAPACITY, Point};

const WIDTH: f64 = 960.0;
const HEIGHT: f64 = 470.0;
const LEFT: f64 = 70.0;
const RIGHT: f64 = 520.0;
const TOP: f64 = 50.0;
const BOTTOM: f64 = 400.0;
const LEGEND: f64 = 560.0;
const LINE: f64 = 24.0;

/// The scale of each axis has so many steps.
const STEPS: u32 = 5;

/// Draws the points, each with its number, and what the numbers stand for.
pub(crate) fn svg(points: &[Point], about: &str) -> String {
    let most = points.iter().map(|it| it.excess).fold(10.0, f64::max);
    let top = round_up(most * 1.05);
    let x = |saved: f64| LEFT + (RIGHT - LEFT) * saved.clamp(0.0, 1.0);
    let y = |excess: f64| BOTTOM - (BOTTOM - TOP) * excess / top;
    let mut text = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {HEIGHT}\" font-family=\"sans-serif\" font-size=\"13\" fill=\"#222\">\n\
         <title>Calls of Redis saved, and tokens admitted beyond the plain bound</title>\n\
         <rect width=\"{WIDTH}\" height=\"{HEIGHT}\" fill=\"#fff\"/>\n"
    );
    for step in 0..=STEPS {
        let share = f64::from(step) / f64::from(STEPS);
        let (x, y, tokens) = (x(share), y(top * share), top * share);
        let _ = write!(
            text,
            "<path d=\"M{x:.1} {TOP}V{BOTTOM}M{LEFT} {y:.1}H{RIGHT}\" stroke=\"#ddd\"/>\n\
             <text x=\"{x:.1}\" y=\"{}\" text-anchor=\"middle\">{:.0} %</text>\n\
             <text x=\"{}\" y=\"{:.1}\" text-anchor=\"end\">{tokens:.0}</text>\n",
            BOTTOM + 18.0,
            share * 100.0,
            LEFT - 8.0,
            y + 4.0,
        );
    }
    let _ = write!(
        text,
        "<path d=\"M{LEFT} {TOP}V{BOTTOM}H{RIGHT}\" fill=\"none\" stroke=\"#222\"/>\n\
         <text x=\"{}\" y=\"{}\" text-anchor=\"middle\">requests that cost no call of Redis</text>\n\
         <text x=\"14\" y=\"{}\">tokens beyond capacity + rate × T in the worst span (capacity: {CAPACITY})</text>\n\
         <text x=\"14\" y=\"{}\" font-size=\"11\" fill=\"#666\">{}</text>\n",
        f64::midpoint(LEFT, RIGHT),
        BOTTOM + 40.0,
        TOP - 22.0,
        HEIGHT - 8.0,
        escape(about),
    );
    let mut row = TOP + 8.0;
    let mut numbers: Vec<(f64, f64)> = Vec::new();
    for (number, point) in (1..).zip(points) {
        let color = if point.label.contains("leases") {
            "#c2410c"
        } else {
            "#1d4ed8"
        };
        let (x, y) = (x(point.saved), y(point.excess));
        // Numbers of points that are close to each other stand on top of each other.
        let mut above = y - 9.0;
        while numbers
            .iter()
            .any(|(other_x, other_y)| (other_x - x).abs() < 16.0 && (other_y - above).abs() < 12.0)
        {
            above -= 3.0;
        }
        numbers.push((x, above));
        let _ = write!(
            text,
            "<circle cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"4.5\" fill=\"{color}\"/>\n\
             <text x=\"{x:.1}\" y=\"{above:.1}\" text-anchor=\"middle\" font-size=\"11\" fill=\"{color}\">{number}</text>\n\
             <text x=\"{LEGEND}\" y=\"{row:.1}\" fill=\"{color}\">{number}  {}: {:.0} %, {:.0}</text>\n",
            escape(&point.label),
            point.saved * 100.0,
            point.excess.ceil(),
        );
        row += LINE;
    }
    text += "</svg>\n";
    text
}

/// To a number that is easy to divide by the steps.
fn round_up(number: f64) -> f64 {
    let step = [10.0, 25.0, 50.0, 100.0, 250.0, 500.0]
        .into_iter()
        .find(|step| number <= step * f64::from(STEPS));
    step.unwrap_or(1_000.0) * f64::from(STEPS)
}

fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;")
}
