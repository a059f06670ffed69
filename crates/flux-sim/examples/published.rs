//! The comparison with published results, as a table, and as a plot where a file is named:
//! `cargo run --release -p flux-sim --example published -- published.svg`.

#[path = "../tests/published/mod.rs"]
mod published;

use published::{Compared, compared};
use std::fmt::Write as _;
use std::io::Write;

fn main() -> std::io::Result<()> {
    let mut out = std::io::stdout().lock();
    let rows = compared();
    writeln!(out, "| what | published E, % | simulated E, % | off by |\n|---|---|---|---|")?;
    for compared in &rows {
        let Compared { row, published, simulated, .. } = compared;
        writeln!(out, "| {} | {published:.0} | {simulated:.0} | {:+.0} |", row.name, compared.off_by())?;
    }
    let near = rows.iter().filter(|compared| compared.off_by().abs() <= 12.0).count();
    writeln!(out, "\n{near} of {} are within 12 points. The others:\n", rows.len())?;
    for row in rows.iter().map(|compared| &compared.row) {
        if let Some(outlier) = row.outlier {
            writeln!(out, "* {}: {outlier}", row.name)?;
        }
    }
    match std::env::args().nth(1) {
        Some(file) => std::fs::write(file, plot(&rows)),
        None => Ok(()),
    }
}

/// Simulated over published, with the diagonal and 12 points to both sides.
fn plot(rows: &[Compared]) -> String {
    const SIZE: f64 = 560.0;
    const MARGIN: f64 = 60.0;
    let least = rows.iter().map(|row| row.published.min(row.simulated)).fold(0.0, f64::min) - 12.0;
    let at = |value: f64| (value - least) / (112.0 - least) * (SIZE - 2.0 * MARGIN);
    let point = |x: f64, y: f64| (MARGIN + at(x), SIZE - MARGIN - at(y));
    let mut svg = format!(
        r#"<svg xmlns="http://www.w3.org/2000/svg" width="{SIZE}" height="{SIZE}" font-family="sans-serif" font-size="11">"#
    );
    let mut line = |(x1, y1): (f64, f64), (x2, y2): (f64, f64), colour: &str| {
        let _ = write!(svg, r#"<path d="M{x1:.1} {y1:.1}L{x2:.1} {y2:.1}" stroke="{colour}"/>"#);
    };
    line((0.0, 0.0), (0.0, 0.0), "none");
    for (off, colour) in [(-12.0, "#cccccc"), (0.0, "#444444"), (12.0, "#cccccc")] {
        line(
            point(least.max(least - off), least.max(least - off) + off),
            point(112.0 - off.max(0.0), 112.0 + off.min(0.0)),
            colour,
        );
    }
    for value in [-200.0, -150.0, -100.0, -50.0, 0.0, 50.0, 100.0] {
        line(point(value, least), point(value, 112.0), "#eeeeee");
        line(point(least, value), point(112.0, value), "#eeeeee");
    }
    for value in [-200.0, -150.0, -100.0, -50.0, 0.0, 50.0, 100.0] {
        let ((x, bottom), (left, y)) = (point(value, least), point(least, value));
        let _ =
            write!(svg, r#"<text x="{x:.1}" y="{:.1}" text-anchor="middle">{value}</text>"#, bottom + 16.0);
        let _ =
            write!(svg, r#"<text x="{:.1}" y="{:.1}" text-anchor="end">{value}</text>"#, left - 6.0, y + 4.0);
    }
    for compared in rows {
        let (x, y) = point(compared.published, compared.simulated);
        let colour = if compared.row.outlier.is_some() { "#d55e00" } else { "#0072b2" };
        let name = &compared.row.name;
        let _ = write!(
            svg,
            r#"<circle cx="{x:.1}" cy="{y:.1}" r="4" fill="{colour}"><title>{name}</title></circle>"#
        );
    }
    let middle = SIZE / 2.0;
    let _ = write!(
        svg,
        r#"<text x="{middle}" y="20" text-anchor="middle" font-size="13">Overlap efficiency E, %</text>"#
    );
    let _ = write!(svg, r#"<text x="{middle}" y="{}" text-anchor="middle">published</text>"#, SIZE - 20.0);
    let _ = write!(
        svg,
        r#"<text x="14" y="{middle}" transform="rotate(-90 14 {middle})" text-anchor="middle">simulated</text>"#
    );
    svg.push_str("</svg>\n");
    svg
}
