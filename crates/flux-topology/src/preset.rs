//! Machines by name, for planning and simulation where they are not at hand.

use crate::{ComputeCapability, Device, Error, Link, LinkKind, P2pStatus, Result, Source, Topology};

/// One machine: `count` GPUs of one kind, the NUMA nodes they hang on, and what connects two of them.
struct Preset {
    name: &'static str,
    gpu: Gpu,
    /// The NUMA node of each GPU; its length is the number of GPUs.
    numa_nodes: &'static [u32],
    connection: Connection,
}

enum Connection {
    /// So many NVLinks between every two.
    NvLink(u32),
    /// PCIe: of the first kind within a NUMA node, [`LinkKind::System`] across; with this peer access.
    Pcie(LinkKind, P2pStatus),
}

/// A GPU by its data sheet. Memory is nominal: the driver shows a few percent more or less.
struct Gpu {
    name: &'static str,
    sm: (u32, u32),
    sm_count: u32,
    memory_gb: u64,
}

/// NVIDIA H200 data sheet: SXM, 141 GB, 18 NVLinks of the fourth generation. 132 SMs as the driver shows.
const H200: Gpu = Gpu { name: "NVIDIA H200", sm: (9, 0), sm_count: 132, memory_gb: 141 };
/// NVIDIA H100 architecture paper: SXM5, 132 SMs, 80 GB, 18 NVLinks of the fourth generation.
const H100: Gpu = Gpu { name: "NVIDIA H100 80GB HBM3", sm: (9, 0), sm_count: 132, memory_gb: 80 };
/// NVIDIA A100 architecture paper: SXM4, 108 SMs, 80 GB, 12 NVLinks of the third generation.
const A100: Gpu = Gpu { name: "NVIDIA A100-SXM4-80GB", sm: (8, 0), sm_count: 108, memory_gb: 80 };
/// NVIDIA L40S data sheet: 142 SMs, 48 GB, PCIe 4.0 x16, no NVLink.
const L40S: Gpu = Gpu { name: "NVIDIA L40S", sm: (8, 9), sm_count: 142, memory_gb: 48 };
/// NVIDIA Ada architecture paper: 128 SMs, 24 GB, PCIe 4.0 x16, no NVLink, and no peer access in the
/// driver as NVIDIA ships it.
const RTX4090: Gpu = Gpu { name: "NVIDIA GeForce RTX 4090", sm: (8, 9), sm_count: 128, memory_gb: 24 };

const TWO_SOCKETS_OF_FOUR: &[u32] = &[0, 0, 0, 0, 1, 1, 1, 1];

const PRESETS: &[Preset] = &[
    Preset {
        name: "h200-8-nvswitch",
        gpu: H200,
        numa_nodes: TWO_SOCKETS_OF_FOUR,
        connection: Connection::NvLink(18),
    },
    Preset {
        name: "h100-8-nvswitch",
        gpu: H100,
        numa_nodes: TWO_SOCKETS_OF_FOUR,
        connection: Connection::NvLink(18),
    },
    Preset {
        name: "a100-8-nvswitch",
        gpu: A100,
        numa_nodes: TWO_SOCKETS_OF_FOUR,
        connection: Connection::NvLink(12),
    },
    // Without a switch the 12 links of each GPU are split over its three peers.
    Preset {
        name: "a100-4-nvlink-mesh",
        gpu: A100,
        numa_nodes: &[0, 0, 1, 1],
        connection: Connection::NvLink(4),
    },
    Preset {
        name: "l40s-4-pcie",
        gpu: L40S,
        numa_nodes: &[0, 0, 1, 1],
        connection: Connection::Pcie(LinkKind::NumaNode, P2pStatus::Ok),
    },
    Preset {
        name: "rtx4090-2-pcie",
        gpu: RTX4090,
        numa_nodes: &[0, 0],
        connection: Connection::Pcie(LinkKind::HostBridge, P2pStatus::NotSupported),
    },
    // Measured on such a pair: NV18 in nvidia-smi's matrix, peer copies of 256 MiB at 395 GB/s one way.
    Preset { name: "h200-2-nvlink", gpu: H200, numa_nodes: &[0, 0], connection: Connection::NvLink(18) },
    Preset { name: "single-h200", gpu: H200, numa_nodes: &[0], connection: Connection::NvLink(0) },
];

impl Topology {
    /// A machine by name; [`presets`](Topology::presets) lists them.
    ///
    /// | name | GPUs | SMs | memory, GB | connected by | peer access |
    /// |---|---|---|---|---|---|
    /// | `h200-8-nvswitch` | 8 H200 SXM | 132 | 141 | NVSwitch, NV18 | all |
    /// | `h100-8-nvswitch` | 8 H100 SXM | 132 | 80 | NVSwitch, NV18 | all |
    /// | `a100-8-nvswitch` | 8 A100 SXM | 108 | 80 | NVSwitch, NV12 | all |
    /// | `a100-4-nvlink-mesh` | 4 A100 SXM | 108 | 80 | NVLink to each, NV4 | all |
    /// | `l40s-4-pcie` | 4 L40S, two per socket | 142 | 48 | PCIe, NODE and SYS | all |
    /// | `rtx4090-2-pcie` | 2 RTX 4090 | 128 | 24 | PCIe, PHB | none |
    /// | `h200-2-nvlink` | 2 H200 | 132 | 141 | NV18 | all |
    /// | `single-h200` | 1 H200 | 132 | 141 | | |
    ///
    /// SMs, memory (nominal, in 10⁹ bytes) and NVLinks are those of NVIDIA's data sheets and architecture
    /// papers; GB/s per NVLink: [`ComputeCapability::nvlink_gb_per_s`].
    ///
    /// # Errors
    /// [`Error::UnknownPreset`], which names them all.
    pub fn preset(name: &str) -> Result<Topology> {
        let Some(preset) = PRESETS.iter().find(|preset| preset.name == name) else {
            return Err(Error::UnknownPreset { name: name.to_owned(), known: Self::presets().collect() });
        };
        let (major, minor) = preset.gpu.sm;
        let device = |&numa_node: &u32| Device {
            compute_capability: Some(ComputeCapability { major, minor }),
            sm_count: Some(preset.gpu.sm_count),
            memory_bytes: Some(preset.gpu.memory_gb * 1_000_000_000),
            numa_node: Some(numa_node),
            ..Device::new(preset.gpu.name)
        };
        let devices: Vec<Device> = preset.numa_nodes.iter().map(device).collect();
        let link = |from: usize, to: usize| match preset.connection {
            Connection::NvLink(nvlinks) => Link::nvlink(nvlinks),
            Connection::Pcie(near, access) => {
                let one_node = preset.numa_nodes.get(from) == preset.numa_nodes.get(to);
                Link::pcie(if one_node { near } else { LinkKind::System }, access)
            }
        };
        Ok(Topology::with_source(Source::Preset(preset.name), Vec::new(), devices, link))
    }

    /// The names that [`preset`](Topology::preset) knows.
    pub fn presets() -> impl Iterator<Item = &'static str> {
        PRESETS.iter().map(|preset| preset.name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_preset() {
        // name, GPUs, full mesh, all P2P, GB/s from 0 to the last
        let table = [
            ("h200-8-nvswitch", 8, true, true, Some(18.0 * 20.6)),
            ("h100-8-nvswitch", 8, true, true, Some(18.0 * 20.6)),
            ("a100-8-nvswitch", 8, true, true, Some(12.0 * 20.0)),
            ("a100-4-nvlink-mesh", 4, true, true, Some(4.0 * 20.0)),
            ("l40s-4-pcie", 4, false, true, None),
            ("rtx4090-2-pcie", 2, false, false, None),
            ("h200-2-nvlink", 2, true, true, Some(18.0 * 20.6)),
            ("single-h200", 1, true, true, None),
        ];
        assert!(Topology::presets().eq(table.iter().map(|row| row.0)));
        for (name, count, mesh, p2p, rate) in table {
            let topology = Topology::preset(name).unwrap();
            assert_eq!(topology.device_count(), count, "{name}");
            assert_eq!(topology.is_full_mesh(), mesh, "{name}");
            assert_eq!(topology.all_p2p(), p2p, "{name}");
            assert_eq!(topology.nvlink_gb_per_s(0, count - 1), rate, "{name}");
            assert_eq!(topology.source(), &Source::Preset(name));
            assert!(topology.notes().is_empty());
            for (ordinal, device) in topology.devices().iter().enumerate() {
                assert_eq!(device.ordinal, ordinal);
                assert!(device.sm_count.is_some() && device.memory_bytes.is_some());
            }
        }
    }

    #[test]
    fn l40s_has_two_sockets() {
        let topology = Topology::preset("l40s-4-pcie").unwrap();
        let kind = |from, to| topology.link(from, to).unwrap().kind;
        assert_eq!(kind(0, 1), LinkKind::NumaNode);
        assert_eq!(kind(1, 2), LinkKind::System);
        assert_eq!(kind(2, 3), LinkKind::NumaNode);
    }

    #[test]
    fn unknown_name_lists_the_known() {
        let text = Topology::preset("h300").unwrap_err().to_string();
        assert!(text.contains("\"h300\"") && text.contains("h200-8-nvswitch, h100-8-nvswitch"), "{text}");
    }
}
