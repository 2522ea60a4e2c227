//! What `top` changes: by the very functions of `gpulimit set` and `gpulimit kill`, and by running
//! `gpulimit suspend` and `gpulimit resume`.

use super::round::{Name, Who};
use super::view::Act;
use crate::groups::{self, Purpose, changes, kill, meant};
use crate::shown::output::{Escaped, text};
use crate::words::{failure::Failure, notes::Done};
use gpulimit_base::units::Extent;
use gpulimit_limits::{Key, Setting};
use std::process::{Command, Stdio};

/// How long to wait for work on the GPUs, or for room.
const PATIENCE: &str = "30s";

/// Does what the user has confirmed, and returns what was done. Can take a minute.
pub fn act(act: Act) -> String {
    let said = match done(act) {
        Ok(done) => joined(&(done.notes.lines.join("\n") + "\n" + &text(&done.changes))),
        Err(failure) => failure.to_string(),
    };
    Escaped(&said).to_string()
}

fn done(act: Act) -> Result<Done, Failure> {
    let pid = |process: Option<Who>| process.and_then(|process| process.pid);
    match act {
        Act::Limit(group, max, gpu) => {
            is_meant(&group)?;
            let max: Extent = max.parse().map_err(Failure::usage)?;
            let max = Setting::Size(Key::Max, max);
            changes::set(&group.name, vec![max], gpu.as_slice())
        }
        Act::Signal(group, process, signal) => {
            is_meant(&group)?;
            let start_time = process.map(|process| process.start_time);
            let group = groups::find(&group.name, Purpose::Use)?;
            kill::kill(&group, pid(process).as_slice(), start_time, signal)
        }
        Act::Move(group, process, moved) => {
            is_meant(&group)?;
            let whom = pid(process).map_or(group.name, |pid| format!("--pid={pid}"));
            let mut command = Command::new("/proc/self/exe");
            command.args([moved, "--timeout", PATIENCE, &whom]);
            let output = command.stdin(Stdio::null()).output();
            let output = output.map_err(|error| Failure::new(format_args!("{error}")))?;
            let said = [output.stderr, output.stdout].concat();
            let mut done = Done::default();
            done.notes.add(String::from_utf8_lossy(&said).into_owned());
            Ok(done)
        }
        _ => Ok(Done::default()),
    }
}

/// Fails if the name means another group for `set` and `kill`: one in another root.
fn is_meant(group: &Name) -> Result<(), Failure> {
    let (root, name) = meant(&group.name, Purpose::Change)?;
    if root.path() == group.root && name == group.name {
        return Ok(());
    }
    Err(Failure::new(format_args!(
        "the name {0} means a group in {1}: set GPULIMIT_ROOT={2} to change the one in {2}",
        group.name,
        root.path().display(),
        group.root.display()
    )))
}

/// Joins the lines of messages. A line that begins with spaces continues the one before.
fn joined(said: &str) -> String {
    said.trim().replace("\n  ", " ").replace('\n', "; ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_become_one_line() {
        assert_eq!(joined("one\n  more\ntwo\n"), "one more; two");
        assert_eq!(joined("\nonly changes\n"), "only changes");
        assert_eq!(joined(""), "");
    }
}
