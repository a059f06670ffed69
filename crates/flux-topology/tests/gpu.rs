//! What a machine with NVIDIA GPUs must say of itself. Fails where there is none.

use flux_topology::{LinkKind, Source, Topology};

#[test]
#[allow(clippy::print_stdout)] // the table is what one wants to see where this fails
fn this_machine_is_known() {
    let topology = Topology::discover().expect("the feature gpu-tests wants a machine with a GPU");
    println!("{topology}");
    assert!(matches!(topology.source(), Source::Discovered { cuda: Some(_), .. }));
    for (ordinal, device) in topology.devices().iter().enumerate() {
        assert_eq!(device.ordinal, ordinal);
        assert!(device.pci.is_some() && device.compute_capability.is_some(), "{device:?}");
        assert!(device.sm_count.is_some_and(|count| count > 0), "{device:?}");
        assert!(device.memory_bytes.is_some_and(|bytes| bytes > 1 << 30), "{device:?}");
        assert!(topology.can_access(ordinal, ordinal));
    }
}

#[cfg(feature = "nvml")]
#[test]
fn nvml_and_the_driver_agree() {
    let topology = Topology::discover().expect("the feature gpu-tests wants a machine with a GPU");
    // Virtual machines may show another PCI tree in /sys than NVML: that is worth a warning, and no fault of ours.
    let faults: Vec<&String> =
        topology.warnings().iter().filter(|warning| !warning.contains("/sys")).collect();
    assert_eq!(faults, [""; 0]);
    let count = topology.device_count();
    for (from, to) in (0..count).flat_map(|from| (0..count).map(move |to| (from, to))) {
        assert!(topology.devices()[from].uuid.is_some());
        let link = topology.link(from, to).unwrap();
        assert_ne!(link.kind, LinkKind::Unknown, "{from} to {to}: {link:?}");
        // NVLinks that nobody could count mean that their far ends were read wrongly.
        assert_eq!(link.kind == LinkKind::NvLink, link.nvlinks > 0, "{from} to {to}: {link:?}");
        assert!(link.nvlinks == 0 || topology.can_access(from, to), "{from} to {to}: {link:?}");
    }
}
