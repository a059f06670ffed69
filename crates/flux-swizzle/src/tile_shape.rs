//! Extents of output tiles, and how they are written: `128x256`.

use alloc::string::String;
use core::{fmt, str::FromStr};

/// Extents of an output tile.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TileShape {
    /// Rows of C (and of A) in a tile.
    pub rows: usize,
    /// Columns of C (rows of the weight) in a tile.
    pub columns: usize,
}

/// Text that is no tile.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BadTile {
    /// The text.
    pub text: String,
}

impl fmt::Display for BadTile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?} is no tile; write its rows and columns, like 128x256", self.text)
    }
}

impl core::error::Error for BadTile {}

impl fmt::Display for TileShape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}x{}", self.rows, self.columns)
    }
}

impl FromStr for TileShape {
    type Err = BadTile;

    fn from_str(text: &str) -> Result<Self, BadTile> {
        let sides = text.split_once('x').and_then(|(rows, columns)| {
            let shape = Self { rows: rows.parse().ok()?, columns: columns.parse().ok()? };
            Some(shape).filter(|shape| shape.rows > 0 && shape.columns > 0)
        });
        sides.ok_or_else(|| BadTile { text: text.into() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::string::ToString;

    #[test]
    fn what_is_written_is_read() {
        let tile = TileShape { rows: 128, columns: 256 };
        assert_eq!(tile.to_string().parse(), Ok(tile));
        for bad in ["", "128", "x", "0x64", "64x0", "64x64x64", "-1x64", "99999999999999999999x1"] {
            assert!(bad.parse::<TileShape>().unwrap_err().to_string().contains("128x256"), "{bad}");
        }
    }
}
