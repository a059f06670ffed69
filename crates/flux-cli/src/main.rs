//! The `flux` command.
//!
//! Exit code 0: done, and right. 1: something ran and is wrong. 2: it could not run; one line says what to do.
#![allow(clippy::print_stdout, clippy::print_stderr)] // a command's output

mod args;
mod data;
mod demo;
mod error;
mod run;
mod tensors;
mod topo;

use clap::Parser;
use std::process::ExitCode;

fn main() -> ExitCode {
    let arguments = args::Arguments::parse();
    let result = match arguments.command {
        args::Command::Demo(arguments) => demo::run(&arguments),
        args::Command::Run(arguments) => run::run(&arguments),
        args::Command::Topo(arguments) => topo::run(&arguments),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::from(error.exit_code())
        }
    }
}
