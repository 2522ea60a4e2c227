//! Waits for events. Only a hang ends a wait without its event, and a hang is a failure.

use std::io::Read;
use std::process::{Command, Output, Stdio};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

/// Returns how long a test waits for an event before it fails: longer than any event takes on a
/// busy machine.
pub fn patience() -> Duration {
    let seconds = std::env::var("GPULIMIT_TEST_PATIENCE").ok();
    let seconds = seconds.map(|text| text.parse().expect("GPULIMIT_TEST_PATIENCE in seconds"));
    Duration::from_secs(seconds.unwrap_or(120))
}

/// Waits until the condition holds; returns false when the patience is over.
#[must_use = "a wait that ended without its event is a failure"]
pub fn eventually(mut holds: impl FnMut() -> bool) -> bool {
    let start = Instant::now();
    let mut pause = Duration::from_micros(200);
    while start.elapsed() < patience() {
        if holds() {
            return true;
        }
        thread::sleep(pause);
        pause = (pause * 2).min(Duration::from_millis(5));
    }
    holds()
}

/// Waits until the condition holds.
///
/// # Panics
/// When the patience is over; the message names `what`.
#[track_caller]
pub fn wait_until(what: &str, holds: impl FnMut() -> bool) {
    assert!(eventually(holds), "waited in vain: {what}");
}

/// Runs a command to its end, with an empty standard input unless the command has one.
///
/// # Panics
/// When the command has not ended, or its output is still open, and the patience is over. The
/// message has what it printed.
#[track_caller]
pub fn finish(command: &mut Command) -> Output {
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command
        .spawn()
        .unwrap_or_else(|error| panic!("{command:?}: {error}"));
    let reader = |mut pipe: Box<dyn Read + Send>| {
        let (sender, bytes) = mpsc::channel();
        thread::spawn(move || {
            let mut bytes = Vec::new();
            let _ = pipe.read_to_end(&mut bytes);
            sender.send(bytes)
        });
        bytes
    };
    let out = reader(Box::new(child.stdout.take().expect("piped")));
    let err = reader(Box::new(child.stderr.take().expect("piped")));
    let has_ended = eventually(|| child.try_wait().expect("asked").is_some());
    if !has_ended {
        let _ = child.kill();
    }
    let status = child.wait().expect("ended");
    let [stdout, stderr] = [out, err].map(|bytes| {
        let bytes = bytes.recv_timeout(patience());
        bytes.unwrap_or_else(|_| panic!("{command:?} has left its output open"))
    });
    let output = Output {
        status,
        stdout,
        stderr,
    };
    assert!(has_ended, "{command:?} hangs: {output:?}");
    output
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_with_much_output_ends() {
        let output = finish(Command::new("sh").args(["-c", "seq 100000; seq 100000 >&2; exit 3"]));
        assert_eq!(output.status.code(), Some(3));
        assert_eq!(output.stdout, output.stderr);
        assert!(output.stdout.ends_with(b"\n100000\n"));
    }
}
