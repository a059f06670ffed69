//! What the two operations have in common: how they are specified, and how a call is checked.

use crate::{Error, Group, PathPreference, Result};
use flux_launch::DType;
use flux_memory::{Address, Stream};
use flux_transport::Direction;
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
    let device = group.device(rank)?;
    if m > spec.max_m {
        return Err(Error::TooManyRows { m, max_m: spec.max_m });
    }
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
