//! What Hopper's GEMM takes beyond the portable one: tensor maps, split tiles, and room for their partial sums.

use crate::catalogue::KernelInfo;
use crate::tensor_map::{Layers, MapOf, TensorMap};
use crate::tiling;
use crate::{DType, GemmParams, Launch, Policy, Result, Scales, Tiling};
use bytemuck::{Pod, Zeroable};
use cudarc::driver::sys::CUdevice_attribute;
use flux_memory::cuda::CudaDevice;
use flux_memory::{Address, Buffer, Device, Placement};
use std::ops::Range;

/// Rows of the pieces in which finished tiles leave.
pub(crate) const PIECE_ROWS: u32 = 64;
/// Columns of the pieces, by kernel.
pub(crate) const PIECE_COLUMNS: [u32; 3] = [64, 32, 16];
/// Bytes of a row of A or B in a stage, and so in a box.
pub(crate) const STAGE_BYTES: u32 = 128;
/// Bytes of an element of C, or of a slot: of all types' results.
const RESULT_BYTES: u32 = 2;
/// Warpgroups of a block that multiply.
const WARPGROUPS: u32 = 2;
/// Rows of a box of A; a taller tile takes two.
const MAX_BOX_ROWS: u32 = 128;

/// Mirrors `HopperParams` in `kernels/params.cuh`.
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C, align(64))]
pub(crate) struct HopperParams {
    a: TensorMap,
    b: TensorMap,
    own_a: TensorMap,
    c: TensorMap,
    slots: [TensorMap; 2],
    gemm: GemmParams,
    destination_maps: Address,
    partials: Address,
    arrivals: Address,
    split_tiles: u32,
    parts: u32,
    a_box_rows: u32,
    by_rows: u16,
    is_row: u16,
    scales: Scales,
    slot_parts: u32,
    tile_columns: u32,
    b_box_rows: u32,
    a_boxes: u16,
    b_boxes: u16,
    sharing: u32,
    lets_next_begin: u32,
    part_shift: u32,
    /// The size is a multiple of the alignment.
    padding: u32,
}

impl HopperParams {
    /// How many units of work the blocks of a launch share.
    pub(crate) const fn units(&self) -> u32 {
        self.gemm.tiles + self.split_tiles * (self.parts - 1)
    }

    /// Blocks of a cluster.
    pub(crate) const fn cluster(&self) -> u32 {
        if self.sharing == Sharing::None as u32 { 1 } else { 2 }
    }
}

/// What two blocks of a cluster load together, if their tiles have it in common.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(u32)]
pub(crate) enum Sharing {
    /// Nothing: there are no clusters.
    #[default]
    None,
    /// Rows of A.
    A,
    /// Rows of B.
    B,
}

impl Sharing {
    /// Units are shared out in pairs, which go in step: both have as many blocks of K, and nothing else to load. The rows of
    /// what is shared are halved.
    const fn suits(self, tiling: &Tiling, gemm: &GemmParams, tile_columns: u32) -> bool {
        let paired =
            gemm.tiles.is_multiple_of(2) && tiling.split_tiles.is_multiple_of(2) && gemm.fold.sources == 0;
        let halves = match self {
            Self::None => true,
            Self::A => tiling.shape.rows <= MAX_BOX_ROWS as usize,
            Self::B => tile_columns.is_multiple_of(2 * SWIZZLED_ROWS),
        };
        paired && halves
    }
}

/// Rows after which a stage's swizzle begins anew: boxes have multiples of so many.
const SWIZZLED_ROWS: u32 = 8;

/// Whether the GPU runs these kernels: their instructions exist on compute capability 9.0 only.
pub(crate) fn is_supported(gpu: &CudaDevice) -> bool {
    let attribute = |attribute| gpu.attribute(attribute).unwrap_or(0);
    let major = attribute(CUdevice_attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR);
    let minor = attribute(CUdevice_attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR);
    (major, minor) == (9, 0)
}

/// Where the blocks of a launch leave the partial sums of split tiles. Launches that share it run one after the other.
#[derive(Debug)]
pub(crate) struct Scratch {
    partials: Buffer,
    arrivals: Buffer,
}

impl Scratch {
    /// Room for launches of at most `blocks` blocks.
    pub(crate) fn new(device: &Device, blocks: u32) -> Result<Self> {
        let bytes =
            usize::try_from(tiling::SCRATCH_BYTES_PER_BLOCK * u64::from(blocks)).unwrap_or(usize::MAX);
        let partials = Buffer::allocate(device, bytes, Placement::Device)?;
        let zeros = vec![0; usize::try_from(tiling::MAX_SPLIT_TILES * 4).unwrap_or(0)];
        let arrivals = Buffer::allocate(device, zeros.len(), Placement::Device)?;
        arrivals.upload(&device.stream()?, 0, &zeros)?;
        Ok(Self { partials, arrivals })
    }
}

/// Bytes of so many rows of a piece's slots, of so many sources but the own one.
fn slot_bytes(kernel: &KernelInfo, sources: u32, rows: u32) -> u32 {
    sources.saturating_sub(1).saturating_mul(rows * kernel.piece_n * RESULT_BYTES)
}

/// Rows of a part of a tile, whose slots come into a stage together: a piece's, or half as many where a stage has no room for so
/// many sources.
fn part_rows(kernel: &KernelInfo, sources: u32) -> u32 {
    let fits = slot_bytes(kernel, sources, PIECE_ROWS) <= stage_bytes(kernel);
    if fits { PIECE_ROWS } else { PIECE_ROWS / 2 }
}

const fn stage_bytes(kernel: &KernelInfo) -> u32 {
    (kernel.tile_m + kernel.tile_n) * STAGE_BYTES
}

/// How many parts of a tile come into a stage of `kernel` together, with the slots of so many sources: one for each warpgroup, as
/// nothing of a stage can be added before all of it is there; fewer where there is no room, 0 if there is none at all.
pub(crate) fn slot_parts(kernel: &KernelInfo, sources: u32) -> u32 {
    let rows = part_rows(kernel, sources);
    stage_bytes(kernel).checked_div(slot_bytes(kernel, sources, rows)).unwrap_or(0).min(WARPGROUPS)
}

/// Encodes what a launch of `kernel` takes.
pub(crate) fn params(
    kernel: &KernelInfo,
    launch: &Launch<'_>,
    gemm: &GemmParams,
    scratch: &Scratch,
    lets_next_begin: bool,
) -> Result<HopperParams> {
    let Launch { policy, dtype, activation, scales, tiling, schedule, destinations, .. } = *launch;
    let [m, n, k] = [gemm.m, gemm.n, gemm.k].map(u64::from);
    let count = |value: usize| u32::try_from(value).unwrap_or(u32::MAX);
    let map = |dtype: DType, address, rows, columns, pitch, box_rows, box_columns| {
        MapOf { address, rows, columns, pitch, box_rows, box_columns }.encode(dtype)
    };
    let stage_columns = STAGE_BYTES / count(dtype.bytes());
    let tile_columns = count(tiling.shape.columns);
    let sharing =
        if tiling.sharing.suits(tiling, gemm, tile_columns) { tiling.sharing } else { Sharing::None };
    let [a_halves, b_halves] = [Sharing::A, Sharing::B].map(|what| if sharing == what { 2_u16 } else { 1 });
    // Rows that A does not have need not be loaded as zeros.
    let a_rows = kernel.tile_m.min(MAX_BOX_ROWS).min(gemm.m.next_multiple_of(SWIZZLED_ROWS));
    let a_box_rows = a_rows.div_ceil(u32::from(a_halves)).next_multiple_of(SWIZZLED_ROWS);
    let a = map(dtype, gemm.a, m, k, gemm.lda, a_box_rows, stage_columns)?;
    let b_box_rows = tile_columns / u32::from(b_halves);
    let b = map(dtype, gemm.b, n, k, gemm.ldb, b_box_rows, stage_columns)?;
    let own_a = match gemm.own_rows {
        0 => a,
        rows => map(dtype, gemm.own_a, u64::from(rows), k, gemm.lda, a_box_rows, stage_columns)?,
    };
    let fold = &gemm.fold;
    let (scatters, folds) = (destinations.is_some(), fold.sources > 0);
    let (c_rows, ld_c) = if scatters { (u64::from(fold.rows), fold.ld_out) } else { (m, gemm.ldc) };
    let whole_pieces = tile_columns.is_multiple_of(kernel.piece_n);
    let by_rows = !(ld_c.is_multiple_of(8) && gemm.c.is_aligned_to(16) && whole_pieces);
    let sums = activation.sums_per_column();
    let c_columns = n / sums as u64;
    // Unused maps are to be valid ones all the same, and there are none of nothing.
    let c = if (scatters && !folds) || by_rows || c_rows * c_columns == 0 {
        a
    } else {
        map(dtype.result(), gemm.c, c_rows, c_columns, ld_c, PIECE_ROWS, kernel.piece_n / count(sums))?
    };
    let slots = |sources: Range<u32>| {
        if !folds || sources.is_empty() {
            return Ok(a);
        }
        let pitch = u64::from(fold.slot_rows).saturating_mul(gemm.ldc);
        let before = (u64::from(sources.start) * u64::from(RESULT_BYTES)).saturating_mul(pitch);
        let address = fold.slots.add(usize::try_from(before).unwrap_or(usize::MAX));
        let (rows, box_rows) = (u64::from(fold.slot_rows), part_rows(kernel, fold.sources));
        let one = MapOf { address, rows, columns: n, pitch: gemm.ldc, box_rows, box_columns: kernel.piece_n };
        one.encode_layers(dtype.result(), Layers { count: sources.end - sources.start, pitch })
    };
    let slots = [slots(0..fold.own)?, slots(fold.own + 1..fold.sources)?];
    Ok(HopperParams {
        a,
        b,
        own_a,
        c,
        slots,
        gemm: *gemm,
        destination_maps: destinations.map_or(Address::NULL, |table| table.maps(kernel.piece_n)),
        partials: scratch.partials.address(),
        arrivals: scratch.arrivals.address(),
        split_tiles: count(tiling.split_tiles),
        parts: count(tiling.parts),
        a_box_rows,
        by_rows: u16::from(by_rows),
        // A gate must be looked up.
        is_row: u16::from(schedule.is_row() && policy != Policy::AllGather),
        scales,
        slot_parts: slot_parts(kernel, fold.sources),
        tile_columns,
        b_box_rows,
        a_boxes: a_halves * if kernel.tile_m > MAX_BOX_ROWS { 2 } else { 1 },
        b_boxes: b_halves,
        sharing: sharing as u32,
        lets_next_begin: u32::from(lets_next_begin),
        part_shift: part_rows(kernel, fold.sources).ilog2(),
        padding: 0,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::FoldParams;
    use crate::catalogue::hopper_kernels;
    use crate::tiling::TileKernel;
    use flux_swizzle::TileShape;

    /// Pairs go in step: what would bring them out of it is not shared.
    #[test]
    fn pairs_have_as_much_to_load_each() {
        let shape = TileShape { rows: 128, columns: 256 };
        let kernel = TileKernel::Hopper { columns: 256 };
        let tiling = |sharing| Tiling { sharing, ..Tiling::whole(shape, 1, kernel) };
        let gemm = GemmParams { tiles: 8, ..GemmParams::default() };
        for sharing in [Sharing::A, Sharing::B] {
            let fine = tiling(sharing);
            assert!(sharing.suits(&fine, &gemm, 256));
            assert!(!sharing.suits(&fine, &GemmParams { tiles: 7, ..gemm }, 256));
            assert!(!sharing.suits(&Tiling { split_tiles: 3, parts: 2, ..fine }, &gemm, 256));
            let folds = FoldParams { sources: 2, ..FoldParams::default() };
            assert!(!sharing.suits(&fine, &GemmParams { fold: folds, ..gemm }, 256));
        }
        assert!(!Sharing::B.suits(&tiling(Sharing::B), &gemm, 56), "halves of 28 rows break the swizzle");
        let high = Tiling { shape: TileShape { rows: 256, ..shape }, ..tiling(Sharing::A) };
        assert!(!Sharing::A.suits(&high, &gemm, 256), "a tile of A takes two boxes already");
    }

    /// What a stage holds of the slots fits into it, and eight ranks can fold in all tiles but the lowest.
    #[test]
    fn slots_fit_into_a_stage() {
        let all = [DType::Bf16, DType::F16, DType::E4m3].map(|dtype| {
            assert_eq!(dtype.result().bytes(), RESULT_BYTES as usize);
            hopper_kernels(dtype).unwrap()
        });
        for kernel in all.into_iter().flatten() {
            let stage_bytes = (kernel.tile_m + kernel.tile_n) * 128;
            assert_eq!(kernel.threads, 128 * (1 + WARPGROUPS), "{}", kernel.name);
            for sources in 0..64 {
                let (parts, rows) = (slot_parts(kernel, sources), part_rows(kernel, sources));
                let bytes = parts * sources.saturating_sub(1) * rows * kernel.piece_n * RESULT_BYTES;
                assert!(bytes <= stage_bytes, "{} of {sources}", kernel.name);
                // Halves of pieces only where whole ones do not fit, and one part for each warpgroup at most.
                let whole = sources.saturating_sub(1) * PIECE_ROWS * kernel.piece_n * RESULT_BYTES;
                assert_eq!(rows == PIECE_ROWS, whole <= stage_bytes, "{} of {sources}", kernel.name);
                assert!(parts <= WARPGROUPS, "{} of {sources}", kernel.name);
                assert!(parts == 0 || sources > 1, "{} of {sources}", kernel.name);
            }
            assert!(slot_parts(kernel, 5) > 0, "{}", kernel.name);
            assert!(slot_parts(kernel, 8) > 0 || kernel.tile_m == 64, "{}", kernel.name);
        }
    }
}
