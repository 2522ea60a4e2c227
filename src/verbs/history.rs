//! `gpulimit history`: shows the usage of groups over time.

use crate::figures::past::{self, Past};
use crate::groups::{self, Selection, View, gpu};
use crate::machine::nvml::Driver;
use crate::shown::{csv, curve, output, terminal};
use crate::words::{clock, failure::Failure, since};
use jiff::Zoned;
use std::process::ExitCode;

/// Options of `history`.
#[derive(clap::Args)]
#[command(after_help = HELP)]
pub struct Args {
    /// Show only this group and the groups below it
    group: Option<String>,

    /// Begin of the time to show: 30m or 2h ago, yesterday, 14:00, 2026-11-20
    #[arg(long, value_name = "TIME", default_value = "10m")]
    since: String,

    /// The GPU to show: index, UUID, start of the UUID, PCI bus id. Repeat for more
    #[arg(long = "device", value_name = "GPU")]
    devices: Vec<String>,

    /// Print JSON: sizes are in bytes, and unknown figures are null
    #[arg(long)]
    json: bool,

    /// Print CSV, one line for each period: sizes are in bytes, and unknown figures are empty
    #[arg(long, conflicts_with = "json")]
    csv: bool,
}

const HELP: &str = "\
Draws a curve for each group and GPU. Named groups keep their usage of the last
ten minutes by the second, of the last day by the minute, and of the last week
by the quarter of an hour. So do jobs of `gpulimit run` that are in no group:
the last 16 are shown for a day after their end, by name also those that ended
before TIME, with the time before their end. Members record the usage when they
take memory; in between, usage only falls. What it fell to at which time is
unknown until the next request, and drawn in another character. Marks below the
curve say when requests were refused, members were asked for memory, and
processes were suspended, resumed or killed; suspensions in groups below are
marked there. Times are in the zone of the caller, in JSON and CSV in UTC.
Without a UTF-8 locale the curve is of ASCII.

Examples:
  gpulimit history
  gpulimit history lab
  gpulimit history lab/alice --since yesterday --device 0
  gpulimit history lab --since 2h --json | jq '.histories[].periods[].max'";

/// Shows the curves.
pub fn history(args: &Args) -> Result<ExitCode, Failure> {
    let now = clock::now();
    let since = since::parse(&args.since, &now)
        .map_err(|why| Failure::usage(format_args!("invalid time '{}': {why}", args.since)))?;
    let selection = Selection::with_past(args.group.as_deref())?;
    let driver = Driver::load().ok();
    let driver = driver.as_ref();
    let devices = gpu::shown(&args.devices, driver)?;
    let (views, mut notes) = selection.readable(driver)?;
    let first = views.first().filter(|_| selection.named);
    let unrecorded = groups::unrecorded(&views);
    notes.lines.extend(groups::unrecorded_note(&unrecorded));
    notes.add_unopened(groups::damages(&views));
    let all = |view| {
        let ended = past::ended(view);
        Past::all(view, &devices, since, now.timestamp(), driver, ended)
    };
    let mut pasts: Vec<Past> = views.iter().flat_map(all).collect();
    let is_in = |past: &Past| selection.named || past.ended.is_none_or(|end| end >= since);
    let is_older = !pasts.iter().all(is_in);
    pasts.retain(is_in);
    let status = output::told(&notes);
    if args.json {
        let json = |past: &Past| past.json(driver);
        output::json(&selection.json("histories", pasts.iter().map(json).collect()))?;
    } else if args.csv {
        output::print(&csv::lines(Past::rows(&pasts))?)?;
    } else if pasts.is_empty() && !notes.is_failure && unrecorded.is_empty() {
        output::note(match first {
            Some(View {
                ledger: Some(ledger),
                ..
            }) if !ledger.keeps_history() => {
                "this group keeps no history: the history of the group above has its usage"
            }
            _ if is_older => "no group has used such a GPU since then: try --since 1d",
            _ => "no named group or job of `gpulimit run` has used such a GPU",
        });
    } else {
        let texts: Vec<String> = pasts.iter().map(|past| text(past, &now)).collect();
        output::print(&texts.join("\n"))?;
    }
    Ok(status)
}

/// Returns a title and the curve.
fn text(past: &Past, now: &Zoned) -> String {
    const WIDTH: usize = 80;
    let width = terminal::output_width().unwrap_or(WIDTH);
    let title = format!("{}  {}", past.title, past.usage_text());
    let mut lines = vec![output::fit(&title, 2)];
    lines.extend(past.gpu.trend_text().map(|trend| output::fit(&trend, 2)));
    lines.extend(curve::of(past, now.time_zone(), width, terminal::is_utf8()));
    lines.join("\n") + "\n"
}
