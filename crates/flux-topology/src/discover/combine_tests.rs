//! Machines played through [`combine`], without one.

use proptest::prelude::*;

use super::*;
use crate::{ComputeCapability, PciAddress};

fn pci(bus: u8) -> PciAddress {
    PciAddress { domain: 0, bus, device: 0, function: 0 }
}

fn failure(what: &'static str) -> ProbeFailure {
    ProbeFailure { what, tried: vec![format!("lib{what}.so.1")], reason: "cannot open".to_owned() }
}

fn pairs<T>(count: usize, mut pair: impl FnMut(usize, usize) -> T) -> BTreeMap<(usize, usize), T> {
    let keys = (0..count).flat_map(|from| (0..count).map(move |to| (from, to)));
    keys.filter(|(from, to)| from != to).map(|(from, to)| ((from, to), pair(from, to))).collect()
}

/// A driver with a device at each bus, of which all can access all.
fn driver(buses: &[u8]) -> DriverFacts {
    let device = |&bus: &u8| DriverDevice {
        name: Some("NVIDIA H200".to_owned()),
        pci: Some(pci(bus)),
        compute_capability: Some(ComputeCapability { major: 9, minor: 0 }),
        sm_count: Some(132),
        memory_bytes: Some(150 << 30),
        numa_node: None,
    };
    let pair = DriverPair {
        can_access: Some(true),
        access_supported: Some(true),
        native_atomics: Some(true),
        performance_rank: Some(0),
    };
    DriverFacts {
        version: Some(13000),
        devices: buses.iter().map(device).collect(),
        pairs: pairs(buses.len(), |_, _| pair.clone()),
        notes: Vec::new(),
    }
}

/// NVML with a device at each bus, all behind NVSwitch, one NUMA node per four.
fn nvml(buses: &[u8]) -> NvmlFacts {
    let device = |(index, &bus): (usize, &u8)| NvmlDevice {
        name: Some("NVIDIA H200".to_owned()),
        uuid: Some(format!("GPU-{bus:02x}")),
        pci: Some(pci(bus)),
        memory_bytes: Some(151 << 30),
        sm_count: Some(132),
        numa_node: Some(u32::from(index >= 4)),
        nvlinks: vec![NvLinkEnd::Switch; 18],
        compute_capability: Some(ComputeCapability { major: 9, minor: 0 }),
    };
    let pair = NvmlPair {
        ancestor: Some(LinkKind::System),
        read: P2pStatus::Ok,
        write: P2pStatus::Ok,
        atomics: P2pStatus::Ok,
        nvlink: P2pStatus::Ok,
    };
    NvmlFacts {
        driver_version: Some("580.159.04".to_owned()),
        devices: buses.iter().enumerate().map(device).collect(),
        pairs: pairs(buses.len(), |_, _| pair.clone()),
        notes: Vec::new(),
    }
}

const EIGHT: [u8; 8] = [0x1b, 0x2a, 0x3a, 0x5d, 0x9a, 0xab, 0xba, 0xdb];

#[test]
fn eight_behind_nvswitch() {
    let topology = combine(Ok(driver(&EIGHT)), Ok(nvml(&EIGHT)), SysfsFacts::default()).unwrap();
    assert!(topology.is_full_mesh() && topology.warnings().is_empty());
    assert_eq!(topology.link(0, 7).unwrap().to_string(), "NV18");
    let numa: Vec<_> = topology.devices().iter().map(|device| device.numa_node.unwrap()).collect();
    assert_eq!(numa, [0, 0, 0, 0, 1, 1, 1, 1]);
    // The driver's word goes before NVML's.
    assert_eq!(topology.devices()[0].memory_bytes, Some(150 << 30));
}

#[test]
fn ordinals_are_the_drivers() {
    // CUDA_VISIBLE_DEVICES=5,2: other devices, in another order.
    let mut facts = nvml(&EIGHT);
    facts.devices[5].nvlinks.truncate(17);
    let topology = combine(Ok(driver(&[EIGHT[5], EIGHT[2]])), Ok(facts), SysfsFacts::default()).unwrap();
    let uuids: Vec<_> = topology.devices().iter().map(|device| device.uuid.clone().unwrap()).collect();
    assert_eq!(uuids, ["GPU-ab", "GPU-3a"]);
    assert_eq!(topology.devices()[1].ordinal, 1);
    assert_eq!(topology.link(0, 1).unwrap().nvlinks, 17);
    assert!(topology.warnings().is_empty());
}

#[test]
fn one_gpu() {
    let topology = combine(Ok(driver(&[5])), Ok(nvml(&[5])), SysfsFacts::default()).unwrap();
    assert_eq!(topology.device_count(), 1);
    assert!(topology.is_full_mesh());
    assert_eq!(topology.link(0, 0), Some(&Link::local()));
}

#[test]
fn without_nvml_the_driver_stands() {
    let topology = combine(Ok(driver(&[1, 2])), Err(failure("NVML")), SysfsFacts::default()).unwrap();
    assert!(topology.all_p2p() && !topology.is_full_mesh());
    let link = topology.link(0, 1).unwrap();
    assert_eq!((link.kind, link.nvlinks), (LinkKind::Unknown, 0));
    assert_eq!(link.p2p.atomics, P2pStatus::Ok);
    assert_eq!(topology.source(), &Source::Discovered { cuda: Some(13000), driver: None });
    assert_eq!(topology.warnings().len(), 1);
    assert!(topology.warnings()[0].contains("libNVML.so.1"), "{:?}", topology.warnings());
}

#[test]
fn without_the_driver_nvml_stands() {
    let topology = combine(Err(failure("CUDA driver")), Ok(nvml(&EIGHT)), SysfsFacts::default()).unwrap();
    assert!(topology.is_full_mesh());
    assert_eq!(topology.devices()[3].sm_count, Some(132));
    assert!(
        topology.warnings()[0].contains("CUDA_VISIBLE_DEVICES is not applied"),
        "{:?}",
        topology.warnings()
    );
}

#[test]
fn nobody_answers() {
    let error =
        combine(Err(failure("CUDA driver")), Err(failure("NVML")), SysfsFacts::default()).unwrap_err();
    assert!(matches!(error, Error::NoDriver { .. }) && error.is_no_gpu());
}

#[test]
fn nothing_to_see() {
    let cases = [
        (Ok(driver(&[])), Ok(nvml(&EIGHT)), Some(8)),
        (Ok(driver(&[])), Err(failure("NVML")), None),
        (Err(failure("CUDA driver")), Ok(nvml(&[])), Some(0)),
    ];
    for (driver, nvml, in_machine) in cases {
        assert_eq!(combine(driver, nvml, SysfsFacts::default()), Err(Error::NoDevice { in_machine }));
    }
}

#[test]
fn a_device_that_nvml_does_not_have() {
    let topology = combine(Ok(driver(&[1, 2, 3])), Ok(nvml(&[1, 2])), SysfsFacts::default()).unwrap();
    assert_eq!(topology.link(0, 1).unwrap().nvlinks, 18);
    assert_eq!(topology.link(0, 2).unwrap().kind, LinkKind::Unknown);
    assert!(topology.can_access(0, 2));
    assert_eq!(topology.devices()[2].uuid, None);
    assert_eq!(topology.warnings().len(), 1);
    assert!(topology.warnings()[0].starts_with("GPU 2 is not among NVML's"), "{:?}", topology.warnings());
}

#[test]
fn a_device_without_pci_address_is_not_guessed() {
    let mut facts = driver(&[1, 2]);
    facts.devices[0].pci = None;
    let mut other = nvml(&[1, 2]);
    other.devices[0].pci = None;
    let topology = combine(Ok(facts), Ok(other), SysfsFacts::default()).unwrap();
    assert_eq!(topology.devices()[0].uuid, None);
    assert_eq!(topology.link(0, 1).unwrap().kind, LinkKind::Unknown);
}

#[test]
fn every_field_of_nvml_failed() {
    let mut facts = nvml(&[1, 2]);
    for device in &mut facts.devices {
        *device = NvmlDevice { pci: device.pci, ..NvmlDevice::default() };
    }
    facts.pairs.clear();
    facts.driver_version = None;
    let topology = combine(Ok(driver(&[1, 2])), Ok(facts), SysfsFacts::default()).unwrap();
    assert!(topology.all_p2p());
    assert_eq!(topology.link(0, 1).unwrap().kind, LinkKind::Unknown);
    assert_eq!(topology.devices()[1].name, "NVIDIA H200");
}

#[test]
fn every_field_of_the_driver_failed() {
    let mut facts = driver(&[1, 2]);
    for device in &mut facts.devices {
        *device = DriverDevice { pci: device.pci, ..DriverDevice::default() };
    }
    facts.pairs.clear();
    facts.version = None;
    let topology = combine(Ok(facts), Ok(nvml(&[1, 2])), SysfsFacts::default()).unwrap();
    assert!(topology.is_full_mesh());
    assert_eq!(topology.devices()[1].memory_bytes, Some(151 << 30));
}

#[test]
fn nvlinks() {
    use NvLinkEnd::*;
    use P2pStatus::{NotSupported, Ok, Unknown};
    // ends of the device at bus 1, ends of the one at bus 2, NVML's word on NVLink: number, symbol
    type Row<'a> = (&'a [NvLinkEnd], &'a [NvLinkEnd], P2pStatus, u32, &'a str);
    let table: [Row<'_>; 12] = [
        (&[], &[], NotSupported, 0, "SYS"),
        (&[], &[], Unknown, 0, "SYS"),
        // It does go over NVLink, though no link could be asked.
        (&[], &[], Ok, 0, "NV?"),
        (&[Switch; 18], &[Switch; 18], Ok, 18, "NV18"),
        (&[Switch; 18], &[Switch; 16], Ok, 16, "NV16"),
        (&[Switch; 18], &[Switch; 18], Unknown, 18, "NV18"),
        // Two partitions of one switch.
        (&[Switch; 18], &[Switch; 18], NotSupported, 0, "SYS"),
        (&[Hidden; 18], &[Hidden; 18], Ok, 18, "NV18"),
        (&[Hidden; 18], &[Hidden; 18], Unknown, 0, "SYS"),
        (&[Gpu(pci(2)); 4], &[Gpu(pci(1)); 4], Ok, 4, "NV4"),
        // One end is hidden; links to a third device do not count.
        (&[Gpu(pci(2)), Gpu(pci(2)), Gpu(pci(3))], &[Hidden, Hidden], Ok, 2, "NV2"),
        (&[Other; 3], &[Other; 3], NotSupported, 0, "SYS"),
    ];
    for (row, (a, b, over_nvlink, number, symbol)) in table.into_iter().enumerate() {
        let mut facts = nvml(&[1, 2]);
        facts.devices[0].nvlinks = a.to_vec();
        facts.devices[1].nvlinks = b.to_vec();
        facts.pairs.values_mut().for_each(|pair| pair.nvlink = over_nvlink);
        let topology =
            combine(Result::Ok(driver(&[1, 2])), Result::Ok(facts), SysfsFacts::default()).unwrap();
        for (from, to) in [(0, 1), (1, 0)] {
            let link = topology.link(from, to).unwrap();
            assert_eq!((link.nvlinks, link.to_string().as_str()), (number, symbol), "row {row}");
        }
    }
}

#[test]
fn access_and_its_reason() {
    use P2pStatus::*;
    // driver's call, driver's attribute, NVML read, NVML write: access
    let table = [
        (Some(true), Some(true), Ok, Ok, Ok),
        (Some(true), None, ChipsetNotSupported, Unknown, Ok),
        (Some(false), Some(true), Ok, Ok, NotSupported),
        (Some(false), None, ChipsetNotSupported, ChipsetNotSupported, ChipsetNotSupported),
        (None, Some(true), Unknown, Unknown, Ok),
        (None, Some(false), Unknown, GpuNotSupported, GpuNotSupported),
        (None, None, Ok, Ok, Ok),
        (None, None, Ok, TopologyNotSupported, TopologyNotSupported),
        (None, None, DisabledBySetting, Ok, DisabledBySetting),
        (None, None, Unknown, Ok, Unknown),
        (None, None, Ok, Unknown, Unknown),
        (None, None, Unknown, Unknown, Unknown),
    ];
    for (row, (can_access, access_supported, read, write, access)) in table.into_iter().enumerate() {
        let driver = DriverPair { can_access, access_supported, ..DriverPair::default() };
        let nvml = NvmlPair { read, write, ..NvmlPair::default() };
        assert_eq!(p2p(&driver, &nvml).access, access, "row {row}");
    }
}

#[test]
fn access_can_be_one_way() {
    let mut facts = driver(&[1, 2]);
    facts.pairs.remove(&(1, 0));
    let mut other = nvml(&[1, 2]);
    other.pairs.get_mut(&(1, 0)).unwrap().write = P2pStatus::ChipsetNotSupported;
    let topology = combine(Ok(facts), Ok(other), SysfsFacts::default()).unwrap();
    assert!(topology.can_access(0, 1) && !topology.can_access(1, 0));
}

#[test]
fn pairs_of_devices_that_do_not_exist_are_ignored() {
    let mut facts = driver(&[1, 2]);
    facts.pairs.insert((7, usize::MAX), DriverPair::default());
    let mut other = nvml(&[1, 2]);
    other.pairs.insert((9, 9), NvmlPair::default());
    assert!(combine(Ok(facts), Ok(other), SysfsFacts::default()).unwrap().is_full_mesh());
}

fn status() -> impl Strategy<Value = P2pStatus> {
    use P2pStatus::*;
    prop::sample::select(vec![Ok, ChipsetNotSupported, GpuNotSupported, NotSupported, Unknown])
}

fn ancestor() -> impl Strategy<Value = Option<LinkKind>> {
    use LinkKind::*;
    prop::option::of(prop::sample::select(vec![PcieSwitch, PcieSwitches, HostBridge, NumaNode, System]))
}

prop_compose! {
    fn any_pair()(ancestor in ancestor(), read in status(), write in status(), atomics in status(),
                  nvlink in status()) -> NvmlPair {
        NvmlPair { ancestor, read, write, atomics, nvlink }
    }
}

fn any_end() -> impl Strategy<Value = NvLinkEnd> {
    prop_oneof![
        (0u8..5).prop_map(|bus| NvLinkEnd::Gpu(pci(bus))),
        Just(NvLinkEnd::Switch),
        Just(NvLinkEnd::Hidden),
        Just(NvLinkEnd::Other),
    ]
}

proptest! {
    /// A wire is the same from both ends, whatever the two ends and the two directions say.
    #[test]
    fn kind_and_number_are_symmetric(
        ends in prop::collection::vec(prop::collection::vec(any_end(), 0..20), 1..5),
        said in prop::collection::btree_map((0usize..6, 0usize..6), any_pair(), 0..20),
        visible in prop::collection::vec(0u8..6, 1..6),
    ) {
        let buses: Vec<u8> = (0u8..).take(ends.len()).collect();
        let mut facts = nvml(&buses);
        for (device, ends) in facts.devices.iter_mut().zip(ends) {
            device.nvlinks = ends;
        }
        facts.pairs = said;
        let topology = combine(Ok(driver(&visible)), Ok(facts), SysfsFacts::default()).unwrap();
        prop_assert_eq!(topology.device_count(), visible.len());
        for from in 0..visible.len() {
            prop_assert_eq!(topology.link(from, from), Some(&Link::local()));
            for to in 0..visible.len() {
                let (there, back) = (topology.link(from, to).unwrap(), topology.link(to, from).unwrap());
                prop_assert_eq!((there.kind, there.nvlinks), (back.kind, back.nvlinks));
                prop_assert!(there.nvlinks == 0 || there.kind == LinkKind::NvLink);
            }
        }
        // The table never panics either.
        prop_assert!(!topology.to_string().is_empty());
    }
}
