//! The job of the shell that this process belongs to: what Ctrl-Z stops.

use gpulimit_base::proc;
use rustix::process::{Signal, kill_current_process_group};

/// Returns whether something can continue this process after it has stopped: a shell of the same
/// terminal. The kernel ignores SIGTSTP for processes without one.
pub fn has_shell() -> bool {
    let Some(own) = Place::of("self") else {
        return false;
    };
    let mut above = own.parent;
    while let Some(place) = Place::of(&above.to_string()) {
        if place.session != own.session {
            return false;
        }
        if place.group != own.group {
            return true;
        }
        above = place.parent;
    }
    false
}

/// Where a process stands among the others. An id is 0 where the process that it names is outside
/// this PID namespace, as a container's first process sees its session.
struct Place {
    parent: u32,
    group: u32,
    session: u32,
}

impl Place {
    /// Reads the place of a process, by its name in /proc.
    fn of(process: &str) -> Option<Self> {
        let stat = proc::read(format!("/proc/{process}/stat")).ok()?;
        // The name in parentheses can contain any character. The state follows it.
        let (_, rest) = stat.rsplit_once(')')?;
        let mut ids = rest.split_ascii_whitespace().skip(1).map(str::parse);
        let mut next = || ids.next()?.ok();
        Some(Self {
            parent: next()?,
            group: next()?,
            session: next()?,
        })
    }
}

/// Stops all processes of the job, as a terminal does. A script that waits for this one must stop,
/// too. Returns when the job goes on.
pub fn stop() -> std::io::Result<()> {
    Ok(kill_current_process_group(Signal::STOP)?)
}
