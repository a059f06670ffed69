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

fn list() -> Result<(), Error> {
    let words = |name| Topology::preset_in_words(name).unwrap_or_default();
    Topology::presets().try_for_each(|name| print(format_args!("  {name:20} {}", words(name))))
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
