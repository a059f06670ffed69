//! Finer chunks where the way of the rows begins or ends.

/// Which chunks are cut finer than the others, and how fine.
///
/// What is not hidden by overlapping is what happens before the first rows have come, and after the last ones have: a GEMM
/// that multiplies what arrives has all of the last chunk left when nothing is on its way any more, and a link that carries
/// what a GEMM writes is idle until the first chunk is complete. Chunks cost time each, so only those at that end are fine.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Taper {
    /// Where chunks are finer.
    pub end: End,
    /// So many chunks at that end are cut into two, four and eight pieces: each number includes those after it.
    pub finer: [usize; 3],
    /// A piece's rows are a multiple of this (0 counts as 1), but for the last one of a chunk.
    pub grain: usize,
}

/// One end of the order in which chunks travel to or from a rank.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum End {
    /// The first to leave.
    First,
    /// The last to arrive.
    #[default]
    Last,
}

impl Taper {
    /// All chunks alike.
    pub const NONE: Self = Self { end: End::Last, finer: [0; 3], grain: 1 };

    /// How many pieces chunk `place` of `chunks` in the order of travel is cut into, if it has rows enough.
    pub(crate) fn pieces(&self, place: usize, chunks: usize) -> usize {
        let from_end = match self.end {
            End::First => place,
            End::Last => chunks.saturating_sub(place + 1),
        };
        self.finer
            .iter()
            .zip([2, 4, 8])
            .fold(1, |pieces, (&count, of)| if from_end < count { of } else { pieces })
    }

    /// The most pieces that a chunk is cut into.
    pub(crate) fn most_pieces(&self) -> usize {
        self.finer.iter().zip([2, 4, 8]).fold(1, |pieces, (&count, of)| if count > 0 { of } else { pieces })
    }
}
