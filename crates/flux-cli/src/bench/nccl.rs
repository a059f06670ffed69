//! What everybody has: the plain GEMM, and behind or before it NCCL's own collective, on the same stream.

use super::arguments::BenchOp;
use super::shapes::Shape;
use crate::error::Error;
use flux::{
    Address, AgGemm, Backend, Buffer, Collectives, DType, Group, GroupConfig, Matrix, OpSpec, OperandParts,
    Operation, Placement, Stream,
};

/// NCCL among the ranks of a group, or why there is none.
pub(crate) struct Nccl {
    collectives: Result<Collectives, String>,
    /// A group of one rank for each rank of this process, on its GPU: for the plain GEMMs.
    solos: Vec<Group>,
}

impl Nccl {
    /// Collective, as are the measurements with it.
    pub(crate) fn open(group: &Group, config: &GroupConfig) -> Result<Self, Error> {
        if let Some(reason) = unfit(group.backend(), group.world_size(), group.devices()) {
            return Ok(Self { collectives: Err(reason), solos: Vec::new() });
        }
        let solo = |rank| {
            let mut config = config.clone();
            config.gpu = group.device(rank)?.as_cuda().map(|gpu| gpu.ordinal());
            Group::local_with(1, config)
        };
        let solos = group.local_ranks().map(solo).collect::<Result<_, _>>()?;
        let collectives = group.collectives().map_err(|error| error.to_string());
        group.check()?; // a lost rank is no missing library
        Ok(Self { collectives, solos })
    }

    /// NCCL's version.
    pub(crate) fn version(&self) -> Option<String> {
        self.collectives.as_ref().ok().map(Collectives::version)
    }

    /// Why there are no figures at all.
    pub(crate) fn missing(&self) -> Option<&str> {
        self.collectives.as_ref().err().map(String::as_str)
    }
}

/// Why a group is not measured beside NCCL, if so.
fn unfit(backend: Backend, ranks: usize, gpus: usize) -> Option<String> {
    match backend {
        Backend::Host => Some("NCCL connects GPUs, and the ranks run on the host".into()),
        Backend::Cuda if gpus < ranks => {
            Some(format!("{ranks} ranks share {gpus} GPUs, and NCCL's collectives want one for each"))
        }
        Backend::Cuda => None,
    }
}

/// Whether a problem of so many rows is cut into the equal shards that NCCL's collectives take.
pub(crate) fn suits(op: BenchOp, m: usize, ranks: usize) -> bool {
    op == BenchOp::GemmAr || m.is_multiple_of(ranks)
}

/// How many times as far off NCCL's result may be as ours. Ours is a sum in fp32 of partial sums that were rounded once; NCCL may round
/// after each addition, the last ones as much as the result: in all about √(W/2) times as much.
pub(crate) fn slack(op: BenchOp, ranks: usize) -> f64 {
    if op == BenchOp::AgGemm { 1.0 } else { (ranks as f64 / 4.0).sqrt().max(1.0) }
}

/// One shape's GEMM and collective.
pub(crate) struct Baseline<'a> {
    collectives: &'a Collectives,
    op: BenchOp,
    shape: Shape,
    dtype: DType,
    ranks: usize,
    /// Of the ranks of this process, each on a GPU of its own.
    gemms: Vec<AgGemm>,
    /// Each rank's gathered A, or its partial sums.
    between: Vec<Buffer>,
}

impl<'a> Baseline<'a> {
    /// For GEMMs of `shape` on each of `ranks` ranks; `None` without NCCL, and for shapes that it cannot cut up.
    pub(crate) fn new(
        nccl: &'a Nccl,
        op: BenchOp,
        shape: Shape,
        dtype: DType,
        ranks: usize,
    ) -> Result<Option<Self>, Error> {
        let Ok(collectives) = &nccl.collectives else { return Ok(None) };
        if !suits(op, shape.m, ranks) {
            return Ok(None);
        }
        let Shape { m, n, k } = shape;
        let bytes = match op {
            BenchOp::AgGemm => m.saturating_mul(k).saturating_mul(dtype.bytes()),
            BenchOp::GemmRs => m.saturating_mul(n).saturating_mul(dtype.result().bytes()),
            BenchOp::GemmAr | BenchOp::Gemm => 0, // summed where the GEMM has written it
        };
        let gemm = |solo| AgGemm::new(solo, OpSpec::new(n, k, m, dtype));
        let room = |solo: &Group| -> Result<_, flux::Error> {
            Ok(Buffer::allocate(solo.device(0)?, bytes, Placement::Device)?)
        };
        let gemms = nccl.solos.iter().map(gemm).collect::<Result<_, _>>()?;
        let between = nccl.solos.iter().map(room).collect::<Result<_, _>>()?;
        Ok(Some(Self { collectives, op, shape, dtype, ranks, gemms, between }))
    }

    /// Enqueues a call on operands that were cut up for this shape; each rank's on its stream.
    pub(crate) fn enqueue(&self, operands: &[OperandParts], streams: &[&Stream]) -> Result<(), Error> {
        let Shape { m, n, k } = self.shape;
        let between = || self.between.iter().map(Buffer::address);
        let (a, c) = (|parts: &OperandParts| parts.a.address, |parts: &OperandParts| parts.c.address);
        // SAFETY: the operands have the extents of the shape, of whose rows each rank has as many, and live until the streams have
        // passed this; so does what is between.
        unsafe {
            match self.op {
                BenchOp::AgGemm => {
                    let places: Vec<_> = operands.iter().map(a).zip(between()).collect();
                    let bytes = m / self.ranks * k * self.dtype.bytes();
                    self.collectives.all_gather(bytes, &places, streams)?;
                    let gathered = between().map(|a| Matrix::contiguous(a, k));
                    let gathered = gathered.zip(operands).map(|(a, &parts)| OperandParts { a, ..parts });
                    self.multiply(gathered, streams)
                }
                BenchOp::GemmRs => {
                    let partial = between().map(|c| Matrix::contiguous(c, n));
                    let partial = partial.zip(operands).map(|(c, &parts)| OperandParts { c, ..parts });
                    self.multiply(partial, streams)?;
                    let places: Vec<_> = between().zip(operands.iter().map(c)).collect();
                    let (dtype, elements) = (self.dtype.result(), m / self.ranks * n);
                    Ok(self.collectives.reduce_scatter(dtype, elements, &places, streams)?)
                }
                BenchOp::GemmAr => {
                    self.multiply(operands.iter().copied(), streams)?;
                    let places: Vec<(Address, Address)> = operands.iter().map(c).map(|c| (c, c)).collect();
                    Ok(self.collectives.all_reduce(self.dtype.result(), m * n, &places, streams)?)
                }
                BenchOp::Gemm => self.multiply(operands.iter().copied(), streams),
            }
        }
    }

    /// # Safety
    /// As for [`Operation::enqueue_parts`].
    unsafe fn multiply(
        &self,
        operands: impl Iterator<Item = OperandParts>,
        streams: &[&Stream],
    ) -> Result<(), Error> {
        for ((gemm, parts), stream) in self.gemms.iter().zip(operands).zip(streams) {
            // SAFETY: the caller's promise.
            unsafe { gemm.enqueue_parts(self.shape.m, &[parts], &[stream])? };
        }
        Ok(())
    }

    /// Reports a collective that has failed.
    pub(crate) fn check(&self) -> Result<(), Error> {
        Ok(self.collectives.check()?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_is_measured_beside_nccl() {
        assert!(unfit(Backend::Host, 2, 1).unwrap().contains("host"));
        assert!(unfit(Backend::Cuda, 4, 2).unwrap().contains("4 ranks share 2 GPUs"));
        assert_eq!(unfit(Backend::Cuda, 2, 2), None);
        for (op, m, ranks, expected) in [
            (BenchOp::AgGemm, 64, 8, true),
            (BenchOp::AgGemm, 65, 8, false),
            (BenchOp::GemmRs, 4, 8, false),
            (BenchOp::GemmAr, 1, 8, true),
        ] {
            assert_eq!(suits(op, m, ranks), expected, "{op:?} {m} {ranks}");
        }
        assert_eq!([2, 4, 16].map(|ranks| slack(BenchOp::GemmRs, ranks)), [1.0, 1.0, 2.0]);
        assert_eq!(slack(BenchOp::AgGemm, 16).to_bits(), 1.0_f64.to_bits());
    }
}
