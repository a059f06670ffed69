//! Prints what this machine consists of, or the preset or file that is named, as a report, JSON, XML or a drawing:
//! `cargo run --example topology [preset or file [json|xml|svg]]`.

use std::io::Write;
use std::path::Path;
use std::process::ExitCode;

use flux_topology::{Error, Topology};

fn main() -> std::io::Result<ExitCode> {
    let topology = match std::env::args().nth(1) {
        Some(name) => match Topology::preset(&name) {
            Err(Error::UnknownPreset { .. }) if Path::new(&name).exists() => Topology::read(Path::new(&name)),
            preset => preset,
        },
        None => Topology::discover(),
    };
    let text = topology.map(|topology| match std::env::args().nth(2).as_deref() {
        Some("json") => topology.to_json(),
        Some("xml") => topology.to_nccl_xml(),
        Some("svg") => topology.to_svg(),
        _ => topology.report(),
    });
    match text {
        Ok(text) => write!(std::io::stdout(), "{text}").map(|()| ExitCode::SUCCESS),
        Err(error) => writeln!(std::io::stderr(), "{error}").map(|()| ExitCode::FAILURE),
    }
}
