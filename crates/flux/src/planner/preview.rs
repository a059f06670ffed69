//! Plans of operations that are not built, also on machines that are not at hand.

use super::candidate::Ground;
use super::kind::{Layer, OpKind};
use super::machine::SimMachine;
use super::model::Model;
use super::orders::Orders;
use super::{Explain, Planner, Wishes, tiles};
use crate::delivery::Choice;
use crate::schedules::check_tiles;
use crate::{Delivery, Error, Group, Levels, OpSpec, Result, TileShape, epilogue};
use flux_swizzle::{Pattern, Shards};
use std::sync::{Mutex, RwLock};

/// The tile that GPUs' kernels are cut into if nothing speaks for another.
const USUAL_TILE: TileShape = TileShape { rows: 128, columns: 128 };

/// How calls of `m` rows of an operation of `group` would go that is built for `spec`, without building it.
/// What the operation would refuse is refused. Among processes it is a
/// step that all take together.
pub fn explain(group: &Group, op: OpKind, spec: &OpSpec, m: usize) -> Result<Explain> {
    let world_size = group.world_size();
    let columns = check(op, spec, (m, world_size))?;
    check_tiles(group.any_launcher(), 0, spec.dtype, (Shards::new(spec.max_m, world_size)?, columns))?;
    if op != OpKind::AgGemm {
        spec.levels.are_two(group, spec.delivery)?;
    }
    Planner::new(group, op, spec)?.explain(m)
}

/// The same on a machine of the simulator with one rank on each GPU, which need not be at hand.
pub fn explain_on(machine: &SimMachine, op: OpKind, spec: &OpSpec, m: usize) -> Result<Explain> {
    let SimMachine { machine, orders, .. } = machine;
    check(op, spec, (m, machine.gpus()))?;
    if op != OpKind::AgGemm && spec.levels == Levels::Two {
        let missing = match (machine.nodes(), machine.node().gpus) {
            (..2, _) => Some("there is one node"),
            (_, ..2) => Some("nodes have one rank each"),
            _ => None,
        };
        missing.map_or(Ok(()), |reason| Err(flux_transport::Error::NotTwoLevels { reason }))?;
    }
    let model = Model::Gpus { machine: Box::new(machine.clone()), within: None };
    Planner::on((model, orders), op, spec, machine.gpus())?.explain(m)
}

/// Refuses what the operation itself refuses, and says how many columns a rank's GEMM has at most.
fn check(op: OpKind, spec: &OpSpec, (m, world_size): (usize, usize)) -> Result<usize> {
    spec.check()?;
    if m > spec.max_m {
        return Err(Error::TooManyRows { m, max_m: spec.max_m });
    }
    if op == OpKind::AgGemm {
        let columns = Shards::new(epilogue::columns(spec)?, world_size)?;
        return Ok(columns.max_rows() * spec.activation.sums_per_column());
    }
    epilogue::check_no_activation(op.name(), spec)?;
    Ok(spec.n)
}

impl Planner {
    /// For an operation that nobody builds, on a machine that is not at hand.
    pub(super) fn on(
        (model, fitting): (Model, &[Pattern]),
        op: OpKind,
        spec: &OpSpec,
        world_size: usize,
    ) -> Result<Self> {
        tiles::check_on(&model, spec)?;
        let several_nodes = matches!(&model, Model::Gpus { machine, .. } if machine.nodes() > 1);
        let on_host = matches!(model, Model::Host(_));
        let usual_delivery = match (spec.delivery, on_host) {
            (Delivery::Direct, _) => Choice::DirectAsAsked,
            (Delivery::Relayed, _) => Choice::RelayedAsAsked,
            (Delivery::Auto, true) => Choice::DirectOnTheHost,
            (Delivery::Auto, false) => Choice::RelayedToOtherGpus,
        };
        let mut planner = Self {
            ground: Ground {
                orders: Orders::of_machine(spec, world_size, fitting)?,
                through_host: false,
                several_nodes,
                tile: USUAL_TILE,
                padding_loses: !on_host,
            },
            usual_delivery,
            model: model.cut_into(spec.tile)?,
            tuned: Vec::new(),
            layer: Layer::new(op, spec, world_size),
            wishes: Wishes::from(spec),
            max_m: spec.max_m,
            built: None,
            group: None,
            chosen: RwLock::default(),
            reckoned: Mutex::default(),
        };
        planner.built = Some(planner.build()?);
        Ok(planner)
    }
}
