//! What a plan is for.

use super::facts::number;
use crate::{DType, Levels, OpSpec};
use flux_swizzle::{Shards, Sweeps, TileShape};
use serde::{Deserialize, Serialize};

/// The operations, by name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum OpKind {
    /// [`crate::AgGemm`].
    AgGemm,
    /// [`crate::GemmRs`].
    GemmRs,
    /// [`crate::GemmAr`].
    GemmAr,
}

impl OpKind {
    /// Its name on the command line.
    pub const fn name(self) -> &'static str {
        match self {
            OpKind::AgGemm => "ag-gemm",
            OpKind::GemmRs => "gemm-rs",
            OpKind::GemmAr => "gemm-ar",
        }
    }
}

impl std::fmt::Display for OpKind {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name())
    }
}

/// Calls of one operation, but for how many rows they have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Layer {
    pub(crate) op: OpKind,
    /// Of the whole weight.
    pub(crate) n: usize,
    pub(crate) k: usize,
    pub(crate) dtype: DType,
    pub(crate) world_size: usize,
    /// Between nodes, where it can be.
    pub(crate) sums_in_nodes: bool,
    /// The tile that was asked for.
    pub(crate) tile: Option<TileShape>,
    /// The panels that were asked for.
    pub(crate) panels: Option<usize>,
    /// The sweeps that were asked for.
    pub(crate) sweeps: Option<Sweeps>,
    /// A number of all that the caller has decided: what is measured then says nothing of calls that are free to go another way.
    pub(crate) asked: u64,
}

impl Layer {
    pub(crate) fn new(op: OpKind, spec: &OpSpec, world_size: usize) -> Self {
        let &OpSpec { n, k, dtype, levels, path, direction, delivery, summation, push, .. } = spec;
        let OpSpec { order, chunk_rows, taper, panels, sweeps, one_shot_rows, keep_gathered, tile, .. } =
            spec;
        let rows = (chunk_rows, taper, panels, sweeps, one_shot_rows, keep_gathered, tile);
        let asked = number(&format!(
            "{levels} {path:?} {direction:?} {delivery} {summation} {push} {order} {rows:?}"
        ));
        Self {
            op,
            n,
            k,
            dtype,
            world_size,
            sums_in_nodes: levels != Levels::One,
            tile: *tile,
            panels: *panels,
            sweeps: *sweeps,
            asked,
        }
    }

    /// Rows and columns of a rank's weight: of the largest.
    pub(crate) const fn of_rank(&self) -> (usize, usize) {
        match self.op {
            OpKind::AgGemm => (self.n.div_ceil(self.world_size), self.k),
            OpKind::GemmRs | OpKind::GemmAr => (self.n, self.k.div_ceil(self.world_size)),
        }
    }

    /// Bytes of a row that travels.
    pub(crate) const fn row_bytes(&self) -> usize {
        match self.op {
            OpKind::AgGemm => self.k * self.dtype.bytes(),
            OpKind::GemmRs | OpKind::GemmAr => self.n * self.dtype.result().bytes(),
        }
    }

    /// How the rows are shared out; a group has at least one rank.
    pub(crate) fn shards(&self, m: usize) -> crate::Result<Shards> {
        Ok(Shards::new(m, self.world_size)?)
    }
}
