//! The `flux` command.
//!
//! Exit code 0: done, and right. 1: something ran and is wrong. 2: it could not run; one line says what to do. `flux launch`
//! exits as the first of its ranks that failed.

mod args;
mod bench;
mod data;
mod demo;
mod error;
mod files;
mod launch;
mod log;
mod machine;
mod output;
mod plan;
mod run;
mod sim;
mod tensors;
mod topo;
mod trace;
mod tune;

use clap::Parser;
use std::io::Write;
use std::process::ExitCode;

fn main() -> ExitCode {
    let arguments = args::Arguments::parse();
    if let Err(error) = log::start() {
        return exit_code(Err(error));
    }
    let result = match arguments.command {
        args::Command::Demo(arguments) => demo::run(&arguments),
        args::Command::Run(arguments) => run::run(&arguments),
        args::Command::Bench(arguments) => bench::run(&arguments),
        args::Command::Trace(arguments) => trace::run(&arguments),
        args::Command::Launch(arguments) => return exit_code(launch::run(&arguments)),
        args::Command::Sim(arguments) => sim::run(&arguments),
        args::Command::Plan(arguments) => plan::run(&arguments),
        args::Command::Tune(arguments) => tune::run(&arguments),
        args::Command::Topo(arguments) => topo::run(&arguments),
    };
    exit_code(result.map(|()| ExitCode::SUCCESS))
}

fn exit_code(result: Result<ExitCode, error::Error>) -> ExitCode {
    match result {
        Ok(code) => code,
        Err(error) => {
            // Nobody may be listening; the exit code says it too.
            let _ = writeln!(std::io::stderr(), "error: {error}");
            ExitCode::from(error.exit_code())
        }
    }
}
