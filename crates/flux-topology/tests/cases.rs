//! Files from the wild are understood as people who looked at them say.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use flux_topology::{Device, Link, Nic, Topology};

#[path = "cases/expected.rs"]
mod expected;
use expected::{EXPECTED, Expected, REFUSED};

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/cases")
}

fn read(file: &str) -> Topology {
    Topology::read(&folder().join(file)).unwrap_or_else(|error| panic!("{file}: {error}"))
}

#[test]
fn every_file_is_expected() {
    let data = |name: &String| name.ends_with(".xml") || name.ends_with(".txt");
    let files: BTreeSet<String> = std::fs::read_dir(folder())
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .filter(data)
        .collect();
    let known: BTreeSet<String> = EXPECTED
        .iter()
        .map(|case| case.file)
        .chain(REFUSED.iter().map(|case| case.0))
        .map(str::to_owned)
        .collect();
    assert_eq!(files, known);
}

fn want_pairs(case: &Expected) -> Vec<Vec<String>> {
    let mut pairs = vec![vec![String::new(); case.gpus]; case.gpus];
    for class in case.pairs.split(';').filter(|class| !class.trim().is_empty()) {
        let (symbol, list) = class.trim().split_once(": ").unwrap();
        for pair in list.split(' ') {
            for (a, b) in (0..case.gpus).flat_map(|a| (a + 1..case.gpus).map(move |b| (a, b))) {
                if pair == format!("{a}{b}") || (pair == "*" && pairs[a][b].is_empty()) {
                    pairs[a][b] = symbol.to_owned();
                    pairs[b][a] = symbol.to_owned();
                }
            }
        }
    }
    (0..case.gpus).for_each(|gpu| pairs[gpu][gpu] = "X".to_owned());
    pairs
}

fn pairs(topology: &Topology) -> Vec<Vec<String>> {
    let count = topology.device_count();
    let symbol = |from, to| topology.link(from, to).unwrap().symbol();
    (0..count).map(|from| (0..count).map(|to| symbol(from, to)).collect()).collect()
}

fn numa(topology: &Topology) -> String {
    let node = |node: Option<u32>| node.map_or("?".to_owned(), |node| node.to_string());
    topology.devices().iter().map(|device| node(device.numa_node)).collect::<Vec<_>>().join(" ")
}

fn spaced(numbers: &[usize]) -> String {
    numbers.iter().map(ToString::to_string).collect::<Vec<_>>().join(" ")
}

#[test]
fn every_file_says_what_is_expected() {
    for case in EXPECTED {
        let (file, topology) = (case.file, read(case.file));
        assert_eq!(topology.device_count(), case.gpus, "{file}: GPUs");
        assert_eq!(pairs(&topology), want_pairs(case), "{file}: pairs");
        assert_eq!(numa(&topology), case.numa, "{file}: NUMA nodes");
        assert_eq!(topology.nics().len(), case.nics, "{file}: cards");
        for (index, nic) in topology.nics().iter().enumerate() {
            let want = case.near.iter().find(|(card, _)| *card == index).map_or(&[][..], |(_, near)| near);
            assert_eq!(nic.near(), want, "{file}: near {}", nic.name);
        }
        assert_eq!(topology.nvswitch(), case.nvswitch, "{file}: NVSwitch");
        let order = topology.order();
        assert_eq!(order.order.name(), case.order, "{file}: {}", order.reason);
        if !case.groups.is_empty() {
            let groups: Vec<String> = order.groups.iter().map(|group| spaced(group)).collect();
            assert_eq!(groups.join(" | "), case.groups, "{file}: groups");
        }
        let cycle = order.strongest_ring.as_deref().map(spaced).unwrap_or_default();
        assert_eq!(cycle, case.cycle, "{file}: strongest ring");
        let warnings = topology.warnings().join("\n");
        for what in case.warns {
            assert!(warnings.contains(what), "{file}: {warnings}");
        }
        assert!(!case.warns.is_empty() || warnings.is_empty(), "{file}: {warnings}");
    }
}

#[test]
fn what_is_no_topology_is_refused() {
    for (file, speaks_of) in REFUSED {
        let error = Topology::read(&folder().join(file)).unwrap_err().to_string();
        for what in *speaks_of {
            assert!(error.contains(what), "{file}: {error}");
        }
    }
}

/// What the table above has no column for.
#[test]
fn details() {
    let names =
        |topology: &Topology| -> Vec<String> { topology.nics().iter().map(|n| n.name.clone()).collect() };
    let bus_ids = |topology: &Topology| -> Vec<String> {
        topology.devices().iter().map(|device| device.pci.unwrap().to_string()).collect()
    };

    let azure = read("azure-ndv4-a100-vm.xml");
    let file_order = ["0003", "0004", "0001", "0002", "000d", "000e", "000b", "000c"];
    assert_eq!(bus_ids(&azure), file_order.map(|domain| format!("{domain}:00:00.0")));
    assert_eq!(azure.nics()[0].pci.unwrap().to_string(), "0103:00:00.0");

    let self_target = read("azure-ncv4-self-target.xml");
    assert_eq!((names(&self_target), self_target.nics()[0].numa_node), (vec!["eth0".to_owned()], Some(0)));

    let by_bus_id = read("aws-g5-48xl-busid-only.xml");
    let nodes: Vec<Option<u32>> = by_bus_id.unclassified().iter().map(|device| device.numa_node).collect();
    assert_eq!(nodes, [0, 0, 0, 0, 1, 1, 1, 1, 1].map(Some));

    let dump = read("a100-8-full-dump-5nic.xml");
    assert_eq!(names(&dump), (0..5).map(|bond| format!("mlx5_bond_{bond}")).collect::<Vec<_>>());
    assert_eq!(dump.devices()[0].name, "NVIDIA A100-SXM4-80GB");
    assert_eq!(dump.nics()[1].megabits_per_s, Some(200_000));
    assert_eq!(
        dump.nics()[0].to_gpus[..5].iter().map(|kind| kind.symbol()).collect::<Vec<_>>().join(" "),
        "PHB PHB PHB PHB SYS"
    );
    assert_eq!(dump.nvlink_gb_per_s(0, 7), Some(240.0));

    let oci = read("oci-h100-8-dual-port-nics.xml");
    let numbers = [0, 1, 3, 4, 5, 6, 7, 8, 9, 10, 12, 13, 14, 15, 16, 17];
    assert_eq!(names(&oci), numbers.map(|number| format!("mlx5_{number}")));
    let cards: BTreeSet<_> = oci.nics().iter().map(|nic| nic.pci).collect();
    assert_eq!(cards.len(), 8);

    let sandbox = read("b200-8-sandbox-dump.xml");
    let nodes: Vec<Option<u32>> = sandbox.nics().iter().map(|nic| nic.numa_node).collect();
    assert!(nodes[..9].iter().all(|node| *node == Some(0)) && nodes[9..].iter().all(|node| *node == Some(1)));
    assert_eq!(sandbox.devices()[0].cpus.as_ref().unwrap().runs().len(), 44);

    assert_eq!(names(&read("v100-8-hybrid-cube-mesh-oldformat.txt")), ["mlx5_0"]);
    assert_eq!(names(&read("a40-4-pxb-pix-rocep-nics.txt")), ["rocep177s0f0", "rocep177s0f1"]);
    let h800 = names(&read("h800-8-nvswitch-9nic-bond.txt"));
    assert_eq!((h800[1].as_str(), h800[7].as_str(), h800[8].as_str()), ("mlx5_3", "mlx5_9", "mlx5_bond_0"));
    let cpus = |file: &str, gpu: usize| read(file).devices()[gpu].cpus.as_ref().unwrap().to_string();
    assert_eq!(cpus("h100-4-nv6-direct-4numa-4nic.txt", 0), "6,14,22,30");
    assert_eq!(cpus("gb200-4-gpu-numa-id-lists-8nic.txt", 3), "72-143");
    assert_eq!(cpus("t4-2-vm-blank-numa.txt", 0), "0-3");
    assert_eq!(cpus("rtx4090-8-all-sys-2nic-tabs.txt", 7), "56-111,168-223");

    let bridged = read("a100-8-pcie-nvlink-pairs-2numa.txt").order();
    assert_eq!(bridged.sequence, [0, 1, 2, 3, 4, 5, 6, 7]);
    assert_eq!(read("gpu5-uneven-numa.txt").order().sequence, [1, 2, 3, 4, 0]);
    assert_eq!(spaced(&read("dgx1v-8-hybrid-cube-mesh.xml").order().sequence), "0 3 2 1 5 6 7 4");
}

/// What is read from XML is written and read again without a loss.
#[test]
fn xml_is_written_as_it_was_read() {
    for case in EXPECTED.iter().filter(|case| case.file.ends_with(".xml")) {
        let first = read(case.file);
        let xml = first.to_nccl_xml();
        let again = Topology::parse(xml.as_bytes()).unwrap_or_else(|error| panic!("{}: {error}", case.file));
        assert_eq!(again.to_json(), first.to_json(), "{}", case.file);
        assert_eq!((again.devices(), again.nics()), (first.devices(), first.nics()), "{}", case.file);
        assert_eq!(again.to_nccl_xml(), xml, "{}", case.file);
        // Nothing of the file is lost, whether we know what it means or not.
        let original = std::fs::read_to_string(folder().join(case.file)).unwrap();
        for tag in [
            "<cpu ",
            "<pci ",
            "<gpu ",
            "<nvlink ",
            "<xgmi ",
            "<nic>",
            "<net ",
            "guid=",
            "busid=",
            "affinity=",
        ] {
            assert_eq!(xml.matches(tag).count(), original.matches(tag).count(), "{}: {tag}", case.file);
        }
    }
}

/// What is no XML becomes XML that says the same, as far as XML can: it has one word for all that is on one NUMA
/// node and shares no switch, and none for NUMA nodes that are not known.
#[test]
fn any_topology_becomes_xml() {
    let texts = EXPECTED.iter().filter(|case| case.gpus > 0).map(|case| (case.file, read(case.file)));
    let presets = Topology::presets().map(|name| (name, Topology::preset(name).unwrap()));
    for (name, topology) in texts.chain(presets).filter(|(_, topology)| topology.host_count() == 1) {
        // A cluster of it forgets the file, so that all is written from what was understood.
        let cluster = topology.replicated(2).unwrap();
        let xml = cluster.to_nccl_xml();
        let again = Topology::parse(xml.as_bytes()).unwrap_or_else(|error| panic!("{name}: {error}\n{xml}"));
        // NCCL refuses a PCI element without any of these, whether it has found out what they are or not.
        for needed in [" busid=", " class=", " link_speed=", " link_width="] {
            assert_eq!(xml.matches(needed).count(), xml.matches("<pci ").count(), "{name}: {needed}");
        }
        let coarse = |a: String, same_node: bool| match a.as_str() {
            "NODE" | "SYS" | "?" if same_node => "PHB".to_owned(),
            _ => a,
        };
        let nodes = topology.numa_groups().groups;
        let node = |gpu: usize| nodes.iter().position(|group| group.contains(&gpu));
        let expected: Vec<Vec<String>> = pairs(&topology)
            .into_iter()
            .enumerate()
            .map(|(from, row)| {
                let cell = |(to, cell): (usize, String)| coarse(cell, node(from) == node(to));
                row.into_iter().enumerate().map(cell).collect()
            })
            .collect();
        assert_eq!(pairs(&again), expected, "{name}\n{xml}");
        let near = |topology: &Topology| -> BTreeSet<(String, Vec<usize>)> {
            topology.nics().iter().map(|nic| (nic.name.clone(), nic.near())).collect()
        };
        assert_eq!(near(&again), near(&topology), "{name}\n{xml}");
        assert_eq!(again.nics().len(), topology.nics().len(), "{name}");
        if topology.nvswitch().is_some() {
            assert_eq!(again.nvswitch(), topology.nvswitch(), "{name}");
        }
        assert_eq!(again.order().order, topology.order().order, "{name}\n{xml}");
    }
}

/// Peculiar texts that the folder has none of.
#[test]
fn other_texts() {
    let three = "\tGPU0\tGPU1\tCPU Affinity\tNUMA Affinity\nGPU0\t X \tNV4\t0-5\t0\nGPU1\tNV4\t X \t0-5\t0\n";
    let want = pairs(&Topology::parse(three.as_bytes()).unwrap());
    let utf16: Vec<u8> =
        [0xff, 0xfe].into_iter().chain(three.encode_utf16().flat_map(u16::to_le_bytes)).collect();
    let prompt = format!("$ nvidia-smi topo -m\n```\n{three}```\n");
    let bars = "| | GPU0 | GPU1 | CPU Affinity |\n|---|---|---|---|\n| GPU0 | X | NV4 | 0-5 |\n| GPU1 | NV4 | X | 0-5 |\n";
    for text in [utf16, prompt.into_bytes(), bars.into(), format!("\u{feff}{three}").into_bytes()] {
        assert_eq!(pairs(&Topology::parse(&text).unwrap()), want, "{}", String::from_utf8_lossy(&text));
    }

    let old_ends = three.replace('\n', "\r");
    assert_eq!(pairs(&Topology::parse(old_ends.as_bytes()).unwrap()), want);
    // A sentence that begins with a GPU, and names it twice, is no header.
    let sentence = format!("GPU0 here is GPU0 there\n{three}");
    assert_eq!(pairs(&Topology::parse(sentence.as_bytes()).unwrap()), want);

    let mig =
        "GPU0 GPU1 MIG 0 MIG 1\nGPU0 X SYS X SYS\nGPU1 SYS X SYS X\nMIG 0 X SYS X SYS\nMIG 1 SYS X SYS X\n";
    let mig = Topology::parse(mig.as_bytes()).unwrap();
    assert_eq!((mig.device_count(), mig.link(0, 1).unwrap().symbol()), (2, "SYS".to_owned()));
    let mig =
        "\tGPU0\tMIG0\tGPU1\tCPU Affinity\nGPU0\tX\tX\tSYS\t0\nMIG0\tX\tX\tSYS\t0\nGPU1\tSYS\tSYS\tX\t0\n";
    let mig = Topology::parse(mig.as_bytes()).unwrap();
    assert_eq!((mig.device_count(), mig.nics().len()), (2, 0));
    assert!(mig.warnings()[0].contains("MIG"), "{:?}", mig.warnings());

    let no_card_rows = "\tGPU0\tGPU1\tNIC0\nGPU0\tX\tPIX\tPIX\nGPU1\tPIX\tX\tPIX\n";
    let no_card_rows = Topology::parse(no_card_rows.as_bytes()).unwrap();
    assert_eq!(no_card_rows.nics().iter().map(Nic::near).collect::<Vec<_>>(), [[0, 1]]);
    assert!(no_card_rows.warnings()[0].contains("rows of the network cards"));

    let refused = [
        ("GPU0 GPU1\nGPU0 X PIX\n", "line 2, column 11: rows missing for GPU1"),
        ("GPU0 GPU1\nGPU0 X PIX\nGPU1 PIX\n", "line 3, column 9: the row has 1 cells"),
        ("GPU0 GPU1\nGPU0 X BUS\nGPU1 PIX X\n", "line 2, column 8: \"BUS\" stands where the cell for GPU1"),
        ("GPU0 GPU1\nGPU0 X PIX\nGPU0 X PIX\n", "line 3, column 1: a second row for GPU0"),
        ("GPU0 GPU1\nGPU0 X PIX\nGPU1 PIX X\nGPU2 X X\n", "line 4, column 1: a row for GPU2"),
        ("GPU0 GPU1\nGPU0 X  X\nGPU1 X X\n", "line 2, column 9: the cell for GPU1 in the row of GPU0 is X"),
        ("GPU0 GPU1\nGPU0 PIX X\nGPU1 PIX X\n", "line 2, column 6: the cell for GPU0"),
        (
            "GPU0 GPU1 CPU Affinity\nGPU0 X NV12 0-5\nGPU1 NV12 X 0-5\nNIC0 SYS",
            "line 4, column 1: a row for NIC0",
        ),
        ("no matrix at all", "neither a topology file of NCCL nor"),
        ("{}", "looks like JSON"),
        (" \n", "it is empty"),
        ("GPU0 GPU1\nGPU0 X PIX 0-3\nGPU1 PIX X", "line 3, column 11: the file ends early"),
        ("NIC0 CPU Affinity\nNIC0 X\n", "neither a topology file"),
        (
            "\n  GPU0 GPU1 GPU0\nGPU0 X PIX PIX\nGPU1 PIX X PIX\n",
            "line 2, column 13: the header names GPU0 twice",
        ),
        ("GPU0 GPU1GPU0\nGPU0 X PIX PIX\n", "line 1, column 6: the header names GPU0 twice"),
        (
            "GPU0 GPU1 NUMA Affinity\nGPU0 X PIX 0-3 0\nGPU1 PIX X 4-7 99999999999\n",
            "line 3, column 16: \"99999999999\" is no list of NUMA nodes",
        ),
        (
            "GPU0 GPU1 CPU Affinity\nGPU0 X PIX 0-3\nGPU1 PIX X 7-4\n",
            "line 3, column 12: \"7-4\" is no list of CPUs",
        ),
        ("GPU0 GPU1\rGPU0 X PIX\r", "line 2, column 11: rows missing for GPU1"),
    ];
    for (text, want) in refused {
        let error = Topology::parse(text.as_bytes()).unwrap_err().to_string();
        assert!(error.contains(want), "{text:?}: {error}");
    }
}

#[test]
fn other_xml() {
    let refused = [
        ("<system><cpu><pci/></cpu></system>", "line 1, column 14: <pci> has no busid"),
        ("<system>\n<cpu>\n<pci busid=\"x\"/></cpu></system>", "line 3, column 1: \"x\" is no PCI address"),
        (
            "<system>\n  <pci busid=\"1:2.0\"/></system>",
            "line 2, column 3: <pci> stands outside of any <cpu>",
        ),
        ("<system></system>", "no GPU"),
        ("<system><cpu></system>", "line 1"),
        ("<system></system><system/>", "stands behind the end"),
        ("<system>text</system>", "text stands between"),
        ("<system><cpu numaid=\"0\"", "ends early, inside of <system> of line 1"),
        ("<!-- only a comment -->", "ends early"),
        ("<html></html>", "it holds <html>"),
        ("<", "ends early"),
        (
            "<system><cpu>\n<pci busid=\"1:0.0\" class=\"0x030200\"/>\n  <pci busid=\"0:1:0.0\" class=\"0x030200\"/></cpu></system>",
            "line 3, column 3: busid 0000:01:00.0 is also that of line 2",
        ),
        ("<system>\n<cpu numaid=\"abc\"/></system>", "line 2, column 1: numaid of <cpu> is \"abc\""),
        ("<system><cpu numaid=\"4294967296\"/></system>", "line 1, column 9: numaid is larger than any"),
        (
            "<system><cpu><pci busid=\"1:0.0\"><gpu dev=\"one\"/></pci></cpu></system>",
            "line 1, column 33: dev of <gpu> is \"one\"",
        ),
        (
            "<system><cpu><pci busid=\"1:0.0\"><gpu dev=\"0\"><nvlink target=\"2:0.0\" count=\"-2\"/></gpu></pci></cpu></system>",
            "line 1, column 46: count is -2",
        ),
    ];
    for (text, want) in refused {
        let error = Topology::parse(text.as_bytes()).unwrap_err().to_string();
        assert!(error.contains(want), "{text:?}: {error}");
    }
    let deep = "<a>".repeat(100_000);
    assert!(Topology::parse(deep.as_bytes()).unwrap_err().to_string().contains("nested"));

    // What leads nowhere is passed over, and said; what leads to a CPU is as it should be.
    let odd = "<system><cpu affinity=\"xyz\"><pci busid=\"1:0.0\" class=\"0x030200\"/></cpu></system>";
    let odd = Topology::parse(odd.as_bytes()).unwrap();
    assert!(odd.warnings().iter().any(|text| text.contains("line 1, column 9: the affinity \"xyz\"")));
    let links = "<system><cpu numaid=\"-1\"><pci busid=\"1:0.0\"><gpu dev=\"0\">\n<nvlink target=\"9:0.0\" count=\"4\" \
                 tclass=\"0x030200\"/><nvlink target=\"8:0.0\" count=\"1\" tclass=\"0x068001\"/></gpu></pci></cpu></system>";
    let links = Topology::parse(links.as_bytes()).unwrap();
    assert_eq!((numa(&links), links.warnings().len()), ("?".to_owned(), 1));
    let warning = "line 2, column 1: NVLinks of GPU 0 lead to 9:0.0, and the file has no such GPU";
    assert!(links.warnings()[0].contains(warning), "{:?}", links.warnings());

    // NVLinks of two hosts of one NVLink domain, as in a dump of a rack; a CPU with NVLinks; an unknown element.
    let gpu = |busid: &str, class: &str| {
        format!(
            "<pci busid=\"{busid}\" class=\"0x030200\"><gpu dev=\"0\" sm=\"100\"><nvlink target=\"fffffff:ff:ff.0\" \
             count=\"18\" tclass=\"{class}\"/><strange/></gpu><odd/></pci>"
        )
    };
    let rack = |class| {
        let host =
            |hash, busid| format!("<cpu host_hash=\"{hash}\" numaid=\"-1\">{}</cpu>", gpu(busid, class));
        format!("<system>{}{}</system>", host("0x1", "1:00.0"), host("0x2", "1:00.0"))
    };
    let one_domain = Topology::parse(rack("0x068000").as_bytes()).unwrap();
    assert_eq!((one_domain.host_count(), one_domain.link(0, 1).unwrap().symbol()), (2, "NV18".to_owned()));
    assert_eq!((numa(&one_domain), one_domain.warnings().len()), ("? ?".to_owned(), 1));
    // Direct links stay in a machine, though others have the same bus ids.
    let machine = |hash: &str| {
        let gpu = |at: u8, to: u8| {
            format!(
                "<pci busid=\"{at}:0.0\"><gpu dev=\"{at}\"><nvlink target=\"{to}:0.0\" count=\"4\"/></gpu></pci>"
            )
        };
        format!("<cpu host_hash=\"{hash}\">{}{}</cpu>", gpu(0, 1), gpu(1, 0))
    };
    let two = format!("<system>{}{}</system>", machine("0x1"), machine("0x2"));
    let two = Topology::parse(two.as_bytes()).unwrap();
    let symbols = [(0, 1), (0, 3), (2, 3)].map(|(from, to)| two.link(from, to).unwrap().symbol());
    assert_eq!((symbols.each_ref().map(String::as_str), two.domains().len()), (["NV4", "NET", "NV4"], 2));
    let cpus = Topology::parse(rack("0x068001").as_bytes()).unwrap();
    assert_eq!(cpus.link(0, 1).unwrap().symbol(), "NET");
}

/// As many GPUs as there may be are the same number, wherever they are from, and no text takes long.
#[test]
fn many_gpus() {
    let most = Topology::MOST_GPUS;
    let xml = |count: usize| {
        let gpus = (0..count).map(|gpu| format!("<pci busid=\"{gpu:x}:0:0.0\" class=\"0x030200\"/>"));
        format!("<system><cpu>{}</cpu></system>", gpus.collect::<String>())
    };
    let text = |count: usize| (0..count).map(|gpu| format!("GPU{gpu} ")).collect::<String>() + "\n";
    let error = |text: &str| Topology::parse(text.as_bytes()).unwrap_err().to_string();
    assert_eq!(Topology::parse(xml(1500).as_bytes()).unwrap().device_count(), 1500);
    let too_many = |gpus: usize| format!("{gpus} GPUs are more than the {most} ");
    assert!(error(&xml(most + 1)).contains(&too_many(most + 1)));
    assert!(error(&text(most + 1)).contains(&too_many(most + 1)));
    assert!(error(&text(most)).contains("rows missing"));
    let one = Topology::preset("1xh200").unwrap();
    assert!(one.replicated(most + 1).unwrap_err().to_string().contains(&too_many(most + 1)));

    // 1,500 in one machine, of which no more is known than that: the worst case, which was cubic once.
    let began = std::time::Instant::now();
    let many = Topology::new("many", vec![Device::new("GPU"); 1500], |_, _| Link::unknown());
    assert_eq!(many.to_nccl_xml().matches("<gpu ").count(), 1500);
    assert!(many.report().len() < 20_000);
    assert!(began.elapsed().as_secs() < 15, "{:?}", began.elapsed());
}
