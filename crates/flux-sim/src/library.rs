//! NCCL's collectives, by NCCL's own model of a ring (`src/graph/tuning.cc`, protocol Simple).

use crate::{Machine, Op, Problem};

/// Latencies in µs: of a collective, and of each step over NVLink, PCIe and the network.
const BASE_US: f64 = 8.4;
const NVLINK_STEP_US: f64 = 3.4;
const PCIE_STEP_US: f64 = 5.7;
const NETWORK_STEP_US: f64 = 9.6;
/// A call from PyTorch beside that model: an AllGather of 4.2 MB between two H200s took 38 µs, which would be 23.
const CALL_US: f64 = 15.0;
/// NCCL reckons with no more between GPUs of compute capability 8.0, in GB/s.
const AMPERE_MOST: f64 = 235.0;

/// How long the communication of a problem takes.
pub(crate) fn nccl_us(machine: &Machine, problem: &Problem) -> f64 {
    let (world_size, nodes) = (machine.gpus(), machine.nodes());
    if world_size == 1 || problem.m == 0 {
        return 0.0;
    }
    let node = machine.node();
    let steps = (world_size - 1) as f64;
    let between = (nodes - 1) as f64;
    let has_nvlink = node.nvswitch_gb_per_s.is_some() || !node.bridges.is_empty();
    let step_us = if has_nvlink { NVLINK_STEP_US } else { PCIE_STEP_US };
    // The narrowest hop of a ring through all GPUs in order; all network cards of a node are used.
    let hop = |from: usize, to: usize| {
        let route = machine.route(from, to);
        let speeds = route.iter().map(|&link| machine.links()[link].gb_per_s);
        speeds.fold(f64::INFINITY, f64::min)
    };
    let within = (0..node.gpus).map(|gpu| {
        let next = (gpu + 1) % node.gpus;
        if next == gpu || (nodes > 1 && next == 0) { f64::INFINITY } else { hop(gpu, next) }
    });
    let mut gb_per_s = within.fold(f64::INFINITY, f64::min);
    if nodes > 1 {
        gb_per_s = gb_per_s.min(node.nics.max(1) as f64 * node.nic_gb_per_s);
    }
    if node.gpu.name.starts_with("A100") || node.gpu.name.starts_with("A800") {
        gb_per_s = gb_per_s.min(AMPERE_MOST);
    }
    let bytes = problem.m as f64 * problem.row_bytes() as f64 * steps / world_size as f64;
    let times = if problem.op == Op::GemmAr { 2.0 } else { 1.0 };
    let latency = (steps - between) * step_us + between * NETWORK_STEP_US;
    CALL_US + BASE_US + times * (latency + bytes / (gb_per_s * 1e3))
}
