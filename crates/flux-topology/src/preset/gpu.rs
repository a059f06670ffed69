//! GPUs by their data sheets.

use crate::{ComputeCapability, Device, PcieRate};

/// A GPU by its data sheet. Memory is nominal: the driver shows a few percent more or less.
pub(super) struct Gpu {
    name: &'static str,
    sm: (u32, u32),
    sm_count: u32,
    memory_gb: u64,
    /// Its PCIe generation; all have 16 lanes.
    pcie: u32,
}

impl Gpu {
    pub(super) fn device(&self) -> Device {
        let (major, minor) = self.sm;
        Device {
            compute_capability: Some(ComputeCapability { major, minor }),
            sm_count: Some(self.sm_count),
            memory_bytes: Some(self.memory_gb * 1_000_000_000),
            // A lane of PCIe 3.0 makes 8 GT/s, and each generation doubles it.
            pcie: Some(PcieRate { megatransfers_per_s: 1000 << self.pcie, lanes: 16 }),
            ..Device::new(self.name)
        }
    }
}

const fn gpu(name: &'static str, sm: (u32, u32), sm_count: u32, memory_gb: u64, pcie: u32) -> Gpu {
    Gpu { name, sm, sm_count, memory_gb, pcie }
}

/// NVIDIA B200 data sheet: 180 GB; 148 SMs and 18 NVLinks of the fifth generation, PCIe 5.0 to the host.
pub(super) const B200: Gpu = gpu("NVIDIA B200", (10, 0), 148, 180, 5);
/// NVIDIA GB200 NVL72 data sheet: 186 GB for each GPU; SMs and NVLinks as B200.
pub(super) const GB200: Gpu = gpu("NVIDIA GB200", (10, 0), 148, 186, 5);
/// NVIDIA H200 data sheet: SXM, 141 GB, 18 NVLinks of the fourth generation. 132 SMs as the driver shows.
pub(super) const H200: Gpu = gpu("NVIDIA H200", (9, 0), 132, 141, 5);
/// NVIDIA H100 architecture paper: SXM5, 132 SMs, 80 GB, 18 NVLinks of the fourth generation.
pub(super) const H100: Gpu = gpu("NVIDIA H100 80GB HBM3", (9, 0), 132, 80, 5);
/// NVIDIA H100 NVL data sheet: PCIe card, 94 GB, bridged in pairs by 12 NVLinks. 132 SMs as the driver shows.
pub(super) const H100_NVL: Gpu = gpu("NVIDIA H100 NVL", (9, 0), 132, 94, 5);
/// As H100, with 8 NVLinks.
pub(super) const H800: Gpu = gpu("NVIDIA H800", (9, 0), 132, 80, 5);
/// 78 SMs, 96 GB, 18 NVLinks of the fourth generation.
pub(super) const H20: Gpu = gpu("NVIDIA H20", (9, 0), 78, 96, 5);
/// NVIDIA A100 architecture paper: SXM4, 108 SMs, 80 GB, 12 NVLinks of the third generation.
pub(super) const A100: Gpu = gpu("NVIDIA A100-SXM4-80GB", (8, 0), 108, 80, 4);
/// AWS p4d: the same with 40 GB.
pub(super) const A100_40: Gpu = gpu("NVIDIA A100-SXM4-40GB", (8, 0), 108, 40, 4);
/// NVIDIA A100 80GB PCIe product brief: 108 SMs, PCIe 4.0 x16.
pub(super) const A100_PCIE: Gpu = gpu("NVIDIA A100 80GB PCIe", (8, 0), 108, 80, 4);
/// As A100, with 8 NVLinks.
pub(super) const A800: Gpu = gpu("NVIDIA A800-SXM4-80GB", (8, 0), 108, 80, 4);
/// NVIDIA L40S data sheet: 142 SMs, 48 GB, PCIe 4.0 x16, no NVLink.
pub(super) const L40S: Gpu = gpu("NVIDIA L40S", (8, 9), 142, 48, 4);
/// 92 SMs, 48 GB, PCIe 4.0 x16, no NVLink.
pub(super) const L20: Gpu = gpu("NVIDIA L20", (8, 9), 92, 48, 4);
/// NVIDIA A10G, as in AWS g5: 80 SMs, 24 GB, PCIe 4.0 x16, no NVLink.
pub(super) const A10G: Gpu = gpu("NVIDIA A10G", (8, 6), 80, 24, 4);
/// NVIDIA Ada architecture paper: 128 SMs, 24 GB, PCIe 4.0 x16, no NVLink, and no peer access in the
/// driver as NVIDIA ships it.
pub(super) const RTX4090: Gpu = gpu("NVIDIA GeForce RTX 4090", (8, 9), 128, 24, 4);
/// NVIDIA GA102 architecture paper: 82 SMs, 24 GB, PCIe 4.0 x16, 4 NVLinks for a bridge.
pub(super) const RTX3090: Gpu = gpu("NVIDIA GeForce RTX 3090", (8, 6), 82, 24, 4);
/// NVIDIA V100 architecture paper: SXM2, 80 SMs, 32 GB, 6 NVLinks of the second generation.
pub(super) const V100: Gpu = gpu("Tesla V100-SXM2-32GB", (7, 0), 80, 32, 3);
/// DGX-2: the same as SXM3.
pub(super) const V100_SXM3: Gpu = gpu("Tesla V100-SXM3-32GB", (7, 0), 80, 32, 3);
