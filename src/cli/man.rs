//! `gpulimit man`: the manual pages.

use super::failure::Failure;
use super::output;
use clap::Command;
use clap_mangen::Man;
use clap_mangen::roff::{Roff, roman};
use std::fs;
use std::io;
use std::path::PathBuf;
use std::process::ExitCode;

/// Options of `man`.
#[derive(clap::Args)]
#[command(after_help = HELP)]
pub struct Args {
    /// Write the pages of all verbs into this directory; without it the first page goes to standard output
    #[arg(value_hint = clap::ValueHint::DirPath)]
    directory: Option<PathBuf>,
}

const HELP: &str = "\
The pages are made from what --help says: gpulimit.1, and one for each verb, as gpulimit-run.1.

Examples:
  gpulimit man | man -l -
  gpulimit man /usr/local/share/man/man1";

/// Writes the pages.
pub fn man(args: &Args) -> Result<ExitCode, Failure> {
    let mut command = super::command();
    command.build();
    match &args.directory {
        None => output::print(&page(command)?)?,
        Some(directory) => {
            let failed = |error: io::Error| {
                Failure::new(format_args!(
                    "cannot write manual pages to {}: {error}",
                    directory.display()
                ))
            };
            fs::create_dir_all(directory).map_err(failed)?;
            let verbs = command.get_subcommands().filter(|verb| !verb.is_hide_set());
            for one in verbs.chain([&command]) {
                let name = one.get_display_name().unwrap_or(one.get_name());
                let path = directory.join(format!("{name}.1"));
                fs::write(path, page(one.clone())?).map_err(failed)?;
            }
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// The page of the program or of a verb.
fn page(command: Command) -> Result<String, Failure> {
    let help = command.get_after_help().map(ToString::to_string);
    let has_verbs = command.has_subcommands();
    let version = command.get_version().unwrap_or(env!("CARGO_PKG_VERSION"));
    let source = format!("gpulimit {version}");
    let man = Man::new(command).manual("gpulimit").source(source);
    let mut page = Vec::new();
    let render = || {
        man.render_title(&mut page)?;
        man.render_name_section(&mut page)?;
        man.render_synopsis_section(&mut page)?;
        man.render_description_section(&mut page)?;
        man.render_options_section(&mut page)?;
        if has_verbs {
            man.render_subcommands_section(&mut page)?;
        }
        sections(&help.unwrap_or_default()).to_writer(&mut page)
    };
    render().map_err(Failure::new)?;
    Ok(String::from_utf8_lossy(&page).into_owned())
}

/// What stands below the options: text, and what is laid out by hand, as tables and examples are.
fn sections(help: &str) -> Roff {
    let mut page = Roff::new();
    let mut as_it_is = false;
    for (at, paragraph) in help.split("\n\n").enumerate() {
        let (head, rest) = paragraph.split_once('\n').unwrap_or((paragraph, ""));
        let rest = match head {
            "Examples:" => {
                page.control("SH", ["EXAMPLES"]);
                rest
            }
            _ => {
                if at == 0 || as_it_is {
                    page.control("SH", ["NOTES"]);
                } else {
                    page.control("PP", []);
                }
                paragraph
            }
        };
        as_it_is = rest.contains("\n  ") || rest.starts_with("  ");
        if as_it_is {
            page.control("nf", []);
        }
        for line in rest.lines() {
            page.text([roman(line)]);
        }
        if as_it_is {
            page.control("fi", []);
        }
    }
    page
}
