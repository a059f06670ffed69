//! Finer chunks where the way of the rows begins or ends.

/// Which chunks are cut finer than the others, and how fine.
///
/// What is not hidden by overlapping is what happens before the first rows have come, and after the last ones have: a GEMM
/// that multiplies what arrives has all of the last chunk left when nothing is on its way any more, and a link that carries
/// what a GEMM writes is idle until the first chunk is complete. Between, a chunk that comes as soon as the GEMM gets to it may
/// be too late for those SMs that get to it first. Chunks cost time each, so only those are fine for which it pays.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Taper {
    /// Where chunks are counted from.
    pub end: End,
    /// How many pieces each chunk is cut into, from that end on, if it has rows enough: 0 counts as 1, as do chunks further away.
    pub pieces: [u8; Taper::MOST],
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
    /// So many chunks can be cut finer.
    pub const MOST: usize = 16;

    /// All chunks alike.
    pub const NONE: Self = Self { end: End::Last, pieces: [1; Self::MOST], grain: 1 };

    /// Finer and finer towards that end: so many chunks are cut into two, four and eight pieces, where each number includes those
    /// after it.
    pub fn towards(end: End, [two, four, eight]: [usize; 3], grain: usize) -> Self {
        let mut pieces = [1; Self::MOST];
        for (count, of) in [(two, 2), (four, 4), (eight, 8)] {
            pieces.iter_mut().take(count).for_each(|pieces| *pieces = of);
        }
        Self { end, pieces, grain }
    }

    /// How many pieces chunk `place` of `chunks` in the order of travel is cut into, if it has rows enough.
    pub(crate) fn pieces_at(&self, place: usize, chunks: usize) -> usize {
        let from_end = match self.end {
            End::First => place,
            End::Last => chunks.saturating_sub(place + 1),
        };
        self.pieces.get(from_end).map_or(1, |&pieces| usize::from(pieces).max(1))
    }

    /// The most pieces that a chunk is cut into.
    pub(crate) fn most_pieces(&self) -> usize {
        self.pieces.iter().fold(1, |most, &pieces| most.max(usize::from(pieces)))
    }
}
