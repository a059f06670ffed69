//! How many shards the fused GEMM sweeps together.

use crate::gemm::SWEPT_ROWS;
use crate::operation::{Call, Travelling};
use crate::{Path, Result};
use flux_swizzle::Sweeps;
use std::ops::Range;

/// Other sweeps than the usual are better if they win at least this part of the time: of how soon shards come the least is known.
const LEAST_GAIN_OF_SWEEPS: f64 = 0.01;

/// Sweeps that are looked at beside each shard by itself.
const OTHER_SWEEPS: &[Sweeps] = &[Sweeps::growing(1), Sweeps::growing(2), Sweeps::growing(3), Sweeps::TWO];

impl Call<'_> {
    /// How many shards may be swept together, usually and else: more than one where a fused GEMM's shards travel whole, or the SMs store
    /// what is computed of them.
    pub(crate) fn sweeps(&self, chunks: &Travelling) -> (Sweeps, &'static [Sweeps]) {
        let is_swept = self.plan.path == Path::Fused && !self.style().straddles;
        match self.plan.sweeps {
            _ if !is_swept || !self.sweeps_shards(chunks) => (Sweeps::ONE_BY_ONE, &[]),
            Some(sweeps) => (sweeps, &[]),
            None => (Sweeps::ONE_BY_ONE, OTHER_SWEEPS),
        }
    }

    /// Whether no sweep is of a part of a shard.
    fn sweeps_shards(&self, chunks: &Travelling) -> bool {
        chunks.chunks.are_whole_shards() || self.stores()
    }

    /// Sweeps as ranges of places in the order of shards: no more rows at once than are swept together.
    pub(crate) fn swept(&self, places: impl Iterator<Item = Range<usize>>) -> Vec<Range<usize>> {
        let most = (SWEPT_ROWS / self.shards.max_rows().max(1)).max(1);
        let parts = places.flat_map(|places| {
            places.clone().step_by(most).map(move |first| first..(first + most).min(places.end))
        });
        parts.collect()
    }

    /// How many times more than if all rows were one shard the fused GEMM reads its weight.
    pub(crate) fn reads_again(&self, chunks: &Travelling, sweeps: Sweeps) -> usize {
        if self.plan.path != Path::Fused || self.style().straddles {
            return 0;
        }
        let (gpus, m) = (self.machine.gpus(), self.problem.m);
        let count = match self.sweeps_shards(chunks) {
            true => self.swept(sweeps.of(gpus)).len(),
            false => (0..gpus).map(|shard| chunks.chunks.count(shard)).sum(),
        };
        count.min(m).saturating_sub(m.div_ceil(SWEPT_ROWS))
    }
}

/// The usual sweeps, unless others are clearly better, `of` being what they take, and something that comes with it.
pub(crate) fn clearly_best<T>(
    (usual, others): (Sweeps, &[Sweeps]),
    of: impl Fn(Sweeps) -> Result<(f64, T)>,
) -> Result<(Sweeps, T)> {
    let (mut least, mut with) = of(usual)?;
    let mut best = usual;
    for &sweeps in others {
        let (us, of_these) = of(sweeps)?;
        if us < (1.0 - LEAST_GAIN_OF_SWEEPS) * least {
            (best, least, with) = (sweeps, us, of_these);
        }
    }
    Ok((best, with))
}
