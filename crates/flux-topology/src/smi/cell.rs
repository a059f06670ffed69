//! The cells of the matrix: `X`, `NV12`, `PIX`, ….

use crate::{Link, LinkKind, P2pStatus};

/// What a word says, if it is a cell.
fn cell(word: &str) -> Option<Link> {
    let kind = match word {
        "X" => return Some(Link::local()),
        "PIX" => LinkKind::PcieSwitch,
        "PXB" => LinkKind::PcieSwitches,
        "PHB" => LinkKind::HostBridge,
        "NODE" => LinkKind::NumaNode,
        // Drivers before 2017 called the way between sockets SOC.
        "SYS" | "SOC" => LinkKind::System,
        // Two GPUs of one board.
        "PSB" => LinkKind::PcieSwitch,
        // What nvidia-smi writes where it cannot tell.
        "N/A" | "UNK" | "?" => LinkKind::Unknown,
        _ => {
            let digits = word.strip_prefix("NV")?;
            let links = digits.parse().ok().filter(|links| (1..=256).contains(links))?;
            return digits.bytes().all(|byte| byte.is_ascii_digit()).then(|| Link::nvlink(links));
        }
    };
    Some(Link {
        p2p: crate::P2p { nvlink: P2pStatus::NotSupported, ..Default::default() },
        ..Link::distance(kind)
    })
}

pub(crate) fn is_cell(word: &str) -> bool {
    !cells(word).is_empty()
}

/// The cells in a word: one, or several where columns are glued together as in `PXBSYS`; none where it is
/// something else.
pub(crate) fn cells(word: &str) -> Vec<Link> {
    if let Some(cell) = cell(word) {
        return vec![cell];
    }
    let mut cells = Vec::new();
    let mut rest = word;
    while !rest.is_empty() {
        // Links have up to three digits: the longest that is a cell is meant.
        let longest = (1..=5).rev().find_map(|end| Some((cell(rest.get(..end)?)?, rest.get(end..)?)));
        let Some((found, after)) = longest else { return Vec::new() };
        cells.push(found);
        rest = after;
    }
    cells
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words() {
        let table = [
            ("X", "X"),
            ("NV12", "NV12"),
            ("SOC", "SYS"),
            ("SYSSYS", "SYS SYS"),
            ("PXBSYS", "PXB SYS"),
            ("NV12NV12", "NV12 NV12"),
            ("XPIX", "X PIX"),
            ("NV0", ""),
            ("NV", ""),
            ("NV+3", ""),
            ("NV99999999999", ""),
            ("0-31", ""),
            ("SYSé", ""),
            ("", ""),
        ];
        for (word, want) in table {
            let got: Vec<String> = cells(word).iter().map(Link::symbol).collect();
            assert_eq!(got.join(" "), want, "{word:?}");
        }
    }
}
