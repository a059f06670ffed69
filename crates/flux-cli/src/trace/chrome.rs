//! A call as a trace in Chrome's format, which Perfetto opens: a process for each rank, threads for its SMs and streams.

use super::Traced;
use super::rows::{Kind, Stretch, rows};
use flux::UnitTrace;
use serde_json::{Value, json};

/// Threads of a row: its gates, its multiplications, its stores.
const THREADS: usize = 4;

/// Transfer streams are numbered from here on.
const FIRST_STREAM: usize = 1 << 20;

/// The trace, with times in microseconds from the call's first event.
pub(crate) fn trace(traced: &Traced) -> Value {
    let (origin, _) = traced.span_ns();
    let us = |ns: u64| ns.saturating_sub(origin) as f64 / 1e3;
    let mut events = Vec::new();
    for call in &traced.calls {
        let pid = call.rank;
        let name = |what: &str, tid: usize, name: String| json!({ "ph": "M", "name": what, "pid": pid, "tid": tid, "args": { "name": name } });
        events.push(name("process_name", 0, format!("rank {pid}")));
        let mut complete =
            |tid: usize, (name, category): (String, &str), (begin, end): (u64, u64), args: Value| {
                events.push(json!({
                    "ph": "X", "name": name, "cat": category, "pid": pid, "tid": tid,
                    "ts": us(begin), "dur": end.saturating_sub(begin) as f64 / 1e3, "args": args,
                }));
            };
        let (mut names, mut signals) = (Vec::new(), Vec::new());
        for (index, row) in rows(call).iter().enumerate() {
            let first = THREADS * index;
            for (offset, what) in ["gate", "multiply", "store"].into_iter().enumerate() {
                let label = format!("{} {} {what}", traced.place_name(), row.sm);
                names.push(name("thread_name", first + offset, label));
            }
            for Stretch { kind, unit, begin_ns, end_ns } in row.stretches() {
                let (offset, category) = match kind {
                    Kind::Wait => (0, "wait"),
                    Kind::Multiply => (1, "multiply"),
                    Kind::HandOver => (1, "hand over"),
                    Kind::Store => (2, "store"),
                };
                let (row, column) = unit.tile;
                let name = match kind {
                    Kind::Multiply => format!("tile {row}, {column}"),
                    _ => category.to_owned(),
                };
                complete(first + offset, (name, category), (begin_ns, end_ns), arguments(unit));
            }
            signals.extend(row.units.iter().filter_map(|unit| {
                let ts = us(unit.signal_ns?);
                Some(json!({
                    "ph": "i", "s": "t", "name": "signal", "cat": "signal", "pid": pid, "tid": first + 2, "ts": ts,
                    "args": arguments(unit),
                }))
            }));
        }
        for transfer in &call.transfers {
            let tid = FIRST_STREAM + transfer.stream;
            let label = name("thread_name", tid, format!("transfer stream {}", transfer.stream));
            if !names.contains(&label) {
                names.push(label);
            }
            let args = json!({
                "from": transfer.from, "to": transfer.to, "bytes": transfer.bytes, "signal": transfer.signal,
            });
            let name = format!("{} to {}", transfer.from, transfer.to);
            complete(tid, (name, "transfer"), (transfer.begin_ns, transfer.end_ns), args);
        }
        events.extend(names);
        events.extend(signals);
    }
    json!({ "traceEvents": events, "displayTimeUnit": "ns", "otherData": traced.json() })
}

/// What there is to know about a unit.
fn arguments(unit: &UnitTrace) -> Value {
    let mut args = json!({
        "launch": unit.launch, "index": unit.index, "row_tile": unit.tile.0, "column_tile": unit.tile.1,
        "rows": [unit.rows.start, unit.rows.end], "columns": [unit.columns.start, unit.columns.end],
        "part": unit.part, "parts": unit.parts, "block": unit.block,
    });
    if !unit.gate.is_empty() {
        args["peer"] = unit.peer.into();
        args["signals"] = json!([unit.gate.start, unit.gate.end]);
    }
    args
}
