//! The manual pages and the completions, which packages contain: `scripts/package` runs the test
//! below, which writes them. The program itself has neither, and does not link what makes them.
//! `schema.rs` makes docs/schema.json.

mod completions;
mod man;
mod schema;
mod tests;

use clap::{Command, CommandFactory};
use std::path::Path;
use std::{fs, io};

/// Returns the definition of the command line, without the verb `help`.
fn command() -> Command {
    crate::cli::Cli::command().disable_help_subcommand(true)
}

/// Writes the manual pages to the folder `man1` in the given one, and the completions to files with
/// the names of the shells.
fn write(folder: &Path) -> io::Result<()> {
    fs::create_dir_all(folder.join("man1"))?;
    for (name, page) in man::pages(command())? {
        fs::write(folder.join("man1").join(name), page)?;
    }
    for (shell, script) in completions::scripts() {
        fs::write(folder.join(shell), script)?;
    }
    Ok(())
}
