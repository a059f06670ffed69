//! Prints what this machine consists of, or the preset that is named: `cargo run --example topology [preset]`.

use std::io::Write;
use std::process::ExitCode;

use flux_topology::Topology;

fn main() -> std::io::Result<ExitCode> {
    let topology = match std::env::args().nth(1) {
        Some(name) => Topology::preset(&name),
        None => Topology::discover(),
    };
    match topology {
        Ok(topology) => write!(std::io::stdout(), "{topology}").map(|()| ExitCode::SUCCESS),
        Err(error) => writeln!(std::io::stderr(), "{error}").map(|()| ExitCode::FAILURE),
    }
}
