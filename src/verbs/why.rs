//! `gpulimit why`: explains the last refusal, and says what to do now.

use crate::figures::event::watch::Watch;
use crate::figures::event::{HOLDER, Line, who};
use crate::figures::why::advice::{Advice, advice};
use crate::figures::why::{self, Holder, LEVELS, Now};
use crate::figures::{Figures, Row};
use crate::groups::{self, Purpose, SCHEMA, Selection};
use crate::machine::{accounts, nvml::Driver};
use crate::shown::output::{self, Escaped};
use crate::shown::table::Table;
use crate::suspension::subjects;
use crate::words::failure::Failure;
use gpulimit_base::units::gib;
use gpulimit_group::{Root, effective_user, is_within};
use gpulimit_ledger::EventKind;
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

`Then` is the record of the refusal: what was asked for, what was left where,
and which processes held the most. `Now` shows how full the groups and the GPU
are, with advice that makes room and that you can follow, the best first:

  again    there is room now
  expand   let PyTorch use what it has reserved
  raise    raise the limit that has no room
  lower    lower keep_free, which leaves no room
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
const UNHEARD: &str = "PyTorch noted nothing: --explain does nothing in a Python with -I, -E or \
                       -S, in an isolated one, and in other programs";

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
    let is_meant = |line: &&Line| match (&meant, args.pid) {
        _ if line.event.what.kind != EventKind::Refusal => false,
        (Some((root, name)), _) => is_within(&line.home(), name) && line.root == root.path(),
        (None, Some(pid)) => line.event.what.process.pid == pid,
        (None, None) => me == 0 || line.event.what.process.uid == me,
    };
    let (recovered, mut refusals): (Vec<&Line>, Vec<&Line>) =
        (lines.iter().filter(is_meant)).partition(|line| why::has_recovered(line, &lines));
    if !args.all {
        refusals.drain(..refusals.len().saturating_sub(1));
    }
    let status = output::told(&notes);
    let Some(last) = refusals.last() else {
        // An unknown group is an error.
        let selection = named.map_or_else(|| Ok(selection), |name| Selection::of(Some(name)))?;
        let (groups, _) = Figures::all(&selection, driver);
        if args.json {
            let groups: Value = groups.iter().map(Figures::json).collect();
            let all = json!({ "schema": SCHEMA, "refusals": [], "now": null, "groups": groups });
            output::json(&all)?;
        } else {
            let rows: Vec<Row<'_>> = groups.iter().flat_map(Figures::rows).collect();
            let text = output::fit(&nothing(args, !recovered.is_empty()), 0);
            let table = Table::of(Row::FIELDS, &rows, driver).render();
            output::table(&format!("{text}\n\n{table}"))?;
        }
        return Ok(status);
    };
    let may_suspend = |one: &Holder| {
        let group = Root::at(&last.root).ok()?.group(one.group.as_deref()?);
        Some(subjects::may_suspend(&group.ok()?, one.pid?, driver?))
    };
    let views = (&selection, views);
    let now = (last.device).map(|id| Now::read(last, id, views, driver, may_suspend));
    let advice = now.as_ref().map(advice).unwrap_or_default();
    if args.json {
        let then = refusals.iter().map(|line| line.json(driver, true));
        let (then, now) = (then.collect::<Value>(), now.map(|now| now.json(&advice)));
        output::json(&json!({ "schema": SCHEMA, "refusals": then, "now": now }))?;
        return Ok(status);
    }
    let mut text: String = refusals.iter().map(|line| then(line, driver)).collect();
    if let Some(now) = &now {
        let is_unheard = || last.refusal().is_some_and(|refusal| refusal.is_unheard);
        match &now.pytorch {
            Some(note) if note.reserved > 0 => text += &paragraph("  ", &format!("{note}\n")),
            None if is_unheard() => text += &paragraph("  ", &format!("{UNHEARD}\n")),
            _ => {}
        }
        text += &said(now, &advice);
    }
    output::table(&text)?;
    Ok(status)
}

/// Says that nothing was refused for good.
fn nothing(args: &Args, has_recovered: bool) -> String {
    let of = match (&args.group, args.pid) {
        (Some(group), _) => format!(" of `{group}`"),
        (None, Some(pid)) => format!(" of process {pid}"),
        (None, None) => String::new(),
    };
    match has_recovered {
        false => format!(
            "No refusal{of} is on record. If a program failed all the same, the pool of its \
             framework was full (JAX, TensorFlow), or it looked at the free memory and did not \
             ask (vLLM): give it a larger limit or share. Else the host lacked memory (RAM)."
        ),
        true => format!(
            "Nothing is to be done: after each refusal{of} on record the program got as much \
             within a second, as when a framework empties its cache and asks again."
        ),
    }
}

/// Formats what the record of a refusal says.
fn then(line: &Line, driver: Option<&Driver>) -> String {
    let what = &line.event.what;
    let (who, user) = (who(&what.process), accounts::user_name(what.process.uid));
    let mut asked = format!("{who} of {user} asked for {}", gib(what.bytes));
    if let Some(name) = line.function() {
        asked += &format!(" by {name}");
    }
    if let Some(id) = line.device {
        asked += &format!(" on GPU {}", groups::label(id, driver));
    }
    let count = line.count();
    let repeats = (count > 1).then(|| format!("{count} requests like that were refused"));
    let reasons: Vec<String> = line.reason().into_iter().chain(repeats).collect();
    let holders = Table::of(HOLDER, line.holders(), driver);
    let holders = holders.has_rows().then(|| indented(&holders.render()));
    let [asked, reasons] = [asked, reasons.join("; ")].map(|it| paragraph("  ", &it));
    let holders = holders.unwrap_or_default();
    format!(
        "Then, {}:\n{asked}{reasons}{holders}\n",
        line.time().local()
    )
}

/// Formats how full things are now, and the advice.
fn said(now: &Now, advice: &[Advice]) -> String {
    let table = Table::of(LEVELS, &now.places(), None).render();
    let mut text = format!("Now:\n{}", indented(&table));
    if advice.is_empty() {
        let ask = match effective_user() {
            0 => "",
            _ => ": ask the administrator of the groups",
        };
        let none = "and no single step of yours makes room";
        text += &paragraph("  ", &format!("{}, {none}{ask}", now.shortages()));
    }
    for (at, advice) in advice.iter().enumerate() {
        text += &paragraph(&format!("  {}. ", at + 1), &advice.text);
        if let Some(command) = &advice.command {
            text += &format!("       {}\n", Escaped(command));
        }
    }
    text
}

/// Breaks a text into lines of the terminal's width.
fn paragraph(begin: &str, text: &str) -> String {
    output::fit(&format!("{begin}{}", Escaped(text)), begin.len()) + "\n"
}

fn indented(text: &str) -> String {
    text.lines().map(|line| format!("  {line}\n")).collect()
}
