//! A simulated call as a picture: time across, ranks down; of each rank the GEMM with its waits, and below it what it sends.

use crate::bench::svg::{line, text, tick_step};
use flux_sim::{Activity, Outcome, Span};
use std::fmt;

const WIDTH: f64 = 1200.0;
const LEFT: f64 = 70.0;
const RIGHT: f64 = 22.0;
const TOP: f64 = 76.0;
const BOTTOM: f64 = 46.0;
/// Of a rank: its GEMM, what it sends, and the space below.
const GEMM: f64 = 18.0;
const SENDS: f64 = 11.0;
const SPACE: f64 = 8.0;
/// More ranks than these are not drawn.
const MOST_RANKS: usize = 64;

const TEXT: &str = "#222222";

const ACTIVITIES: [Activity; 5] =
    [Activity::Multiply, Activity::Wait, Activity::Transfer, Activity::Sum, Activity::Prepare];

fn colour(activity: Activity) -> &'static str {
    match activity {
        Activity::Multiply => "#0072b2",
        Activity::Wait => "#d62728",
        Activity::Transfer => "#e69f00",
        Activity::Sum => "#009e73",
        _ => "#bbbbbb",
    }
}

fn meaning(activity: Activity) -> &'static str {
    match activity {
        Activity::Multiply => "multiplying",
        Activity::Wait => "waiting",
        Activity::Transfer => "sending",
        Activity::Sum => "summing",
        _ => "preparing",
    }
}

/// Draws a call on so many ranks.
pub(crate) fn draw(title: &str, outcome: &Outcome, ranks: usize) -> String {
    Timeline { title, outcome, ranks }.to_string()
}

struct Timeline<'a> {
    title: &'a str,
    outcome: &'a Outcome,
    ranks: usize,
}

impl fmt::Display for Timeline<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let drawn = self.ranks.min(MOST_RANKS);
        let bottom = TOP + drawn as f64 * (GEMM + SENDS + SPACE);
        let height = bottom + BOTTOM;
        writeln!(
            f,
            r#"<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH:.0}" height="{height:.0}" viewBox="0 0 {WIDTH:.0} {height:.0}" font-family="Helvetica, Arial, DejaVu Sans, sans-serif" font-size="12" fill="{TEXT}">"#
        )?;
        writeln!(f, r##"<rect width="100%" height="100%" fill="#ffffff"/>"##)?;
        text(f, (14.0, 22.0), r#"font-size="15" font-weight="bold""#, self.title)?;
        let left_out = if drawn < self.ranks {
            format!(", the first {drawn} of {} ranks", self.ranks)
        } else {
            String::new()
        };
        let subtitle = format!("simulated: {:.1} µs in all{left_out}", self.outcome.total_us);
        text(f, (14.0, 40.0), r##"fill="#666666""##, &subtitle)?;
        for (index, activity) in ACTIVITIES.into_iter().enumerate() {
            let x = LEFT + 120.0 * index as f64;
            writeln!(f, r#"<rect x="{x:.1}" y="52" width="12" height="12" fill="{}"/>"#, colour(activity))?;
            text(f, (x + 17.0, 62.0), "", meaning(activity))?;
        }
        self.axis(f, bottom)?;
        for rank in 0..drawn {
            self.rank(f, rank, TOP + rank as f64 * (GEMM + SENDS + SPACE))?;
        }
        writeln!(f, "</svg>")
    }
}

impl Timeline<'_> {
    fn x_at(&self, us: f64) -> f64 {
        LEFT + us / self.outcome.total_us.max(f64::MIN_POSITIVE) * (WIDTH - LEFT - RIGHT)
    }

    fn rank(&self, f: &mut fmt::Formatter<'_>, rank: usize, top: f64) -> fmt::Result {
        text(f, (LEFT - 8.0, top + GEMM - 5.0), r#"text-anchor="end""#, &format!("rank {rank}"))?;
        let spans = || self.outcome.timeline.iter().filter(|span| span.rank == rank);
        // What waits is drawn over the multiplication that goes on beside it, in the lower half.
        let of = |activity: Activity| spans().filter(move |span| span.activity == activity);
        for activity in [Activity::Prepare, Activity::Multiply, Activity::Sum] {
            of(activity).try_for_each(|span| self.bar(f, span, (top, GEMM)))?;
        }
        of(Activity::Wait).try_for_each(|span| self.bar(f, span, (top + 0.7 * GEMM, 0.3 * GEMM)))?;
        // What goes over different links at the same time is drawn in lanes.
        let mut free: Vec<f64> = Vec::new();
        let lanes: Vec<(usize, &Span)> = of(Activity::Transfer)
            .map(|span| {
                let lane = free.iter().position(|&free| free <= span.begin_us + 1e-9).unwrap_or(free.len());
                free.resize(free.len().max(lane + 1), 0.0);
                free[lane] = span.end_us;
                (lane, span)
            })
            .collect();
        let height = SENDS / free.len().max(1) as f64;
        let place = |lane: usize| (top + GEMM + lane as f64 * height, height);
        lanes.into_iter().try_for_each(|(lane, span)| self.bar(f, span, place(lane)))
    }

    fn bar(&self, f: &mut fmt::Formatter<'_>, span: &Span, (y, height): (f64, f64)) -> fmt::Result {
        let (begin, end) = (self.x_at(span.begin_us), self.x_at(span.end_us));
        let width = (end - begin).max(0.3);
        let fill = colour(span.activity);
        writeln!(
            f,
            r##"<rect x="{begin:.1}" y="{y:.1}" width="{width:.1}" height="{height:.1}" fill="{fill}" stroke="#ffffff" stroke-width="0.3"/>"##
        )?;
        let label = match (span.activity, span.shard, span.destination) {
            (Activity::Transfer, Some(shard), Some(to)) => format!("{shard} to {to}"),
            (Activity::Multiply, Some(shard), _) => shard.to_string(),
            _ => return Ok(()),
        };
        if width > 8.0 * label.len() as f64 && height > 9.0 {
            let centre = (f64::midpoint(begin, end), y + height / 2.0 + 3.0);
            text(f, centre, r##"text-anchor="middle" font-size="9" fill="#ffffff""##, &label)?;
        }
        Ok(())
    }

    /// Lines across all ranks, and their times.
    fn axis(&self, f: &mut fmt::Formatter<'_>, bottom: f64) -> fmt::Result {
        let span_us = self.outcome.total_us;
        let step = if span_us > 0.0 { tick_step(span_us) / 2.0 } else { 1.0 };
        let decimals = if step >= 1.0 { 0 } else { 2 };
        let mut tick = 0.0;
        while tick <= span_us {
            let x = self.x_at(tick);
            line(f, (x, TOP), (x, bottom + 5.0), "#dddddd")?;
            text(f, (x, bottom + 18.0), r#"text-anchor="middle""#, &format!("{tick:.decimals$}"))?;
            tick += step;
        }
        let middle = f64::midpoint(LEFT, WIDTH - RIGHT);
        text(f, (middle, bottom + 36.0), r#"text-anchor="middle""#, "time in µs; numbers are shards")
    }
}
