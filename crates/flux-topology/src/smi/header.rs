//! The line above the matrix: which columns there are.

use std::collections::BTreeSet;

use super::line::Line;
use crate::Result;

/// The columns, in order.
pub(crate) struct Header {
    pub(crate) line: usize,
    /// The devices.
    pub(crate) labels: Vec<Label>,
    /// Whether `NUMA Affinity` follows.
    pub(crate) has_numa: bool,
    pub(crate) warnings: Vec<String>,
}

/// The name of a device, above its column and before its row: `GPU0`, `NIC3`, `mlx5_0`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Label {
    pub(crate) name: String,
}

impl Label {
    pub(crate) fn is_gpu(&self) -> bool {
        numbered(&self.name, "GPU").is_some()
    }

    /// Whether it is a part of a GPU that is cut into several.
    pub(crate) fn is_mig(&self) -> bool {
        self.name.contains("MIG")
    }

    pub(crate) fn is_nic(&self) -> bool {
        !self.is_gpu() && !self.is_mig()
    }

    /// Whether it is a card by number, whose name is in the legend.
    pub(crate) fn is_numbered_nic(word: &str) -> bool {
        numbered(word, "NIC").is_some()
    }

    /// Whether a word names a GPU or a card as nvidia-smi numbers them.
    pub(crate) fn is_device(word: &str) -> bool {
        numbered(word, "GPU").is_some() || numbered(word, "NIC").is_some()
    }
}

/// The number in `GPU12`.
fn numbered(word: &str, prefix: &str) -> Option<u32> {
    let digits = word.strip_prefix(prefix)?;
    let plain = !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit());
    plain.then(|| digits.parse().ok()).flatten()
}

impl Header {
    /// Whether the line begins as the header does.
    fn is_begun_by(line: &Line) -> bool {
        let Some(first) = line.tokens.first() else { return false };
        let glued = split(&first.text);
        // The first row begins with a GPU as well, and goes on with X or another cell.
        let second = glued.get(1).copied().or_else(|| Some(line.tokens.get(1)?.text.as_str()));
        let goes_on = second.is_none_or(|word| !super::cell::is_cell(word));
        goes_on && glued.first().is_some_and(|first| numbered(first, "GPU").is_some())
    }

    /// Reads the line, if it is the header.
    pub(crate) fn read(line: &Line) -> Result<Option<Header>> {
        if !Header::is_begun_by(line) {
            return Ok(None);
        }
        let mut header =
            Header { line: line.number, labels: Vec::new(), has_numa: false, warnings: Vec::new() };
        let words: Vec<&str> = line.tokens.iter().map(|token| token.text.as_str()).collect();
        let tail = words.windows(2).position(is_affinity).unwrap_or(words.len());
        for token in line.tokens.iter().take(tail) {
            let parts = split(&token.text);
            if parts.len() > 1 {
                header.warnings.push(format!(
                    "line {}, column {}: {} is taken for {} columns",
                    line.number,
                    token.column,
                    token.text,
                    parts.len()
                ));
            }
            header.labels.extend(parts.into_iter().map(|name| Label { name: name.to_owned() }));
        }
        header.has_numa = words.windows(2).skip(tail).any(|pair| *pair == ["NUMA", "Affinity"]);
        let is_device = |label: &Label| Label::is_device(&label.name) || label.is_mig();
        let mut seen = BTreeSet::new();
        if let Some(label) = header.labels.iter().find(|label| !seen.insert(label.name.as_str())) {
            if !header.labels.iter().all(is_device) {
                // A sentence that begins with a GPU.
                return Ok(None);
            }
            let token = line.tokens.iter().rev().find(|token| token.text.ends_with(&label.name));
            let reason = format!("the header names {} twice; leave one, with its cells", label.name);
            return Err(line.error(token.map_or(1, |token| token.column), reason));
        }
        if header.labels.iter().any(Label::is_mig) {
            header
                .warnings
                .push("MIG devices are left out: only whole GPUs can talk to each other".to_owned());
        }
        Ok(Some(header))
    }
}

/// Whether two words are the title of the first column behind the devices.
fn is_affinity(words: &[&str]) -> bool {
    matches!(words, ["CPU" | "NUMA", "Affinity"] | ["GPU", "NUMA"])
}

/// The device names in a word: one, or several where columns are glued together as in `NIC7NIC8`.
fn split(word: &str) -> Vec<&str> {
    let starts: Vec<usize> = word
        .char_indices()
        .filter(|&(at, _)| {
            let rest = word.get(at..).unwrap_or_default();
            let digit = |rest: &str| rest.starts_with(|c: char| c.is_ascii_digit());
            ["GPU", "NIC"].iter().any(|prefix| rest.strip_prefix(prefix).is_some_and(digit))
        })
        .map(|(at, _)| at)
        .collect();
    // A prefix of something else, as in `mlx5_NIC0`, is no glue.
    if starts.len() < 2 || starts.first() != Some(&0) {
        return vec![word];
    }
    let ends = starts.iter().skip(1).copied().chain([word.len()]);
    starts.iter().zip(ends).filter_map(|(&start, end)| word.get(start..end)).collect()
}

/// Names of devices, neighbours as one: `GPU5..GPU15`.
pub(crate) fn runs(labels: &[&Label]) -> Vec<String> {
    let number = |label: &Label| numbered(&label.name, "GPU").or_else(|| numbered(&label.name, "NIC"));
    let follows = |a: &Label, b: &Label| {
        a.is_gpu() == b.is_gpu() && number(a).zip(number(b)).is_some_and(|(a, b)| a.checked_add(1) == Some(b))
    };
    labels
        .chunk_by(|a, b| follows(a, b))
        .filter_map(|run| match run {
            [] => None,
            [one] => Some(one.name.clone()),
            [first, .., last] => Some(format!("{}..{}", first.name, last.name)),
        })
        .collect()
}
