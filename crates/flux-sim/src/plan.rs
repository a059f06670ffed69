//! What is computed, and how it is gone about.

use crate::{Error, Result, TileRate};
use flux_swizzle::{PanelCut, Pattern, Sweeps};

/// An operation on all ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Op {
    /// The rows of A are gathered, then multiplied.
    AgGemm,
    /// Partial products are summed at the rank that owns their rows.
    GemmRs,
    /// Partial products are summed on every rank.
    GemmAr,
}

impl Op {
    /// Its name on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Op::AgGemm => "ag-gemm",
            Op::GemmRs => "gemm-rs",
            Op::GemmAr => "gemm-ar",
        }
    }
}

/// An operation with the sizes of the GEMM that each rank computes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Problem {
    /// The operation.
    pub op: Op,
    /// Rows of all ranks together.
    pub m: usize,
    /// Columns of a rank's C.
    pub n: usize,
    /// Columns of a rank's A, once gathered.
    pub k: usize,
    /// Bytes of an element of A and B; those of C have 2.
    pub element_bytes: usize,
}

impl Problem {
    /// No extent may be larger.
    pub const MOST: usize = 1 << 24;

    pub(crate) fn check(&self) -> Result<()> {
        let Self { m, n, k, element_bytes, .. } = *self;
        for (what, value, most) in [
            ("m", m, Self::MOST),
            ("n", n, Self::MOST),
            ("k", k, Self::MOST),
            ("an element's size", element_bytes, 8),
        ] {
            if value > most {
                return Err(Error::TooLarge { what, value, most });
            }
        }
        Ok(())
    }

    /// Bytes of a row that travels, the first time.
    pub(crate) fn row_bytes(&self) -> usize {
        match self.op {
            Op::AgGemm => self.k * self.element_bytes,
            Op::GemmRs | Op::GemmAr => 2 * self.n,
        }
    }
}

/// The way that an operation goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Path {
    /// One GEMM, each of whose tiles waits for its own rows, or leaves by itself.
    Fused,
    /// One GEMM for each shard, beside the transfers of the others.
    Chunked,
    /// One after the other.
    Unfused,
}

/// What communicates where nothing is fused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Baseline {
    /// The same copies as in the fused way.
    Copies,
    /// NCCL, called from PyTorch.
    Nccl,
}

/// How an implementation does what a path says. [`Style::FLUX`] is this one; others are there to compare with what was published.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Style {
    /// What communicates in the unfused way.
    pub baseline: Baseline,
    /// The tiles that the fused kernel has, if not all of the GPU's.
    pub tiles: Option<&'static [TileRate]>,
    /// Receivers copy, instead of senders.
    pub pulls: bool,
    /// Barriers of all ranks before the transfers of a call.
    pub barriers: usize,
    /// The rank's own rows are copied to their place first.
    pub copies_own_rows: bool,
    /// Signals are zeroed before the transfers of a call, by a kernel.
    pub zeroes_signals: bool,
    /// A tile may hold rows of several shards, and then waits for all of them.
    pub straddles: bool,
    /// Before a ReduceScatter each shard's rows are padded to whole tiles, by copying A.
    pub pads_shards: bool,
    /// Where there are fewer tiles than SMs, the fused GEMM splits them along K. (What is left for a last wave always is.)
    pub splits: bool,
    /// The sum of a ReduceScatter is part of the GEMM's own tiles, instead of a kernel of its own behind a barrier.
    pub folds_sum: bool,
    /// Partial sums are summed on their way, where ways join, instead of going straight to their owner, each by itself.
    pub sums_on_the_way: bool,
    /// What the GPUs of a node have for another node is summed before it leaves, and only that: between nodes of several GPUs, each of
    /// them connected to all others of its node. (On other nodes it is not simulated.)
    pub sums_in_nodes: bool,
    /// Tiles for the rank itself are computed before those for others.
    pub own_first: bool,
    /// Into how many panels of columns the chunks of a GEMM's tiles are cut on their way to their owners, each by itself.
    pub panels: PanelCut,
    /// SMs store tiles to their owners, instead of copy engines that are told when tiles are complete.
    pub stores: bool,
    /// Nothing paces these stores, so that each SM that stores starves its own loads meanwhile: as long again as the link is busy.
    pub starves: bool,
    /// What a rank's first transfer of a call takes beyond the others, in µs.
    pub first_us: f64,
    /// Transfers begin no earlier after the call, in µs.
    pub sleep_us: f64,
}

impl Style {
    /// This implementation. Between two H200s an AllGather of 4.2 MB takes it 35 µs, where the bytes and the copy's own cost are 15:
    /// so much is added to the first transfer.
    pub const FLUX: Style = Style {
        baseline: Baseline::Copies,
        tiles: None,
        pulls: false,
        barriers: 0,
        copies_own_rows: false,
        zeroes_signals: false,
        straddles: false,
        pads_shards: false,
        splits: true,
        folds_sum: true,
        sums_on_the_way: false,
        sums_in_nodes: true,
        own_first: false,
        panels: PanelCut::BETWEEN_GPUS,
        stores: false,
        starves: false,
        first_us: 20.0,
        sleep_us: 0.0,
    };
}

impl Style {
    pub(crate) fn check(&self) -> Result<()> {
        let times = [self.first_us, self.sleep_us];
        let tiles = self.tiles.unwrap_or_default();
        if times.iter().all(|time| time.is_finite() && *time >= 0.0) && tiles.iter().all(TileRate::is_valid) {
            return Ok(());
        }
        Err(Error::Constants { what: "the style" })
    }
}

/// How an operation is gone about.
#[derive(Clone, Debug, PartialEq)]
pub struct Plan {
    /// Which way.
    pub path: Path,
    /// Rows of a chunk; by default a whole shard up to 32 MiB.
    pub chunk_rows: Option<usize>,
    /// Who sends to whom; by default as fits the machine.
    pub pattern: Option<Pattern>,
    /// How.
    pub style: Style,
    /// An AllReduce: whether each rank's tiles go to all ranks, which all sum all rows, or each rank sums a shard, and the shards
    /// are gathered; by default whichever is faster, of results that are small enough for the first.
    pub one_shot: Option<bool>,
    /// The fused way: how many shards are swept together, where each travels whole; by default as is fastest.
    pub sweeps: Option<Sweeps>,
    /// Whether to keep what happens when.
    pub timeline: bool,
}

impl Plan {
    /// A path, with all else as it is by default.
    pub fn new(path: Path) -> Self {
        let (chunk_rows, pattern, one_shot, sweeps) = (None, None, None, None);
        Self { path, chunk_rows, pattern, style: Style::FLUX, one_shot, sweeps, timeline: false }
    }
}
