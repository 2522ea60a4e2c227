//! The controller of another version, for the tests of mixed versions: its files have other formats.

mod cli;

use std::process::ExitCode;

fn main() -> ExitCode {
    cli::main()
}
