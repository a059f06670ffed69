//! Where each rank's time went, and the longest waits.

use super::rows::{Kind, Row, rows};
use comfy_table::{CellAlignment, Table};
use flux::{CallTrace, UnitTrace};

/// How many waits are listed.
const WAITS: usize = 5;

/// Where the time of a rank's SMs went, in nanoseconds summed over them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Spent {
    multiplying: u64,
    /// At gates, while nothing was multiplied.
    waiting: u64,
    /// At gates, while another unit was multiplied: hidden.
    hidden: u64,
    handing_over: u64,
    /// Between units, but not at gates: waiting for loads, as a rule.
    gaps: u64,
}

impl Spent {
    fn of(row: &Row<'_>) -> Self {
        let stretches = row.stretches();
        let of_kind = |kind| {
            let mut of_kind: Vec<_> = stretches
                .iter()
                .filter(|stretch| stretch.kind == kind)
                .map(|stretch| (stretch.begin_ns, stretch.end_ns))
                .collect();
            of_kind.sort_unstable();
            of_kind
        };
        let (waits, multiplies, hand_overs) =
            (of_kind(Kind::Wait), of_kind(Kind::Multiply), of_kind(Kind::HandOver));
        let handed_over = row.units.iter().map(|unit| unit.handed_over_ns).max().unwrap_or(0);
        let total = handed_over.saturating_sub(row.span_ns().0);
        let (multiplying, hidden) = (length(&multiplies), common(&waits, &multiplies));
        let waiting = length(&waits) - hidden;
        let handing_over = length(&hand_overs) - common(&waits, &hand_overs);
        let gaps = total.saturating_sub(multiplying + waiting + handing_over);
        Self { multiplying, waiting, hidden, handing_over, gaps }
    }

    fn plus(self, other: Self) -> Self {
        Self {
            multiplying: self.multiplying + other.multiplying,
            waiting: self.waiting + other.waiting,
            hidden: self.hidden + other.hidden,
            handing_over: self.handing_over + other.handing_over,
            gaps: self.gaps + other.gaps,
        }
    }
}

/// The length of stretches that do not overlap.
fn length(stretches: &[(u64, u64)]) -> u64 {
    stretches.iter().map(|(begin, end)| end - begin).sum()
}

/// The length of what two lists of sorted stretches, neither of which overlap among themselves, have in common.
fn common(first: &[(u64, u64)], second: &[(u64, u64)]) -> u64 {
    let (mut sum, mut i, mut j) = (0, 0, 0);
    while let (Some(a), Some(b)) = (first.get(i), second.get(j)) {
        sum += a.1.min(b.1).saturating_sub(a.0.max(b.0));
        if a.1 <= b.1 { i += 1 } else { j += 1 }
    }
    sum
}

/// A line for each rank. Shares are of the SMs' time from the rank's first unit to its last.
pub(crate) fn table(calls: &[CallTrace]) -> Table {
    let mut table = Table::new();
    table.load_style(comfy_table::presets::UTF8_BORDERS_ONLY);
    table.set_header([
        "rank",
        "units",
        "span us",
        "multiply",
        "wait us",
        "wait",
        "hidden",
        "gaps",
        "hand over",
        "tail us",
        "chunks",
        "moving us",
    ]);
    for call in calls {
        let rows = rows(call);
        let spent = rows.iter().map(Spent::of).fold(Spent::default(), Spent::plus);
        let spans: Vec<_> = rows.iter().map(Row::span_ns).collect();
        let begin = spans.iter().map(|span| span.0).min().unwrap_or(0);
        let (first_idle, end) =
            spans.iter().fold((u64::MAX, 0), |(first, last), span| (first.min(span.1), last.max(span.1)));
        let span = end - begin;
        let share = |ns: u64| match span * rows.len() as u64 {
            0 => "-".to_owned(),
            all => format!("{:.1} %", 100.0 * ns as f64 / all as f64),
        };
        let moving =
            call.transfers.iter().map(|transfer| transfer.end_ns.saturating_sub(transfer.begin_ns)).sum();
        table.add_row([
            call.rank.to_string(),
            call.units.len().to_string(),
            us(span),
            share(spent.multiplying),
            us(spent.waiting / (rows.len() as u64).max(1)),
            share(spent.waiting),
            share(spent.hidden),
            share(spent.gaps),
            share(spent.handing_over),
            us(end.saturating_sub(first_idle)),
            call.transfers.len().to_string(),
            us(moving),
        ]);
    }
    table.column_iter_mut().for_each(|column| column.set_cell_alignment(CellAlignment::Right));
    table
}

/// The longest waits at gates, of all ranks; none if nobody waited.
pub(crate) fn longest_waits(calls: &[CallTrace]) -> Option<Table> {
    let begin = calls.iter().filter_map(CallTrace::span_ns).map(|span| span.0).min()?;
    let length = |unit: &UnitTrace| unit.gate_end_ns.saturating_sub(unit.gate_begin_ns);
    let mut waits: Vec<_> = calls
        .iter()
        .flat_map(|call| call.units.iter().map(|unit| (call.rank, unit)))
        .filter(|(_, unit)| !unit.gate.is_empty() && length(unit) > 0)
        .collect();
    waits.sort_by_key(|(_, unit)| std::cmp::Reverse(length(unit)));
    let mut table = Table::new();
    table.load_style(comfy_table::presets::UTF8_BORDERS_ONLY);
    table.set_header(["longest waits: rank", "row tile", "column tile", "peer", "signals", "us", "from us"]);
    for (rank, unit) in waits.iter().take(WAITS) {
        let signals = match unit.gate.end - unit.gate.start {
            1 => unit.gate.start.to_string(),
            _ => format!("{} to {}", unit.gate.start, unit.gate.end - 1),
        };
        table.add_row([
            rank.to_string(),
            unit.tile.0.to_string(),
            unit.tile.1.to_string(),
            unit.peer.to_string(),
            signals,
            us(length(unit)),
            us(unit.gate_begin_ns.saturating_sub(begin)),
        ]);
    }
    table.column_iter_mut().for_each(|column| column.set_cell_alignment(CellAlignment::Right));
    (!waits.is_empty()).then_some(table)
}

fn us(ns: u64) -> String {
    format!("{:.1}", ns as f64 / 1e3)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_stretches_have_in_common() {
        let [first, second] = [&[(0, 10), (20, 30), (40, 41)][..], &[(5, 22), (22, 25), (29, 100)]];
        assert_eq!((length(first), length(second)), (21, 91));
        assert_eq!(common(first, second), 5 + 2 + 3 + 1 + 1);
        assert_eq!(common(second, first), common(first, second));
        assert_eq!((common(first, &[]), common(first, first)), (0, 21));
    }
}
