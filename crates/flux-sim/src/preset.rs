//! Machines by name.
//!
//! Links carry what NCCL reckons with (`src/graph/topo.h`): 20.0 GB/s one way for each NVLink of A100 (and V100), 20.6 of Hopper,
//! 40.1 of Blackwell; 24 for PCIe 4.0 x16, twice the 12 of 3.0, of which GPUs behind an Intel host use 5/6 between each other; 16
//! between the sockets of an AMD host (Zen 1 and 2), 24 of later ones, 22 of Intel's (Sapphire Rapids); 12 for each 100 Gbit/s of
//! network; one card of so many where nothing is known of any. Which hosts others measured on is not known: those of the GPU's time are
//! assumed. Where copies between two H200s were measured, they reach 21.9 for each NVLink.

use crate::{Error, Gpu, Machine, Node, Result};

const A100_LINK: f64 = 20.0;
const HOPPER_LINK: f64 = 20.6;
const H200_LINK: f64 = 21.9;
const BLACKWELL_LINK: f64 = 40.1;
const PCIE_4: f64 = 24.0;
const PCIE_4_INTEL: f64 = 20.0;
const PCIE_5: f64 = 48.0;
const SOCKETS_ZEN_2: f64 = 16.0;
const SOCKETS_LATER: f64 = 24.0;
const SOCKETS_SAPPHIRE_RAPIDS: f64 = 22.0;
const NIC_100_GBIT: f64 = 12.0;

const NAMES: [&str; 15] = [
    "dgx-a100",
    "hgx-a100-4-nics",
    "hgx-a800",
    "8xa100-pcie",
    "4xa100-nvlink-pairs",
    "8xl20-pcie",
    "4x4090",
    "dgx-1-v100",
    "dgx-h100",
    "hgx-h800",
    "hgx-h200",
    "2xh200",
    "8xh100-500w",
    "gb200-nvl72",
    "8xl20-numa-3-5",
];

fn switched(gpu: Gpu, gpus: usize, nvlinks: f64, nics: usize, nic_gb_per_s: f64) -> Node {
    Node {
        gpu,
        gpus,
        nvswitch_gb_per_s: Some(nvlinks),
        bridges: Vec::new(),
        pcie_gb_per_s: PCIE_5,
        numa: vec![gpus.div_ceil(2), gpus / 2],
        numa_gb_per_s: SOCKETS_LATER,
        nics,
        nic_gb_per_s,
    }
}

fn pcie(gpu: Gpu, numa: &[usize], numa_gb_per_s: f64, nics: usize) -> Node {
    Node {
        gpu,
        gpus: numa.iter().sum(),
        nvswitch_gb_per_s: None,
        bridges: Vec::new(),
        pcie_gb_per_s: PCIE_4,
        numa: numa.to_vec(),
        numa_gb_per_s,
        nics,
        nic_gb_per_s: NIC_100_GBIT,
    }
}

impl Machine {
    /// `nodes` machines of that name; [`presets`](Machine::presets) lists the names.
    pub fn preset(name: &str, nodes: usize) -> Result<Machine> {
        let node = match name {
            "dgx-a100" => switched(Gpu::A100, 8, 12.0 * A100_LINK, 8, 2.0 * NIC_100_GBIT),
            // The flux paper's machines with NVLink: a card for each two GPUs.
            "hgx-a100-4-nics" => switched(Gpu::A100, 8, 12.0 * A100_LINK, 4, 2.0 * NIC_100_GBIT),
            "hgx-a800" => {
                switched(Gpu { name: "A800", ..Gpu::A100 }, 8, 8.0 * A100_LINK, 8, 2.0 * NIC_100_GBIT)
            }
            "8xa100-pcie" => pcie(Gpu::A100, &[4, 4], SOCKETS_ZEN_2, 2),
            "4xa100-nvlink-pairs" => Node {
                bridges: vec![(0, 1, 12.0 * A100_LINK), (2, 3, 12.0 * A100_LINK)],
                ..pcie(Gpu::A100, &[2, 2], SOCKETS_ZEN_2, 2)
            },
            "8xl20-pcie" => {
                Node { pcie_gb_per_s: PCIE_4_INTEL, ..pcie(Gpu::L20, &[4, 4], SOCKETS_SAPPHIRE_RAPIDS, 1) }
            }
            "8xl20-numa-3-5" => {
                Node { pcie_gb_per_s: PCIE_4_INTEL, ..pcie(Gpu::L20, &[3, 5], SOCKETS_SAPPHIRE_RAPIDS, 1) }
            }
            // One socket. The driver offers no access between these: copies go through the host, at about half of the rate.
            "4x4090" => Node { pcie_gb_per_s: PCIE_4 / 2.0, ..pcie(Gpu::RTX4090, &[4], SOCKETS_LATER, 1) },
            "dgx-1-v100" => {
                // The edges of a cube and the diagonals of two of its faces: two of the six links of each GPU go to each of two
                // peers, one to each of two others.
                const TWO: [(usize, usize); 8] =
                    [(0, 3), (0, 4), (1, 2), (1, 5), (2, 3), (4, 7), (5, 6), (6, 7)];
                const ONE: [(usize, usize); 8] =
                    [(0, 1), (0, 2), (1, 3), (2, 6), (3, 7), (4, 5), (4, 6), (5, 7)];
                let each = |pairs: [(usize, usize); 8], gb_per_s| pairs.map(|(a, b)| (a, b, gb_per_s));
                let bridges = [each(TWO, 2.0 * A100_LINK), each(ONE, A100_LINK)].concat();
                Node { bridges, pcie_gb_per_s: PCIE_4 / 2.0, ..pcie(Gpu::V100, &[4, 4], 10.0, 4) }
            }
            "dgx-h100" => switched(Gpu::H100, 8, 18.0 * HOPPER_LINK, 8, 4.0 * NIC_100_GBIT),
            "8xh100-500w" => switched(Gpu::H100_500W, 8, 18.0 * HOPPER_LINK, 8, 4.0 * NIC_100_GBIT),
            "hgx-h800" => switched(Gpu::H800, 8, 8.0 * HOPPER_LINK, 8, 4.0 * NIC_100_GBIT),
            "hgx-h200" => switched(Gpu::H200, 8, 18.0 * H200_LINK, 8, 4.0 * NIC_100_GBIT),
            "2xh200" => Node { numa: vec![2], ..switched(Gpu::H200, 2, 18.0 * H200_LINK, 1, NIC_100_GBIT) },
            "gb200-nvl72" => Node {
                numa: vec![2; 36],
                ..switched(Gpu::B200, 72, 18.0 * BLACKWELL_LINK, 72, 4.0 * NIC_100_GBIT)
            },
            _ => return Err(Error::UnknownPreset { name: name.to_owned() }),
        };
        Machine::new(name, node, nodes)
    }

    /// The names that [`preset`](Machine::preset) knows.
    pub fn presets() -> impl Iterator<Item = &'static str> {
        NAMES.into_iter()
    }
}
