//! `gpulimit ps`: shows the processes in groups, and the memory of each.

use crate::figures::processes::{Commands, FIELDS, Process, processes};
use crate::figures::users::{self, Use, millis};
use crate::figures::waiting::{Waiter, Waiters};
use crate::figures::{fields, outside, shares::Shares};
use crate::groups::{self, Seen, Selection, View, gpu};
use crate::machine::{look, nvml::Driver};
use crate::shown::table::Table;
use crate::shown::watch::{self, Round, Shown};
use crate::suspension::abandoned::confirmed;
use crate::words::order::{self, Place};
use crate::words::{failure::Failure, notes::Notes, text};
use gpulimit_base::identity::Identity;
use gpulimit_base::process::FIRST_PID_NS;
use gpulimit_base::units::gib;
use gpulimit_ledger::DeviceEntry;
use gpulimit_limits::Selector;
use std::collections::BTreeSet;
use std::process::ExitCode;

/// Options of `ps`.
#[derive(clap::Args)]
#[command(after_help = HELP)]
pub struct Args {
    /// Show only the processes of this group and of the groups below it
    group: Option<String>,

    /// What gets a line: each process, or each user
    #[arg(long, value_enum, default_value_t = By::Process)]
    by: By,

    /// Show the processes that use a GPU and are in no group, and why
    #[arg(long, conflicts_with_all = ["group", "by", "sort"])]
    outside: bool,

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

const HELP: &str = "\
TOTAL counts against the limit: allocations, pools, managed memory, and the
driver's memory for contexts and code. nvidia-smi shows the same without managed
memory. A `draining` process has ended, but the driver has not freed its memory
yet; `waits for 2.0 GiB, 40 s` is a request that waits for room, and how long,
and without a time a process that `resume` brings back; `suspended?` is one of
which the driver does not say that it is still suspended; `abandoned` is one
that a killed `suspend` or `resume` has left half-done, which `gpulimit gc`
ends. ALLOCATIONS are plain and virtual memory, arrays and graphs; --json shows
each. PID is the pid in the caller's pid namespace, and `-` for a process that
is not visible there; `own_pid` in JSON is the pid in the process's own
namespace. COMMAND has at most 64 bytes, also in JSON. It shows arguments only
if the caller may read them in /proc, and `-` if reading them takes too long.

BUSY is the part of the GPU's processors that the process used in the last
seconds, as NVML samples it, and IDLE the time since NVML last saw it use them,
or its ledger saw its charge change, to five minutes (`<5 min`): a hint, no
proof. HOST is its memory on the host, and AGE the time since its start. These
four are shown on terminals only, and in JSON as `busy`, `last_use`, `host` and
`started`.

With --by user, PROCESSES counts the live processes of a user on a GPU, WAITING
those that wait for room, and WAITED is the longest wait. SUSPENDED is on the
host.

With --outside, a process is listed if NVML lists it and its memory map does not
show that it is in a group below /run/gpulimit or, for other users than root,
below your own GPULIMIT_ROOT. WHY is why the library does not count its memory:
static, musl, environment cleared (also setuid), started before (`gpulimit
install`), not loaded, another libcuda, private root, no group (nothing asks for
one), no door (no call passes the library), or unknown: the process may be in a
group that you may not read. JSON says it in a sentence.

If the terminal is too narrow, these columns are left out, one after the other:
BUSY, IDLE, HOST, AGE, MANAGED, ALLOCATIONS, POOLS, DRIVER, USER, COMMAND,
STATE; columns of zeros or of the same `running` go first. Long texts are cut;
in JSON they are not.

Examples:
  gpulimit ps
  gpulimit ps lab --sort total
  gpulimit ps --by user --device 0
  gpulimit ps lab --json | jq '.processes[].total'
  gpulimit ps --outside || mail -s 'GPU memory without a limit' root

Exit status: 3 if --outside finds a process.";

/// What gets a line.
#[derive(Copy, Clone, Debug, Eq, PartialEq, clap::ValueEnum)]
enum By {
    Process,
    User,
}

/// What rows are sorted by.
#[derive(Clone, clap::ValueEnum)]
enum Key {
    Pid,
    User,
    Group,
    Total,
    Waited,
}

impl Key {
    fn of_process(&self, row: &Process) -> Option<Place> {
        match self {
            Self::Pid => row.pid.map(Place::Number),
            Self::User => Place::name(&row.user),
            Self::Group => Place::name(&row.group),
            Self::Total => Place::figure(row.total()),
            Self::Waited => Place::figure(millis(row.waits.as_ref().map(Waiter::waited))),
        }
    }

    fn of_use(&self, row: &Use) -> Option<Place> {
        match self {
            Self::Pid | Self::User | Self::Group => Place::name(&row.user),
            Self::Total => Place::figure(row.total),
            Self::Waited => Place::figure(millis(row.waited)),
        }
    }
}

/// Shows the processes.
pub fn ps(args: &Args) -> Result<ExitCode, Failure> {
    if args.by == By::User && matches!(args.order.sort, Some(Key::Pid | Key::Group)) {
        return Err(Failure::usage(
            "--by user has no pids and groups: sort by user, total or waited",
        ));
    }
    let driver = Driver::load().ok();
    let driver = driver.as_ref();
    let devices = gpu::shown(&args.devices.names, driver)?;
    if args.outside {
        return outside(args, &devices, driver);
    }
    let away = confirmed(&Selection::of(args.group.as_deref())?, driver);
    let mut shares = Shares::default();
    args.watch
        .rounds(|| round(args, &devices, driver, &away, &mut shares))
}

/// Shows the processes in no group.
fn outside(
    args: &Args,
    devices: &[Selector],
    driver: Option<&Driver>,
) -> Result<ExitCode, Failure> {
    /// The exit status if there is such a process.
    const FOUND: u8 = 3;
    let driver = driver.ok_or_else(|| {
        Failure::new("NVML does not answer, so nobody knows the processes: run `gpulimit doctor`")
    })?;
    let mut is_any = false;
    let status = args.watch.rounds(|| {
        let mut lines = outside::outside(driver)?;
        let is_shown =
            |id| devices.contains(&Selector::All) || devices.contains(&Selector::Device(id));
        lines.retain(|line| is_shown(line.gpu));
        is_any = !lines.is_empty();
        let mut notes = Notes::default();
        if Identity::of_self().pid_ns != FIRST_PID_NS {
            notes.lines.push(
                "this is not the first pid namespace of the machine, and NVML may leave out \
                 processes of others"
                    .into(),
            );
        } else if !is_any && !args.json {
            notes
                .lines
                .push("each process that NVML lists is in a group".into());
        }
        let json = |line| fields::json(outside::FIELDS, line, Some(driver));
        let shown = match args.json {
            true => {
                let lines = lines.iter().map(json).collect();
                Shown::Json(Selection::of(None)?.json("outside", lines))
            }
            false if !is_any => Shown::Text(String::new()),
            false => Shown::Text(Table::of(outside::FIELDS, &lines, Some(driver)).render()),
        };
        Ok(Round { shown, notes })
    })?;
    Ok(match status == ExitCode::SUCCESS && is_any {
        true => ExitCode::from(FOUND),
        false => status,
    })
}

/// `away`: the processes that are suspended, as the driver says.
fn round(
    args: &Args,
    devices: &[Selector],
    driver: Option<&Driver>,
    away: &[u32],
    shares: &mut Shares,
) -> Result<Round, Failure> {
    let selection = Selection::of(args.group.as_deref())?;
    let (views, mut notes) = selection.readable(driver)?;
    let uncovered = views.iter().flat_map(|view| uncovered(view, driver));
    notes.lines.extend(uncovered);
    let waiters = Waiters::of(&views, driver);
    let seen: Vec<Seen> = views.into_iter().filter_map(View::into_seen).collect();
    let mut commands = Commands::new(look::patience());
    let mut lines = processes(&selection, &seen, &waiters, &mut commands);
    for line in &mut lines {
        line.confirm(away);
    }
    notes.lines.extend(abandoned(&lines));
    if !devices.contains(&Selector::All) {
        let is_on = |id| devices.contains(&Selector::Device(id));
        lines.retain(|line| line.gpu().is_some_and(is_on));
    }
    let shown = if lines.is_empty() && !args.json {
        if !notes.is_failure {
            notes.add(match devices.contains(&Selector::All) {
                true => {
                    "no process uses a GPU in a group: `gpulimit run --max 4G -- COMMAND` starts \
                     such a process"
                }
                false => "no process in a group uses such a GPU",
            });
        }
        Shown::Text(String::new())
    } else if args.by == By::User {
        let mut uses = Use::of(&lines, true, driver);
        args.order.sort(&mut uses, Key::of_use);
        match args.json {
            true => {
                let json = |one| fields::json(users::FIELDS, one, driver);
                Shown::Json(selection.json("users", uses.iter().map(json).collect()))
            }
            false => Shown::Text(Table::of(users::FIELDS, &uses, driver).render()),
        }
    } else {
        shares.note(&mut lines, driver);
        args.order.sort(&mut lines, Key::of_process);
        match args.json {
            true => {
                let lines = lines.iter().map(|line| line.json(driver)).collect();
                Shown::Json(selection.json("processes", lines))
            }
            false => Shown::Text(Table::of(FIELDS, &lines, driver).render()),
        }
    };
    Ok(Round { shown, notes })
}

/// Returns lines about what members of a group hold beyond their charges.
fn uncovered(view: &View, driver: Option<&Driver>) -> Vec<String> {
    let line = |entry: &DeviceEntry| {
        let bytes = view.uncovered(entry, driver).filter(|bytes| *bytes > 0)?;
        Some(format!(
            "processes of {} hold {} of GPU {} beyond their charges: `gpulimit doctor` says more",
            view.title,
            gib(bytes),
            groups::label(entry.id, driver)
        ))
    };
    view.devices.iter().filter_map(line).collect()
}

/// Returns a line that names the processes on which a command was at work when it died.
fn abandoned(lines: &[Process]) -> Option<String> {
    let abandoned = lines.iter().filter(|line| line.state == "abandoned");
    let pids: BTreeSet<u32> = abandoned
        .map(|line| line.pid.unwrap_or(line.own_pid))
        .collect();
    let pids = Vec::from_iter(pids);
    (!pids.is_empty()).then(|| {
        format!(
            "a killed `suspend` or `resume` has left processes half-done: {}; `gpulimit gc` ends \
             its work",
            text::some(&pids)
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_help_lists_the_columns_in_the_order_in_which_they_go() {
        let narrow = fields::narrow(FIELDS).join(", ");
        assert!(HELP.replace('\n', " ").contains(&narrow), "{narrow}");
    }
}
