//! How long a plan is expected to take: the simulator's model for GPUs, and one of its own for the host backend.

use super::EXACT_RANKS;
use super::candidate::Plan;
use super::host::HostModel;
use super::kind::{Layer, OpKind};
use crate::{Delivery, Direction, Path, Result, TileShape};
use flux_sim::{Gpu, Machine, Op, Problem, Schedules, Style, TileRate};
use flux_swizzle::{PanelCut, Sweeps};

/// Where ranks run, as far as it decides how long things take.
#[derive(Clone, Debug)]
pub(crate) enum Model {
    Host(HostModel),
    /// One rank on each GPU of a machine of the simulator. Ranks that share a GPU are taken for GPUs of their own; they store
    /// tiles straight to each other over other links than copies go over.
    Gpus {
        machine: Box<Machine>,
        within: Option<Box<Machine>>,
    },
}

/// What a plan is expected to take, and the tile and the sweeps that were reckoned with.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Prediction {
    pub(crate) us: f64,
    pub(crate) tile: Option<TileShape>,
    pub(crate) sweeps: Sweeps,
}

impl Model {
    /// The same with GEMMs that are cut into that tile, if the simulator knows it.
    pub(crate) fn cut_into(self, tile: Option<TileShape>) -> Result<Self> {
        let cut = |machine: Box<Machine>| {
            let (gpu, mut node) = (machine.node().gpu.clone(), machine.node().clone());
            let is_asked =
                |of: &TileRate| tile.is_some_and(|tile| (of.rows, of.columns) == (tile.rows, tile.columns));
            let asked = gpu.tiles.iter().position(is_asked);
            let Some(tiles) = asked.and_then(|asked| gpu.tiles.get(asked..=asked)) else {
                return Ok(machine);
            };
            node.gpu = Gpu { tiles, ..gpu };
            Ok::<_, crate::Error>(Box::new(Machine::new(machine.name(), node, machine.nodes())?))
        };
        Ok(match self {
            Model::Host(host) => Model::Host(host),
            Model::Gpus { machine, within } => {
                Model::Gpus { machine: cut(machine)?, within: within.map(cut).transpose()? }
            }
        })
    }

    /// For people.
    pub(crate) fn machine(&self) -> String {
        match self {
            Model::Host(host) => format!("the host, {} cores", host.cores),
            Model::Gpus { machine, .. } => machine.name().to_owned(),
        }
    }

    /// How much faster a call must be expected to be that goes that path than the one that measurements speak for, to be preferred
    /// to it.
    pub(crate) const fn margin(&self, path: Path) -> f64 {
        match (self, path) {
            // It is off by more, but not for one way rather than for another.
            (Model::Host(_), _) => 0.0,
            // The simulator expects down to 0.85 of what they took (`docs/simulator.md`): its GEMMs of few rows are too good.
            (Model::Gpus { .. }, Path::Chunked) => 0.2,
            // It is that far off where its constants are measured.
            (Model::Gpus { .. }, _) => 0.05,
        }
    }

    /// With schedules that may be those of other plans.
    pub(crate) fn predict(
        &self,
        schedules: &Schedules,
        layer: &Layer,
        m: usize,
        plan: &Plan,
    ) -> Result<Prediction> {
        match self {
            Model::Host(host) => {
                let (us, tile, sweeps) =
                    (host.us(layer, m, plan)?, Some(host.tile), layer.sweeps.unwrap_or_default());
                Ok(Prediction { us, tile, sweeps })
            }
            Model::Gpus { machine, within } => {
                let direct = plan.path == Path::Fused && plan.delivery == Some(Delivery::Direct);
                match within.as_ref().filter(|_| direct) {
                    Some(within) => simulated((within, schedules), layer, m, plan, false),
                    None => simulated((machine, schedules), layer, m, plan, direct && !plan.one_shot),
                }
            }
        }
    }
}

/// `starves`: stores leave the GPU as fast as its link takes them, and hold up its loads.
fn simulated(
    (machine, schedules): (&Machine, &Schedules),
    layer: &Layer,
    m: usize,
    plan: &Plan,
    starves: bool,
) -> Result<Prediction> {
    let op = match layer.op {
        OpKind::AgGemm => Op::AgGemm,
        OpKind::GemmRs => Op::GemmRs,
        OpKind::GemmAr => Op::GemmAr,
    };
    let (n, k) = layer.of_rank();
    // With shards that are all as large as the largest, one node stands for all, which is much faster.
    let is_long = layer.world_size > EXACT_RANKS && m > layer.world_size;
    let even = m.checked_next_multiple_of(layer.world_size);
    let m = even.filter(|_| is_long).unwrap_or(m);
    let problem = Problem { op, m, n, k, element_bytes: layer.dtype.bytes() };
    let path = match plan.path {
        Path::Fused => flux_sim::Path::Fused,
        Path::Chunked => flux_sim::Path::Chunked,
        _ => flux_sim::Path::Unfused,
    };
    let direct = plan.path == Path::Fused && plan.delivery == Some(Delivery::Direct);
    let (pulls, sums_in_nodes) = (plan.direction == Direction::Pull, layer.sums_in_nodes);
    let panels = layer.panels.map_or(Style::FLUX.panels, PanelCut::always);
    let style = Style { pulls, stores: direct, starves, sums_in_nodes, panels, ..Style::FLUX };
    let simulated = flux_sim::Plan {
        chunk_rows: Some(plan.chunk_rows).filter(|&rows| rows > 0 && !direct),
        pattern: Some(plan.order.clone()),
        style,
        one_shot: Some(plan.one_shot),
        sweeps: layer.sweeps,
        ..flux_sim::Plan::new(path)
    };
    let outcome = schedules.simulate(machine, &problem, &simulated)?;
    let tile = outcome.tile.map(|(rows, columns)| TileShape { rows, columns });
    Ok(Prediction { us: outcome.total_us, tile, sweeps: outcome.sweeps })
}
