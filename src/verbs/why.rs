//! `gpulimit why`: explains the last refusal, and says what to do now.

use crate::figures::event::watch::Watch;
use crate::figures::event::{HOLDER, Line, who};
use crate::figures::why::advice::{Advice, advice};
use crate::figures::why::{self, LEVELS, Now};
use crate::figures::{Figures, Row};
use crate::groups::{self, Purpose, SCHEMA, Selection};
use crate::machine::{accounts, nvml::Driver};
use crate::shown::output::{self, Escaped};
use crate::shown::table::Table;
use crate::suspension::subjects;
use crate::words::failure::Failure;
use gpulimit_base::units::gib;
use gpulimit_group::{effective_user, is_within};
use gpulimit_ledger::{Cause, EventKind};
use serde_json::{Value, json};
use std::process::ExitCode;

/// Options of `why`.
#[derive(clap::Args)]
#[command(after_help = HELP)]
pub struct Args {
    /// Explain the last refusal of this group or job, or of a program in it
    #[arg(value_name = "GROUP|JOB")]
    group: Option<String>,

    /// Explain the last refusal of this process, which may have ended
    #[arg(long, value_name = "PID", conflicts_with = "group")]
    pid: Option<u32>,

    /// Explain all recorded refusals, the last one at the end
    #[arg(long)]
    all: bool,

    /// Print JSON: sizes are in bytes, and unknown figures are null
    #[arg(long)]
    json: bool,
}

const HELP: &str = "\
Without a group and a process, the last refusal of your own programs is
explained; for root, that of any program. A refusal after which the program got
as much within a second is skipped.

The first part is the record of the refusal: what was asked for, which group
had no room, what was left there, and the processes that held the most memory.
The second part is how full the groups and the GPU are now, with advice, the
best first. Advice is given only if it makes room for the request, and if you
can follow it:

  again    there is room now
  expand   let PyTorch use what it has reserved
  raise    raise the limit that has no room
  suspend  move the memory of a process to the host
  end      end programs of yours
  wait     wait until others have ended
  smaller  ask for less
  host     the host, not the GPU, has no room

Without a refusal, the limits and the usage of the groups are shown.

Examples:
  gpulimit why
  gpulimit why lab
  gpulimit why --pid 4711 --json | jq '.now.advice[0]'";

/// Of a program under `run --explain`, without a note.
const UNHEARD: &str = "\
  PyTorch noted nothing: --explain does nothing in a Python with -I, -E or -S,
  in an isolated one, and in other programs

";

/// Explains the refusal.
pub fn why(args: &Args) -> Result<ExitCode, Failure> {
    let driver = Driver::load().ok();
    let driver = driver.as_ref();
    let named = args.group.as_deref();
    let meant = named
        .map(|name| groups::meant(name, Purpose::Use))
        .transpose()?;
    let selection = Selection::of(None)?;
    let (views, mut notes) = selection.views(driver);
    let mut watch = Watch::new(None, false);
    let (lines, _) = watch.round(&selection)?;
    notes.lines.append(&mut watch.notes.lines);
    let me = effective_user();
    let is_meant = |line: &Line| match (&meant, args.pid) {
        (Some((root, name)), _) => is_within(&line.home(), name) && line.root == root.path(),
        (None, Some(pid)) => line.event.what.process.pid == pid,
        (None, None) => me == 0 || line.event.what.process.uid == me,
    };
    let refusals = lines
        .iter()
        .filter(|line| line.event.what.kind == EventKind::Refusal && is_meant(line));
    let (recovered, mut refusals): (Vec<&Line>, Vec<&Line>) =
        refusals.partition(|line| why::has_recovered(line, &lines));
    if !args.all {
        refusals.drain(..refusals.len().saturating_sub(1));
    }
    let status = output::told(&notes);
    let Some(last) = refusals.last() else {
        // An unknown group is an error.
        let selection = named.map_or_else(|| Ok(selection), |name| Selection::of(Some(name)))?;
        how_full(args, &selection, driver, recovered.len())?;
        return Ok(status);
    };
    let may_suspend =
        |group: &_, pid| driver.is_some_and(|driver| subjects::may_suspend(group, pid, driver));
    let now = last
        .device
        .map(|id| Now::read(last, id, (&selection, views), driver, may_suspend));
    let advice = now.as_ref().map(advice).unwrap_or_default();
    if args.json {
        let then: Vec<Value> = refusals
            .iter()
            .map(|line| line.json(driver, true))
            .collect();
        let now = now.as_ref().map(|now| now.json(&advice));
        output::json(&json!({ "schema": SCHEMA, "refusals": then, "now": now }))?;
        return Ok(status);
    }
    let mut text: String = refusals.iter().map(|line| then(line, driver)).collect();
    if let Some(now) = &now {
        let is_unheard = || last.refusal().is_some_and(|refusal| refusal.is_unheard);
        match &now.pytorch {
            Some(note) if note.reserved > 0 => text += &format!("  {note}\n\n"),
            None if is_unheard() => text += UNHEARD,
            _ => {}
        }
        text += &said(now, &advice);
    }
    output::table(&text)?;
    Ok(status)
}

/// Shows how full the groups are, because nothing was refused for good.
fn how_full(
    args: &Args,
    selection: &Selection,
    driver: Option<&Driver>,
    recovered: usize,
) -> Result<(), Failure> {
    let (groups, _) = Figures::all(selection, driver);
    if args.json {
        let groups: Vec<Value> = groups.iter().map(Figures::json).collect();
        return output::json(&json!({
            "schema": SCHEMA, "refusals": [], "now": null, "groups": groups,
        }));
    }
    let rows: Vec<Row<'_>> = groups.iter().flat_map(Figures::rows).collect();
    let table = Table::of(Row::FIELDS, &rows, driver).render();
    let of = match (&args.group, args.pid) {
        (Some(group), _) => format!(" of `{group}`"),
        (None, Some(pid)) => format!(" of process {pid}"),
        (None, None) => String::new(),
    };
    let text = match recovered {
        0 => format!(
            "No refusal{of} is on record. If a program failed all the same, the pool of its \
             framework was full (JAX, TensorFlow), or it looked at the free memory and did not \
             ask (vLLM): give it a larger limit or share. Else the host lacked memory (RAM)."
        ),
        _ => format!(
            "Nothing is to be done: after each refusal{of} on record the program got as much \
             within a second, as when a framework empties its cache and asks again."
        ),
    };
    output::table(&format!("{}\n\n{table}", output::fit(&text, 0)))
}

/// Formats what the record of a refusal says.
fn then(line: &Line, driver: Option<&Driver>) -> String {
    let what = &line.event.what;
    let gpu = line.device.map_or_else(String::new, |id| {
        format!(" on GPU {}", groups::label(id, driver))
    });
    let mut text = format!(
        "Then, {}:\n  {} of {} asked for {}{}{gpu}\n",
        line.time(),
        who(&what.process),
        accounts::user_name(what.process.uid),
        gib(what.bytes),
        line.function()
            .map_or_else(String::new, |name| format!(" by {name}")),
    );
    let refusal = line.refusal();
    let left = refusal
        .map(|refusal| refusal.left)
        .filter(|left| *left != u64::MAX);
    let left = left.map_or_else(
        || "an unknown part".into(),
        |left| format!("{}{}", gib(left).less_than(what.bytes), gib(left)),
    );
    let kept = refusal.map_or(0, |refusal| refusal.kept);
    let more = match kept {
        0 => String::new(),
        kept => format!(", and {} was kept for other groups", gib(kept)),
    };
    let limit = format!("{} had {left} left of {}{more}", line.title, gib(what.max));
    text += "  ";
    text += &match line.cause() {
        None | Some(Cause::Oom | Cause::Command | Cause::Limit) => limit,
        Some(Cause::Standstill) => format!("{limit}, and its programs wait for each other"),
        Some(Cause::Context) => format!("{limit}, less than a CUDA context takes"),
        Some(Cause::Capacity) => format!("the GPU is smaller than that: {left} was left of it"),
        Some(Cause::Outside) => format!(
            "{} had room, the GPU had not: {left} was left of it, and {} was in use outside of \
             the program's groups",
            line.title,
            gib(refusal.map_or(0, |refusal| refusal.outside))
        ),
        Some(Cause::KeepFree) => format!(
            "keep_free of {} keeps {} free: {left} was free",
            line.title,
            gib(kept)
        ),
        Some(Cause::Host) => format!(
            "{} and the GPU had room, and the driver refused: the host had no memory for it",
            line.title
        ),
    };
    if line.count() > 1 {
        text += &format!("; {} requests like that were refused", line.count());
    }
    let lines = text
        .lines()
        .map(|line| output::fit(&Escaped(line).to_string(), 4) + "\n");
    let mut text: String = lines.collect();
    let table = Table::of(HOLDER, line.holders(), driver);
    if table.has_rows() {
        text += &indented(&table.render());
    }
    text + "\n"
}

/// Formats how full things are now, and the advice.
fn said(now: &Now, advice: &[Advice]) -> String {
    let mut text = "Now:\n".to_owned();
    text += &indented(&Table::of(LEVELS, &now.levels, None).render());
    if let (Some(total), Some(free)) = (now.total, now.free) {
        let (free, total) = (gib(free), gib(total));
        let kept = now.keeper().map_or(String::new(), |level| {
            let keep = gib(level.keep_free.0);
            format!(", of which keep_free of {} keeps {keep}", level.name)
        });
        text += &format!("  GPU {} has {free} free of {total}{kept}\n", now.gpu);
    }
    if advice.is_empty() {
        let ask = match effective_user() {
            0 => "",
            _ => ": ask the administrator of the groups",
        };
        let lacks = now.shortages();
        let line = format!("  {lacks}, and no single step of yours makes room{ask}");
        text += &(output::fit(&line, 2) + "\n");
    }
    for (at, advice) in advice.iter().enumerate() {
        let line = format!("  {}. {}", at + 1, Escaped(&advice.text));
        text += &(output::fit(&line, 5) + "\n");
        if let Some(command) = &advice.command {
            text += &format!("       {}\n", Escaped(command));
        }
    }
    text
}

fn indented(text: &str) -> String {
    text.lines().map(|line| format!("  {line}\n")).collect()
}
