//! The machines that are known by name.

use super::gpu::{self, Gpu};
use crate::{LinkKind, P2pStatus};

/// One machine: GPUs of one kind, what they hang on, and what connects two of them.
pub(super) struct Machine {
    pub(super) name: &'static str,
    pub(super) gpu: &'static Gpu,
    /// How many GPUs.
    pub(super) count: usize,
    /// How many GPUs hang on each NUMA node.
    pub(super) per_numa: usize,
    /// How many GPUs are in each machine of a rack; `count` but for racks.
    pub(super) per_host: usize,
    pub(super) connection: Connection,
    pub(super) nics: Nics,
    /// What it is.
    pub(super) words: &'static str,
}

pub(super) enum Connection {
    /// So many NVLinks between every two, through switches or not; `None` where there is one GPU, or it is open.
    NvLink(u32, Option<bool>),
    /// NVLinks between some; over PCIe the others, as in [`Connection::Pcie`].
    Some(fn(usize, usize) -> u32, Pcie),
    /// PCIe only.
    Pcie(Pcie),
}

/// The distance of two GPUs on PCIe.
pub(super) struct Pcie {
    /// How many share a switch; 1 where there is none.
    pub(super) per_switch: usize,
    /// Within a NUMA node, where no switch is shared.
    pub(super) near: LinkKind,
    pub(super) access: P2pStatus,
}

/// Its network cards for traffic between GPUs; cards for storage and management are left out.
pub(super) struct Nics {
    pub(super) count: usize,
    pub(super) gigabits_per_s: u64,
    /// How many GPUs are near each; 0 for none.
    pub(super) gpus: usize,
    pub(super) near: LinkKind,
}

const NO_NICS: Nics = Nics { count: 0, gigabits_per_s: 0, gpus: 0, near: LinkKind::PcieSwitch };
/// One card of 400 Gb/s beside each of eight GPUs.
const EIGHT_OF_400: Nics = Nics { count: 8, gigabits_per_s: 400, gpus: 1, near: LinkKind::PcieSwitch };
/// DGX A100 user guide: eight ConnectX-6 of 200 Gb/s, two for each two GPUs, behind several bridges.
const EIGHT_OF_200: Nics = Nics { count: 8, gigabits_per_s: 200, gpus: 2, near: LinkKind::PcieSwitches };

const fn nvswitch(
    name: &'static str,
    gpu: &'static Gpu,
    links: u32,
    nics: Nics,
    words: &'static str,
) -> Machine {
    let connection = Connection::NvLink(links, Some(true));
    Machine { name, gpu, count: 8, per_numa: 4, per_host: 8, connection, nics, words }
}

const fn pcie(
    name: &'static str,
    gpu: &'static Gpu,
    count: usize,
    per_numa: usize,
    (per_switch, near, access): (usize, LinkKind, P2pStatus),
    nics: Nics,
    words: &'static str,
) -> Machine {
    let connection = Connection::Pcie(Pcie { per_switch, near, access });
    Machine { name, gpu, count, per_numa, per_host: count, connection, nics, words }
}

/// DGX-1 with V100: two of the six links of each GPU go to each of two peers, one to each of two others.
fn cube_mesh(a: usize, b: usize) -> u32 {
    const TWO: [(usize, usize); 8] = [(0, 3), (0, 4), (1, 2), (1, 5), (2, 3), (4, 7), (5, 6), (6, 7)];
    const ONE: [(usize, usize); 8] = [(0, 1), (0, 2), (1, 3), (2, 6), (3, 7), (4, 5), (4, 6), (5, 7)];
    let pair = (a.min(b), a.max(b));
    if TWO.contains(&pair) { 2 } else { u32::from(ONE.contains(&pair)) }
}

/// Cards bridged in pairs.
fn pairs_of_12(a: usize, b: usize) -> u32 {
    if a / 2 == b / 2 { 12 } else { 0 }
}

pub(super) const MACHINES: &[Machine] = &[
    nvswitch("dgx-h100", &gpu::H100, 18, EIGHT_OF_400, "DGX or HGX H100, eight GPUs"),
    nvswitch("hgx-h200", &gpu::H200, 18, EIGHT_OF_400, "HGX or DGX H200, eight GPUs"),
    nvswitch("hgx-h800", &gpu::H800, 8, EIGHT_OF_400, "HGX H800, eight GPUs"),
    nvswitch("hgx-h20", &gpu::H20, 18, EIGHT_OF_400, "HGX H20, eight GPUs"),
    nvswitch("dgx-b200", &gpu::B200, 18, EIGHT_OF_400, "DGX or HGX B200, eight GPUs"),
    nvswitch("dgx-a100", &gpu::A100, 12, EIGHT_OF_200, "DGX or HGX A100, eight GPUs"),
    nvswitch("hgx-a800", &gpu::A800, 8, EIGHT_OF_200, "HGX A800, eight GPUs"),
    nvswitch(
        "aws-p4d-24xl",
        &gpu::A100_40,
        12,
        Nics { count: 4, gigabits_per_s: 100, gpus: 2, near: LinkKind::PcieSwitch },
        "AWS p4d.24xlarge",
    ),
    pcie(
        "aws-g5-48xl",
        &gpu::A10G,
        8,
        4,
        (1, LinkKind::HostBridge, P2pStatus::Unknown),
        Nics { count: 1, gigabits_per_s: 100, gpus: 0, near: LinkKind::HostBridge },
        "AWS g5.48xlarge, eight A10G",
    ),
    // A DGX-2 has two boards of eight.
    Machine {
        name: "dgx-2",
        gpu: &gpu::V100_SXM3,
        count: 16,
        per_numa: 8,
        per_host: 16,
        connection: Connection::NvLink(6, Some(true)),
        nics: Nics { count: 8, gigabits_per_s: 100, gpus: 2, near: LinkKind::PcieSwitch },
        words: "DGX-2, sixteen V100",
    },
    Machine {
        name: "dgx-1-v100",
        gpu: &gpu::V100,
        count: 8,
        per_numa: 4,
        per_host: 8,
        connection: Connection::Some(
            cube_mesh,
            Pcie { per_switch: 2, near: LinkKind::HostBridge, access: P2pStatus::Ok },
        ),
        nics: Nics { count: 4, gigabits_per_s: 100, gpus: 2, near: LinkKind::PcieSwitch },
        words: "DGX-1 with V100: NVLinks as the edges of a cube, and more",
    },
    // 18 trays with two CPUs and four GPUs each; NVLink connects all trays.
    Machine {
        name: "gb200-nvl72",
        gpu: &gpu::GB200,
        count: 72,
        per_numa: 2,
        per_host: 4,
        connection: Connection::NvLink(18, Some(true)),
        nics: Nics { count: 4, gigabits_per_s: 400, gpus: 0, near: LinkKind::System },
        words: "GB200 NVL72: 18 trays of four GPUs in one NVLink domain",
    },
    Machine {
        name: "4xa100-nvlink",
        gpu: &gpu::A100,
        count: 4,
        per_numa: 2,
        per_host: 4,
        // Without a switch the 12 links of each GPU are split over its three peers.
        connection: Connection::NvLink(4, Some(false)),
        nics: NO_NICS,
        words: "four A100 SXM, NVLink to each, no switch",
    },
    Machine {
        name: "4xh100-nvlink",
        gpu: &gpu::H100,
        count: 4,
        per_numa: 2,
        per_host: 4,
        connection: Connection::NvLink(6, Some(false)),
        nics: NO_NICS,
        words: "four H100 SXM, NVLink to each, no switch",
    },
    Machine {
        name: "8xh100-nvl",
        gpu: &gpu::H100_NVL,
        count: 8,
        per_numa: 4,
        per_host: 8,
        connection: Connection::Some(
            pairs_of_12,
            Pcie { per_switch: 1, near: LinkKind::NumaNode, access: P2pStatus::Ok },
        ),
        nics: NO_NICS,
        words: "eight H100 NVL, bridged in pairs",
    },
    // As in the measurements of the flux paper: 4 GPUs and 1 card of 100 Gb/s on each socket.
    pcie(
        "8xa100-pcie",
        &gpu::A100_PCIE,
        8,
        4,
        (1, LinkKind::NumaNode, P2pStatus::Ok),
        Nics { count: 2, gigabits_per_s: 100, gpus: 0, near: LinkKind::NumaNode },
        "eight A100 PCIe on two sockets, no bridges",
    ),
    Machine {
        name: "8xa100-pcie-bridged",
        gpu: &gpu::A100_PCIE,
        count: 8,
        per_numa: 4,
        per_host: 8,
        connection: Connection::Some(
            pairs_of_12,
            Pcie { per_switch: 1, near: LinkKind::NumaNode, access: P2pStatus::Ok },
        ),
        nics: NO_NICS,
        words: "eight A100 PCIe on two sockets, bridged in pairs",
    },
    pcie(
        "8xl20-pcie",
        &gpu::L20,
        8,
        4,
        (1, LinkKind::NumaNode, P2pStatus::Ok),
        NO_NICS,
        "eight L20 on two sockets",
    ),
    pcie(
        "8xl40s-pcie",
        &gpu::L40S,
        8,
        4,
        (1, LinkKind::NumaNode, P2pStatus::Ok),
        NO_NICS,
        "eight L40S on two sockets",
    ),
    pcie(
        "4xl40s-pcie",
        &gpu::L40S,
        4,
        2,
        (1, LinkKind::NumaNode, P2pStatus::Ok),
        NO_NICS,
        "four L40S on two sockets",
    ),
    pcie(
        "4x4090",
        &gpu::RTX4090,
        4,
        4,
        (1, LinkKind::HostBridge, P2pStatus::NotSupported),
        NO_NICS,
        "four RTX 4090 on one socket",
    ),
    pcie(
        "2x4090",
        &gpu::RTX4090,
        2,
        2,
        (1, LinkKind::HostBridge, P2pStatus::NotSupported),
        NO_NICS,
        "two RTX 4090",
    ),
    pcie(
        "8x4090",
        &gpu::RTX4090,
        8,
        4,
        (1, LinkKind::NumaNode, P2pStatus::NotSupported),
        NO_NICS,
        "eight RTX 4090 on two sockets",
    ),
    Machine {
        name: "2x3090-nvlink",
        gpu: &gpu::RTX3090,
        count: 2,
        per_numa: 2,
        per_host: 2,
        connection: Connection::NvLink(4, Some(false)),
        nics: NO_NICS,
        words: "two RTX 3090 with a bridge",
    },
    Machine {
        name: "2xh200",
        gpu: &gpu::H200,
        count: 2,
        per_numa: 2,
        per_host: 2,
        // Measured on such a pair: NV18 in nvidia-smi's matrix, peer copies of 256 MiB at 395 GB/s one way.
        connection: Connection::NvLink(18, None),
        nics: NO_NICS,
        words: "two H200 SXM, part of a larger machine",
    },
    Machine {
        name: "1xh200",
        gpu: &gpu::H200,
        count: 1,
        per_numa: 1,
        per_host: 1,
        connection: Connection::NvLink(0, None),
        nics: NO_NICS,
        words: "one H200",
    },
];

/// Other names of the same. What an HGX and a DGX differ in is nothing that is described here.
pub(super) const ALIASES: &[(&str, &str)] = &[
    ("hgx-h100", "dgx-h100"),
    ("8xh100", "dgx-h100"),
    ("h100-8-nvswitch", "dgx-h100"),
    ("dgx-h200", "hgx-h200"),
    ("8xh200", "hgx-h200"),
    ("h200-8-nvswitch", "hgx-h200"),
    ("hgx-b200", "dgx-b200"),
    ("8xb200", "dgx-b200"),
    ("hgx-a100", "dgx-a100"),
    ("8xa100", "dgx-a100"),
    ("a100-8-nvswitch", "dgx-a100"),
    ("dgx-1", "dgx-1-v100"),
    ("nvl72", "gb200-nvl72"),
    ("a100-4-nvlink-mesh", "4xa100-nvlink"),
    ("l40s-4-pcie", "4xl40s-pcie"),
    ("rtx4090-2-pcie", "2x4090"),
    ("h200-2-nvlink", "2xh200"),
    ("single-h200", "1xh200"),
];
