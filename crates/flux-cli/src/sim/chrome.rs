//! A simulated call as a trace in Chrome's format, which Perfetto opens: a process for each rank, threads for what it does.

use flux_sim::{Activity, Outcome, Span};
use serde_json::{Value, json};

/// Threads of a rank: its GEMM, its waits, what it sends. A GEMM's stretches overlap, as do transfers over different links: those go
/// to threads of their own.
const FIRST_THREAD: [usize; 3] = [0, 1 << 10, 1 << 11];
const THREAD_NAMES: [&str; 3] = ["GEMM", "waits", "sends"];

/// The trace, with times in microseconds from the call.
pub(crate) fn trace(title: &str, outcome: &Outcome, ranks: usize) -> Value {
    let mut events = Vec::new();
    let name = |what: &str, (pid, tid): (usize, usize), name: String| json!({ "ph": "M", "name": what, "pid": pid, "tid": tid, "args": { "name": name } });
    for rank in 0..ranks {
        events.push(name("process_name", (rank, 0), format!("rank {rank}")));
    }
    for rank in 0..ranks {
        // By kind of thread: when each thread is free.
        let mut free: [Vec<f64>; 3] = Default::default();
        for span in outcome.timeline.iter().filter(|span| span.rank == rank) {
            let kind = match span.activity {
                Activity::Wait => 1,
                Activity::Transfer => 2,
                _ => 0,
            };
            let threads = &mut free[kind];
            let thread =
                threads.iter().position(|&free| free <= span.begin_us + 1e-9).unwrap_or(threads.len());
            if thread == threads.len() {
                threads.push(0.0);
                let number = if thread == 0 { String::new() } else { format!(" {}", thread + 1) };
                let label = format!("{}{number}", THREAD_NAMES[kind]);
                events.push(name("thread_name", (rank, FIRST_THREAD[kind] + thread), label));
            }
            threads[thread] = span.end_us;
            events.push(json!({
                "ph": "X", "name": label(span), "cat": span.activity.name(), "pid": rank,
                "tid": FIRST_THREAD[kind] + thread, "ts": span.begin_us, "dur": span.end_us - span.begin_us,
                "args": { "shard": span.shard, "destination": span.destination },
            }));
        }
    }
    json!({ "traceEvents": events, "displayTimeUnit": "ns", "otherData": { "title": title } })
}

fn label(span: &Span) -> String {
    match (span.activity, span.shard, span.destination) {
        (Activity::Transfer, Some(shard), Some(to)) => format!("shard {shard} to {to}"),
        (activity, Some(shard), _) => format!("{} shard {shard}", activity.name()),
        (activity, None, _) => activity.name().to_owned(),
    }
}
