//! The tiles that GEMMs are cut into.

use super::candidate::Plan;
use super::kind::{Layer, OpKind};
use super::model::Model;
use crate::{Error, Group, OpSpec, Path, Result, TileShape};
use flux_launch::Problem;
use flux_swizzle::Shards;

/// Refuses a tile that no kernel of the group has.
pub(super) fn check(group: &Group, spec: &OpSpec) -> Result<()> {
    match spec.tile {
        Some(tile) => check_among(tile, group.any_launcher().tiles(spec.dtype)?),
        None => Ok(()),
    }
}

/// Refuses a tile that a machine that is not at hand does not have, as far as its model knows.
pub(super) fn check_on(model: &Model, spec: &OpSpec) -> Result<()> {
    let Some(tile) = spec.tile else { return Ok(()) };
    let possible = match model {
        Model::Host(host) => vec![host.tile],
        Model::Gpus { machine, .. } => {
            let shape = |of: &flux_sim::TileRate| TileShape { rows: of.rows, columns: of.columns };
            machine.node().gpu.tiles.iter().map(shape).collect()
        }
    };
    check_among(tile, possible)
}

fn check_among(tile: TileShape, possible: Vec<TileShape>) -> Result<()> {
    if possible.contains(&tile) { Ok(()) } else { Err(Error::NoSuchTile { tile, possible }) }
}

/// What the kernels of the group would cut the GEMM of a call of `m` rows into that goes as `plan` says, the fastest first, as they
/// expect.
pub(crate) fn expected(group: &Group, layer: &Layer, m: usize, plan: &Plan) -> Result<Vec<TileShape>> {
    let problem = problem(layer, m, plan.path == Path::Fused && !plan.one_shot)?;
    let problem = Problem { to_slots: plan.path == Path::Fused && layer.op != OpKind::AgGemm, ..problem };
    let ways = group.any_launcher().tilings_into(layer.tile, layer.dtype, &problem)?;
    Ok(ways.iter().map(|(tiling, _)| tiling.shape).collect())
}

/// A rank's GEMM in a call of `m` rows, whose tiles do not straddle shards if it is `by_shards`, and then go into slots, unless they
/// wait for what is gathered.
pub(super) fn problem(layer: &Layer, m: usize, by_shards: bool) -> Result<Problem> {
    let (n, k) = layer.of_rank();
    let shards = if by_shards { layer.shards(m)? } else { Shards::new(m, 1)? };
    Ok(Problem { shards, n, k, aligned: true, to_slots: by_shards && layer.op != OpKind::AgGemm })
}

/// The best of the tiles that can be asked for beside the one that is taken if nobody does.
pub(crate) fn next_best(expected: &[TileShape], possible: &[TileShape]) -> Option<TileShape> {
    let (first, others) = expected.split_first()?;
    others.iter().copied().find(|tile| tile != first && possible.contains(tile))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_next_best_is_one_that_can_be_asked_for() {
        let tile = |rows, columns| TileShape { rows, columns };
        let possible = [tile(64, 64), tile(128, 256), tile(256, 192)];
        for (expected, next) in [
            (vec![], None),
            (vec![tile(128, 256)], None),
            (vec![tile(128, 256), tile(128, 256), tile(64, 48), tile(256, 192)], Some(tile(256, 192))),
            (vec![tile(64, 48), tile(64, 64)], Some(tile(64, 64))),
        ] {
            assert_eq!(next_best(&expected, &possible), next, "{expected:?}");
        }
        let refused = check_among(tile(1, 2), possible.into()).unwrap_err().to_string();
        assert!(refused.contains("1x2") && refused.contains("64x64, 128x256, 256x192"), "{refused}");
    }
}
