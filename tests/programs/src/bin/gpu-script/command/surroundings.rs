//! The process, and names of functions.

use super::{Answer, plain};
use std::time::Duration;

use crate::driver::Driver;
use crate::interpreter::{Scope, Words};
use crate::process;

/// Runs a command of this subject; `None` for others.
pub fn run(driver: &Driver, _: &mut Scope, words: &Words<'_>) -> Answer<Option<String>> {
    let name = words.name();
    Ok(Some(match name {
        "touch" => plain(std::fs::write(words.at(1)?, "").map_or(1, |()| 0)),
        "wait" => {
            while !std::path::Path::new(words.at(1)?).exists() {
                std::thread::sleep(Duration::from_micros(50));
            }
            plain(0)
        }
        "sleep" => {
            std::thread::sleep(Duration::from_millis(words.size(1)? as u64));
            plain(0)
        }
        "closefrom" => {
            process::close_from(words.size(1)? as i32);
            plain(0)
        }
        "setenv" => {
            process::set(words.at(1)?, words.at(2)?);
            plain(0)
        }
        "unsetenv" => {
            process::unset(words.at(1)?);
            plain(0)
        }
        "catch" => {
            process::catch(words.size(1)? as i32);
            plain(0)
        }
        "errno" => plain(process::has_changed_errno().into()),
        "clearenv" => {
            process::clear_environment();
            plain(0)
        }
        "dlsym" => {
            process::error();
            let found = process::find(process::open("libcuda.so.1", libc::RTLD_NOW), words.at(1)?);
            match process::error() {
                None => format!("{}", i32::from(found != 0)),
                Some(text) => format!("{} {text}", i32::from(found != 0)),
            }
        }
        "owner" => match driver.find(words.at(1)?) {
            0 => "absent".to_owned(),
            address => process::owner(address).unwrap_or_default(),
        },
        "hooks" => hooks(driver),
        "panics" => panics(),
        "names" => names(driver, words.at(1)?)?,
        _ => return Ok(None),
    }))
}

/// Returns the hooked functions that this door finds in the driver without leading to the hook.
fn hooks(driver: &Driver) -> String {
    let Some(rows) = rows() else {
        return "absent".to_owned();
    };
    let mut hooked = 0;
    let missed: Vec<_> = rows
        .iter()
        .filter(|name| match driver.find(name) {
            0 => false,
            address => {
                hooked += 1;
                process::owner(address).as_deref() != Some("libgpulimit.so")
            }
        })
        .collect();
    counted(hooked, &missed)
}

fn counted(count: u32, exceptions: &[impl AsRef<str>]) -> String {
    let exceptions: Vec<&str> = exceptions.iter().map(AsRef::as_ref).collect();
    format!("{count} {}", exceptions.join(" "))
        .trim_end()
        .to_owned()
}

/// Returns whether a panic in the preloaded library stays in it.
fn panics() -> String {
    match process::find(libc::RTLD_DEFAULT as usize, "gpulimit_contains_panics") {
        0 => "absent".to_owned(),
        function => process::number(function).to_string(),
    }
}

/// Returns the names of the hook table, as the preloaded library lists them.
fn rows() -> Option<Vec<String>> {
    let report = process::find(libc::RTLD_DEFAULT as usize, "gpulimit_hooks");
    let name = |line: &str| line.split(' ').next().unwrap_or_default().to_owned();
    (report != 0).then(|| process::text(report).lines().map(name).collect())
}

/// Returns how many of the names in the file this door finds, and those that lead to the wrong
/// place: past a hook, or to a wrong hook.
fn names(driver: &Driver, file: &str) -> Answer<String> {
    let rows = rows().unwrap_or_default();
    let text = std::fs::read_to_string(file).map_err(|error| format!("{file}: {error}"))?;
    let mut found = 0;
    let mut astray = Vec::new();
    for name in text.lines() {
        let address = driver.find(name);
        let Some(place) = process::place(address).filter(|_| address != 0) else {
            continue;
        };
        found += 1;
        // A function asked for by its base name may come in another variant: the variant that came
        // decides.
        let hooked = rows.contains(&place.symbol);
        if hooked != (place.owner == "libgpulimit.so") {
            astray.push(format!("{name}->{}:{}", place.owner, place.symbol));
        }
    }
    Ok(counted(found, &astray))
}
