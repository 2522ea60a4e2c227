//! The process and its names.

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
        "unsetenv" => {
            process::unset(words.at(1)?);
            plain(0)
        }
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
        _ => return Ok(None),
    }))
}

/// The hooked functions that this door finds in the driver without leading to the hook. A list of the whole table, as the
/// preloaded library itself tells it.
fn hooks(driver: &Driver) -> String {
    let report = process::find(libc::RTLD_DEFAULT as usize, "gpulimit_hooks");
    if report == 0 {
        return "absent".to_owned();
    }
    let text = process::text(report);
    let mut hooked = 0;
    let missed: Vec<_> = text
        .lines()
        .filter_map(|line| line.split(' ').next())
        .filter(|name| match driver.find(name) {
            0 => false,
            address => {
                hooked += 1;
                process::owner(address).as_deref() != Some("libgpulimit.so")
            }
        })
        .collect();
    format!("{hooked} {}", missed.join(" "))
        .trim_end()
        .to_owned()
}
