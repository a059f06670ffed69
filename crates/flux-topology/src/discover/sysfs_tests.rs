use std::os::unix::fs::symlink;

use super::*;
use crate::discover::{DriverDevice, DriverFacts, NvmlDevice, NvmlFacts, NvmlPair, combine};
use crate::{ProbeFailure, Topology};

/// A folder with the parts of `/sys` that are read.
struct Sys(tempfile::TempDir);

impl Sys {
    fn new() -> Sys {
        Sys(tempfile::tempdir().unwrap())
    }

    fn write(&self, path: &str, text: &str) {
        let path = self.0.path().join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, format!("{text}\n")).unwrap();
    }

    /// A device below a host bridge and bridges, as `pci0000:16/0000:16:01.0/0000:19:00.0`.
    fn device(&self, tree: &str, class: &str, numa_node: &str, cpus: &str) -> &Sys {
        let at = format!("devices/{tree}");
        self.write(&format!("{at}/class"), class);
        self.write(&format!("{at}/vendor"), "0x10de");
        self.write(&format!("{at}/numa_node"), numa_node);
        self.write(&format!("{at}/local_cpulist"), cpus);
        self.write(&format!("{at}/max_link_speed"), "32.0 GT/s PCIe");
        self.write(&format!("{at}/max_link_width"), "16");
        let folder = self.0.path().join("bus/pci/devices");
        fs::create_dir_all(&folder).unwrap();
        symlink(format!("../../../{at}"), folder.join(tree.rsplit('/').next().unwrap())).unwrap();
        self
    }

    /// An entry of a class that leads below a device.
    fn entry(&self, class: &str, name: &str, tree: &str) -> &Sys {
        let at = format!("devices/{tree}/{class}/{name}");
        fs::create_dir_all(self.0.path().join(&at)).unwrap();
        let folder = self.0.path().join("class").join(class);
        fs::create_dir_all(&folder).unwrap();
        symlink(format!("../../{at}"), folder.join(name)).unwrap();
        self
    }

    fn facts(&self) -> SysfsFacts {
        probe(self.0.path())
    }
}

fn driver(gpus: &[&str]) -> Result<DriverFacts, ProbeFailure> {
    let device = |pci: &&str| DriverDevice { pci: pci.parse().ok(), ..DriverDevice::default() };
    Ok(DriverFacts { devices: gpus.iter().map(device).collect(), ..DriverFacts::default() })
}

fn no_nvml() -> Result<NvmlFacts, ProbeFailure> {
    Err(ProbeFailure { what: "NVML", tried: Vec::new(), reason: "not there".to_owned() })
}

fn kinds(topology: &Topology) -> Vec<String> {
    let count = topology.device_count();
    let row =
        |from| (0..count).map(|to| topology.link(from, to).unwrap().symbol()).collect::<Vec<_>>().join(" ");
    (0..count).map(row).collect()
}

/// Two sockets; on the first a switch with two GPUs and a card with two ports, and behind a switch of its own, below the
/// same one, a third GPU; then a GPU at another host bridge of the node, and one on the second socket.
fn server() -> Sys {
    let sys = Sys::new();
    let up = "pci0000:16/0000:16:01.0/0000:17:00.0";
    sys.device(&format!("{up}/0000:18:00.0/0000:19:00.0"), "0x030200", "0", "0-23,48-71")
        .device(&format!("{up}/0000:18:01.0/0000:1a:00.0"), "0x030200", "0", "0-23,48-71")
        .device(&format!("{up}/0000:18:02.0/0000:1b:00.0"), "0x020700", "0", "0-23,48-71")
        .device(
            &format!("{up}/0000:18:03.0/0000:1c:00.0/0000:1d:00.0/0000:1e:00.0"),
            "0x030200",
            "0",
            "0-23,48-71",
        )
        .device("pci0000:30/0000:30:01.0/0000:31:00.0", "0x030200", "0", "0-23,48-71")
        .device("pci0000:80/0000:80:01.0/0000:81:00.0", "0x030200", "1", "24-47,72-95")
        .device("pci0000:80/0000:80:02.0/0000:82:00.0", "0x020000", "1", "24-47,72-95");
    let card = format!("{up}/0000:18:02.0/0000:1b:00.0");
    sys.entry("infiniband", "mlx5_0", &card).entry("net", "ib0", &card);
    for (port, rate) in [("1", "400 Gb/sec (4X NDR)"), ("2", "garbage")] {
        sys.write(&format!("devices/{card}/infiniband/mlx5_0/ports/{port}/rate"), rate);
    }
    let plain = "pci0000:80/0000:80:02.0/0000:82:00.0";
    sys.entry("net", "eth0", plain);
    sys.write(&format!("devices/{plain}/net/eth0/speed"), "25000");
    sys.entry("net", "lo", "virtual");
    sys
}

#[test]
fn a_server() {
    let gpus = ["0000:19:00.0", "0000:1a:00.0", "0000:1e:00.0", "0000:31:00.0", "0000:81:00.0"];
    let topology = combine(driver(&gpus), no_nvml(), server().facts()).unwrap();
    assert_eq!(
        kinds(&topology),
        [
            "X PIX PXB NODE SYS",
            "PIX X PXB NODE SYS",
            "PXB PXB X NODE SYS",
            "NODE NODE NODE X SYS",
            "SYS SYS SYS SYS X"
        ]
    );
    let numa: Vec<Option<u32>> = topology.devices().iter().map(|device| device.numa_node).collect();
    assert_eq!(numa, [Some(0), Some(0), Some(0), Some(0), Some(1)]);
    assert_eq!(topology.devices()[4].cpus.as_ref().unwrap().to_string(), "24-47,72-95");
    assert_eq!(topology.devices()[0].pcie.unwrap().gb_per_s(), 48.0);
    let nics: Vec<(&str, Option<u64>, Vec<usize>)> =
        topology.nics().iter().map(|nic| (nic.name.as_str(), nic.megabits_per_s, nic.near())).collect();
    assert_eq!(
        nics,
        [
            ("mlx5_0:1", Some(400_000), vec![0, 1, 2]),
            ("mlx5_0:2", None, vec![0, 1, 2]),
            ("eth0", Some(25_000), vec![])
        ]
    );
    // NCCL, given our file, sees the same.
    let again = Topology::parse(topology.to_nccl_xml().as_bytes()).unwrap();
    assert_eq!(kinds(&again)[0], "X PIX PXB PHB SYS", "the format has no NODE");
    assert_eq!(again.nics()[0].near(), [0, 1, 2]);
    assert_eq!(again.devices()[1].pci, topology.devices()[1].pci);
}

/// Virtual machines show a flat bus and no NUMA nodes; or each GPU in a domain of its own.
#[test]
fn virtual_machines() {
    let flat = Sys::new();
    flat.device("pci0000:00/0000:00:05.0", "0x030200", "-1", "0-31");
    flat.device("pci0000:00/0000:00:06.0", "0x030200", "-1", "0-31");
    flat.device("pci0000:00/0000:00:03.0", "0x020000", "-1", "0-31");
    flat.entry("net", "eth0", "pci0000:00/0000:00:03.0/virtio1");
    flat.write("devices/pci0000:00/0000:00:03.0/virtio1/net/eth0/speed", "-1");
    let topology = combine(driver(&["0000:00:05.0", "0000:00:06.0"]), no_nvml(), flat.facts()).unwrap();
    assert_eq!(kinds(&topology), ["X PHB", "PHB X"]);
    assert_eq!(topology.devices()[0].numa_node, None);
    assert_eq!((topology.nics()[0].name.as_str(), topology.nics()[0].megabits_per_s), ("eth0", None));
    assert_eq!(topology.order().order.name(), "ring");
    assert!(topology.report().contains("inferred from the CPUs"), "{}", topology.report());
    assert!(Topology::parse(topology.to_nccl_xml().as_bytes()).is_ok());

    let domains = Sys::new();
    let bus = "LNXSYSTM:00/VMBUS:01/47505500-0001";
    domains.device(&format!("{bus}/pci0001:00/0001:00:00.0"), "0x030200", "0", "0-11");
    domains.device(&format!("{bus}/pci0002:00/0002:00:00.0"), "0x030200", "1", "12-23");
    let topology = combine(driver(&["0001:00:00.0", "0002:00:00.0"]), no_nvml(), domains.facts()).unwrap();
    assert_eq!(kinds(&topology), ["X SYS", "SYS X"]);
    assert_eq!(topology.order().order.name(), "two-level");
}

#[test]
fn disagreements_are_named() {
    let gpus = ["0000:19:00.0", "0000:1a:00.0"];
    let mut facts = driver(&gpus).unwrap();
    facts.devices[0].numa_node = Some(3);
    let device = |pci: &&str| NvmlDevice { pci: pci.parse().ok(), ..NvmlDevice::default() };
    let mut nvml = NvmlFacts { devices: gpus.iter().map(device).collect(), ..NvmlFacts::default() };
    for key in [(0, 1), (1, 0)] {
        let pair = NvmlPair {
            ancestor: Some(LinkKind::System),
            read: crate::P2pStatus::Ok,
            write: crate::P2pStatus::Ok,
            nvlink: crate::P2pStatus::Ok,
            ..NvmlPair::default()
        };
        nvml.pairs.insert(key, pair);
        facts.pairs.entry(key).or_default().can_access = Some(false);
    }
    let topology = combine(Ok(facts), Ok(nvml), server().facts()).unwrap();
    let warnings = topology.warnings().join("\n");
    for what in [
        "GPU 0 is on NUMA node 3 by the CUDA driver and on 0 by /sys",
        "GPU 0 to 1, 1 to 0: NVML grants peer access, the CUDA driver denies it; the driver's word is taken",
        "GPU 0 to 1, 1 to 0: NVLink connects them, and the CUDA driver denies peer access",
        "GPU 0 to 1: how far they are apart is another thing by /sys than by NVML",
    ] {
        assert!(warnings.contains(what), "{what}\n{warnings}");
    }
    // The driver's no is what the order goes by.
    assert_eq!(topology.devices()[0].numa_node, Some(3));
    let order = topology.order();
    assert!(
        order.order.name() != "full-mesh" && order.reason.contains("denies peer access"),
        "{}",
        order.reason
    );
}

#[test]
fn no_such_folder() {
    assert_eq!(probe(Path::new("/nowhere/at/all")), SysfsFacts::default());
}
