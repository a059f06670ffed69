//! Rows in memory, and a few bytes beside each that travel with it.

use crate::Result;
use flux_memory::{Address, Stream};

/// Where rows begin, and what travels beside them, if anything does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rows {
    /// The first row.
    pub rows: Address,
    /// What belongs to the first row, if something travels with the rows of this call: of all ranks or of none.
    pub side: Option<Address>,
}

impl From<Address> for Rows {
    fn from(rows: Address) -> Self {
        Self { rows, side: None }
    }
}

/// How a buffer holds rows: one behind the other, and what travels beside them behind all.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Layout {
    row_bytes: usize,
    side_bytes: usize,
    side_offset: usize,
    rows: usize,
}

impl Layout {
    /// What is beside the rows begins at a multiple of this.
    const ALIGNMENT: usize = 256;

    pub(crate) const fn new(rows: usize, row_bytes: usize, side_bytes: usize) -> Self {
        let end = rows.saturating_mul(row_bytes);
        let side_offset = match (side_bytes, end.checked_next_multiple_of(Self::ALIGNMENT)) {
            (0, _) | (_, None) => end,
            (_, Some(offset)) => offset,
        };
        Self { row_bytes, side_bytes, side_offset, rows }
    }

    /// The size of the buffer.
    pub(crate) const fn bytes(&self) -> usize {
        self.side_offset.saturating_add(self.rows.saturating_mul(self.side_bytes))
    }

    /// The rows of a buffer from `row` on.
    pub(crate) fn rows_at(&self, buffer: Address, row: usize, with_side: bool) -> Rows {
        let all = Rows { rows: buffer, side: with_side.then(|| buffer.add(self.side_offset)) };
        self.skip(all, row)
    }

    /// What comes `count` rows behind.
    pub(crate) fn skip(&self, from: Rows, count: usize) -> Rows {
        Rows {
            rows: from.rows.add(count * self.row_bytes),
            side: from.side.map(|side| side.add(count * self.side_bytes)),
        }
    }

    /// Copies rows that are not there already, and what is beside them.
    ///
    /// # Safety
    /// Both are live and of `count` rows until the stream has done this, and nobody else writes to the target meanwhile.
    pub(crate) unsafe fn copy(&self, stream: &Stream, to: Rows, from: Rows, count: usize) -> Result<()> {
        // SAFETY: the caller's promise.
        unsafe {
            if from.rows != to.rows {
                stream.copy(to.rows, from.rows, count * self.row_bytes)?;
            }
            if let (Some(to), Some(from)) = (to.side, from.side) {
                stream.copy(to, from, count * self.side_bytes)?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_beside_the_rows_lies_behind_them() {
        let layout = Layout::new(10, 100, 4);
        assert_eq!(layout.bytes(), 1024 + 40);
        let rows = layout.rows_at(Address(4096), 3, true);
        assert_eq!(rows, Rows { rows: Address(4396), side: Some(Address(4096 + 1024 + 12)) });
        assert_eq!(layout.skip(rows, 2).side, Some(Address(4096 + 1024 + 20)));
        assert_eq!(layout.rows_at(Address(4096), 3, false), Address(4396).into());
        assert_eq!(Layout::new(10, 100, 0).bytes(), 1000);
        assert_eq!(Layout::new(usize::MAX, 2, 4).bytes(), usize::MAX);
    }
}
