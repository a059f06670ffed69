//! Line charts as SVG text: axes, ticks, labels, a legend.

use std::fmt::{self, Write};

const WIDTH: f64 = 560.0;
const HEIGHT: f64 = 394.0;
const LEFT: f64 = 62.0;
const RIGHT: f64 = 18.0;
const TOP: f64 = 80.0;
const BOTTOM: f64 = 52.0;
const LEGEND_LINE: f64 = 20.0;

/// Colours that people with any colour vision tell apart (Okabe and Ito).
const COLOURS: [&str; 8] =
    ["#0072b2", "#d55e00", "#009e73", "#cc79a7", "#56b4e9", "#e69f00", "#7f7f7f", "#000000"];

/// A line of a chart.
pub(crate) struct Series {
    /// Lines of one group have one colour.
    pub(crate) group: usize,
    pub(crate) dashed: bool,
    /// x and y, by ascending x.
    pub(crate) points: Vec<(f64, f64)>,
}

/// A chart with a logarithmic x axis.
pub(crate) struct Chart {
    pub(crate) title: &'static str,
    pub(crate) y_label: &'static str,
    /// The y axis reaches at least over these.
    pub(crate) include: Vec<f64>,
    /// Values beyond are drawn at the edge.
    pub(crate) limits: (f64, f64),
    /// A line to compare with.
    pub(crate) reference: Option<f64>,
    pub(crate) series: Vec<Series>,
}

/// Charts beside each other.
pub(crate) struct Page {
    pub(crate) title: String,
    pub(crate) subtitle: String,
    pub(crate) x_label: &'static str,
    pub(crate) charts: Vec<Chart>,
    /// What the groups' colours stand for.
    pub(crate) groups: Vec<String>,
    /// What a solid and a dashed line stand for.
    pub(crate) styles: Vec<(&'static str, bool)>,
}

impl fmt::Display for Page {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let width = WIDTH * self.charts.len().max(1) as f64;
        let columns = self.charts.len().max(1) * 2;
        let lines = self.groups.len().div_ceil(columns) + 1;
        let height = HEIGHT + LEGEND_LINE * lines as f64 + 12.0;
        writeln!(
            f,
            r#"<svg xmlns="http://www.w3.org/2000/svg" width="{width:.0}" height="{height:.0}" viewBox="0 0 {width:.0} {height:.0}" font-family="Helvetica, Arial, DejaVu Sans, sans-serif" font-size="12" fill="{TEXT}">"#
        )?;
        writeln!(f, r##"<rect width="100%" height="100%" fill="#ffffff"/>"##)?;
        text(f, (14.0, 22.0), r#"font-size="15" font-weight="bold""#, &self.title)?;
        text(f, (14.0, 39.0), r##"fill="#666666""##, &self.subtitle)?;
        for (index, chart) in self.charts.iter().enumerate() {
            writeln!(f, r#"<g transform="translate({:.1} 0)">"#, WIDTH * index as f64)?;
            chart.draw(f, self.x_label)?;
            writeln!(f, "</g>")?;
        }
        self.legend(f, width / columns as f64, columns)?;
        writeln!(f, "</svg>")
    }
}

const TEXT: &str = "#222222";

impl Page {
    fn legend(&self, f: &mut fmt::Formatter<'_>, column_width: f64, columns: usize) -> fmt::Result {
        let mut entry = |index: usize, line: usize, colour: &str, dashed: bool, label: &str| {
            let (x, y) = (LEFT + column_width * index as f64, HEIGHT + 10.0 + LEGEND_LINE * line as f64);
            path(f, &[(x, y), (x + 26.0, y)], colour, dashed)?;
            text(f, (x + 33.0, y + 4.0), "", label)
        };
        for (index, (label, dashed)) in self.styles.iter().enumerate() {
            entry(index, 0, TEXT, *dashed, label)?;
        }
        for (index, label) in self.groups.iter().enumerate() {
            entry(index % columns, 1 + index / columns, colour(index), false, label)?;
        }
        Ok(())
    }
}

impl Chart {
    fn draw(&self, f: &mut fmt::Formatter<'_>, x_label: &str) -> fmt::Result {
        let (right, bottom) = (WIDTH - RIGHT, HEIGHT - BOTTOM);
        let points = || self.series.iter().flat_map(|series| series.points.iter().copied());
        let clamp = |y: f64| y.clamp(self.limits.0, self.limits.1);
        let (first_x, last_x) = range(points().map(|(x, _)| x.log2()), 0.5);
        let ys = points().map(|(_, y)| clamp(y)).chain(self.include.iter().copied());
        let (least, most) = range(ys, 0.1);
        let step = tick_step(most - least);
        let (low, high) = ((least / step).floor() * step, (most / step).ceil() * step);
        let x_at = |x: f64| LEFT + (x.log2() - first_x) / (last_x - first_x) * (right - LEFT);
        let y_at = |y: f64| bottom - (clamp(y) - low) / (high - low) * (bottom - TOP);

        text(f, (LEFT, TOP - 9.0), r#"font-weight="bold""#, self.title)?;
        let mut tick = low;
        while tick <= high + step / 2.0 {
            let y = y_at(tick.clamp(low, high));
            line(f, (LEFT, y), (right, y), "#e6e6e6")?;
            let decimals = if step >= 1.0 { 0 } else { if step >= 0.1 { 1 } else { 2 } };
            let label = format!("{:.decimals$}", if tick.abs() < step / 2.0 { 0.0 } else { tick });
            text(f, (LEFT - 7.0, y + 4.0), r#"text-anchor="end""#, &label)?;
            tick += step;
        }
        let mut ticks: Vec<f64> = points().map(|(x, _)| x).collect();
        ticks.sort_by(f64::total_cmp);
        ticks.dedup();
        // Labels that would overlap are left out.
        let mut free_from = f64::MIN;
        for tick in ticks {
            let x = x_at(tick);
            line(f, (x, bottom), (x, bottom + 5.0), "#888888")?;
            let label = format!("{tick:.0}");
            let half = 3.5 * label.len() as f64 + 2.0;
            if x - half >= free_from {
                text(f, (x, bottom + 19.0), r#"text-anchor="middle""#, &label)?;
                free_from = x + half;
            }
        }
        line(f, (LEFT, bottom), (right, bottom), "#888888")?;
        line(f, (LEFT, TOP), (LEFT, bottom), "#888888")?;
        text(f, (f64::midpoint(LEFT, right), bottom + 39.0), r#"text-anchor="middle""#, x_label)?;
        let (x, y) = (18.0, f64::midpoint(TOP, bottom));
        let turned = format!(r#"text-anchor="middle" transform="rotate(-90 {x:.1} {y:.1})""#);
        text(f, (x, y), &turned, self.y_label)?;
        if let Some(reference) = self.reference {
            let y = y_at(reference);
            writeln!(
                f,
                r##"<path d="M{LEFT:.1} {y:.1}H{right:.1}" stroke="#888888" stroke-dasharray="2 3" fill="none"/>"##
            )?;
        }
        for series in &self.series {
            let points: Vec<_> = series.points.iter().map(|&(x, y)| (x_at(x), y_at(y))).collect();
            path(f, &points, colour(series.group), series.dashed)?;
            for (x, y) in points {
                writeln!(f, r#"<circle cx="{x:.1}" cy="{y:.1}" r="2.6" fill="{}"/>"#, colour(series.group))?;
            }
        }
        Ok(())
    }
}

/// From the least to the greatest value; where they are the same, but for rounding, `margin` to both sides.
fn range(values: impl Iterator<Item = f64>, margin: f64) -> (f64, f64) {
    let (least, most) = values
        .filter(|value| value.is_finite())
        .fold((f64::INFINITY, f64::NEG_INFINITY), |(least, most), value| (least.min(value), most.max(value)));
    match most - least {
        span if span > 1e-9 * least.abs().max(most.abs()) => (least, most),
        _ if least.is_finite() => (least - margin, most + margin),
        _ => (0.0, 1.0),
    }
}

/// 1, 2 or 5 times a power of ten: about five ticks.
pub(crate) fn tick_step(span: f64) -> f64 {
    let rough = span / 5.0;
    let power = 10_f64.powf(rough.log10().floor());
    let steps = [1.0, 2.0, 5.0].map(|factor| factor * power);
    steps.into_iter().find(|&step| step >= rough * 0.999).unwrap_or(10.0 * power)
}

fn colour(group: usize) -> &'static str {
    COLOURS[group % COLOURS.len()]
}

pub(crate) fn line(f: &mut impl Write, from: (f64, f64), to: (f64, f64), colour: &str) -> fmt::Result {
    let ((x1, y1), (x2, y2)) = (from, to);
    writeln!(f, r#"<line x1="{x1:.1}" y1="{y1:.1}" x2="{x2:.1}" y2="{y2:.1}" stroke="{colour}"/>"#)
}

fn path(f: &mut impl Write, points: &[(f64, f64)], colour: &str, dashed: bool) -> fmt::Result {
    let mut data = String::new();
    for (index, (x, y)) in points.iter().enumerate() {
        write!(data, "{}{x:.1} {y:.1}", if index == 0 { "M" } else { "L" })?;
    }
    let dashes = if dashed { r#" stroke-dasharray="6 4""# } else { "" };
    writeln!(f, r#"<path d="{data}" stroke="{colour}" stroke-width="1.8" fill="none"{dashes}/>"#)
}

pub(crate) fn text(f: &mut impl Write, (x, y): (f64, f64), attributes: &str, text: &str) -> fmt::Result {
    let text = text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;");
    let space = if attributes.is_empty() { "" } else { " " };
    writeln!(f, r#"<text x="{x:.1}" y="{y:.1}"{space}{attributes}>{text}</text>"#)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ticks_are_round_and_few() {
        for span in [0.03, 0.1, 0.7, 1.0, 9.0, 812.0] {
            let count = span / tick_step(span);
            assert!((1.9..=5.1).contains(&count), "{span}: {count}");
        }
        assert!((tick_step(812.0) - 200.0).abs() < 1e-9);
    }

    #[test]
    fn one_point_or_none_is_drawn_too() {
        let next_to_one = 1.0 + f64::EPSILON;
        for points in [vec![], vec![(64.0, 1.0)], vec![(64.0, next_to_one)], vec![(1.0, -1e9), (8192.0, 2.0)]]
        {
            let series = vec![Series { group: 9, dashed: true, points }];
            let (include, limits) = (vec![1.0], (-1.0, next_to_one));
            let chart = Chart { title: "E", y_label: "E", include, limits, reference: Some(1.0), series };
            let (title, subtitle) = ("a < b & c".into(), String::new());
            let (groups, styles) = (vec!["n".into()], vec![("fused", false)]);
            let page =
                Page { title, subtitle, x_label: "m", charts: vec![chart], groups, styles }.to_string();
            assert!(page.contains("a &lt; b &amp; c") && page.ends_with("</svg>\n"));
            assert!(!page.contains("NaN") && !page.contains("inf"), "{page}");
        }
    }
}
