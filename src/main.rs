//! The controller: runs programs in groups, shows groups and changes them.

mod cli;
#[cfg(test)]
mod scratch;

use std::process::ExitCode;

fn main() -> ExitCode {
    cli::main()
}
