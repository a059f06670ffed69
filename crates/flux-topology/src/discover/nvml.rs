//! Asks NVML, the management library that comes with the driver. It is opened at run time.

use nvml_wrapper::enum_wrappers::device::{P2pCapabilitiesIndex, P2pStatus as Status, TopologyLevel};
use nvml_wrapper::enums::device::SampleValue;
use nvml_wrapper::error::NvmlError;
use nvml_wrapper::structs::device::FieldId;
use nvml_wrapper::sys_exports::field_id::NVML_FI_DEV_NVLINK_LINK_COUNT;
use nvml_wrapper::{Device, Nvml};

use super::{NvLinkEnd, NvmlDevice, NvmlFacts, NvmlPair};
use crate::{ComputeCapability, LinkKind, P2pStatus, PciAddress, ProbeFailure};

const LIBRARY: &str = "libnvidia-ml.so.1";

/// How many NVLinks are asked for where NVML does not say how many there are: nvml.h's own maximum.
const MAX_NVLINKS: u32 = 18;

/// Opens NVML and asks.
pub(crate) fn probe() -> Result<NvmlFacts, ProbeFailure> {
    let nvml = Nvml::builder().lib_path(LIBRARY.as_ref()).init();
    nvml.and_then(|nvml| read(&nvml)).map_err(|error| ProbeFailure {
        what: "NVML",
        tried: vec![LIBRARY.to_owned()],
        reason: error.to_string(),
    })
}

fn read(nvml: &Nvml) -> Result<NvmlFacts, NvmlError> {
    let mut facts = NvmlFacts { driver_version: nvml.sys_driver_version().ok(), ..NvmlFacts::default() };
    let mut handles = Vec::new();
    for index in 0..nvml.device_count()? {
        match nvml.device_by_index(index) {
            Ok(handle) => handles.push(handle),
            // One GPU that fell off the bus does not spoil the others.
            Err(error) => facts.notes.push(format!("NVML: its GPU {index} does not answer: {error}")),
        }
    }
    facts.devices = handles.iter().map(|handle| device(nvml, handle)).collect();
    for (from, from_handle) in handles.iter().enumerate() {
        for (to, to_handle) in handles.iter().enumerate().filter(|&(to, _)| to != from) {
            facts.pairs.insert((from, to), pair(nvml, from_handle, to_handle));
        }
    }
    Ok(facts)
}

fn device(nvml: &Nvml, handle: &Device<'_>) -> NvmlDevice {
    let capability = handle.cuda_compute_capability().ok().and_then(|capability| {
        let (major, minor) = (capability.major.try_into().ok()?, capability.minor.try_into().ok()?);
        Some(ComputeCapability { major, minor })
    });
    let cores = handle.num_cores().ok();
    NvmlDevice {
        name: handle.name().ok(),
        uuid: handle.uuid().ok(),
        pci: handle.pci_info().ok().and_then(|info| info.bus_id.parse().ok()),
        compute_capability: capability,
        sm_count: capability.zip(cores).and_then(|(capability, cores)| sm_count(capability, cores)),
        memory_bytes: handle.memory_info().ok().map(|info| info.total),
        numa_node: numa_node(handle),
        nvlinks: nvlinks(nvml, handle),
    }
}

/// NVML counts CUDA cores; an SM has 64 of them on GA100 and 128 on GA10x, Ada, Hopper and Blackwell
/// (compute capability table of the CUDA programming guide).
fn sm_count(capability: ComputeCapability, cores: u32) -> Option<u32> {
    let cores_per_sm = match (capability.major, capability.minor) {
        (8, 0) => 64,
        (8..=10 | 12, _) => 128,
        _ => return None,
    };
    (cores > 0 && cores.is_multiple_of(cores_per_sm)).then_some(cores / cores_per_sm)
}

/// The nearest NUMA node of the host, from the set of nodes whose memory is near. NVML's "NUMA node id" is
/// another thing: the node that the GPU's own memory forms, on machines where it does.
#[cfg(target_os = "linux")]
fn numa_node(handle: &Device<'_>) -> Option<u32> {
    const WORDS: usize = 16;
    const SCOPE_NODE: u32 = 0;
    let set = handle.memory_affinity(WORDS, SCOPE_NODE).ok()?;
    set.iter()
        .zip((0u32..).step_by(std::ffi::c_ulong::BITS as usize))
        .find_map(|(word, first)| (*word != 0).then(|| first + word.trailing_zeros()))
}

#[cfg(not(target_os = "linux"))]
fn numa_node(_: &Device<'_>) -> Option<u32> {
    None
}

fn nvlinks(nvml: &Nvml, handle: &Device<'_>) -> Vec<NvLinkEnd> {
    let count = nvlink_count(handle).unwrap_or(MAX_NVLINKS);
    let active = |&link: &u32| handle.link_wrapper_for(link).is_active().unwrap_or(false);
    (0..count).filter(active).map(|link| far_end(nvml, handle, link)).collect()
}

fn nvlink_count(handle: &Device<'_>) -> Option<u32> {
    let mut samples = handle.field_values_for(&[FieldId(NVML_FI_DEV_NVLINK_LINK_COUNT)]).ok()?;
    match samples.pop()?.ok()?.value.ok()? {
        SampleValue::U32(count) => Some(count),
        SampleValue::U64(count) => u32::try_from(count).ok(),
        _ => None,
    }
    // No GPU has near as many: a number beyond is not one.
    .filter(|&count| count <= 4 * MAX_NVLINKS)
}

fn far_end(nvml: &Nvml, handle: &Device<'_>, link: u32) -> NvLinkEnd {
    const GPU: u32 = 0;
    const SWITCH: u32 = 2;
    const UNKNOWN: u32 = 255;
    let address = || -> Option<PciAddress> {
        handle.link_wrapper_for(link).remote_pci_info().ok()?.bus_id.parse().ok()
    };
    match remote_type(nvml, handle, link) {
        Some(SWITCH) => NvLinkEnd::Switch,
        Some(GPU) => address().map_or(NvLinkEnd::Hidden, NvLinkEnd::Gpu),
        Some(UNKNOWN) | None => match address() {
            // An address of a GPU tells all that is needed; anything else behind an NVLink is a switch or
            // nothing that can be named.
            Some(address) if nvml.device_by_pci_bus_id(address.to_string()).is_ok() => {
                NvLinkEnd::Gpu(address)
            }
            _ => NvLinkEnd::Hidden,
        },
        Some(_) => NvLinkEnd::Other,
    }
}

/// The type of the device at the far end, as nvml.h numbers them. The function is called by its pointer
/// because nvml-wrapper 0.13 drops the answer: its own method returns "unknown" for every link.
fn remote_type(nvml: &Nvml, handle: &Device<'_>, link: u32) -> Option<u32> {
    const SUCCESS: u32 = 0;
    let function = nvml.lib().nvmlDeviceGetNvLinkRemoteDeviceType.as_ref().ok()?;
    let mut remote = 0;
    // SAFETY: the handle is used while `nvml`, which it is from, is alive; the function checks the link and
    // writes one enum.
    let code = unsafe { function(handle.handle(), link, &raw mut remote) };
    (code == SUCCESS).then_some(remote)
}

fn pair(nvml: &Nvml, from: &Device<'_>, to: &Device<'_>) -> NvmlPair {
    let p2p = |index| from.p2p_status(to, index).map_or(P2pStatus::Unknown, status);
    NvmlPair {
        ancestor: nvml.topology_common_ancestor(from, to).ok().map(ancestor),
        read: p2p(P2pCapabilitiesIndex::Read),
        write: p2p(P2pCapabilitiesIndex::Write),
        atomics: p2p(P2pCapabilitiesIndex::Atomics),
        nvlink: p2p(P2pCapabilitiesIndex::NvLink),
    }
}

fn status(status: Status) -> P2pStatus {
    match status {
        Status::Ok => P2pStatus::Ok,
        Status::ChipsetNotSupported => P2pStatus::ChipsetNotSupported,
        Status::GpuNotSupported => P2pStatus::GpuNotSupported,
        Status::IohTopologyNotSupported => P2pStatus::TopologyNotSupported,
        Status::DisabledByRegkey => P2pStatus::DisabledBySetting,
        Status::NotSupported => P2pStatus::NotSupported,
        Status::Unknown => P2pStatus::Unknown,
    }
}

fn ancestor(level: TopologyLevel) -> LinkKind {
    match level {
        // Two GPUs on one board meet at the board's own switch.
        TopologyLevel::Internal | TopologyLevel::Single => LinkKind::PcieSwitch,
        TopologyLevel::Multiple => LinkKind::PcieSwitches,
        TopologyLevel::HostBridge => LinkKind::HostBridge,
        TopologyLevel::Node => LinkKind::NumaNode,
        TopologyLevel::System => LinkKind::System,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sms_from_cores() {
        let sm = |major, minor| ComputeCapability { major, minor };
        let table = [
            (sm(9, 0), 16896, Some(132)),
            (sm(8, 0), 6912, Some(108)),
            (sm(8, 9), 18176, Some(142)),
            (sm(8, 9), 16384, Some(128)),
            (sm(9, 0), 100, None),
            (sm(9, 0), 0, None),
            (sm(99, 0), 16896, None),
        ];
        for (capability, cores, want) in table {
            assert_eq!(sm_count(capability, cores), want, "{capability} {cores}");
        }
    }
}
