//! `gpulimit show`: shows the limits and the usage of groups.

mod mine;
mod tree;

use crate::figures::snapshot::{self, GpuMemory};
use crate::figures::{self, Figures, Gpu, Row};
use crate::groups::{Selection, gpu};
use crate::machine::nvml::Driver;
use crate::shown::output::{self, Escaped};
use crate::shown::table::Table;
use crate::shown::watch::{self, Round, Shown};
use crate::words::order::Place;
use crate::words::{failure::Failure, notes::Notes, order};
use gpulimit_group::Group;
use gpulimit_limits::Selector;
use serde_json::json;
use std::process::ExitCode;

/// Options of `show`.
#[derive(clap::Args)]
#[command(after_help = HELP)]
pub struct Args {
    /// Show only this group and the groups below it
    group: Option<String>,

    /// Show your own limit instead: what you use, what is left, and who shares it
    #[arg(long, conflicts_with_all = ["group", "sort"])]
    mine: bool,

    /// Show the hierarchy of the groups, with usage and limit only; in JSON, each group has a list
    /// `groups` of the groups directly below it
    #[arg(long, conflicts_with = "mine")]
    tree: bool,

    /// Print only the full names, one per line; of a GROUP, those of the groups below it
    #[arg(long = "names", conflicts_with_all = ["mine", "tree", "names", "sort", "watch"])]
    only_names: bool,

    #[command(flatten)]
    devices: gpu::Args,

    #[command(flatten)]
    order: order::Args<Key>,

    #[command(flatten)]
    watch: watch::Args,

    /// Print JSON: sizes are in bytes, and unknown figures are null
    #[arg(long)]
    json: bool,
}

/// What groups are sorted by.
#[derive(Clone, clap::ValueEnum)]
enum Key {
    Name,
    Usage,
    Peak,
    Free,
    Refused,
}

impl Key {
    fn place(&self, group: &Figures) -> Option<Place> {
        let figure: fn(&Gpu) -> Option<u64> = match self {
            Self::Name => return Place::name(&group.name),
            Self::Usage => |gpu| gpu.usage,
            Self::Peak => |gpu| gpu.peak,
            Self::Free => |gpu| gpu.free,
            Self::Refused => |gpu| gpu.refusals,
        };
        Place::figure(group.sum_of_known(figure))
    }
}

const HELP: &str = "\
MAX is the group's own limit; EFFECTIVE is a smaller limit of a group above, and
that group's name. USAGE is the memory that the processes of the group and of
the groups below it use, with managed memory; FREE is how much more they can
get; PEAK is the highest charge so far; REFUSED counts refused requests. Unknown
figures are shown as -. EFFECTIVE, HIGH, LOW, MIN, KEEP FREE, WAITING, OPTIONS
and DRAINING, the ended processes whose memory the driver has not freed yet, are
shown only if a group has them. A line below the table says if the usage of a
named group grows as that of a program with a leak.

If the terminal is too narrow, these columns are left out, one after the other:
KEEP FREE, OPTIONS, MIN, LOW, HIGH, PROCESSES, PEAK, REFUSED, EFFECTIVE. Long
names are cut; --names and --json print them in full. --tree leaves out no
column.

--sort adds up the figures of a group over the GPUs that are shown. With --tree
it sorts the groups below each group.

Examples:
  gpulimit show
  gpulimit show --tree
  gpulimit show --mine
  gpulimit show lab --watch --json
  gpulimit show --device 0 --sort usage
  gpulimit show lab --json | jq '.groups[].gpus[].usage'
  gpulimit show --names --json | jq '.groups[] | select(.kind == \"job\")'";

/// Shows the groups.
pub fn show(args: &Args) -> Result<ExitCode, Failure> {
    if args.only_names {
        return names(args);
    }
    let driver = Driver::load().ok();
    let driver = driver.as_ref();
    let devices = gpu::shown(&args.devices.names, driver)?;
    args.watch.rounds(|| match args.mine {
        true => mine::mine(&devices, driver, args.json),
        false => round(args, &devices, driver),
    })
}

fn round(args: &Args, devices: &[Selector], driver: Option<&Driver>) -> Result<Round, Failure> {
    let selection = Selection::of(args.group.as_deref())?;
    let (figures, mut notes) = read(&selection, devices, &args.order, driver);
    let shown = if args.json {
        let groups = match args.tree {
            true => tree::json(&figures),
            false => figures.iter().map(Figures::json).collect(),
        };
        let mut answer = selection.json("groups", groups);
        let mut gpus = snapshot::gpus(&figures, None, driver);
        gpus.retain(|gpu| {
            let asked = [Selector::All, Selector::Device(gpu.id)];
            asked.iter().any(|one| devices.contains(one))
        });
        answer["gpus"] = gpus.iter().map(GpuMemory::json).collect();
        Shown::Json(answer)
    } else if figures.is_empty() {
        Shown::Text(none(&selection, devices, &mut notes))
    } else if args.tree {
        Shown::Text(tree::table(&figures).render())
    } else {
        let rows: Vec<Row<'_>> = figures.iter().flat_map(Figures::rows).collect();
        let table = Table::of(Row::FIELDS, &rows, driver).render();
        Shown::Text(table + &trends(&figures))
    };
    Ok(Round { shown, notes })
}

/// Prints the names of all groups, or of those below the group.
fn names(args: &Args) -> Result<ExitCode, Failure> {
    let selection = Selection::of(args.group.as_deref())?;
    output::notes(&selection.notes);
    let groups = selection.groups.iter().skip(selection.named.into());
    if args.json {
        let entry = |group: &Group| {
            json!({
                "name": group.name(),
                "root": group.root().to_string_lossy(),
                "kind": figures::kind(group.name()),
            })
        };
        output::json(&selection.json("groups", groups.map(entry).collect()))?;
    } else {
        let line = |group: &Group| selection.title(group) + "\n";
        output::print(&groups.map(line).collect::<String>())?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Reads the figures of the selected groups on these GPUs, in this order.
fn read(
    selection: &Selection,
    devices: &[Selector],
    order: &order::Args<Key>,
    driver: Option<&Driver>,
) -> (Vec<Figures>, Notes) {
    let (mut figures, notes) = Figures::all(selection, driver);
    figures.retain_mut(|group| group.keep_only(devices));
    if order.sort.is_some() {
        // Groups with equal figures are in the order of their names, also those of several roots.
        figures.sort_by_cached_key(|group| Place::name(&group.name));
    }
    order.sort(&mut figures, Key::place);
    (figures, notes)
}

/// Returns a line for each group and GPU whose usage grows.
fn trends(groups: &[Figures]) -> String {
    let line = |group: &Figures, gpu: &Gpu| {
        let trend = gpu.trend_text()?;
        let line = format!("{}  GPU {}  {trend}", group.title, gpu.label);
        Some(output::fit(&Escaped(&line).to_string(), 2) + "\n")
    };
    let lines = |group: &Figures| -> Vec<String> {
        group
            .gpus
            .iter()
            .filter_map(|gpu| line(group, gpu))
            .collect()
    };
    groups.iter().flat_map(lines).collect()
}

/// Returns the empty output of a verb that found no groups. Adds the reason to the notes, unless
/// they have an error.
fn none(selection: &Selection, devices: &[Selector], notes: &mut Notes) -> String {
    if !notes.is_failure {
        notes.add(match devices.contains(&Selector::All) {
            true => format!(
                "no groups in {}: `gpulimit run --max 4G -- COMMAND` makes a group",
                selection.root().display()
            ),
            false => "no group has used such a GPU or has a limit for it".to_owned(),
        });
    }
    String::new()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::figures::fields;

    #[test]
    fn the_help_lists_the_columns_in_the_order_in_which_they_go() {
        let narrow = fields::narrow(Row::FIELDS).join(", ");
        assert!(HELP.replace('\n', " ").contains(&narrow), "{narrow}");
    }
}
