//! `flux topo`: what was found.

use crate::args::TopoArguments;
use crate::error::Error;
use crate::output::print;
use flux_topology::Topology;

pub(crate) fn run(arguments: &TopoArguments) -> Result<(), Error> {
    let topology = match &arguments.preset {
        Some(name) => Topology::preset(name)?,
        None => match Topology::discover() {
            Ok(topology) => topology,
            Err(error) if error.is_no_gpu() => {
                print(format_args!("no GPU here: {error}"))?;
                print(format_args!("flux runs on the host backend; `--preset NAME` shows a known machine:"))?;
                Topology::presets().try_for_each(|name| print(format_args!("  {name}")))?;
                return Ok(());
            }
            Err(error) => return Err(error.into()),
        },
    };
    print(format_args!("{topology}"))?;
    Ok(())
}
