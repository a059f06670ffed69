//! `flux topo`: what was found.

use crate::args::TopoArguments;
use crate::error::Error;
use flux_topology::Topology;

pub(crate) fn run(arguments: &TopoArguments) -> Result<(), Error> {
    let topology = match &arguments.preset {
        Some(name) => Topology::preset(name)?,
        None => match Topology::discover() {
            Ok(topology) => topology,
            Err(error) if error.is_no_gpu() => {
                println!("no GPU here: {error}");
                println!("flux runs on the host backend; `--preset NAME` shows a known machine:");
                Topology::presets().for_each(|name| println!("  {name}"));
                return Ok(());
            }
            Err(error) => return Err(error.into()),
        },
    };
    println!("{topology}");
    Ok(())
}
