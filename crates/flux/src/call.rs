//! What the operations have in common: how they are specified, and how a call is checked.

use crate::agreement::{Agreement, Terms};
use crate::plan::{Path, PathChoice};
use crate::schedules::Schedules;
use crate::{Delivery, Error, Group, Levels, Order, PathPreference, Push, Result, Summation};
use flux_launch::{Activation, DType};
use flux_memory::{Address, PerRank, Stream};
use flux_swizzle::{Sweeps, Taper, TileShape};
use flux_transport::{Direction, TransferLog};
use std::ops::Range;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// What an operation is built for: one layer, any number of rows up to a maximum.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct OpSpec {
    /// Rows of the whole weight, all ranks' together.
    pub n: usize,
    /// Columns of the whole weight, all ranks' together.
    pub k: usize,
    /// The most rows that a call may have, all ranks' together.
    pub max_m: usize,
    /// Type of the elements of A and the weight. That of C and of a bias is [`DType::result`].
    pub dtype: DType,
    /// [`crate::AgGemm`] only: what is applied to the sums, and a call's bias, before they are rounded. With
    /// [`Activation::SwiGlu`], rows 2j and 2j + 1 of the weight are gate and up of column j of the result, which has n
    /// / 2 columns; pairs stay on one rank.
    pub activation: Activation,
    /// Which way calls go.
    pub path: PathPreference,
    /// Who moves data between ranks, the sender or the receiver; by default whichever is expected to be faster.
    pub direction: Option<Direction>,
    /// Who sends to whom, and so in which order tiles are computed. What is summed goes straight to its owner, whatever the order, or
    /// between nodes in two levels ([`OpSpec::levels`]).
    pub order: Order,
    /// [`crate::AgGemm`], and [`crate::GemmAr`] in two steps: how pushed shards get to the peers.
    pub push: Push,
    /// [`crate::GemmRs`] and [`crate::GemmAr`]: how the tiles of a fused call get to the ranks that sum them.
    pub delivery: Delivery,
    /// [`crate::GemmRs`] and [`crate::GemmAr`]: where the tiles of a fused call are summed.
    pub summation: Summation,
    /// [`crate::GemmRs`], and [`crate::GemmAr`] in two steps: whether what goes to another node is summed in its own before.
    pub levels: Levels,
    /// The tile that GEMMs are cut into: one of the kernels' ([`crate::Error::NoSuchTile`] lists them). By default the one that is
    /// expected, or was measured, to be the fastest. Rows that are not aligned to 16 bytes have a kernel and a tile of their own.
    pub tile: Option<TileShape>,
    /// Rows in which a shard travels; by default all of them, but at most 32 MiB, unless fewer are expected to be clearly better for so many rows, and over a slow link finer where it
    /// pays ([`OpSpec::taper`]). Relayed tiles travel in multiples of 256 rows: this, rounded up. Over NVLink a whole shard at once
    /// is best where K is long (in four it took 3.6 % longer, on two H200s), and not where its way takes about as long as its GEMM.
    pub chunk_rows: Option<usize>,
    /// Which chunks are cut finer than that: of those that a rank gathers, mostly the last; of those that it relays, the first. Counted
    /// from the next rank around the world, whatever the order. By default none if the caller gives `chunk_rows`; else, where
    /// ranks exchange through pinned host memory, so many that GEMM and traffic are expected to end earliest.
    pub taper: Option<Taper>,
    /// [`crate::GemmRs`] and [`crate::GemmAr`]: into how many panels, blocks of columns, the chunks of relayed tiles are cut, each of which
    /// leaves when its own tiles are complete. By default four between GPUs that reach each other's memory, or as many as have 4 MiB;
    /// elsewhere one, and always one between nodes. Panels are at least 256 columns wide; 0 counts as one.
    pub panels: Option<usize>,
    /// How many shards the GEMM of a fused call sweeps together, where each travels whole. By default one by one, unless others are
    /// expected to be clearly faster, as the weight is then read less often; always one by one where the taper decides.
    pub sweeps: Option<Sweeps>,
    /// [`crate::AgGemm`] only: whether the gathered A is wanted too ([`crate::AgGemm::gathered`]). Then the rank's own rows
    /// are copied to their place among it before the GEMM begins, which otherwise reads them where the caller has them.
    pub keep_gathered: bool,
    /// [`crate::GemmAr`] only: the most rows of a call whose tiles go to all ranks at once; with more, each rank sums a
    /// shard of the rows, and the shards are gathered. By default as many as fit into 1 MiB, at most 256: what is sent in
    /// excess then takes no longer than gathering takes to begin. 0: none; `max_m`: all.
    pub one_shot_rows: Option<usize>,
    /// For how many rows calls are measured when the operation is built ([`crate::tune`]), unless they have been before. None by
    /// default: it takes seconds.
    pub tune_rows: Vec<usize>,
}

impl OpSpec {
    /// A layer with a weight of `n` rows and `k` columns, for at most `max_m` rows, all of `dtype`.
    pub fn new(n: usize, k: usize, max_m: usize, dtype: DType) -> Self {
        Self {
            n,
            k,
            max_m,
            dtype,
            activation: Activation::None,
            path: PathPreference::Auto,
            direction: None,
            order: Order::Auto,
            push: Push::Auto,
            delivery: Delivery::Auto,
            summation: Summation::Auto,
            levels: Levels::Auto,
            tile: None,
            chunk_rows: None,
            taper: None,
            panels: None,
            sweeps: None,
            keep_gathered: false,
            one_shot_rows: None,
            tune_rows: Vec::new(),
        }
    }
}

impl OpSpec {
    /// The extents are such as the kernels can count.
    pub(crate) fn check(&self) -> Result<()> {
        for (what, extent) in [("the number of rows", self.max_m), ("n", self.n), ("k", self.k)] {
            kernel_size(what, extent)?;
        }
        Ok(())
    }
}

/// A row-major matrix in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Matrix {
    /// The first element.
    pub address: Address,
    /// Elements from one row to the next.
    pub pitch: usize,
}

impl Matrix {
    /// A matrix of `columns` columns whose rows follow each other without a gap.
    pub const fn contiguous(address: Address, columns: usize) -> Self {
        Self { address, pitch: columns }
    }

    /// The same matrix from `row` on. Behind a last row there need be no pitch: then the result is not accessed.
    pub(crate) const fn rows_from(self, row: usize, dtype: DType) -> Self {
        Self { address: self.address.add(row.wrapping_mul(self.pitch).wrapping_mul(dtype.bytes())), ..self }
    }

    pub(crate) fn check(&self, name: &'static str, rows: usize, columns: usize, dtype: DType) -> Result<()> {
        let bad = |reason: String| Err(Error::BadMatrix { name, reason });
        if rows == 0 || columns == 0 {
            return Ok(());
        }
        if self.pitch < columns {
            return bad(format!("the pitch of {} elements is less than its {columns} columns", self.pitch));
        }
        if self.address.is_null() {
            return bad(format!("the address is null, but it has {rows} rows and {columns} columns"));
        }
        if !self.address.is_aligned_to(dtype.bytes() as u64) {
            return bad(format!("the address {} is not aligned to its {dtype} elements", self.address));
        }
        Ok(())
    }
}

/// The checks that every part of a call begins with.
pub(crate) fn check_call(group: &Group, spec: &OpSpec, rank: usize, m: usize, stream: &Stream) -> Result<()> {
    if m > spec.max_m {
        return Err(Error::TooManyRows { m, max_m: spec.max_m });
    }
    check_stream(group, rank, stream)
}

/// The stream must run on the rank's device, and do what is enqueued.
pub(crate) fn check_stream(group: &Group, rank: usize, stream: &Stream) -> Result<()> {
    let device = group.device(rank)?;
    let of_stream = stream.device();
    let same = match (device.as_cuda(), of_stream.as_cuda()) {
        (Some(a), Some(b)) => a.ordinal() == b.ordinal(),
        (None, None) => true,
        _ => false,
    };
    if !same {
        return Err(Error::WrongStream { stream: of_stream.to_string(), rank, device: device.to_string() });
    }
    if stream.is_capturing()? {
        return Err(Error::Captured { rank });
    }
    Ok(())
}

/// The parts of a call; an operation need not have all of them. Where ranks share a GPU, each phase is submitted for all of them before the next: then nothing
/// waits for what is submitted later, and streams that share a hardware queue, which runs what it holds in the order of
/// submission, cannot hold each other up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Phase {
    /// What depends on the rank alone, and on calls before.
    Begin,
    /// What depends on the peers' first phase: rows move before the GEMM, after it, or as it completes them.
    Transfer,
    /// What depends on the peers' first two phases: the sum of what they sent.
    Sum,
    /// What depends on the peers' sums.
    Gather,
    /// What depends on all before, and the end.
    Finish,
}

impl Phase {
    const ALL: [Self; 5] = [Self::Begin, Self::Transfer, Self::Sum, Self::Gather, Self::Finish];
}

/// Signals compare modulo 2³², and a call need not raise all of them: beyond this many calls an old one could pass for new.
const MAX_CALLS: u32 = i32::MAX.cast_unsigned();

/// What an operation keeps from call to call.
#[derive(Debug)]
pub(crate) struct OpState {
    agreement: Agreement,
    world_size: usize,
    ranks: PerRank<Mutex<RankState>>,
}

#[derive(Debug)]
pub(crate) struct RankState {
    epoch: u32,
    /// A call was enqueued in part: the ranks' epochs may disagree.
    broken: bool,
    pub(crate) schedules: Schedules,
}

impl OpState {
    /// Each rank's `schedules`, of the ranks that live in this process.
    pub(crate) fn new(group: &Group, schedules: PerRank<Schedules>) -> Result<Self> {
        let state = |schedules| Mutex::new(RankState { epoch: 0, broken: false, schedules });
        let ranks = schedules.map(state);
        Ok(Self { agreement: Agreement::new(&group.members().space)?, world_size: group.world_size(), ranks })
    }

    pub(crate) const fn world_size(&self) -> usize {
        self.world_size
    }

    pub(crate) fn lock(&self, rank: usize) -> MutexGuard<'_, RankState> {
        self.ranks[rank].lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// An operation whose calls go in phases.
pub(crate) trait Phased {
    /// One rank's part of a call.
    type Call;

    fn group(&self) -> &Group;
    fn state(&self) -> &OpState;

    /// Waits on this thread until everything that was enqueued for transfers has ended.
    fn settle(&self);

    /// When each of `rank`'s transfer streams moved which chunk; none unless the group is traced.
    fn transfer_logs(&self, rank: usize) -> Vec<&TransferLog>;

    /// In how many rounds a phase is enqueued, each for all ranks before the next.
    fn rounds(&self, _phase: Phase) -> usize {
        1
    }

    /// Checks a part before anything is enqueued; returns what all ranks must agree on, and which way it goes.
    fn check(&self, rank: usize, call: &Self::Call, stream: &Stream) -> Result<(Terms, PathChoice)>;

    /// Enqueues one round of a phase of a part.
    ///
    /// # Safety
    /// What the call names is live and of the extents it says until `stream` has passed it.
    unsafe fn phase(
        &self,
        phase: (Phase, usize),
        part: (usize, u32, Path),
        call: &Self::Call,
        schedules: &mut Schedules,
        stream: &Stream,
    ) -> Result<()>;
}

/// Enqueues the call of one rank.
///
/// # Safety
/// As for [`Phased::phase`].
pub(crate) unsafe fn one<Op: Phased>(
    op: &Op,
    rank: usize,
    call: &Op::Call,
    stream: &Stream,
) -> Result<PathChoice> {
    let turns = op.group().turns();
    op.group().check_rank(rank)?;
    let rank_turn = &turns.ranks[rank];
    let _turn = turns.all.read().unwrap_or_else(PoisonError::into_inner);
    let _rank_turn = rank_turn.lock().unwrap_or_else(PoisonError::into_inner);
    // SAFETY: the caller's promise.
    unsafe { in_phases(op, rank..rank + 1, std::slice::from_ref(call), &[stream]) }
}

/// Enqueues the calls of all ranks of this process, each on its own stream.
///
/// # Safety
/// As for [`Phased::phase`].
pub(crate) unsafe fn all<Op: Phased>(op: &Op, calls: &[Op::Call], streams: &[&Stream]) -> Result<PathChoice> {
    let ranks = op.group().local_ranks();
    for (what, given) in [("calls", calls.len()), ("streams", streams.len())] {
        if given != ranks.len() {
            return Err(Error::NotOnePerRank { what, given, world_size: ranks.len() });
        }
    }
    let _turn = op.group().turns().all.write().unwrap_or_else(PoisonError::into_inner);
    // SAFETY: the caller's promise.
    unsafe { in_phases(op, ranks, calls, streams) }
}

/// Enqueues the calls of `ranks`, one of `calls` and `streams` each, phase by phase. The caller has the ranks' turn.
///
/// # Safety
/// As for [`Phased::phase`].
unsafe fn in_phases<Op: Phased>(
    op: &Op,
    ranks: Range<usize>,
    calls: &[Op::Call],
    streams: &[&Stream],
) -> Result<PathChoice> {
    op.group().check()?;
    let state = op.state();
    let parts = || ranks.clone().zip(calls.iter().zip(streams));
    // Everything is checked before anything is noted or enqueued: a refused call leaves no trace.
    let mut chosen: Option<(Terms, PathChoice)> = None;
    for (rank, (call, stream)) in parts() {
        let (terms, choice) = op.check(rank, call, stream)?;
        let rank_state = state.lock(rank);
        if rank_state.broken {
            return Err(Error::Broken);
        }
        if rank_state.epoch == MAX_CALLS {
            return Err(Error::TooManyCalls);
        }
        if let Some((other, _)) = chosen {
            terms.check(rank, other)?;
        }
        chosen = Some((terms, choice));
    }
    let Some((terms, mut choice)) = chosen else { return Err(Error::NoSuchRank { rank: 0, world_size: 0 }) };
    let epochs = ranks.clone().map(|rank| (rank, state.lock(rank).epoch + 1));
    state.agreement.check(epochs, terms)?;
    for rank in ranks.clone() {
        let mut rank_state = state.lock(rank);
        rank_state.epoch += 1;
        rank_state.broken = true; // until everything is enqueued
        rank_state.schedules.begin_call(choice.tile, choice.sweeps);
        op.transfer_logs(rank).into_iter().for_each(TransferLog::begin);
    }
    let _span = tracing::debug_span!("call", ?ranks, path = %choice.path).entered();
    let rounds = |phase| (0..op.rounds(phase)).map(move |round| (phase, round));
    for phase in Phase::ALL.into_iter().flat_map(rounds) {
        for (rank, (call, stream)) in parts() {
            let mut rank_state = state.lock(rank);
            let part = (rank, rank_state.epoch, choice.path);
            // SAFETY: the caller's promise.
            let enqueued = unsafe { op.phase(phase, part, call, &mut rank_state.schedules, stream) };
            if let Err(error) = enqueued {
                // What was enqueued uses memory that its owners may free after an error. It ends: every wait is bounded.
                op.settle();
                for stream in streams {
                    stream
                        .synchronize()
                        .unwrap_or_else(|error| tracing::warn!(%error, "after a failed call"));
                }
                return Err(error);
            }
        }
    }
    if choice.delivery.is_some() {
        let all_folded = ranks.clone().all(|rank| state.lock(rank).schedules.folded());
        choice.summation = Some(if all_folded { Summation::Folded } else { Summation::Separate });
    }
    ranks.for_each(|rank| state.lock(rank).broken = false);
    Ok(choice)
}

/// The largest extent: the kernels count in 32 bits, with signs, and round up to whole tiles.
const MAX_EXTENT: usize = (i32::MAX - 255).cast_unsigned() as usize;

/// An extent of a matrix, as a kernel takes it.
pub(crate) fn kernel_size(what: &'static str, value: usize) -> Result<u32> {
    match u32::try_from(value) {
        Ok(size) if value <= MAX_EXTENT => Ok(size),
        _ => Err(flux_launch::Error::TooLarge { what, value }.into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn impossible_matrices_are_refused() {
        let fine = Matrix { address: Address(64), pitch: 8 };
        assert_eq!(fine.rows_from(3, DType::Bf16).address, Address(112));
        let one_row = Matrix { pitch: usize::MAX, ..fine };
        assert_eq!(one_row.rows_from(0, DType::Bf16), one_row);
        let _unused = one_row.rows_from(5, DType::Bf16);
        fine.check("A", 3, 8, DType::Bf16).unwrap();
        for bad in [
            Matrix { pitch: 7, ..fine },
            Matrix { address: Address::NULL, ..fine },
            Matrix { address: Address(65), ..fine },
        ] {
            assert!(matches!(bad.check("A", 3, 8, DType::Bf16), Err(Error::BadMatrix { .. })), "{bad:?}");
            bad.check("A", 0, 8, DType::Bf16).unwrap();
        }
    }
}
