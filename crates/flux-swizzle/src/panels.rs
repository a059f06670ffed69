//! Columns that travel by themselves.

use core::ops::Range;

/// Rows on their way, cut into panels: blocks of columns.
///
/// A GEMM computes many rows of a few columns before the next columns, for it uses more of what it has loaded then. So the first
/// columns of a chunk are complete long before its last ones, and need not wait for these.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Panels {
    row_bytes: usize,
    count: usize,
}

impl Panels {
    /// Panels begin at multiples of so many bytes, and none is narrower: as wide as the widest tile of 16-bit elements, so that a
    /// tile begins in each.
    pub const GRAIN_BYTES: usize = 512;

    /// Rows of `row_bytes` in `count` panels, or in as many as they have room for, but at least one.
    pub const fn new(row_bytes: usize, count: usize) -> Self {
        let most = row_bytes / Self::GRAIN_BYTES;
        let count = if count < most { count } else { most };
        Self { row_bytes, count: if count == 0 { 1 } else { count } }
    }

    /// How many there are.
    pub const fn count(&self) -> usize {
        self.count
    }

    /// The bytes of a row that are in panel `index`; the last one has what is left.
    pub const fn bytes(&self, index: usize) -> Range<usize> {
        let begin = index * self.width();
        if index + 1 < self.count { begin..begin + self.width() } else { begin..self.row_bytes }
    }

    /// The panel that a byte of a row is in.
    pub fn containing(&self, byte: usize) -> usize {
        byte.checked_div(self.width()).map_or(0, |panel| panel.min(self.count - 1))
    }

    const fn width(&self) -> usize {
        match self.count {
            1 => self.row_bytes,
            count => self.row_bytes / count / Self::GRAIN_BYTES * Self::GRAIN_BYTES,
        }
    }
}

/// Into how many panels chunks are cut, by their size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PanelCut {
    most: usize,
    least_bytes: usize,
}

impl PanelCut {
    /// Chunks stay whole.
    pub const NONE: Self = Self { most: 1, least_bytes: 0 };
    /// Between GPUs that reach each other's memory: four, of at least 4 MiB each of a whole chunk. Measured on two H200s: smaller ones lose more, for
    /// what each costs by itself, than they gain. A copy of a panel's rows, from 4 KiB of each on, is as fast as one of whole rows.
    pub const BETWEEN_GPUS: Self = Self { most: 4, least_bytes: 4 << 20 };

    /// Always so many, where rows are wide enough.
    pub const fn always(count: usize) -> Self {
        Self { most: count, least_bytes: 0 }
    }

    /// Those of a chunk of `rows` rows of `row_bytes`.
    pub const fn of(&self, rows: usize, row_bytes: usize) -> Panels {
        let fitting = match self.least_bytes {
            0 => self.most,
            least => rows.saturating_mul(row_bytes) / least,
        };
        Panels::new(row_bytes, if fitting < self.most { fitting } else { self.most })
    }

    /// The most that rows of `row_bytes` are ever cut into.
    pub const fn most(&self, row_bytes: usize) -> usize {
        Panels::new(row_bytes, self.most).count()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec::Vec;
    use proptest::prelude::*;

    #[test]
    fn large_chunks_are_cut_and_small_ones_stay_whole() {
        for (rows, row_bytes, count) in [
            (1024, 16384, 4),
            (512, 16384, 2),
            (511, 16384, 1),
            (128, 16384, 1),
            (0, 16384, 1),
            (usize::MAX, 1000, 1),
            (usize::MAX, 1024, 2),
            (usize::MAX, usize::MAX, 4),
        ] {
            let cut = PanelCut::BETWEEN_GPUS;
            assert_eq!(cut.of(rows, row_bytes).count(), count, "{rows} x {row_bytes}");
            assert!(count <= cut.most(row_bytes));
            assert_eq!(PanelCut::NONE.of(rows, row_bytes).count(), 1);
        }
        assert_eq!(PanelCut::always(3).of(0, 2048).count(), 3);
        assert_eq!(PanelCut::always(0).of(9, 0), Panels::new(0, 1));
    }

    proptest! {
        /// They are a row, one after the other, none narrower than a tile, and each begins where a line of memory does.
        #[test]
        fn panels_are_a_row(row_bytes in 0..100_000_usize, count in 0..40_usize) {
            let panels = Panels::new(row_bytes, count);
            let all: Vec<_> = (0..panels.count()).map(|index| panels.bytes(index)).collect();
            let mut next = 0;
            for (index, bytes) in all.iter().enumerate() {
                prop_assert_eq!(bytes.start, next);
                prop_assert_eq!(bytes.start % Panels::GRAIN_BYTES, 0);
                prop_assert!(panels.count() == 1 || bytes.len() >= Panels::GRAIN_BYTES);
                for byte in [bytes.start, bytes.end.saturating_sub(1)] {
                    prop_assert!(bytes.is_empty() || panels.containing(byte) == index);
                }
                next = bytes.end;
            }
            prop_assert_eq!(next, row_bytes);
            prop_assert!(panels.count() <= count.max(1));
        }
    }
}
