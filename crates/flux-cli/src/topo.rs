//! `flux topo`: what connects the GPUs, of this machine or another, and what follows from it.

use std::io::Read as _;
use std::path::Path;

use crate::args::{TopoArguments, TopoFormat};
use crate::error::Error;
use crate::output::print;
use flux_topology::Topology;

pub(crate) fn run(arguments: &TopoArguments) -> Result<(), Error> {
    if arguments.preset.as_deref() == Some("list") {
        return list();
    }
    let topology = match (&arguments.preset, &arguments.file) {
        (Some(name), _) => Topology::preset(name)?,
        (None, Some(path)) => read(path)?,
        (None, None) => match Topology::discover() {
            Ok(topology) => topology,
            // A person is told what to do; a program that asked for JSON must not take that for an answer.
            Err(error) if error.is_no_gpu() && arguments.format == TopoFormat::Table => {
                print(format_args!("no GPU here: {error}"))?;
                print(format_args!(
                    "flux runs on the host backend; `--file FILE` shows the machine that a file describes, and \
                     `--preset NAME` a known one:"
                ))?;
                return list();
            }
            Err(error) => return Err(error.into()),
        },
    };
    let topology = topology.replicated(arguments.nodes)?;
    let text = match arguments.format {
        TopoFormat::Table => topology.report(),
        TopoFormat::Json => topology.to_json(),
        TopoFormat::Xml => topology.to_nccl_xml(),
        TopoFormat::Svg => topology.to_svg(),
    };
    print(format_args!("{}", text.trim_end()))
}

/// The machines of `flux sim` and `flux plan`: the simulator's own, and the others that are known here.
pub(crate) fn list_all() -> Result<(), Error> {
    print("with the simulator's own constants:")?;
    flux_sim::Machine::presets().try_for_each(|name| print(format_args!("  {name}")))?;
    print("by what connects their GPUs, where the name is none of these:")?;
    list()
}

fn list() -> Result<(), Error> {
    Topology::presets().try_for_each(|name| {
        let words = Topology::preset_in_words(name).unwrap_or_default();
        let aliases: Vec<_> = Topology::preset_aliases(name).collect();
        let also = if aliases.is_empty() { String::new() } else { format!(" (also {})", aliases.join(", ")) };
        print(format_args!("  {name:20} {words}{also}"))
    })
}

pub(crate) fn read(path: &Path) -> Result<Topology, Error> {
    let topology = if path == Path::new("-") {
        let mut bytes = Vec::new();
        // One byte more than the largest file, which is then refused.
        let most = (16 << 20) + 1;
        let read = std::io::stdin().lock().take(most).read_to_end(&mut bytes);
        read.map_err(|source| Error::File { action: "read", path: path.to_owned(), source })?;
        Topology::parse(&bytes)
    } else {
        Topology::read(path)
    };
    topology.map_err(|source| match source {
        // That names the path itself.
        flux_topology::Error::CannotRead { .. } => Error::Topology(source),
        _ => Error::TopologyFile { path: path.to_owned(), source },
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use flux::{Order, Pattern};

    /// What `flux topo` tells people to say, flux understands: an order of all GPUs.
    #[test]
    fn an_order_that_is_shown_can_be_had() {
        for (name, nodes) in Topology::presets().flat_map(|name| [(name, 1), (name, 2)]) {
            let topology = Topology::preset(name).unwrap().replicated(nodes).unwrap();
            let choice = topology.order();
            let order: Order = choice.argument().parse().unwrap();
            let named = match &order {
                Order::Of(pattern) => pattern.world_size().unwrap(),
                _ => topology.device_count(),
            };
            assert_eq!(named, topology.device_count(), "{name}: {order}");
            let is_ring = matches!(&order, Order::Of(Pattern::Ring(groups)) if groups.len() == 1);
            assert_eq!(is_ring, choice.order.name() == "ring", "{name}: {order}");
            let said = topology.report().contains(&format!("--order {}", choice.argument()));
            assert_eq!(said, topology.device_count() > 1, "{name}");
        }
        let order = |name: &str, nodes| {
            Topology::preset(name).unwrap().replicated(nodes).unwrap().order().argument().to_owned()
        };
        assert_eq!(order("dgx-h100", 1), "full-mesh");
        assert_eq!(order("dgx-h100", 2), "mesh:0-7+mesh:8-15");
        assert_eq!(order("8xl20-pcie", 1), "ring:0-3/4-7");
        assert_eq!(order("8xl20-pcie", 2), "ring:0-3/4-7+ring:8-11/12-15");
    }
}
