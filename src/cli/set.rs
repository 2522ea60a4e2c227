//! `gpulimit set`: another limit for a group, at once.

use super::failure::Failure;
use super::groups::{self, View};
use super::nvml::Driver;
use super::{gpu, output};
use gpulimit::group::{Group, GroupError};
use gpulimit::limits::{LimitSet, LimitsError, Selector};
use gpulimit::units::{Size, gib};
use std::fmt::Write as _;
use std::io::ErrorKind;
use std::process::ExitCode;

/// Options of `set`.
#[derive(clap::Args)]
#[command(after_help = HELP)]
pub struct Args {
    /// The group
    group: String,

    /// What to change
    #[arg(value_name = "max=SIZE")]
    change: String,

    /// Change it for this GPU or MIG instance only; index, UUID or its beginning, or PCI bus id. Repeat for more
    #[arg(long = "device", value_name = "GPU")]
    devices: Vec<String>,
}

const HELP: &str = "\
The change holds for programs that run as for those that start later. A smaller limit takes
nothing away: it refuses growth until the usage is below it.

Examples:
  gpulimit set lab max=8G
  gpulimit set lab max=25% --device 1
  gpulimit set lab max=max                 no limit";

/// The keys that can be set.
const KEYS: [&str; 1] = ["max"];

/// Changes the limit.
pub fn set(args: &Args) -> Result<ExitCode, Failure> {
    let max = parse(&args.change)?;
    let root = super::root()?;
    let group = root.group(&args.group)?;
    let driver = Driver::load().ok();
    let driver = driver.as_ref();
    let mut targets = Vec::new();
    for device in &args.devices {
        targets.push(Selector::Device(gpu::resolve(device, driver)?));
    }
    if targets.is_empty() {
        targets.push(Selector::All);
    }
    let change = |rules: &mut LimitSet| {
        for target in &targets {
            rules.set(*target, max);
        }
    };
    let now = group
        .write_limits(change)
        .map_err(|error| refused(&group, error))?;
    output::print(&report(group, &targets, max, &now, driver)?)?;
    Ok(ExitCode::SUCCESS)
}

fn parse(change: &str) -> Result<Size, Failure> {
    let shown = change.escape_debug();
    let Some((key, value)) = change.split_once('=') else {
        return Err(Failure::usage(format_args!(
            "'{shown}' is no change: expected max=SIZE, such as max=8G"
        )));
    };
    if !KEYS.contains(&key) {
        let near = KEYS.iter().find(|known| is_near(key, known));
        let hint = near
            .map(|known| format!(", did you mean {known}?"))
            .unwrap_or_default();
        return Err(Failure::usage(format_args!(
            "unknown key '{}'{hint} (keys: {})",
            key.escape_debug(),
            KEYS.join(", ")
        )));
    }
    value.parse().map_err(Failure::usage)
}

/// Whether one is likely a slip of the other: up to two letters wrong, missing, too many or swapped.
fn is_near(text: &str, known: &str) -> bool {
    let text: Vec<char> = text.to_lowercase().chars().take(16).collect();
    let known: Vec<char> = known.chars().collect();
    // Edit distance, row by row.
    let mut row: Vec<usize> = (0..=known.len()).collect();
    for (i, letter) in text.iter().enumerate() {
        let mut diagonal = row[0];
        row[0] = i + 1;
        for (j, other) in known.iter().enumerate() {
            let replaced = diagonal + usize::from(letter != other);
            diagonal = row[j + 1];
            row[j + 1] = replaced.min(row[j] + 1).min(diagonal + 1);
        }
    }
    row[known.len()] <= 2 && text.first() == known.first()
        || text.iter().collect::<String>().contains("max")
}

fn refused(group: &Group, error: GroupError) -> Failure {
    match error {
        GroupError::Limits(LimitsError::Io { ref error, .. })
            if error.kind() == ErrorKind::PermissionDenied =>
        {
            Failure::new(format_args!(
                "you may not change the limits of group '{}': they belong to whoever administers it ({})",
                group.name(),
                group.limits_path().display()
            ))
        }
        error => error.into(),
    }
}

/// What holds now, and where usage is above it.
fn report(
    group: Group,
    targets: &[Selector],
    max: Size,
    now: &LimitSet,
    driver: Option<&Driver>,
) -> Result<String, Failure> {
    let mut out = String::new();
    let name = group.name().to_owned();
    let mut say = |line: std::fmt::Arguments<'_>| {
        // Writing to a string does not fail.
        let _ = writeln!(out, "{name}: {line}");
    };
    for target in targets {
        match target {
            Selector::All => say(format_args!("max={max} applied to all GPUs")),
            Selector::Device(id) => say(format_args!(
                "max={max} applied to GPU {}",
                groups::label(*id, driver)
            )),
        }
    }
    if targets.contains(&Selector::All) {
        for (selector, own) in &now.rules {
            if let Selector::Device(id) = selector {
                say(format_args!(
                    "GPU {} keeps its own max={own}; change it with --device",
                    groups::label(*id, driver)
                ));
            }
        }
    }
    let Ok(view) = View::open(group, driver) else {
        // Whoever administers a group need not be able to read its ledger.
        return Ok(out);
    };
    let Some(ledger) = &view.ledger else {
        return Ok(out);
    };
    for device in &view.devices {
        let max = view.limits.max(&device.id, device.capacity);
        let usage = ledger.usage(device.index);
        let usage = usage.charged.saturating_sub(usage.idle);
        if usage > max {
            say(format_args!(
                "applied; usage {} of GPU {} is above the new max {}: growth is refused until it falls",
                gib(usage),
                groups::label(device.id, driver),
                gib(max)
            ));
        }
    }
    Ok(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn changes() {
        assert_eq!(parse("max=4G").expect("a change"), Size::Bytes(4 << 30));
        assert_eq!(parse("max=max").expect("a change"), Size::Max);
    }

    #[test]
    fn mistakes_say_what_is_accepted() {
        for (text, expected) in [
            ("max", "expected max=SIZE"),
            ("4G", "expected max=SIZE"),
            ("max=", "empty size"),
            ("max=4Q", "'4Q' is no size"),
            ("mx=4G", "did you mean max?"),
            ("amx=4G", "(keys: max)"),
            ("MAX=4G", "did you mean max?"),
            ("memory.max=4G", "did you mean max?"),
            ("colour=red", "unknown key 'colour' (keys: max)"),
        ] {
            let error = parse(text).expect_err(text).to_string();
            assert!(error.contains(expected), "{error}");
        }
    }
}
