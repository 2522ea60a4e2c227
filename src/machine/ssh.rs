//! The rounds that `gpulimit top` prints on another machine, read over ssh, a line for each.

use super::signals;
use crate::words::clock::rough_span;
use gpulimit_base::patience;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use std::io::{self, Read};
use std::mem;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// The name of this machine in a list of machines: its controller is asked without ssh.
const HERE: &str = "localhost";

/// The options of ssh. The words of the command that follow are no commands of a shell.
const OPTIONS: &str = "-o BatchMode=yes -o ConnectTimeout=5 -o ClearAllForwardings=yes --";

/// The longest line that is read, in bytes.
const LONGEST: usize = 16 << 20;

/// Checks the name of a machine, as ssh takes it: `lab1`, `alice@lab1`.
pub fn check(machine: &str) -> Result<String, &'static str> {
    let is_word = !machine.is_empty() && machine.bytes().all(|byte| byte.is_ascii_graphic());
    match is_word && !machine.starts_with('-') {
        true => Ok(machine.into()),
        false => Err("expected the name of a machine, as ssh takes it"),
    }
}

/// Passes each line to `round`, which returns whether the line is a round, until there are no more
/// or there is no round for long. Returns why there are no more. The command ends with this thread.
pub fn lines(
    machine: &str,
    interval: Duration,
    mut round: impl FnMut(&[u8]) -> bool,
) -> io::Result<String> {
    let mut command = Command::new("/proc/self/exe");
    if machine != HERE {
        command = Command::new("ssh");
        command.args(OPTIONS.split(' ')).args([machine, "gpulimit"]);
    }
    let seconds = interval.as_secs_f64().to_string();
    command.args(["top", "--rounds", "--interval", &seconds]);
    // Error messages are lines between the rounds.
    let (mut out, end) = io::pipe()?;
    command.stdin(Stdio::null());
    command.stdout(end.try_clone()?).stderr(end);
    let mut child = signals::start_bound(&mut command)?;
    drop(command);
    let patience = patience::of("GPULIMIT_DEBUG_MACHINE_MS", Duration::from_secs(10)) + interval;
    let (mut text, mut chunk, mut said) = (Vec::new(), vec![0; 1 << 16], String::new());
    let mut last = Instant::now();
    let why = loop {
        let left = Timespec::try_from(patience.saturating_sub(last.elapsed())).ok();
        match poll(&mut [PollFd::new(&out, PollFlags::IN)], left.as_ref()) {
            Err(Errno::INTR) => continue,
            Ok(0) => break Some(format!("no answer for {}", rough_span(patience))),
            _ => {}
        }
        let count = out.read(&mut chunk)?;
        if count == 0 {
            break None;
        }
        for part in chunk[..count].split_inclusive(|byte| *byte == b'\n') {
            text.extend_from_slice(part);
            if !part.ends_with(b"\n") {
                break;
            }
            let line = mem::take(&mut text);
            if round(&line) {
                last = Instant::now();
            } else {
                let begin = String::from_utf8_lossy(&line[..line.len().min(1 << 10)]);
                said = begin.trim().to_owned();
            }
        }
        if text.len() > LONGEST {
            break Some(format!("prints a line of more than {} MiB", LONGEST >> 20));
        }
    };
    // The child may have closed its output and go on.
    let _ = child.kill();
    let status = child.wait()?.code();
    // A message of ssh ends with its reason, as `ssh: connect to host lab1 port 22: Timeout`.
    let reason = said.rsplit(": ").next().unwrap_or_default();
    Ok(why.unwrap_or_else(|| match status {
        Some(2) => "its gpulimit is too old for this".into(),
        Some(127) => "no gpulimit there".into(),
        Some(255) => format!("not reached: {reason}"),
        _ => format!("its gpulimit has ended: {said}"),
    }))
}
