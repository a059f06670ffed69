//! `flux demo`: a transformer's MLP, AllGather+GEMM+GELU → GEMM+ReduceScatter, fused and unfused, verified.

use crate::args::{DemoArguments, GroupArguments};
use crate::data::{Deviation, compare, normal};
use crate::error::Error;
use crate::output::{print, speaks};
use comfy_table::Table;
use flux::{
    Activation, AgGemm, Backend, DType, Direction, GemmRs, Group, OpSpec, Path, PathPreference, Placement,
    Whole,
};
use half::bf16;
use indicatif::{ProgressBar, ProgressStyle};
use std::time::{Duration, Instant};

/// The MLP of Llama-3-8B: 4096 wide, 14,336 inside.
const HIDDEN: usize = 4096;
const INNER: usize = 14_336;
const TOKENS: usize = 8192;

const DEFAULT_RANKS: usize = 4;

/// On the host each extent is divided by this: the same shape, and seconds of work for a small machine.
const HOST_SCALE: usize = 8;

/// Multiplications that verifying one result may cost.
const VERIFY_MULTIPLICATIONS: usize = 3_000_000_000;

/// Timed runs of each path, after one that is not timed.
const RUNS: usize = 5;

/// What bf16 outputs may deviate by, relative to the norm.
const BOUND: f64 = 4e-3;

struct Shape {
    tokens: usize,
    hidden: usize,
    inner: usize,
}

struct Row {
    op: &'static str,
    shape: String,
    path: Path,
    time: Duration,
    deviation: Deviation,
}

pub(crate) fn run(arguments: &DemoArguments) -> Result<(), Error> {
    let group = arguments.group.group(arguments.ranks, || arguments.group.gpus().max(DEFAULT_RANKS))?;
    let speaks = speaks(&group);
    let scale = if group.backend() == Backend::Host { HOST_SCALE } else { 1 };
    let shape = Shape { tokens: TOKENS / scale, hidden: HIDDEN / scale, inner: INNER / scale };
    if speaks {
        print(format_args!(
            "flux: an MLP block of Llama-3-8B's shape (divided by {scale}), bf16, {}",
            describe(&group)?
        ))?;
    }
    let steps = 2 + 2 * (RUNS as u64 + 3);
    let bar = if speaks { ProgressBar::new(steps) } else { ProgressBar::hidden() };
    bar.set_style(
        ProgressStyle::with_template("{bar:40} {pos}/{len} {msg}").unwrap_or(ProgressStyle::default_bar()),
    );
    bar.set_message("making data");
    let Shape { tokens, hidden, inner } = shape;
    let x = normal::<bf16>(tokens * hidden, 1.0, 1);
    bar.inc(1);
    let up = normal::<bf16>(inner * hidden, (hidden as f32).sqrt().recip(), 2);
    let down = normal::<bf16>(hidden * inner, (inner as f32).sqrt().recip(), 3);
    bar.inc(1);

    let mut rows = Vec::new();
    for path in [PathPreference::Fused, PathPreference::Unfused] {
        let told = &arguments.group;
        rows.extend(run_path(&group, &shape, (path, told), [&x, &up, &down], &bar)?);
    }
    bar.finish_and_clear();
    report(&rows, speaks)
}

/// One path: the block several times over, then both operations verified, each from its actual input.
fn run_path(
    group: &Group,
    shape: &Shape,
    (path, told): (PathPreference, &GroupArguments),
    [x, up, down]: [&[bf16]; 3],
    bar: &ProgressBar,
) -> Result<[Row; 2], Error> {
    let Shape { tokens, hidden, inner } = *shape;
    let spec = |n, k| {
        let mut spec = OpSpec::new(n, k, tokens, DType::Bf16);
        spec.path = path;
        told.apply_to(&mut spec);
        if group.config().peer_memory == Placement::PinnedHost {
            spec.direction = Some(Direction::Pull); // pushed rows would stay in host memory
        }
        spec
    };
    bar.set_message(format!("{path:?}: building"));
    let mut gather = spec(inner, hidden);
    gather.activation = Activation::Gelu;
    let (gather, scatter) = (AgGemm::new(group, gather)?, GemmRs::new(group, spec(hidden, inner))?);
    let first = Whole::place(group, &gather, x, up, tokens)?;
    let second = Whole::after(group, &scatter, &first, down)?;
    bar.inc(1);

    let (mut first_times, mut second_times) = (Vec::new(), Vec::new());
    let mut ran = Path::Local;
    for run in 0..=RUNS {
        bar.set_message(format!("{path:?}: run {run} of {RUNS}"));
        let begin = Instant::now();
        ran = first.enqueue()?.path;
        first.synchronize()?;
        let first_time = begin.elapsed();
        let begin = Instant::now();
        second.enqueue()?;
        second.synchronize()?;
        if run > 0 {
            first_times.push(first_time);
            second_times.push(begin.elapsed());
        }
        bar.inc(1);
    }
    bar.set_message(format!("{path:?}: verifying"));
    let (between, output) = (first.result()?, second.result()?);
    let rows = sample(tokens, inner * hidden);
    let first_deviation = compare(&between, x, up, &rows, inner, hidden, gelu);
    let second_deviation = compare(&output, &between, down, &rows, hidden, inner, |sum| sum);
    bar.inc(1);
    let row = |op, (m, n, k): (usize, usize, usize), times, deviation| Row {
        op,
        shape: format!("{m} x {n} x {k}"),
        path: ran,
        time: median(times),
        deviation,
    };
    Ok([
        row("AllGather+GEMM+GELU", (tokens, inner, hidden), first_times, first_deviation),
        row("GEMM+ReduceScatter", (tokens, hidden, inner), second_times, second_deviation),
    ])
}

/// Rows to verify, spread evenly, the first and the last among them.
fn sample(rows: usize, multiplications_per_row: usize) -> Vec<usize> {
    let count = (VERIFY_MULTIPLICATIONS / multiplications_per_row).clamp(2, rows);
    (0..count).map(|index| index * (rows - 1) / (count - 1)).collect()
}

/// The activation between the two operations.
fn gelu(x: f64) -> f64 {
    0.5 * x * (1.0 + ((2.0 / std::f64::consts::PI).sqrt() * (x + 0.044_715 * x.powi(3))).tanh())
}

fn describe(group: &Group) -> Result<String, Error> {
    let ranks = group.world_size();
    let mut devices: Vec<String> = Vec::new();
    for rank in group.local_ranks() {
        let device = group.device(rank)?.to_string();
        if !devices.contains(&device) {
            devices.push(device);
        }
    }
    if group.local_ranks().len() < ranks {
        return Ok(format!("{ranks} processes, one rank each, this one on {}", devices.join(", ")));
    }
    Ok(format!("{ranks} ranks on {}", devices.join(", ")))
}

fn median(mut times: Vec<Duration>) -> Duration {
    times.sort();
    times.get(times.len() / 2).copied().unwrap_or_default()
}

fn report(rows: &[Row], speaks: bool) -> Result<(), Error> {
    let mut table = Table::new();
    table.load_style(comfy_table::presets::UTF8_BORDERS_ONLY);
    table.set_header(["op", "m x n x k", "path", "time", "error", "max |diff|", "verdict"]);
    let mut wrong = 0;
    for row in rows {
        let right = row.deviation.relative < BOUND && row.deviation.largest.is_finite();
        wrong += usize::from(!right);
        table.add_row([
            row.op.to_owned(),
            row.shape.clone(),
            row.path.to_string(),
            format!("{:.3} ms", row.time.as_secs_f64() * 1e3),
            format!("{:.2e}", row.deviation.relative),
            format!("{:.2e}", row.deviation.largest),
            if right { "ok".into() } else { format!("WRONG (error above {BOUND:.0e})") },
        ]);
    }
    if speaks {
        print(format_args!("{table}"))?;
        print(format_args!(
            "verified against an independent fp32 computation; times are medians of {RUNS} runs"
        ))?;
    }
    if wrong == 0 { Ok(()) } else { Err(Error::Wrong { wrong, all: rows.len() }) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn samples_reach_from_the_first_row_to_the_last() {
        assert_eq!(sample(10, VERIFY_MULTIPLICATIONS), [0, 9]);
        assert_eq!(sample(4, 1), [0, 1, 2, 3]);
        let some = sample(1000, VERIFY_MULTIPLICATIONS / 64);
        assert_eq!((some.len(), some[0], some[63]), (64, 0, 999));
    }

    #[test]
    fn a_wrong_or_missing_value_is_noticed() {
        let (a, b) = (normal::<bf16>(6 * 40, 1.0, 1), normal::<bf16>(5 * 40, 1.0, 2));
        let dot = |i: usize, j: usize| {
            (0..40).map(|x| a[i * 40 + x].to_f32() * b[j * 40 + x].to_f32()).sum::<f32>()
        };
        let mut c: Vec<_> = (0..30).map(|i| bf16::from_f32(dot(i / 5, i % 5))).collect();
        let rows = [0, 1, 2, 3, 4, 5];
        assert!(compare(&c, &a, &b, &rows, 5, 40, |sum| sum).relative < BOUND);
        c[17] = bf16::from_f32(c[17].to_f32() + 1.0);
        let deviation = compare(&c, &a, &b, &rows, 5, 40, |sum| sum);
        assert!(deviation.relative > BOUND && (deviation.largest - 1.0).abs() < 0.1);
        c[17] = bf16::NAN;
        let deviation = compare(&c, &a, &b, &rows, 5, 40, |sum| sum);
        assert!(deviation.relative.is_nan() && deviation.largest.is_nan());
    }
}
