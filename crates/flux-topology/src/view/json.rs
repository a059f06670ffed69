//! A topology as JSON.

use serde::Serialize;
use serde_json::value::{RawValue, to_raw_value};

use crate::{Topology, Unclassified};

#[derive(Serialize)]
struct Json {
    source: String,
    gpus: Vec<Gpu>,
    /// Rows, each on a line of its own: a line for each pair would be as much again in blanks.
    pairs: Vec<Box<RawValue>>,
    nics: Vec<Card>,
    nvswitch: Option<bool>,
    order: &'static str,
    order_reason: String,
    order_argument: String,
    groups: Vec<Vec<usize>>,
    sequence: Vec<usize>,
    strongest_ring: Option<Vec<usize>>,
    bandwidths: Vec<Rate>,
    unclassified: Vec<Unknown>,
    warnings: Vec<String>,
}

#[derive(Serialize)]
struct Gpu {
    index: usize,
    bus_id: Option<String>,
    numa: Option<u32>,
    name: String,
    host: usize,
    cpus: Option<String>,
    compute_capability: Option<String>,
    memory_bytes: Option<u64>,
}

#[derive(Serialize)]
struct Card {
    name: String,
    near: Vec<usize>,
    bus_id: Option<String>,
    numa: Option<u32>,
    host: usize,
    port: Option<u32>,
    megabits_per_s: Option<u64>,
}

#[derive(Serialize)]
struct Rate {
    link: String,
    pairs: usize,
    gb_per_s: Option<f64>,
    source: String,
}

#[derive(Serialize)]
struct Unknown {
    bus_id: String,
    numa: Option<u32>,
}

impl Topology {
    /// Everything as one JSON object, with a line end behind it.
    ///
    /// `pairs` is square, in the symbols of `nvidia-smi topo -m`; between machines it is `NET`. What is not
    /// known is null.
    pub fn to_json(&self) -> String {
        let order = self.order();
        let count = self.device_count();
        let symbol = |from, to| self.link(from, to).map_or_else(|| "?".to_owned(), |link| link.symbol());
        let row = |from| {
            let symbols: Vec<String> = (0..count).map(|to| symbol(from, to)).collect();
            to_raw_value(&symbols).unwrap_or_default()
        };
        let json = Json {
            source: self.source().to_string(),
            gpus: self.devices().iter().map(gpu).collect(),
            pairs: (0..count).map(row).collect(),
            nics: self.nics().iter().map(card).collect(),
            nvswitch: self.nvswitch(),
            order: order.order.name(),
            order_argument: order.argument().to_owned(),
            order_reason: order.reason,
            groups: order.groups,
            sequence: order.sequence,
            strongest_ring: order.strongest_ring,
            bandwidths: self.bandwidths().into_iter().map(rate).collect(),
            unclassified: self.unclassified().iter().map(unknown).collect(),
            warnings: self.warnings().to_vec(),
        };
        // Strings, numbers and lists of them can always be written.
        let mut text = serde_json::to_string_pretty(&json).unwrap_or_default();
        text.push('\n');
        text
    }
}

fn gpu(device: &crate::Device) -> Gpu {
    Gpu {
        index: device.ordinal,
        bus_id: device.pci.map(|pci| pci.to_string()),
        numa: device.numa_node,
        name: device.name.clone(),
        host: device.host,
        cpus: device.cpus.as_ref().map(ToString::to_string),
        compute_capability: device.compute_capability.map(|capability| capability.to_string()),
        memory_bytes: device.memory_bytes,
    }
}

fn card(nic: &crate::Nic) -> Card {
    Card {
        name: nic.name.clone(),
        near: nic.near(),
        bus_id: nic.pci.map(|pci| pci.to_string()),
        numa: nic.numa_node,
        host: nic.host,
        port: nic.port,
        megabits_per_s: nic.megabits_per_s,
    }
}

fn rate(bandwidth: crate::Bandwidth) -> Rate {
    Rate {
        link: bandwidth.symbol,
        pairs: bandwidth.pairs.len(),
        // A tenth is more than is known.
        gb_per_s: bandwidth.gb_per_s.map(|rate| (rate * 10.0).round() / 10.0),
        source: bandwidth.source,
    }
}

fn unknown(device: &Unclassified) -> Unknown {
    Unknown { bus_id: device.pci.to_string(), numa: device.numa_node }
}
