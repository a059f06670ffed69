//! What the two operations have in common: how they are specified, and how a call is checked.

use crate::plan::{Path, PathChoice};
use crate::schedules::Schedules;
use crate::{Error, Group, PathPreference, Result};
use flux_launch::DType;
use flux_memory::{Address, Stream, next_epoch};
use flux_transport::Direction;
use std::ops::Range;
use std::sync::{Mutex, PoisonError};

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
    /// Type of all elements.
    pub dtype: DType,
    /// Which way calls go.
    pub path: PathPreference,
    /// Who moves data between ranks: the sender or the receiver.
    pub direction: Direction,
    /// Rows in which a shard travels; by default as many as the link needs for its speed.
    pub chunk_rows: Option<usize>,
}

impl OpSpec {
    /// A layer with a weight of `n` rows and `k` columns, for at most `max_m` rows of `dtype`.
    pub fn new(n: usize, k: usize, max_m: usize, dtype: DType) -> Self {
        Self { n, k, max_m, dtype, path: PathPreference::Auto, direction: Direction::Push, chunk_rows: None }
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

/// The rows of recent calls, so that ranks that disagree get an error instead of each other's rows.
#[derive(Debug, Default)]
pub(crate) struct Agreement {
    recent: Mutex<[(u32, usize); Self::CALLS]>,
}

impl Agreement {
    /// Ranks further apart than this many calls are not compared.
    const CALLS: usize = 32;

    /// `rank` makes call `epoch` with `m` rows.
    pub(crate) fn check(&self, rank: usize, epoch: u32, m: usize) -> Result<()> {
        let mut recent = self.recent.lock().unwrap_or_else(PoisonError::into_inner);
        let (seen, other) = &mut recent[epoch as usize % Self::CALLS];
        if *seen == epoch {
            let other = *other;
            return if m == other { Ok(()) } else { Err(Error::DifferentRows { rank, m, other }) };
        }
        if flux_memory::reached(epoch, *seen) {
            (*seen, *other) = (epoch, m);
        }
        Ok(())
    }
}

/// The checks that every call begins with.
pub(crate) fn check_call(group: &Group, spec: &OpSpec, rank: usize, m: usize, stream: &Stream) -> Result<()> {
    group.check()?;
    if m > spec.max_m {
        return Err(Error::TooManyRows { m, max_m: spec.max_m });
    }
    check_stream(group, rank, stream)
}

/// The stream must run on the rank's device.
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
    Ok(())
}

/// The parts of a call. Where ranks share a GPU, each phase is submitted for all of them before the next: then nothing
/// waits for what is submitted later, and streams that share a hardware queue, which runs what it holds in the order of
/// submission, cannot hold each other up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Phase {
    /// What depends on the rank alone, and on calls before.
    Begin,
    /// What depends on the peers' first phase.
    Transfer,
    /// What depends on the peers' first two phases, and the end.
    Finish,
}

/// What a rank keeps from call to call.
#[derive(Debug)]
pub(crate) struct RankState {
    epoch: u32,
    /// A call was enqueued in part: the ranks' epochs may disagree.
    broken: bool,
    schedules: Schedules,
}

impl RankState {
    pub(crate) const fn new(schedules: Schedules) -> Self {
        Self { epoch: 0, broken: false, schedules }
    }
}

/// An operation whose calls go in phases.
pub(crate) trait Phased {
    /// One rank's part of a call.
    type Call;

    fn agreement(&self) -> &Agreement;
    fn ranks(&self) -> &[Mutex<RankState>];

    /// Checks a part before anything is enqueued; returns its rows, and which way it goes.
    fn check(&self, rank: usize, call: &Self::Call, stream: &Stream) -> Result<(usize, PathChoice)>;

    /// Enqueues one phase of a part.
    ///
    /// # Safety
    /// What the call names is live and of the extents it says until `stream` has passed it.
    unsafe fn phase(
        &self,
        phase: Phase,
        part: (usize, u32, Path),
        call: &Self::Call,
        schedules: &mut Schedules,
        stream: &Stream,
    ) -> Result<()>;
}

/// Enqueues the calls of `ranks`, one of `calls` and `streams` each, phase by phase.
///
/// # Safety
/// As for [`Phased::phase`].
pub(crate) unsafe fn in_phases<Op: Phased>(
    op: &Op,
    ranks: Range<usize>,
    calls: &[Op::Call],
    streams: &[&Stream],
) -> Result<PathChoice> {
    let world_size = ranks.len();
    for (what, given) in [("calls", calls.len()), ("streams", streams.len())] {
        if given != world_size {
            return Err(Error::NotOnePerRank { what, given, world_size });
        }
    }
    let parts = || ranks.clone().zip(calls.iter().zip(streams));
    let lock = |rank: usize| op.ranks()[rank].lock().unwrap_or_else(PoisonError::into_inner);
    // Everything is checked before anything is noted or enqueued: a refused call leaves no trace.
    let mut chosen: Option<(usize, PathChoice)> = None;
    for (rank, (call, stream)) in parts() {
        let (m, choice) = op.check(rank, call, stream)?;
        if lock(rank).broken {
            return Err(Error::Broken);
        }
        match chosen {
            Some((other, _)) if other != m => return Err(Error::DifferentRows { rank, m, other }),
            _ => chosen = Some((m, choice)),
        }
    }
    let Some((m, choice)) = chosen else { return Err(Error::NoSuchRank { rank: 0, world_size }) };
    for rank in ranks.clone() {
        op.agreement().check(rank, next_epoch(lock(rank).epoch), m)?;
    }
    for rank in ranks.clone() {
        let mut state = lock(rank);
        state.epoch = next_epoch(state.epoch);
        state.broken = true; // until everything is enqueued
    }
    let _span = tracing::debug_span!("call", ?ranks, path = %choice.path).entered();
    for phase in [Phase::Begin, Phase::Transfer, Phase::Finish] {
        for (rank, (call, stream)) in parts() {
            let mut state = lock(rank);
            let part = (rank, state.epoch, choice.path);
            // SAFETY: the caller's promise.
            unsafe { op.phase(phase, part, call, &mut state.schedules, stream)? };
        }
    }
    ranks.for_each(|rank| lock(rank).broken = false);
    Ok(choice)
}

/// A size as a kernel takes it.
pub(crate) fn kernel_size(what: &'static str, value: usize) -> Result<u32> {
    Ok(u32::try_from(value).map_err(|_| flux_launch::Error::TooLarge { what, value })?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranks_that_disagree_are_told() {
        let agreement = Agreement::default();
        for epoch in 1..100 {
            agreement.check(0, epoch, epoch as usize).unwrap();
        }
        agreement.check(1, 99, 99).unwrap();
        assert!(matches!(agreement.check(1, 98, 7), Err(Error::DifferentRows { rank: 1, m: 7, other: 98 })));
        agreement.check(1, 2, 7).unwrap(); // too long ago to compare
    }

    #[test]
    fn impossible_matrices_are_refused() {
        let fine = Matrix { address: Address(64), pitch: 8 };
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
