//! Processes that end with the test.

use crate::{eventually, patience, wait_until};
use std::io::{Read, Write};
use std::ops::{Deref, DerefMut};
use std::process::{Child, Command, Output, Stdio};
use std::sync::mpsc;
use std::thread;

/// Does the same work for each case, all at a time: cases mostly wait.
pub fn side_by_side<T: Send>(cases: impl IntoIterator<Item = T>, work: impl Fn(T) + Sync) {
    let (current, work) = (thread::current(), &work);
    thread::scope(|scope| {
        for case in cases {
            // `skip` reads the name of the test from its thread.
            let named = thread::Builder::new().name(current.name().unwrap_or("?").into());
            let spawned = named.spawn_scoped(scope, move || work(case));
            spawned.expect("a thread");
        }
    });
}

/// A process that is killed when the value is dropped, so that it also ends when the test fails.
pub struct Running(Child);

impl Running {
    /// Starts a command.
    #[track_caller]
    pub fn start(command: &mut Command) -> Self {
        match command.spawn() {
            Ok(child) => Self(child),
            Err(error) => panic!("{command:?}: {error}"),
        }
    }

    /// Starts a process whose first thread has ended while another one runs on.
    #[track_caller]
    pub fn without_first_thread() -> Self {
        let exit = if cfg!(target_arch = "x86_64") { 60 } else { 93 };
        let code = format!(
            "import ctypes, sys, threading\n\
             threading.Thread(target=sys.stdin.read).start()\n\
             ctypes.CDLL(None).syscall({exit}, 0)"
        );
        let mut python = Command::new("python3");
        let process = Self::start(python.args(["-c", &code]).stdin(Stdio::piped()));
        let stat = format!("/proc/{}/stat", process.id());
        wait_until("the first thread ends", || {
            std::fs::read_to_string(&stat).is_ok_and(|stat| stat.contains(") Z "))
        });
        process
    }

    /// Closes the input and waits for the end. Returns what the process printed to pipes that are
    /// still there.
    ///
    /// # Panics
    /// When the process has not ended, or its output is still open, and the patience is over. The
    /// message has what the process printed.
    #[track_caller]
    pub fn ended(mut self) -> Output {
        fn reader(pipe: Option<impl Read + Send + 'static>) -> mpsc::Receiver<Vec<u8>> {
            let (sender, bytes) = mpsc::channel();
            thread::spawn(move || {
                let mut bytes = Vec::new();
                let _ = pipe.map(|mut pipe| pipe.read_to_end(&mut bytes));
                sender.send(bytes)
            });
            bytes
        }
        drop(self.stdin.take());
        let (out, err) = (reader(self.stdout.take()), reader(self.stderr.take()));
        let has_ended = eventually(|| self.try_wait().expect("asked").is_some());
        if !has_ended {
            let _ = self.kill();
        }
        let status = self.wait().expect("ended");
        let [stdout, stderr] = [out, err].map(|bytes| {
            let bytes = bytes.recv_timeout(patience());
            bytes.unwrap_or_else(|_| panic!("process {} has left its output open", self.id()))
        });
        let output = Output {
            status,
            stdout,
            stderr,
        };
        assert!(has_ended, "process {} hangs: {output:?}", self.id());
        output
    }
}

impl Deref for Running {
    type Target = Child;

    fn deref(&self) -> &Child {
        &self.0
    }
}

impl DerefMut for Running {
    fn deref_mut(&mut self) -> &mut Child {
        &mut self.0
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.kill();
        let _ = self.wait();
    }
}

/// Runs a command to its end.
///
/// # Panics
/// As those of [`Running::ended`].
#[track_caller]
pub fn finish(command: &mut Command) -> Output {
    Running::start(command.stdout(Stdio::piped()).stderr(Stdio::piped())).ended()
}

/// Runs a command to its end, with this text as its standard input.
///
/// # Panics
/// When the command does not read the text, or as [`finish`] does.
#[track_caller]
pub fn fed(command: &mut Command, text: &str) -> Output {
    command.stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut running = Running::start(command.stderr(Stdio::piped()));
    let input = running.stdin.as_mut().expect("a pipe");
    input.write_all(text.as_bytes()).expect("written");
    running.ended()
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
