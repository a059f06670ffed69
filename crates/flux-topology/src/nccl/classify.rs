//! What the `<pci>` elements of a topology file are: by what is in them first, by their class second.

use std::collections::BTreeMap;

use super::element::Element;
use super::place::Place;
use crate::{ComputeCapability, Device, Error, Nic, PciAddress, PcieRate, Result, Unclassified};

/// Everything of a file that is of use, in the order of the file.
#[derive(Default)]
pub(crate) struct Found<'a> {
    pub(crate) gpus: Vec<FoundGpu<'a>>,
    pub(crate) nics: Vec<(Nic, Place)>,
    pub(crate) unclassified: Vec<Unclassified>,
    pub(crate) warnings: Vec<String>,
    /// By machine and address, the line that each device is in.
    seen: BTreeMap<(usize, PciAddress), usize>,
}

pub(crate) struct FoundGpu<'a> {
    pub(crate) device: Device,
    pub(crate) place: Place,
    /// The `<gpu>` element; files for `NCCL_TOPO_FILE` have none.
    pub(crate) tag: Option<&'a Element>,
}

/// Elements that are known to be there; others are kept, and said to be strange.
const KNOWN: &[&str] =
    &["system", "cpu", "pci", "gpu", "nvlink", "xgmi", "c2c", "nic", "net", "pcilink", "coll"];

impl<'a> Found<'a> {
    /// Looks at a `<pci>`, `<nic>` or `<gpu>` and all that is in it.
    pub(crate) fn visit(&mut self, element: &'a Element, place: &Place) -> Result<()> {
        match element.name.as_str() {
            "pci" => self.visit_pci(element, place)?,
            "nic" => self.visit_nic(element, None, place),
            "gpu" => self.gpus.push(gpu(element, Some(element), None, place)),
            name if !KNOWN.contains(&name) => {
                let warning = format!("<{name}> is not known to flux and is passed over");
                if !self.warnings.contains(&warning) {
                    self.warnings.push(warning);
                }
            }
            _ => {}
        }
        Ok(())
    }

    fn visit_pci(&mut self, element: &'a Element, place: &Place) -> Result<()> {
        let text = element.get("busid").ok_or_else(|| element.error("<pci> has no busid".to_owned()))?;
        let pci: PciAddress = text.parse().map_err(|error: Error| element.error(error.to_string()))?;
        if let Some(line) = self.seen.insert((place.host, pci), element.at.line) {
            let reason =
                format!("busid {pci} is also that of line {line}; a device is there once: leave one");
            return Err(element.error(reason));
        }
        let class = element.get("class").unwrap_or_default();
        let tag = element.child("gpu");
        let nic = element.child("nic");
        let is_bridge = element.child("pci").is_some();

        if tag.is_some() || (class.starts_with("0x03") && !is_bridge) {
            self.gpus.push(gpu(element, tag, Some(pci), place));
        }
        if let Some(nic) = nic.filter(|nic| nic.child("net").is_some()) {
            self.visit_nic(nic, Some(pci), place);
        } else if nic.is_some() || (class.starts_with("0x02") && !is_bridge) {
            let nic = Nic { pci: Some(pci), ..Nic::new(pci.to_string()) };
            self.nics.push((nic, place.clone()));
        } else if element.children.is_empty() && class.is_empty() {
            self.unclassified.push(Unclassified { pci, numa_node: place.numa_node });
        }
        let mut below = place.clone();
        below.bridges.push(pci);
        for child in element.children.iter().filter(|child| !matches!(child.name.as_str(), "gpu" | "nic")) {
            self.visit(child, &below)?;
        }
        Ok(())
    }

    fn visit_nic(&mut self, element: &Element, pci: Option<PciAddress>, place: &Place) {
        for net in element.children.iter().filter(|child| child.name == "net") {
            let name = net.get("name").unwrap_or("unnamed");
            let nic = Nic {
                pci,
                port: net.number("port"),
                megabits_per_s: net.number("speed").filter(|&speed| speed > 0),
                ..Nic::new(name)
            };
            self.nics.push((nic, place.clone()));
        }
    }
}

fn gpu<'a>(
    element: &Element,
    tag: Option<&'a Element>,
    pci: Option<PciAddress>,
    place: &Place,
) -> FoundGpu<'a> {
    let product = element.get("device").and_then(|id| PRODUCTS.iter().find(|product| product.0 == id));
    let known = product.map(|&(_, name, (major, minor))| (name, ComputeCapability { major, minor }));
    let gcn = tag.and_then(|tag| tag.get("gcn"));
    let sm: Option<u32> = tag.filter(|_| gcn.is_none()).and_then(|tag| tag.number("sm"));
    let capability = sm.map(|sm| ComputeCapability { major: sm / 10, minor: sm % 10 });
    let name = match (known, gcn, capability) {
        (Some((name, _)), _, _) => name.to_owned(),
        (None, Some(gcn), _) => format!("AMD gfx{gcn}"),
        (None, None, Some(capability)) => format!("GPU of sm {capability}"),
        (None, None, None) => "GPU".to_owned(),
    };
    let device = Device {
        pci,
        compute_capability: capability.or(known.map(|known| known.1)),
        pcie: element
            .get("link_speed")
            .zip(element.get("link_width"))
            .and_then(|(s, w)| PcieRate::parse(s, w)),
        ..Device::new(name)
    };
    FoundGpu { device, place: place.clone(), tag }
}

/// PCI device ids of NVIDIA's, from the public list of PCI ids.
const PRODUCTS: &[(&str, &str, (u32, u32))] = &[
    ("0x15f9", "Tesla P100-SXM2", (6, 0)),
    ("0x1db1", "Tesla V100-SXM2-16GB", (7, 0)),
    ("0x1db5", "Tesla V100-SXM2-32GB", (7, 0)),
    ("0x1db8", "Tesla V100-SXM3-32GB", (7, 0)),
    ("0x1eb8", "Tesla T4", (7, 5)),
    ("0x20b0", "NVIDIA A100-SXM4-40GB", (8, 0)),
    ("0x20b2", "NVIDIA A100-SXM4-80GB", (8, 0)),
    ("0x20b5", "NVIDIA A100 80GB PCIe", (8, 0)),
    ("0x20f1", "NVIDIA A100-PCIE-40GB", (8, 0)),
    ("0x20f3", "NVIDIA A800-SXM4-80GB", (8, 0)),
    ("0x2237", "NVIDIA A10G", (8, 6)),
    ("0x26b5", "NVIDIA L40", (8, 9)),
    ("0x26b9", "NVIDIA L40S", (8, 9)),
    ("0x2324", "NVIDIA H800", (9, 0)),
    ("0x2329", "NVIDIA H20", (9, 0)),
    ("0x2330", "NVIDIA H100 80GB HBM3", (9, 0)),
    ("0x2331", "NVIDIA H100 PCIe", (9, 0)),
    ("0x2335", "NVIDIA H200", (9, 0)),
    ("0x2901", "NVIDIA B200", (10, 0)),
    ("0x2941", "NVIDIA GB200", (10, 0)),
];
