use super::*;

#[test]
fn every_preset() {
    // name, GPUs, hosts, full mesh, all P2P, NVSwitch, GB/s from 0 to 1, cards, order
    let table = [
        ("dgx-h100", 8, 1, true, true, Some(true), Some(18.0 * 20.6), 8, "full-mesh"),
        ("hgx-h200", 8, 1, true, true, Some(true), Some(18.0 * 20.6), 8, "full-mesh"),
        ("hgx-h800", 8, 1, true, true, Some(true), Some(8.0 * 20.6), 8, "full-mesh"),
        ("hgx-h20", 8, 1, true, true, Some(true), Some(18.0 * 20.6), 8, "full-mesh"),
        ("dgx-b200", 8, 1, true, true, Some(true), Some(18.0 * 40.1), 8, "full-mesh"),
        ("dgx-a100", 8, 1, true, true, Some(true), Some(12.0 * 20.0), 8, "full-mesh"),
        ("hgx-a800", 8, 1, true, true, Some(true), Some(8.0 * 20.0), 8, "full-mesh"),
        ("aws-p4d-24xl", 8, 1, true, true, Some(true), Some(12.0 * 20.0), 4, "full-mesh"),
        ("aws-g5-48xl", 8, 1, false, false, Some(false), None, 1, "two-level"),
        ("dgx-2", 16, 1, true, true, Some(true), Some(6.0 * 20.0), 8, "full-mesh"),
        ("dgx-1-v100", 8, 1, false, true, Some(false), Some(20.0), 4, "two-level"),
        ("gb200-nvl72", 72, 18, true, true, Some(true), Some(18.0 * 40.1), 72, "full-mesh"),
        ("4xa100-nvlink", 4, 1, true, true, Some(false), Some(4.0 * 20.0), 0, "full-mesh"),
        ("4xh100-nvlink", 4, 1, true, true, Some(false), Some(6.0 * 20.6), 0, "full-mesh"),
        ("8xh100-nvl", 8, 1, false, true, Some(false), Some(12.0 * 20.6), 0, "two-level"),
        ("8xa100-pcie", 8, 1, false, true, Some(false), None, 2, "two-level"),
        ("8xa100-pcie-bridged", 8, 1, false, true, Some(false), Some(12.0 * 20.0), 0, "two-level"),
        ("8xl20-pcie", 8, 1, false, true, Some(false), None, 0, "two-level"),
        ("8xl40s-pcie", 8, 1, false, true, Some(false), None, 0, "two-level"),
        ("4xl40s-pcie", 4, 1, false, true, Some(false), None, 0, "two-level"),
        ("4x4090", 4, 1, false, false, Some(false), None, 0, "ring"),
        ("2x4090", 2, 1, false, false, Some(false), None, 0, "ring"),
        ("8x4090", 8, 1, false, false, Some(false), None, 0, "two-level"),
        ("2x3090-nvlink", 2, 1, true, true, Some(false), Some(4.0 * 12.0), 0, "full-mesh"),
        ("2xh200", 2, 1, true, true, None, Some(18.0 * 20.6), 0, "full-mesh"),
        ("1xh200", 1, 1, true, true, None, None, 0, "none"),
    ];
    assert!(Topology::presets().eq(table.iter().map(|row| row.0)));
    for (name, count, hosts, mesh, p2p, nvswitch, rate, cards, order) in table {
        let topology = Topology::preset(name).unwrap();
        assert_eq!(topology.device_count(), count, "{name}");
        assert_eq!(topology.host_count(), hosts, "{name}");
        assert_eq!(topology.is_full_mesh(), mesh, "{name}");
        assert_eq!(topology.all_p2p(), p2p, "{name}");
        assert_eq!(topology.nvswitch(), nvswitch, "{name}");
        assert_eq!(topology.nvlink_gb_per_s(0, 1), rate, "{name}");
        assert_eq!(topology.nics().len(), cards, "{name}");
        assert_eq!(topology.order().order.name(), order, "{name}");
        assert_eq!(topology.source(), &Source::Preset(name));
        assert!(topology.warnings().is_empty() && Topology::preset_in_words(name).is_some());
        for (ordinal, device) in topology.devices().iter().enumerate() {
            assert_eq!(device.ordinal, ordinal);
            assert!(device.sm_count.is_some() && device.memory_bytes.is_some());
        }
    }
}

#[test]
fn other_names_are_of_the_same_machines() {
    for (alias, name) in ALIASES {
        let (a, b) = (Topology::preset(alias).unwrap(), Topology::preset(name).unwrap());
        assert_eq!((a.devices(), a.nics()), (b.devices(), b.nics()));
        assert_eq!(a.source(), &Source::Preset(alias));
        assert_eq!(Topology::preset_name(alias), Some(*name));
        assert!(Topology::preset_aliases(name).any(|other| other == *alias));
        // A name is of one machine.
        assert!(Topology::presets().all(|first| first != *alias));
    }
    assert!(Topology::presets().all(|name| Topology::preset_name(name) == Some(name)));
    assert_eq!(Topology::preset_name("h300"), None);
}

fn matrix(name: &str) -> String {
    let topology = Topology::preset(name).unwrap();
    let count = topology.device_count();
    let row = |from| {
        let cells: Vec<String> = (0..count).map(|to| topology.link(from, to).unwrap().symbol()).collect();
        cells.join(" ")
    };
    (0..count).map(row).collect::<Vec<_>>().join("\n")
}

#[test]
fn matrices() {
    assert_eq!(
        matrix("dgx-1-v100"),
        "X NV1 NV1 NV2 NV2 SYS SYS SYS\n\
         NV1 X NV2 NV1 SYS NV2 SYS SYS\n\
         NV1 NV2 X NV2 SYS SYS NV1 SYS\n\
         NV2 NV1 NV2 X SYS SYS SYS NV1\n\
         NV2 SYS SYS SYS X NV1 NV1 NV2\n\
         SYS NV2 SYS SYS NV1 X NV2 NV1\n\
         SYS SYS NV1 SYS NV1 NV2 X NV2\n\
         SYS SYS SYS NV1 NV2 NV1 NV2 X"
    );
    assert_eq!(
        matrix("8xa100-pcie-bridged").lines().nth(2).unwrap(),
        "NODE NODE X NV12 SYS SYS SYS SYS",
        "the row of GPU2"
    );
    assert_eq!(matrix("4xl40s-pcie"), "X NODE SYS SYS\nNODE X SYS SYS\nSYS SYS X NODE\nSYS SYS NODE X");
    assert_eq!(matrix("4x4090"), "X PHB PHB PHB\nPHB X PHB PHB\nPHB PHB X PHB\nPHB PHB PHB X");
    assert_eq!(matrix("2x3090-nvlink"), "X NV4\nNV4 X");
    assert!(matrix("gb200-nvl72").lines().all(|row| row.matches("NV18").count() == 71));
    assert_eq!(matrix("8xl20-pcie").lines().nth(7).unwrap(), "SYS SYS SYS SYS NODE NODE NODE X");
}

#[test]
fn cards_are_near_their_gpus() {
    let near = |name: &str| -> Vec<Vec<usize>> {
        Topology::preset(name).unwrap().nics().iter().map(Nic::near).collect()
    };
    assert_eq!(near("dgx-h100"), (0..8).map(|gpu| vec![gpu]).collect::<Vec<_>>());
    let pairs = [[0, 1], [2, 3], [4, 5], [6, 7]];
    assert_eq!(near("aws-p4d-24xl"), pairs);
    assert_eq!(near("dgx-a100"), pairs.iter().flat_map(|pair| [pair, pair]).collect::<Vec<_>>());
    assert!(near("8xa100-pcie").iter().all(Vec::is_empty));
}

#[test]
fn clusters() {
    let two = Topology::preset("dgx-h100").unwrap().replicated(2).unwrap();
    assert_eq!((two.device_count(), two.host_count(), two.nics().len()), (16, 2, 16));
    assert_eq!(two.link(7, 8).unwrap().symbol(), "NET");
    assert_eq!(two.nics()[9].near(), [9]);
    let order = two.order();
    assert_eq!(order.order.name(), "two-level");
    assert_eq!(order.groups, [(0..8).collect::<Vec<_>>(), (8..16).collect()]);
    assert!(order.reason.contains("2 machines with 8 each"), "{}", order.reason);
    let racks = Topology::preset("gb200-nvl72").unwrap().replicated(2).unwrap();
    assert_eq!((racks.device_count(), racks.host_count()), (144, 36));
    let order = racks.order();
    assert_eq!(order.order.name(), "two-level");
    assert_eq!(order.groups, [(0..72).collect::<Vec<_>>(), (72..144).collect()]);
    assert_eq!(order.argument(), "mesh:0-71+mesh:72-143");
    assert!(order.reason.contains("2 NVLink domains with 72 each"), "{}", order.reason);
    let cubes = Topology::preset("dgx-1").unwrap();
    assert_eq!(cubes.order().argument(), "mesh:0-3+mesh:4-7");
    let cubes = cubes.replicated(2).unwrap().order();
    assert_eq!(cubes.argument(), "(mesh:0-3+mesh:4-7)+(mesh:8-11+mesh:12-15)");
    assert_eq!(Topology::preset("dgx-2").unwrap().replicated(0), Err(Error::NoMachines));
    let many = Topology::preset("dgx-2").unwrap().replicated(usize::MAX);
    assert!(matches!(many, Err(Error::TooManyGpus { .. })));
}

#[test]
fn unknown_name_lists_the_known() {
    let text = Topology::preset("h300").unwrap_err().to_string();
    assert!(text.contains("\"h300\"") && text.contains("dgx-h100, hgx-h200"), "{text}");
    assert!(text.contains("h200-8-nvswitch"), "{text}");
}
