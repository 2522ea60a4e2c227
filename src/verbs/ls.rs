//! `gpulimit ls`: lists the names of groups.

use crate::figures::kind;
use crate::groups::Selection;
use crate::shown::output;
use crate::words::failure::Failure;
use gpulimit_group::Group;
use serde_json::{Value, json};
use std::process::ExitCode;

/// Options of `ls`.
#[derive(clap::Args)]
#[command(after_help = HELP)]
pub struct Args {
    /// List only the groups below this group
    group: Option<String>,

    /// Print JSON
    #[arg(long)]
    json: bool,
}

const HELP: &str = "\
Prints full names, one per line, each group before those below it.

Examples:
  gpulimit ls
  gpulimit ls lab
  gpulimit ls --json | jq -r '.groups[] | select(.kind == \"job\").name'";

/// Lists the groups.
pub fn ls(args: &Args) -> Result<ExitCode, Failure> {
    let selection = Selection::of(args.group.as_deref())?;
    output::notes(&selection.notes);
    // `ls GROUP` lists only the groups below GROUP.
    let groups: Vec<&Group> = selection
        .groups
        .iter()
        .skip(usize::from(selection.named))
        .collect();
    if args.json {
        let groups: Vec<Value> = groups
            .iter()
            .map(|group| {
                json!({
                    "name": group.name(),
                    "root": group.root().to_string_lossy(),
                    "kind": kind(group.name()),
                })
            })
            .collect();
        output::json(&selection.json("groups", groups))?;
    } else {
        let line = |group: &&Group| selection.title(group) + "\n";
        output::print(&groups.iter().map(line).collect::<String>())?;
    }
    Ok(ExitCode::SUCCESS)
}
