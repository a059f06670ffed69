//! How the original Flux goes about it, as far as its paper and its sources say.

use flux_sim::{Baseline, Op, Path, Plan, Problem, Style, TileRate};
use flux_swizzle::{PanelCut, Pattern};

const fn tile(rows: usize, columns: usize, efficiency: f64) -> TileRate {
    TileRate { rows, columns, efficiency }
}

/// What its kernels for Hopper are compiled for; a GPU that is not tuned for takes the first, as do all for ReduceScatter.
const HOPPER: &[TileRate] = &[tile(128, 256, 1.0), tile(128, 128, 0.82), tile(256, 128, 1.0)];
const FIRST: &[TileRate] = &[tile(128, 256, 1.0)];

/// On PCIe its ReduceScatter begins with a sleep.
const PCIE_SLEEP_US: f64 = 100.0;

/// The first copy of a call takes so much longer than the others: measured on Hopper, with our own copies. Of other GPUs it is not
/// known, and left out.
pub(crate) const FIRST_COPY_US: f64 = Style::FLUX.first_us;

/// What connects the GPUs, and which kernels run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// A kernel of few blocks sums and stores, NUMA node by NUMA node.
    Pcie,
    /// As L20 is set up: copy engines, and one ring through all.
    PcieCopies,
    Ampere,
    Hopper,
    /// GPUs that it has no tuned kernels for.
    HopperUntuned,
}

pub(crate) fn style(op: Op, kind: Kind) -> Style {
    let is_hopper = matches!(kind, Kind::Hopper | Kind::HopperUntuned);
    let is_pcie = matches!(kind, Kind::Pcie | Kind::PcieCopies);
    let common = Style {
        baseline: Baseline::Nccl,
        straddles: true,
        folds_sum: false,
        splits: false,
        panels: PanelCut::NONE,
        first_us: 0.0,
        ..Style::FLUX
    };
    let common = match (op, kind) {
        (Op::AgGemm, Kind::Hopper) => Style { tiles: Some(HOPPER), ..common },
        (_, Kind::Hopper | Kind::HopperUntuned) => Style { tiles: Some(FIRST), ..common },
        _ => common,
    };
    match op {
        // Copy engines gather: a barrier, the own rows to their place, the flags to zero, a barrier; then copies one after the other,
        // by the receiver where there are NVLinks.
        Op::AgGemm => Style {
            barriers: 2,
            copies_own_rows: true,
            zeroes_signals: true,
            pulls: !is_pcie,
            first_us: if is_hopper { FIRST_COPY_US } else { 0.0 },
            ..common
        },
        // SMs store tiles to their owners, on NVLink the rank's own first; a kernel of its own sums.
        _ => Style {
            // NUMA node by NUMA node, and machine by machine.
            sums_on_the_way: true,
            stores: kind != Kind::PcieCopies,
            own_first: !is_pcie,
            barriers: usize::from(is_pcie || kind == Kind::Ampere),
            pads_shards: is_hopper,
            starves: kind == Kind::HopperUntuned,
            sleep_us: if is_pcie { PCIE_SLEEP_US } else { 0.0 },
            ..common
        },
    }
}

/// Who sends to whom, where that is not the machine's way: on PCIe a ReduceScatter sums within each NUMA node first, for the other
/// one, and each rank sends one sum across.
pub(crate) fn pattern(op: Op, kind: Kind) -> Option<Pattern> {
    let numa_node = |ranks: std::ops::Range<usize>| Pattern::Ring(vec![ranks.collect()]);
    match (op, kind) {
        (Op::AgGemm, _) => None,
        (_, Kind::Pcie) => Some(Pattern::Nested(vec![numa_node(0..4), numa_node(4..8)])),
        (_, Kind::PcieCopies) => Some(Pattern::ring(8)),
        _ => None,
    }
}

/// An operation on GPT-3's layer with m rows on so many ranks.
pub(crate) fn gpt3(op: Op, m: usize, world_size: usize, kind: Kind) -> (Problem, Plan) {
    let (n, k) = match op {
        Op::AgGemm => (49152 / world_size, 12288),
        _ => (12288, 49152 / world_size),
    };
    let pattern = pattern(op, kind).filter(|_| world_size == 8);
    // There a shard is sent when all of it is computed.
    let by_shard = matches!(kind, Kind::Pcie | Kind::PcieCopies) && op != Op::AgGemm;
    let chunk_rows = by_shard.then_some(m / world_size);
    let plan = Plan { style: style(op, kind), pattern, chunk_rows, ..Plan::new(Path::Fused) };
    (Problem { op, m, n, k, element_bytes: 2 }, plan)
}
