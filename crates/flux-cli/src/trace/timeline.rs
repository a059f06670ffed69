//! A call as a picture: ranks and their SMs down, time across.

use super::Traced;
use super::rows::{Kind, Row, rows};
use crate::bench::svg::{line, text, tick_step};
use flux::TransferTrace;
use std::fmt::{self, Write};

const WIDTH: f64 = 1200.0;
const LEFT: f64 = 86.0;
const RIGHT: f64 = 22.0;
const TOP: f64 = 84.0;
const BOTTOM: f64 = 46.0;
/// Above each rank.
const HEADING: f64 = 22.0;
/// Of a transfer stream.
const STREAM: f64 = 12.0;
/// All SMs' rows together are about this high, but none is lower or higher than it can be read.
const ROWS: f64 = 900.0;
const LOWEST_ROW: f64 = 3.0;
const HIGHEST_ROW: f64 = 18.0;
/// Of a row, what is multiplied; the rest is what is stored meanwhile.
const MULTIPLY: f64 = 0.7;

const TEXT: &str = "#222222";
const IDLE: &str = "#eeeeee";
const SIGNAL: &str = "#000000";
const TRANSFER: &str = "#e69f00";

const fn colour(kind: Kind) -> &'static str {
    match kind {
        Kind::Wait => "#d62728",
        Kind::Multiply => "#0072b2",
        Kind::HandOver => "#8cc7ea",
        Kind::Store => "#009e73",
    }
}

/// Draws a call.
pub(crate) fn draw(traced: &Traced) -> String {
    Timeline(traced).to_string()
}

struct Timeline<'a>(&'a Traced);

/// Rectangles of one colour, as one path.
#[derive(Default)]
struct Boxes(String);

impl Boxes {
    fn add(&mut self, (x, width): (f64, f64), (y, height): (f64, f64)) -> fmt::Result {
        // What is shorter than a hair is drawn as one.
        let width = width.max(0.2);
        write!(self.0, "M{x:.1} {y:.1}h{width:.1}v{height:.1}h-{width:.1}z")
    }

    fn draw(&self, f: &mut fmt::Formatter<'_>, colour: &str) -> fmt::Result {
        if self.0.is_empty() { Ok(()) } else { writeln!(f, r#"<path d="{}" fill="{colour}"/>"#, self.0) }
    }
}

impl fmt::Display for Timeline<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let traced = self.0;
        let calls: Vec<_> =
            traced.calls.iter().map(|call| (call, rows(call), streams(&call.transfers))).collect();
        let row_count: usize = calls.iter().map(|(_, rows, _)| rows.len()).sum();
        let row_height = (ROWS / row_count.max(1) as f64).clamp(LOWEST_ROW, HIGHEST_ROW);
        let stream_count: usize = calls.iter().map(|(_, _, streams)| streams.len()).sum();
        let bottom =
            TOP + HEADING * calls.len() as f64 + row_height * row_count as f64 + STREAM * stream_count as f64;
        let height = bottom + BOTTOM;
        let (origin, end) = traced.span_ns();
        let scale = (WIDTH - LEFT - RIGHT) / (end - origin).max(1) as f64;
        let x_at = |ns: u64| LEFT + ns.saturating_sub(origin) as f64 * scale;

        writeln!(
            f,
            r#"<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH:.0}" height="{height:.0}" viewBox="0 0 {WIDTH:.0} {height:.0}" font-family="Helvetica, Arial, DejaVu Sans, sans-serif" font-size="11" fill="{TEXT}">"#
        )?;
        writeln!(f, r##"<rect width="100%" height="100%" fill="#ffffff"/>"##)?;
        let [title, subtitle] = traced.description();
        text(f, (14.0, 22.0), r#"font-size="15" font-weight="bold""#, &title)?;
        text(f, (14.0, 39.0), r##"fill="#666666""##, &subtitle)?;
        legend(f)?;
        axis(f, (end - origin) as f64 / 1e3, (TOP, bottom))?;
        let mut y = TOP;
        for (call, rows, streams) in &calls {
            y += HEADING;
            text(f, (14.0, y - 6.0), r#"font-weight="bold""#, &format!("rank {}", call.rank))?;
            draw_rows(f, traced.place_name(), rows, (y, row_height), x_at)?;
            y += row_height * rows.len() as f64;
            for (stream, transfers) in streams {
                label(f, y + STREAM / 2.0, &format!("stream {stream}"))?;
                draw_transfers(f, transfers, y, x_at)?;
                y += STREAM;
            }
        }
        writeln!(f, "</svg>")
    }
}

fn draw_rows(
    f: &mut fmt::Formatter<'_>,
    place: &str,
    rows: &[Row<'_>],
    (top, height): (f64, f64),
    x_at: impl Fn(u64) -> f64,
) -> fmt::Result {
    let from_to = |begin, end| (x_at(begin), x_at(end) - x_at(begin));
    let bar = height - if height > 6.0 { 2.0 } else { 0.4 };
    let (mut idle, mut signals) = (Boxes::default(), Boxes::default());
    // In the order in which they are drawn: what multiplies covers waits that it hides.
    let kinds = [Kind::HandOver, Kind::Wait, Kind::Multiply, Kind::Store];
    let mut boxes = kinds.map(|_| Boxes::default());
    for (index, row) in rows.iter().enumerate() {
        let y = top + height * index as f64;
        let (begin, end) = row.span_ns();
        idle.add(from_to(begin, end), (y, bar))?;
        for stretch in row.stretches() {
            let lane = if stretch.kind == Kind::Store {
                (y + MULTIPLY * bar, (1.0 - MULTIPLY) * bar)
            } else {
                (y, MULTIPLY * bar)
            };
            let place = kinds.iter().position(|&kind| kind == stretch.kind).unwrap_or(0);
            boxes[place].add(from_to(stretch.begin_ns, stretch.end_ns), lane)?;
        }
        for signal in row.units.iter().filter_map(|unit| unit.signal_ns) {
            signals.add((x_at(signal), 0.8), (y + MULTIPLY * bar, (1.0 - MULTIPLY) * bar))?;
        }
        // Where rows are low, some are named.
        let every = (10.0 / height).ceil();
        if (index as f64 % every).abs() < 0.5 {
            label(f, y + height / 2.0, &format!("{place} {}", row.sm))?;
        }
    }
    idle.draw(f, IDLE)?;
    for (kind, boxes) in kinds.iter().zip(&boxes) {
        boxes.draw(f, colour(*kind))?;
    }
    signals.draw(f, SIGNAL)
}

fn draw_transfers(
    f: &mut fmt::Formatter<'_>,
    transfers: &[&TransferTrace],
    top: f64,
    x_at: impl Fn(u64) -> f64,
) -> fmt::Result {
    let mut boxes = Boxes::default();
    for transfer in transfers {
        let (begin, end) = (x_at(transfer.begin_ns), x_at(transfer.end_ns));
        // A hair between neighbours.
        boxes.add((begin, end - begin - 0.4), (top + 1.0, STREAM - 3.0))?;
    }
    boxes.draw(f, TRANSFER)?;
    for transfer in transfers {
        let (begin, end) = (x_at(transfer.begin_ns), x_at(transfer.end_ns));
        if end - begin > 34.0 {
            let centre = (f64::midpoint(begin, end), top + STREAM - 4.0);
            let route = format!("{} to {}", transfer.from, transfer.to);
            text(f, centre, r#"text-anchor="middle" font-size="8""#, &route)?;
        }
    }
    Ok(())
}

/// The transfers of each stream that moved anything.
fn streams(transfers: &[TransferTrace]) -> Vec<(usize, Vec<&TransferTrace>)> {
    let mut streams: Vec<(usize, Vec<&TransferTrace>)> = Vec::new();
    for transfer in transfers {
        match streams.iter_mut().find(|(stream, _)| *stream == transfer.stream) {
            Some((_, of_stream)) => of_stream.push(transfer),
            None => streams.push((transfer.stream, vec![transfer])),
        }
    }
    streams
}

fn label(f: &mut fmt::Formatter<'_>, centre: f64, label: &str) -> fmt::Result {
    text(f, (LEFT - 6.0, centre + 3.0), r##"text-anchor="end" font-size="9" fill="#666666""##, label)
}

fn legend(f: &mut fmt::Formatter<'_>) -> fmt::Result {
    let entries = [
        (colour(Kind::Multiply), "multiplying"),
        (colour(Kind::Wait), "waiting at a gate"),
        (colour(Kind::HandOver), "handing the tile over"),
        (colour(Kind::Store), "storing"),
        (SIGNAL, "signal raised"),
        (TRANSFER, "transfer"),
        (IDLE, "none of these"),
    ];
    for (index, (colour, label)) in entries.into_iter().enumerate() {
        let x = LEFT + 152.0 * index as f64;
        writeln!(f, r#"<rect x="{x:.1}" y="52" width="12" height="12" fill="{colour}"/>"#)?;
        text(f, (x + 17.0, 62.0), "", label)?;
    }
    Ok(())
}

/// Lines across all ranks, and their times in microseconds.
fn axis(f: &mut fmt::Formatter<'_>, span_us: f64, (top, bottom): (f64, f64)) -> fmt::Result {
    let width = WIDTH - LEFT - RIGHT;
    let step = if span_us > 0.0 { tick_step(span_us) / 2.0 } else { 1.0 };
    let decimals = if step >= 1.0 { 0 } else { 2 };
    let mut tick = 0.0;
    while tick <= span_us {
        let x = LEFT + tick / span_us.max(f64::MIN_POSITIVE) * width;
        line(f, (x, top), (x, bottom + 5.0), "#dddddd")?;
        text(f, (x, bottom + 18.0), r#"text-anchor="middle""#, &format!("{tick:.decimals$}"))?;
        tick += step;
    }
    line(f, (LEFT, bottom), (LEFT + width, bottom), "#888888")?;
    text(f, (LEFT + width / 2.0, bottom + 36.0), r#"text-anchor="middle""#, "time in µs")
}
