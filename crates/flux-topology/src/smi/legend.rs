//! What stands below the matrix: the meaning of the cells, and the names of the network cards.

use super::header::Header;
use super::line::Line;
use crate::position::Position;
use crate::{Error, Result};

/// The legend.
#[derive(Default)]
pub(crate) struct Legend {
    /// The words that are explained: `X`, `SYS`, `NV#`, ….
    explained: Vec<String>,
    /// `NIC0` and `mlx5_0`.
    names: Vec<(String, String)>,
}

impl Legend {
    /// Reads the lines below the last row.
    pub(crate) fn read(lines: &[Line], header: &Header, text: &str) -> Result<Legend> {
        let mut legend = Legend::default();
        for line in lines {
            let words: Vec<&str> = line.tokens.iter().map(|token| token.text.as_str()).collect();
            if let [word, "=", ..] = words.as_slice() {
                legend.explained.push((*word).to_owned());
            }
            if !Legend::is_name_of_a_nic(line) {
                continue;
            }
            let mut left = words.as_slice();
            while let [label, rest @ ..] = left {
                let Some(label) = label.strip_suffix(':') else { break };
                let Some((name, rest)) = rest.split_first() else {
                    let Position { line, column } = Position::of(text, text.len());
                    return Err(Error::EndsEarly {
                        line,
                        column,
                        inside: Some("the legend of the NICs".to_owned()),
                    });
                };
                legend.names.push((label.to_owned(), (*name).to_owned()));
                left = rest;
            }
        }
        let named = |label: &super::header::Label| legend.name_of(&label.name).is_some();
        let mut numbered =
            header.labels.iter().filter(|label| super::header::Label::is_numbered_nic(&label.name));
        if !legend.names.is_empty() && !numbered.all(named) && !text.ends_with('\n') {
            let Position { line, column } = Position::of(text, text.len());
            return Err(Error::EndsEarly { line, column, inside: Some("the legend of the NICs".to_owned()) });
        }
        Ok(legend)
    }

    /// Whether a line names cards: `NIC0: mlx5_0`, one or several.
    pub(crate) fn is_name_of_a_nic(line: &Line) -> bool {
        let first = line.tokens.first().and_then(|token| token.text.strip_suffix(':'));
        first.is_some_and(super::header::Label::is_device)
    }

    pub(crate) fn name_of(&self, label: &str) -> Option<&str> {
        self.names.iter().find(|(known, _)| known == label).map(|(_, name)| name.as_str())
    }

    /// Whether everything but NVLink is explained, as `nvidia-smi topo -mp` does.
    pub(crate) fn hides_nvlink(&self) -> bool {
        let explains = |word: &str| self.explained.iter().any(|known| known == word);
        ["X", "SYS", "NODE", "PHB", "PXB", "PIX"].iter().all(|word| explains(word)) && !explains("NV#")
    }
}
