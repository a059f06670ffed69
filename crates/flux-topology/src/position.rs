//! Where in a text something is.

/// A place in a text, counted from 1 as editors do; 0 where there is no text.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Position {
    pub(crate) line: usize,
    /// In characters.
    pub(crate) column: usize,
}

impl Position {
    /// The place of the byte at this offset, or of the end.
    pub(crate) fn of(text: &str, offset: usize) -> Position {
        Cursor::new(text).advance(offset)
    }
}

/// Finds the places of offsets that only grow, in one pass over the text.
pub(crate) struct Cursor<'a> {
    text: &'a [u8],
    offset: usize,
    at: Position,
}

impl<'a> Cursor<'a> {
    pub(crate) fn new(text: &'a str) -> Cursor<'a> {
        Cursor { text: text.as_bytes(), offset: 0, at: Position { line: 1, column: 1 } }
    }

    /// The place of the byte at this offset, or of the end; an offset before the last one is taken for that.
    pub(crate) fn advance(&mut self, offset: usize) -> Position {
        let offset = offset.min(self.text.len());
        for &byte in self.text.get(self.offset..offset).unwrap_or_default() {
            match byte {
                b'\n' => self.at = Position { line: self.at.line + 1, column: 1 },
                // Bytes within a character are not counted: its first one is.
                0b1000_0000..=0b1011_1111 => {}
                _ => self.at.column += 1,
            }
        }
        self.offset = self.offset.max(offset);
        self.at
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_and_columns() {
        let text = "ab\nçd\n";
        let table = [(0, 1, 1), (2, 1, 3), (3, 2, 1), (5, 2, 2), (6, 2, 3), (7, 3, 1), (99, 3, 1)];
        for (offset, line, column) in table {
            assert_eq!(Position::of(text, offset), Position { line, column }, "{offset}");
        }
    }
}
