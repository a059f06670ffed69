//! What the host hands to a kernel, on either backend. Mirrors `kernels/params.cuh` field by field; a test compares the
//! sizes with the ones in the compiled kernels' manifest.

use crate::DType;
use bytemuck::{Pod, Zeroable};
use flux_memory::{Address, WaitBound};

/// What a GEMM waits for, and where its tiles go: policies of one kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Policy {
    /// Waits for nothing, writes C.
    Plain,
    /// Loads a tile's rows of A only when its gate is open, writes C.
    AllGather,
    /// Writes a tile into its destinations' slots when its gate is open; the last tile of a block of rows raises the block's
    /// signal there.
    ReduceScatter,
}

impl Policy {
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Policy::Plain => "plain",
            Policy::AllGather => "ag",
            Policy::ReduceScatter => "rs",
        }
    }
}

/// What is applied, in fp32, to a sum and its bias before they are rounded.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[repr(u32)]
pub enum Activation {
    /// Nothing.
    #[default]
    None,
    /// GELU in its tanh form: x · (1 + tanh(√(2/π) · (x + 0.044715 x³))) / 2.
    Gelu,
    /// SiLU: x / (1 + exp(−x)).
    Silu,
    /// Rows 2j and 2j + 1 of the weight are a pair, gate and up: column j of C is silu(gate) · up. C has half as many
    /// columns as the weight has rows, which are even in number.
    SwiGlu,
}

impl Activation {
    /// As the kernels number them.
    pub(crate) const fn code(self) -> u32 {
        self as u32
    }

    /// How many adjacent rows of the weight, and their sums, make one column of C.
    pub const fn sums_per_column(self) -> usize {
        match self {
            Activation::SwiGlu => 2,
            _ => 1,
        }
    }
}

impl std::fmt::Display for Activation {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Activation::None => "none",
            Activation::Gelu => "gelu",
            Activation::Silu => "silu",
            Activation::SwiGlu => "swiglu",
        })
    }
}

/// A block of rows of the output, all of one shard: what it waits for and where it goes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Pod, Zeroable)]
#[repr(C)]
pub struct RowTile {
    /// First row, in A and in C.
    pub row: u32,
    /// Rows, at least 1.
    pub rows: u32,
    /// Signals `gate_begin..gate_end` must have reached the gate epoch.
    pub gate_begin: u32,
    /// See `gate_begin`.
    pub gate_end: u32,
    /// ReduceScatter: index of the first [`Destination`] that gets the tile.
    pub destination: u32,
    /// ReduceScatter: first row in the destination's slot.
    pub destination_row: u32,
    /// ReduceScatter: the number, at each destination, of the signal of the rows that share [`RowTile::counter`].
    pub signal: u32,
    /// The rank whose signal the gate waits for, for the fault record; of a ReduceScatter's gate, the first signal's, and
    /// the next ranks' signals follow.
    pub peer: u32,
    /// ReduceScatter: the number of the counter of the block's written tiles. Only tiles that share a counter share a signal.
    pub counter: u32,
    /// How many tiles it counts: filled in by [`crate::ScheduleTables`].
    pub count: u32,
}

/// Where partial tiles for one peer go: into its memory, or into this rank's, if something else carries them on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Pod, Zeroable)]
#[repr(C)]
pub struct Destination {
    /// Where the peer's rows begin, row pitch `ldc`.
    pub slot: Address,
    /// The signals that row tiles number.
    pub signals: Address,
}

/// How a block of rows of a rank's tiles gets to a peer whose memory its kernels are given no address of. Laid out as in
/// `kernels/params.cuh`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Pod, Zeroable)]
#[repr(C)]
pub struct PutRoute {
    slot: Address,
    signals: Address,
    pe: u32,
    way: u32,
}

impl PutRoute {
    /// Tiles are not put: they are written to their [`Destination`].
    pub const NONE: Self = Self { slot: Address::NULL, signals: Address::NULL, pe: 0, way: 0 };

    /// NVSHMEM has addresses: of the peer's slot, and of its signals of 64 bits, one for each [`crate::SIGNAL_ROWS`] rows. Its own
    /// puts would store there, and so does the kernel's.
    pub const fn by_address(slot: Address, signals: Address, pe: u32) -> Self {
        Self { slot, signals, pe, way: 1 }
    }

    /// By NVSHMEM's transport; both are places in this rank's symmetric memory.
    pub const fn by_transfer(slot: Address, signals: Address, pe: u32) -> Self {
        Self { slot, signals, pe, way: 2 }
    }
}

/// What a GEMM takes that puts by itself.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Pod, Zeroable)]
#[repr(C)]
pub(crate) struct PutParams {
    pub(crate) routes: Address,
    pub(crate) block_rows: u32,
    pub(crate) world_size: u32,
    pub(crate) set: u32,
    pub(crate) reserved: u32,
}

/// The same with all else.
#[derive(Clone, Copy, Debug, Default, Pod, Zeroable)]
#[repr(C)]
pub(crate) struct PutGemmParams {
    pub(crate) params: GemmParams,
    pub(crate) puts: PutParams,
}

/// The sum of a ReduceScatter, folded into the epilogue of the tiles that this rank itself sums, in place of [`SumParams`]:
/// such a tile goes nowhere but to C. When the other sources' signals are up, their slots are added to the tile's own sums,
/// which are rounded first as if they came from a slot, in the order of the sources; then the bias, and the one rounding.
#[derive(Clone, Copy, Debug, Default, Pod, Zeroable)]
#[repr(C)]
pub struct FoldParams {
    /// `[sources][slot_rows][ldc]`; the own one is not read.
    pub slots: Address,
    /// `[n]`: added to every row, once; null for none.
    pub bias: Address,
    /// Row pitch of C, `[rows, n]`, in elements: a tile's row there is its [`RowTile::destination_row`].
    pub ld_out: u64,
    /// How many; 0 if nothing is folded.
    pub sources: u32,
    /// The destination whose tiles are summed here, and their place among the sources.
    pub own: u32,
    /// Rows of a slot.
    pub slot_rows: u32,
    /// Rows of C.
    pub rows: u32,
    /// The signal of a source and a tile is number `source · source_stride` + [`RowTile::signal`] of the gates.
    pub source_stride: u32,
    /// What the signals must have reached.
    pub epoch: u32,
}

/// C = A·Bᵀ, tile by tile in a given order. A is `[rows, k]`, B `[n, k]`, C `[rows, n]`, all row-major; pitches in
/// elements. Of SwiGLU, C is `[rows, n / 2]`.
#[derive(Clone, Copy, Debug, Default, Pod, Zeroable)]
#[repr(C)]
pub struct GemmParams {
    /// A.
    pub a: Address,
    /// B.
    pub b: Address,
    /// C; in ReduceScatter, of what is folded.
    pub c: Address,
    /// Row pitch of A.
    pub lda: u64,
    /// Row pitch of B.
    pub ldb: u64,
    /// Row pitch of C, or of the slots.
    pub ldc: u64,
    /// `u32[tiles]`: row tile in the upper half, column tile in the lower.
    pub order: Address,
    /// `RowTile[]`.
    pub row_tiles: Address,
    /// `u32[]`, the signals that gates name.
    pub gates: Address,
    /// `Destination[]`.
    pub destinations: Address,
    /// ReduceScatter: `u32[]`, the counters that row tiles name, all 0 between launches.
    pub counters: Address,
    /// `[n]`: added to every row of sums; null for none, and in ReduceScatter, where it comes in when the slots are
    /// summed.
    pub bias: Address,
    /// AllGather: rows `own_row..own_row + own_rows` of A lie here, and not at `a`; no tile has rows of both.
    pub own_a: Address,
    /// See `own_a`.
    pub own_row: u32,
    /// See `own_a`; 0 if all rows lie at `a`.
    pub own_rows: u32,
    /// Rows of A and C.
    pub m: u32,
    /// Rows of B.
    pub n: u32,
    /// Columns of A and B.
    pub k: u32,
    /// Entries of the order.
    pub tiles: u32,
    /// What a gate's signals must have reached.
    pub gate_epoch: u32,
    /// What a signal is raised to.
    pub epoch: u32,
    /// ReduceScatter: a tile goes to so many destinations, one behind the other in `destinations`.
    pub destination_count: u32,
    /// The [`Activation`]'s code: filled in by the launcher.
    pub activation: u32,
    /// ReduceScatter: the sum that is folded in, if [`crate::Launcher::can_fold`].
    pub fold: FoldParams,
    /// The bound of every wait.
    pub wait: WaitBound,
}

impl GemmParams {
    /// Whether the rows of A and B, of `dtype`, all begin at multiples of 16 bytes, as the fastest kernels need.
    pub fn are_operands_aligned(&self, dtype: DType) -> bool {
        let elements = 16 / dtype.bytes() as u64;
        let is_aligned =
            |address: Address, pitch: u64| address.is_aligned_to(16) && pitch.is_multiple_of(elements);
        let is_own_aligned = self.own_rows == 0 || is_aligned(self.own_a, self.lda);
        is_aligned(self.a, self.lda) && is_own_aligned && is_aligned(self.b, self.ldb)
    }
}

/// What every sum of products is multiplied by, in fp32, before a bias is added: its row's scale of A, and its column's of B.
/// For [`DType::E4m3`] only.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Pod, Zeroable)]
#[repr(C)]
pub struct Scales {
    /// `f32`, or `f32[m]`, one for each row of A; null for 1.
    pub a: Address,
    /// `f32`, or `f32[n]`, one for each row of B; null for 1.
    pub b: Address,
    /// 1 if there is one for each row, 0 if there is one for all.
    pub a_stride: u32,
    /// As `a_stride`, of B.
    pub b_stride: u32,
}

/// What the portable GEMM takes if its elements have scales.
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C)]
pub(crate) struct ScaledGemmParams {
    pub(crate) gemm: GemmParams,
    pub(crate) scales: Scales,
}

/// The sum of the slots in rank order: `out[row, column] = Σ slots[source][row, column] + bias[column]`, in fp32,
/// rounded once.
#[derive(Clone, Copy, Debug, Default, Pod, Zeroable)]
#[repr(C)]
pub struct SumParams {
    /// `[world_size][slot rows][ld_slot]`.
    pub slots: Address,
    /// Elements between two sources' slots.
    pub source_pitch: u64,
    /// Row pitch of a slot in elements.
    pub ld_slot: u64,
    /// `[rows, n]`.
    pub out: Address,
    /// Row pitch of the output in elements.
    pub ld_out: u64,
    /// `[n]`: added to every row, once; null for none.
    pub bias: Address,
    /// The signal of (source, row) is number `source · source_stride + row / signal_rows`.
    pub signals: Address,
    /// See `signals`.
    pub source_stride: u32,
    /// See `signals`; at least 1.
    pub signal_rows: u32,
    /// Rows of the output.
    pub rows: u32,
    /// Columns of the output.
    pub n: u32,
    /// Sources.
    pub world_size: u32,
    /// What the signals must have reached.
    pub epoch: u32,
    /// The bound of every wait.
    pub wait: WaitBound,
}

/// What a rank knows of one peer that it pushes its shard to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Pod, Zeroable)]
#[repr(C)]
pub struct PushPeer {
    /// The peer's gathered rows.
    pub gathered: Address,
    /// `u32[]`: the peer's signals of this rank's chunks; null if they are not to be raised.
    pub signals: Address,
    /// The peer's signal of this rank's whole shard; null likewise.
    pub arrived: Address,
}

/// A rank's shard on its way to all its peers. All addresses and sizes are multiples of 16 bytes:
/// [`PushParams::is_aligned`].
#[derive(Clone, Copy, Debug, Default, Pod, Zeroable)]
#[repr(C)]
pub struct PushParams {
    /// The shard.
    pub shard: Address,
    /// From the begin of the gathered rows, of the shard's place among them, in bytes.
    pub offset: u64,
    /// Size of the shard.
    pub bytes: u64,
    /// Size of a chunk; the last one may be shorter.
    pub chunk_bytes: u64,
    /// `PushPeer[peer_count]`, in the order in which they are served.
    pub peers: Address,
    /// `u32[peer_count · chunks]`, all 0 between launches.
    pub counters: Address,
    /// How many peers there are.
    pub peer_count: u32,
    /// How many chunks the shard is.
    pub chunks: u32,
    /// What signals are raised to.
    pub epoch: u32,
    /// 1 if not each chunk's signal is raised, but the whole shard's.
    pub by_shard: u32,
}

impl PushParams {
    /// Whether the kernel can move this shard; the gathered rows themselves are to begin at multiples of 16 bytes.
    pub const fn is_aligned(&self) -> bool {
        self.shard.is_aligned_to(16)
            && self.offset.is_multiple_of(16)
            && self.bytes.is_multiple_of(16)
            && self.chunk_bytes.is_multiple_of(16)
    }
}
