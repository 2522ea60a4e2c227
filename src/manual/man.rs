//! The manual pages: one of gpulimit, and one of each verb, with the text of `--help`.

use clap::Command;
use clap_mangen::Man;
use clap_mangen::roff::{Roff, bold, roman};
use std::io;

/// Returns the names of the files, and the pages.
pub fn pages(mut command: Command) -> io::Result<Vec<(String, String)>> {
    command.build();
    let verbs = command.get_subcommands().filter(|verb| !verb.is_hide_set());
    let named = |one: &Command| {
        let name = one.get_display_name().unwrap_or(one.get_name());
        Ok((format!("{name}.1"), page(one.clone())?))
    };
    verbs.chain([&command]).map(named).collect()
}

/// Returns the manual page of gpulimit or of a verb. No section appears twice in it.
fn page(command: Command) -> io::Result<String> {
    let help = command.get_after_help().map(ToString::to_string);
    let help = Help::of(help.as_deref().unwrap_or_default());
    let has_verbs = command.has_subcommands();
    let version = command.get_version().unwrap_or(env!("CARGO_PKG_VERSION"));
    let source = format!("gpulimit {version}");
    let man = Man::new(command).manual("gpulimit").source(source);
    let mut page = Vec::new();
    let mut render = || {
        man.render_title(&mut page)?;
        man.render_name_section(&mut page)?;
        man.render_synopsis_section(&mut page)?;
        man.render_description_section(&mut page)?;
        help.description().to_writer(&mut page)?;
        man.render_options_section(&mut page)?;
        if has_verbs {
            man.render_subcommands_section(&mut page)?;
        }
        help.rest().to_writer(&mut page)
    };
    render()?;
    Ok(String::from_utf8_lossy(&page).into_owned())
}

/// The environment variables for the manual page, one per line.
const ENVIRONMENT: &str = "\
GPULIMIT_MAX: The limit of a group for this job, such as 4G or 0=4G,all=max.
GPULIMIT_GROUP: The group to join. It must exist, and takes precedence over GPULIMIT_MAX.
GPULIMIT_LIMITS: Set by `gpulimit run`: the limits of the job, should its group be removed.
GPULIMIT_ROOT: The directory of the groups, an absolute path. A policy of the machine ignores it.
GPULIMIT_LIBRARY: The path of libgpulimit.so, if it is not beside gpulimit.
NO_COLOR: If set and not empty, output has no bold type.";

/// The files for the manual page, one per line.
const FILES: &str = "\
/run/gpulimit: The groups of root, and of users where an administrator lets them make groups.
/dev/shm/gpulimit-UID: The groups of the user with this UID on other machines.
/etc/gpulimit/gpulimit.toml: The policy of the machine, for gpulimit apply.
/etc/ld.so.preload: Names the library, after gpulimit install.
/etc/cdi/gpulimit.json: Devices for container engines, written by gpulimit cdi generate.";

/// The exit statuses of verbs whose help does not mention them.
const STATUS: &str = "0 on success, 1 on failure (a sentence on standard error says why), 2 for a \
                      mistake in the options.";

/// The end of a verb's help, split into the sections of a manual page.
#[derive(Default)]
struct Help<'a> {
    description: Vec<&'a str>,
    examples: &'a str,
    status: Option<&'a str>,
}

impl<'a> Help<'a> {
    fn of(text: &'a str) -> Self {
        let mut help = Self::default();
        for paragraph in text.split("\n\n") {
            if let Some(examples) = paragraph.strip_prefix("Examples:\n") {
                help.examples = examples;
            } else if let Some(status) = paragraph.strip_prefix("Exit status: ") {
                help.status = Some(status);
            } else if !paragraph.is_empty() {
                help.description.push(paragraph);
            }
        }
        help
    }

    /// Returns the description of the verb, paragraph by paragraph.
    fn description(&self) -> Roff {
        let mut page = Roff::new();
        for paragraph in &self.description {
            page.control("PP", []);
            text(&mut page, paragraph);
        }
        page
    }

    /// Returns the sections that follow the options in the manual page.
    fn rest(&self) -> Roff {
        let mut page = Roff::new();
        page.control("SH", ["EXIT STATUS"]);
        text(&mut page, self.status.unwrap_or(STATUS));
        for (head, entries) in [("ENVIRONMENT", ENVIRONMENT), ("FILES", FILES)] {
            page.control("SH", [head]);
            for (name, what) in entries.lines().filter_map(|entry| entry.split_once(": ")) {
                page.control("TP", []);
                page.text([bold(name)]);
                page.text([roman(what)]);
            }
        }
        if !self.examples.is_empty() {
            page.control("SH", ["EXAMPLES"]);
            text(&mut page, self.examples);
        }
        page
    }
}

/// Writes a paragraph to the manual page. Keeps the layout of a paragraph with indented lines, such
/// as a table or examples.
fn text(page: &mut Roff, paragraph: &str) {
    let as_it_is = paragraph.lines().any(|line| line.starts_with("  "));
    if as_it_is {
        // Remove the page's indentation, so that lines of 80 columns fit into a common terminal.
        page.control("RS", ["-6"]);
        page.control("nf", []);
    }
    for line in paragraph.lines() {
        page.text([roman(line)]);
    }
    if as_it_is {
        page.control("fi", []);
        page.control("RE", []);
    }
}
