//! The operations as seen from outside: which rank holds which part of the whole matrices, and a call of all ranks.

use crate::{
    Address, AgGemm, AgGemmCall, CallTrace, Explain, GemmAr, GemmArCall, GemmRs, GemmRsCall, Levels, Matrix,
    OpSpec, PathChoice, Pattern, Result, Scales, Stream,
};
use std::ops::Range;

/// A rectangle of a whole matrix.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Part {
    /// Its rows.
    pub rows: Range<usize>,
    /// Its columns.
    pub columns: Range<usize>,
}

impl Part {
    pub(crate) fn len(&self) -> usize {
        self.rows.len() * self.columns.len()
    }

    /// Copies this rectangle out of a matrix of `pitch` columns.
    pub(crate) fn cut<E: Copy>(&self, whole: &[E], pitch: usize) -> Vec<E> {
        self.rows.clone().flat_map(|row| whole[row * pitch..][self.columns.clone()].iter().copied()).collect()
    }

    /// Copies this rectangle into a matrix of `pitch` columns.
    pub(crate) fn paste<E: Copy>(&self, part: &[E], whole: &mut [E], pitch: usize) {
        for (row, values) in self.rows.clone().zip(part.chunks_exact(self.columns.len().max(1))) {
            whole[row * pitch..][self.columns.clone()].copy_from_slice(values);
        }
    }
}

/// A rank's parts of a call: what its own call takes, in the same words for all operations.
#[derive(Clone, Copy, Debug)]
pub struct OperandParts {
    /// The part of A; of [`AgGemm`], without gaps.
    pub a: Matrix,
    /// The part of B.
    pub b: Matrix,
    /// The scales of both.
    pub scales: Scales,
    /// The part of the bias.
    pub bias: Option<Address>,
    /// The part of C.
    pub c: Matrix,
}

impl OperandParts {
    /// A, B and C, without scales or a bias.
    pub const fn new([a, b, c]: [Matrix; 3]) -> Self {
        Self { a, b, scales: Scales::NONE, bias: None, c }
    }
}

/// An operation of a group, as seen from outside: which rank holds which part of A `[m, k]`, B `[n, k]` and C `[m, n]`.
pub trait Operation: sealed::Sealed {
    /// What it was built for.
    fn spec(&self) -> &OpSpec;
    /// How its ranks exchange their shards: what [`OpSpec::order`] stands for in its group.
    fn pattern(&self) -> &Pattern;
    /// In how many levels it sums over nodes: what [`OpSpec::levels`] stands for in its group. Nothing is summed in one.
    fn levels(&self) -> Levels {
        Levels::One
    }
    /// Columns of the whole C: N, or half as many with SwiGLU.
    fn result_columns(&self) -> usize {
        self.spec().n / self.spec().activation.sums_per_column()
    }
    /// `rank`'s parts of A, B and C in a call with `m` rows. Its part of a bias is as long as its B has rows.
    fn parts(&self, rank: usize, m: usize) -> [Part; 3];
    /// Enqueues a call of all ranks of this process, given each one's parts of A, B and C.
    ///
    /// # Safety
    /// As for the operation's own `enqueue_all`.
    unsafe fn enqueue_parts(
        &self,
        m: usize,
        parts: &[OperandParts],
        streams: &[&Stream],
    ) -> Result<PathChoice>;
    /// How calls of `m` rows go, and why.
    fn explain(&self, m: usize) -> Result<Explain>;
    /// What each rank's last call did, and when: as the operation's own `traces`.
    fn traces(&self) -> Result<Vec<CallTrace>>;
}

mod sealed {
    /// What [`crate::Whole`] relies on, only flux's own operations promise.
    pub trait Sealed {}
    impl Sealed for crate::AgGemm {}
    impl Sealed for crate::GemmRs {}
    impl Sealed for crate::GemmAr {}
}

impl Operation for AgGemm {
    fn spec(&self) -> &OpSpec {
        AgGemm::spec(self)
    }

    fn pattern(&self) -> &Pattern {
        AgGemm::pattern(self)
    }

    fn parts(&self, rank: usize, m: usize) -> [Part; 3] {
        let k = self.spec().k;
        [
            Part { rows: self.rows(rank, m), columns: 0..k },
            Part { rows: self.weight_rows(rank), columns: 0..k },
            Part { rows: 0..m, columns: self.columns(rank) },
        ]
    }

    unsafe fn enqueue_parts(
        &self,
        m: usize,
        parts: &[OperandParts],
        streams: &[&Stream],
    ) -> Result<PathChoice> {
        let call = |&OperandParts { a, b, scales, bias, c }: &OperandParts| AgGemmCall {
            m,
            a: a.address,
            b,
            scales,
            bias,
            c,
        };
        let calls: Vec<_> = parts.iter().map(call).collect();
        // SAFETY: the caller's promise.
        unsafe { self.enqueue_all(&calls, streams) }
    }

    fn explain(&self, m: usize) -> Result<Explain> {
        AgGemm::explain(self, m)
    }

    fn traces(&self) -> Result<Vec<CallTrace>> {
        AgGemm::traces(self)
    }
}

impl Operation for GemmRs {
    fn spec(&self) -> &OpSpec {
        GemmRs::spec(self)
    }

    fn pattern(&self) -> &Pattern {
        GemmRs::pattern(self)
    }

    fn levels(&self) -> Levels {
        GemmRs::levels(self)
    }

    fn parts(&self, rank: usize, m: usize) -> [Part; 3] {
        let (n, depth) = (self.spec().n, self.depth(rank));
        [
            Part { rows: 0..m, columns: depth.clone() },
            Part { rows: 0..n, columns: depth },
            Part { rows: self.rows(rank, m), columns: 0..n },
        ]
    }

    unsafe fn enqueue_parts(
        &self,
        m: usize,
        parts: &[OperandParts],
        streams: &[&Stream],
    ) -> Result<PathChoice> {
        let call =
            |&OperandParts { a, b, scales, bias, c }: &OperandParts| GemmRsCall { m, a, b, scales, bias, c };
        let calls: Vec<_> = parts.iter().map(call).collect();
        // SAFETY: the caller's promise.
        unsafe { self.enqueue_all(&calls, streams) }
    }

    fn explain(&self, m: usize) -> Result<Explain> {
        GemmRs::explain(self, m)
    }

    fn traces(&self) -> Result<Vec<CallTrace>> {
        GemmRs::traces(self)
    }
}

impl Operation for GemmAr {
    fn spec(&self) -> &OpSpec {
        GemmAr::spec(self)
    }

    fn pattern(&self) -> &Pattern {
        GemmAr::pattern(self)
    }

    fn levels(&self) -> Levels {
        GemmAr::levels(self)
    }

    /// C is the same whole result on every rank.
    fn parts(&self, rank: usize, m: usize) -> [Part; 3] {
        let (n, depth) = (self.spec().n, self.depth(rank));
        [
            Part { rows: 0..m, columns: depth.clone() },
            Part { rows: 0..n, columns: depth },
            Part { rows: 0..m, columns: 0..n },
        ]
    }

    unsafe fn enqueue_parts(
        &self,
        m: usize,
        parts: &[OperandParts],
        streams: &[&Stream],
    ) -> Result<PathChoice> {
        let call =
            |&OperandParts { a, b, scales, bias, c }: &OperandParts| GemmArCall { m, a, b, scales, bias, c };
        let calls: Vec<_> = parts.iter().map(call).collect();
        // SAFETY: the caller's promise.
        unsafe { self.enqueue_all(&calls, streams) }
    }

    fn explain(&self, m: usize) -> Result<Explain> {
        GemmAr::explain(self, m)
    }

    fn traces(&self) -> Result<Vec<CallTrace>> {
        GemmAr::traces(self)
    }
}
