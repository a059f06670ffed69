//! How long calls take that go one way or another, beside each other.

use crate::planner::{OpKind, Plan};
use crate::{
    AgGemm, Buffer, DType, GemmAr, GemmRs, Group, Matrix, OpSpec, OperandParts, Operation, Order, Part, Path,
    PathPreference, Placement, Result, Stream,
};
use std::time::{Duration, Instant};

/// So many calls make a sample at most: a stream's queue does not hold many more.
const MOST_CALLS: f64 = 200.0;
/// A sample of the fastest lasts about so long.
const SAMPLE: Duration = Duration::from_millis(3);
/// One of a slower one no longer than this: what it takes to begin and to end is nothing beside it.
const LONGEST_SAMPLE: Duration = Duration::from_millis(100);
/// So many contenders exist at once at most: each has memory for all that its calls exchange.
const AT_ONCE: usize = 8;
/// What is uploaded at a time.
const BLOCK_BYTES: usize = 1 << 22;

/// A plan's samples, and those of the first plan: the n-th of each were taken at about the same time.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Timing {
    samples_us: Vec<f64>,
    beside_us: Vec<f64>,
    /// The median of its samples.
    pub(super) us: f64,
    /// The distance of their quartiles over it.
    pub(super) spread: f64,
}

/// An operation that goes one way, and nothing but that.
struct Contender {
    op: Box<dyn Operation>,
    times_us: Vec<f64>,
}

/// Operands of calls of `m` rows, of the ranks of this process.
struct Operands<'g> {
    group: &'g Group,
    m: usize,
    buffers: Vec<[Buffer; 3]>,
    parts: Vec<OperandParts>,
    streams: Vec<Stream>,
}

/// The operation that a plan is of.
pub(super) fn forced(op: OpKind, spec: &OpSpec, m: usize, plan: &Plan) -> OpSpec {
    let mut forced = OpSpec { max_m: m, tune_rows: Vec::new(), ..spec.clone() };
    forced.path = match plan.path {
        Path::Fused => PathPreference::Fused,
        Path::Chunked => PathPreference::Chunked,
        _ => PathPreference::Unfused,
    };
    forced.direction = Some(plan.direction);
    forced.delivery = plan.delivery.unwrap_or(spec.delivery);
    forced.tile = spec.tile.or(plan.tile);
    if !plan.one_shot {
        forced.order = Order::Of(plan.order.clone());
    }
    forced.chunk_rows = spec.chunk_rows.or(Some(plan.chunk_rows).filter(|&rows| rows > 0));
    if op == OpKind::GemmAr {
        forced.one_shot_rows = Some(if plan.one_shot { m } else { 0 });
    }
    forced
}

fn build(op: OpKind, group: &Group, spec: OpSpec) -> Result<Box<dyn Operation>> {
    Ok(match op {
        OpKind::AgGemm => Box::new(AgGemm::new(group, spec)?),
        OpKind::GemmRs => Box::new(GemmRs::new(group, spec)?),
        OpKind::GemmAr => Box::new(GemmAr::new(group, spec)?),
    })
}

/// Times calls of `m` rows that go as each of `plans` says: in turn, `samples` times. Each rank's times are those of the slowest.
/// Those that exist at once are so many as there is memory for; the first plan is always among them, to be compared with.
/// `sampled` is told of each sample.
pub(super) fn measure(
    group: &Group,
    (op, spec): (OpKind, &OpSpec),
    (m, plans): (usize, &[Plan]),
    samples: usize,
    mut sampled: impl FnMut(),
) -> Result<Vec<Timing>> {
    let contender = |plan: &Plan| {
        let op = build(op, group, forced(op, spec, m, plan))?;
        Ok::<_, crate::Error>(Contender { op, times_us: Vec::new() })
    };
    let Some((first, others)) = plans.split_first() else { return Ok(Vec::new()) };
    let mut first = contender(first)?;
    let operands = Operands::place(group, &*first.op, m)?;
    let mut timings = Vec::with_capacity(plans.len());
    let mut most_calls = None;
    loop {
        let mut contenders = vec![first];
        for plan in &others[timings.len().saturating_sub(1)..] {
            match contender(plan) {
                Ok(next) => contenders.push(next),
                // Built on all ranks, or on none: they go on together. What there is no room for now comes when there is some.
                Err(error) if contenders.len() > 1 => {
                    tracing::debug!(%error, "measured later");
                    break;
                }
                Err(error) => return Err(error),
            }
            if contenders.len() == AT_ONCE {
                break;
            }
        }
        // As many calls of each: the first of a sample starts what had come to rest, the last is waited for, and who has fewer pays
        // more of that for each call.
        let us: Vec<_> =
            contenders.iter().map(|contender| operands.call_us(contender)).collect::<Result<_>>()?;
        let most = *most_calls
            .get_or_insert_with(|| calls_of(us.iter().copied().fold(f64::INFINITY, f64::min), SAMPLE));
        let calls: Vec<_> = us.iter().map(|&us| calls_of(us, LONGEST_SAMPLE).min(most)).collect();
        for sample in 0..samples {
            // Each begins in turn, so that what comes first is not always the same.
            let count = contenders.len();
            for index in (0..count).map(|index| (index + sample) % count) {
                let us = operands.time(&contenders[index], calls[index])?;
                contenders[index].times_us.push(us);
                sampled();
            }
        }
        let mut rest = contenders.split_off(1);
        first = contenders.remove(0);
        let beside_us = std::mem::take(&mut first.times_us);
        if timings.is_empty() {
            timings.push(Timing::of(beside_us.clone(), beside_us.clone()));
        }
        timings.extend(rest.drain(..).map(|contender| Timing::of(contender.times_us, beside_us.clone())));
        if timings.len() == plans.len() {
            return Ok(timings);
        }
    }
}

/// How many calls that take so long make such a sample.
pub(super) fn calls_of(us: f64, sample: Duration) -> usize {
    let calls = (sample.as_secs_f64() * 1e6 / us.max(0.1)).ceil().clamp(2.0, MOST_CALLS);
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)] // clamped
    let calls = calls as usize;
    calls
}

/// How many samples are taken of so many plans, if there is memory for them.
pub(super) const fn samples_of(plans: usize, samples: usize) -> usize {
    let others = plans.saturating_sub(1);
    (others + others.div_ceil(AT_ONCE - 1)) * samples
}

/// The median, and the distance of the quartiles.
fn quartiles(mut values: Vec<f64>) -> (f64, f64) {
    values.sort_by(f64::total_cmp);
    let at = |quarter: usize| values.get(values.len() * quarter / 4).copied().unwrap_or(f64::NAN);
    (at(2), at(3) - at(1))
}

impl Timing {
    pub(super) fn of(samples_us: Vec<f64>, beside_us: Vec<f64>) -> Self {
        let (us, distance) = quartiles(samples_us.clone());
        Self { samples_us, beside_us, us, spread: distance / us.max(f64::MIN_POSITIVE) }
    }

    /// Every other sample, from that one on; of a single one, that.
    pub(super) fn half(&self, first: usize) -> Self {
        let half = |values: &[f64]| -> Vec<f64> {
            values.iter().skip(first.min(values.len().saturating_sub(1))).step_by(2).copied().collect()
        };
        Self::of(half(&self.samples_us), half(&self.beside_us))
    }

    /// The median of this over the other, sample by sample, each over the first plan's at about the same time: what disturbs a machine for
    /// longer disturbs both. And by how much that is uncertain: the standard error of a median, of values that are distributed
    /// normally.
    pub(super) fn over(&self, other: &Self) -> Ratio {
        let over_first = |of: &Self| -> Vec<f64> {
            of.samples_us.iter().zip(&of.beside_us).map(|(own, first)| own / first).collect()
        };
        let ratios: Vec<f64> =
            over_first(self).into_iter().zip(over_first(other)).map(|(a, b)| a / b).collect();
        #[allow(clippy::cast_precision_loss)] // few
        let count = ratios.len().max(1) as f64;
        let (ratio, distance) = quartiles(ratios);
        Ratio { ratio, uncertainty: 0.93 * distance / count.sqrt() }
    }
}

/// How long one thing takes beside another.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Ratio {
    pub(super) ratio: f64,
    pub(super) uncertainty: f64,
}

impl<'g> Operands<'g> {
    fn place(group: &'g Group, op: &dyn Operation, m: usize) -> Result<Self> {
        let mut this = Self { group, m, buffers: Vec::new(), parts: Vec::new(), streams: Vec::new() };
        let dtype = op.spec().dtype;
        for rank in group.local_ranks() {
            let (device, stream) = (group.device(rank)?, group.stream(rank)?);
            let parts = op.parts(rank, m);
            let matrix = |part: &Part, dtype: DType| {
                let bytes = part.len().saturating_mul(dtype.bytes());
                let buffer = Buffer::allocate(device, bytes, Placement::Device)?;
                fill(&buffer, &stream, dtype, bytes)?;
                Ok::<_, crate::Error>((Matrix::contiguous(buffer.address(), part.columns.len()), buffer))
            };
            let (a, a_buffer) = matrix(&parts[0], dtype)?;
            let (b, b_buffer) = matrix(&parts[1], dtype)?;
            let (c, c_buffer) = matrix(&parts[2], dtype.result())?;
            this.buffers.push([a_buffer, b_buffer, c_buffer]);
            this.parts.push(OperandParts::new([a, b, c]));
            this.streams.push(stream);
        }
        Ok(this)
    }

    /// About how long a call takes, in µs, after one that plans and loads.
    fn call_us(&self, contender: &Contender) -> Result<f64> {
        self.time(contender, 1)?;
        self.time(contender, 2)
    }

    /// The time of one of so many of a contender's calls in a row, on the slowest rank, in µs.
    fn time(&self, contender: &Contender, calls: usize) -> Result<f64> {
        let streams: Vec<&Stream> = self.streams.iter().collect();
        self.group.barrier()?;
        let begin = Instant::now();
        for _ in 0..calls {
            // SAFETY: the matrices have the extents of their parts, and live until this is dropped, which waits.
            unsafe { contender.op.enqueue_parts(self.m, &self.parts, &streams)? };
        }
        self.synchronize()?;
        let own = begin.elapsed().as_secs_f64();
        self.group.check()?;
        let all = self.group.all_gather(&own.to_le_bytes())?;
        let seconds =
            all.iter().filter_map(|bytes| Some(f64::from_le_bytes(bytes.as_slice().try_into().ok()?)));
        #[allow(clippy::cast_precision_loss)] // few
        Ok(seconds.fold(0.0, f64::max) * 1e6 / calls as f64)
    }

    fn synchronize(&self) -> Result<()> {
        self.streams.iter().try_for_each(|stream| Ok(stream.synchronize()?))
    }
}

impl Drop for Operands<'_> {
    fn drop(&mut self) {
        // The buffers may be freed only when no stream uses them any more.
        if let Err(error) = self.synchronize() {
            tracing::warn!(%error, "after measuring");
        }
    }
}

/// Random numbers from ±0.5 to ±2: a GPU takes less power, and goes faster, for zeros.
fn fill(buffer: &Buffer, stream: &Stream, dtype: DType, bytes: usize) -> Result<()> {
    let mut state = 0x2545_f491_4f6c_dd1d_u64;
    let mut random = || {
        // xorshift64
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state.to_le_bytes()
    };
    let mut block = Vec::with_capacity(BLOCK_BYTES.min(bytes));
    for offset in (0..bytes).step_by(BLOCK_BYTES) {
        let length = BLOCK_BYTES.min(bytes - offset);
        block.clear();
        while block.len() < length {
            let [low, high, ..] = random();
            match dtype {
                DType::Bf16 => block.extend([low, 0x3f | (high & 0x80)]),
                DType::F16 => block.extend([low, 0x38 | (high & 0x83)]),
                DType::E4m3 => block.push(0x30 | (low & 0x87)),
            }
        }
        buffer.upload(stream, offset, &block[..length])?;
    }
    Ok(())
}
