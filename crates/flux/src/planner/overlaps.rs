//! Fused calls beside a link that is not much faster than the GEMM: which chunks are cut finer, and the tile with which such a call
//! ends earliest. Elsewhere neither matters.

use super::built::Built;
use super::candidate::Plan;
use super::kind::OpKind;
use super::{Planner, tiles};
use crate::{Delivery, Group, Overlap, Path, Result, Taper, TileShape};
use flux_launch::Problem;
use flux_swizzle::Chunks;

impl Planner {
    /// Which chunks of an operation that is otherwise built so are cut finer: as asked; else by the best tile's time for the most rows;
    /// none where the caller says how large chunks are.
    pub(super) fn taper(&self, built: &Built) -> Result<Taper> {
        if self.wishes.taper.is_some() || self.wishes.chunk_rows.is_some() {
            return Ok(built.taper);
        }
        let overlaps = self.overlaps(self.max_m, built)?;
        let best = Overlap::fastest(&overlaps, |overlap| match self.layer.op {
            OpKind::AgGemm => overlap.gather_taper(),
            OpKind::GemmRs | OpKind::GemmAr => overlap.scatter_taper(),
        })?;
        Ok(best.map_or(Taper::NONE, |(_, taper)| taper))
    }

    /// The tile of a call of `m` rows that goes as `plan` says, where that is decided by how it overlaps.
    pub(super) fn overlapped_tile(&self, m: usize, plan: &Plan) -> Result<Option<TileShape>> {
        let sends = self.layer.op == OpKind::AgGemm || plan.delivery == Some(Delivery::Relayed);
        if plan.path != Path::Fused || plan.one_shot || !sends || self.layer.tile.is_some() {
            return Ok(None);
        }
        let built = self.built();
        let overlaps = self.overlaps(m, &built)?;
        let best = Overlap::fastest(&overlaps, |overlap| {
            let chunks = Chunks::new(overlap.shards, overlap.chunk_rows)?.tapered(built.taper, 0);
            let us = match self.layer.op {
                OpKind::AgGemm => overlap.gather_us(&chunks),
                OpKind::GemmRs | OpKind::GemmAr => overlap.scatter_us(&chunks),
            };
            Ok(((), us))
        })?;
        Ok(best.map(|(overlap, ())| overlap.pace.shape))
    }

    /// A fused call of `m` rows, with each tile that its GEMM can be cut into; none where copies do not go through the host's memory.
    fn overlaps(&self, m: usize, built: &Built) -> Result<Vec<Overlap>> {
        let Some(group) = self.group.as_ref().filter(|_| self.ground.through_host && m > 0) else {
            return Ok(Vec::new());
        };
        let (problem, row_bytes) = (tiles::problem(&self.layer, m, true)?, self.layer.row_bytes());
        let (shards, columns, chunk_rows) = (problem.shards, problem.n, built.chunks.of(m));
        let paces = group.any_launcher().paces(self.layer.dtype, &problem)?;
        let of_asked = |shape| self.layer.tile.is_none_or(|tile| tile == shape);
        let mut paces: Vec<_> = paces.into_iter().filter(|pace| of_asked(pace.shape)).collect();
        if self.wishes.must_fold && self.layer.op != OpKind::AgGemm {
            let folding = self.folding_tiles(group, &problem)?;
            if paces.iter().any(|pace| folding.contains(&pace.shape)) {
                paces.retain(|pace| folding.contains(&pace.shape));
            }
        }
        let overlap = |pace| Overlap { shards, row_bytes, chunk_rows, columns, pace };
        Ok(paces.into_iter().map(overlap).collect())
    }

    /// The tiles into whose GEMM the sum of all ranks can be folded.
    fn folding_tiles(&self, group: &Group, problem: &Problem) -> Result<Vec<TileShape>> {
        let (launcher, dtype) = (group.any_launcher(), self.layer.dtype);
        let mut tiles = Vec::new();
        for (tiling, _) in launcher.tilings(dtype, problem)? {
            if launcher.can_fold(dtype, &tiling, group.world_size())? {
                tiles.push(tiling.shape);
            }
        }
        Ok(tiles)
    }
}
