//! How fast the pairs of GPUs are, and who says so.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use crate::{LinkKind, Topology};

/// A kind of connection: more NVLinks come first.
type Kind = (LinkKind, Reverse<u32>);
type Pairs = Vec<(usize, usize)>;

/// All pairs of GPUs that are connected in the same way.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Bandwidth {
    /// The cell of the matrix: `NV18`, `PIX`, `SYS`, ….
    pub symbol: String,
    /// The pairs, the smaller index first.
    pub pairs: Vec<(usize, usize)>,
    /// One direction of payload, in GB/s (10⁹ bytes); `None` where nothing says.
    pub gb_per_s: Option<f64>,
    /// Where the number is from, or what is missing for one.
    pub source: String,
}

impl Topology {
    /// The kinds of connections that there are between GPUs, nearest first, with what each carries.
    pub fn bandwidths(&self) -> Vec<Bandwidth> {
        let mut kinds: BTreeMap<Kind, Pairs> = BTreeMap::new();
        let count = self.device_count();
        for (from, to) in (0..count).flat_map(|from| (from + 1..count).map(move |to| (from, to))) {
            if let Some(link) = self.link(from, to) {
                kinds.entry((link.kind, Reverse(link.nvlinks))).or_default().push((from, to));
            }
        }
        let bandwidth = |((kind, nvlinks), pairs): (Kind, Pairs)| {
            let first = pairs.first().copied().unwrap_or_default();
            let (gb_per_s, source) = match kind {
                LinkKind::NvLink => self.over_nvlink(nvlinks.0, first),
                LinkKind::Network => self.over_network(),
                _ => self.over_pcie(kind, first),
            };
            let symbol = self.link(first.0, first.1).map_or_else(String::new, |link| link.symbol());
            Bandwidth { symbol, pairs, gb_per_s, source }
        };
        kinds.into_iter().map(bandwidth).collect()
    }

    fn over_nvlink(&self, nvlinks: u32, (from, to): (usize, usize)) -> (Option<f64>, String) {
        let shared = match self.nvswitch() {
            Some(true) => "; a GPU has this once for all its peers together",
            _ => "",
        };
        let links = if nvlinks == 1 { "link" } else { "links" };
        let capability = self.devices().get(from).and_then(|device| device.compute_capability);
        match (self.nvlink_gb_per_s(from, to), capability.and_then(|capability| capability.nvlink_gb_per_s()))
        {
            (Some(gb_per_s), Some(rate)) => (
                Some(gb_per_s),
                format!("{nvlinks} {links} of {rate} GB/s, as NCCL reckons for this GPU{shared}"),
            ),
            _ if nvlinks == 0 => (None, format!("nobody could count the links{shared}")),
            _ => (
                None,
                format!(
                    "the source does not name the GPU; by NCCL's constants a link carries 18 to 21 GB/s up to Hopper, 12 \
                     on Ampere's workstation cards, 40 on Blackwell{shared}"
                ),
            ),
        }
    }

    fn over_pcie(&self, kind: LinkKind, (from, to): (usize, usize)) -> (Option<f64>, String) {
        let rate = |index: usize| self.devices().get(index).and_then(|device| device.pcie);
        let way = match kind {
            LinkKind::PcieSwitch | LinkKind::PcieSwitches => "",
            LinkKind::System => "; at most: every pair that crosses shares the interconnect of the sockets",
            _ => "; at most: the way goes through the CPU",
        };
        let staged = match self.link(from, to) {
            Some(link) if link.p2p.access.is_denied() => {
                "; no peer access, so data goes through the host's memory, and every byte moves twice"
            }
            _ => "",
        };
        let slower = rate(from).zip(rate(to)).map(|(a, b)| if a.gb_per_s() <= b.gb_per_s() { a } else { b });
        match slower {
            Some(rate) => {
                let source = format!("the GPU's connection, PCIe {rate}, as NCCL reckons{way}{staged}");
                (Some(rate.gb_per_s()), source)
            }
            None => (
                None,
                format!(
                    "the source does not say which PCIe; by NCCL's constants 16 lanes carry 12 GB/s for PCIe 3.0, 24 for \
                     4.0, 48 for 5.0{way}{staged}"
                ),
            ),
        }
    }

    /// A GPU's share of what the cards of its machine carry.
    fn over_network(&self) -> (Option<f64>, String) {
        let cards: Vec<u64> =
            self.nics().iter().filter(|nic| nic.host == 0).filter_map(|nic| nic.megabits_per_s).collect();
        let gpus = u32::try_from(self.devices().iter().filter(|device| device.host == 0).count())
            .unwrap_or(u32::MAX);
        if cards.is_empty() || gpus == 0 {
            return (None, "the speed of the network cards is not known".to_owned());
        }
        // Megabits of all cards stay far below what a double holds exactly.
        #[allow(clippy::cast_precision_loss)]
        let gigabytes = cards.iter().fold(0u64, |sum, &card| sum.saturating_add(card)) as f64 / 8000.0;
        let source = format!("{} network cards with {gigabytes:.0} GB/s, shared by {gpus} GPUs", cards.len());
        (Some(gigabytes / f64::from(gpus)), source)
    }
}
