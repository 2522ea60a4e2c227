//! A running `gpu-script` that is told what to do, line by line.

use std::io::{BufRead, BufReader, Read, Write};
use std::process::{Child, ChildStdin, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::thread::JoinHandle;
use std::time::Duration;

/// A program that says nothing for so long hangs, however slow the machine is.
const PATIENCE: Duration = Duration::from_secs(300);

/// The program. Killed, if it still runs, when this is dropped.
pub struct Session {
    child: Child,
    input: Option<ChildStdin>,
    output: Receiver<String>,
    errors: Option<JoinHandle<String>>,
}

impl Session {
    /// Starts it.
    pub fn start(mut command: Command) -> Session {
        command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        let mut child = command.spawn().expect("the program starts");
        let mut errors = child.stderr.take().expect("piped");
        // Read all the time: a program that writes a lot must not wait for us.
        let errors = std::thread::spawn(move || {
            let mut bytes = Vec::new();
            let _ = errors.read_to_end(&mut bytes);
            String::from_utf8_lossy(&bytes).into_owned()
        });
        let lines = BufReader::new(child.stdout.take().expect("piped")).lines();
        let (sender, output) = channel();
        std::thread::spawn(move || {
            lines
                .map_while(Result::ok)
                .try_for_each(|line| sender.send(line))
        });
        Session {
            input: child.stdin.take(),
            output,
            errors: Some(errors),
            child,
        }
    }

    /// Its pid.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Gives it lines without waiting for an answer.
    pub fn tell(&mut self, lines: &str) {
        let input = self.input.as_mut().expect("not ended");
        input
            .write_all(format!("{lines}\n").as_bytes())
            .expect("it listens");
    }

    /// The next line that it writes.
    #[track_caller]
    pub fn line(&mut self) -> String {
        match self.output.recv_timeout(PATIENCE) {
            Ok(line) => line.trim_end().to_owned(),
            Err(RecvTimeoutError::Timeout) => panic!("the program hangs"),
            Err(RecvTimeoutError::Disconnected) => {
                let status = self.child.wait();
                panic!("the program ended: {status:?} {}", self.errors());
            }
        }
    }

    /// The answer to one command, or to a block.
    #[track_caller]
    pub fn say(&mut self, command: &str) -> String {
        self.tell(command);
        self.answer()
    }

    /// The answer to what it was told before.
    #[track_caller]
    pub fn answer(&mut self) -> String {
        let line = self.line();
        match line.rsplit_once(" =") {
            Some((_, answer)) => answer.trim_start().to_owned(),
            None => panic!("no answer: {line}"),
        }
    }

    /// Whether it writes nothing for this time.
    pub fn is_silent_for(&mut self, time: Duration) -> bool {
        matches!(
            self.output.recv_timeout(time),
            Err(RecvTimeoutError::Timeout)
        )
    }

    /// Says all these commands and expects these answers.
    #[track_caller]
    pub fn expect(&mut self, commands: &[(&str, &str)]) {
        for (command, answer) in commands {
            assert_eq!(self.say(command), *answer, "{command}");
        }
    }

    /// The numbers of an answer.
    #[track_caller]
    pub fn numbers(&mut self, command: &str) -> Vec<u64> {
        let answer = self.say(command);
        let numbers: Result<_, _> = answer.split_whitespace().map(str::parse).collect();
        numbers.unwrap_or_else(|_| panic!("{command}: {answer}"))
    }

    /// Sends it a signal.
    pub fn signal(&self, signal: i32) {
        kill(self.pid(), signal);
    }

    /// Whether a signal has stopped it.
    pub fn is_stopped(&self) -> bool {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", self.pid()));
        stat.is_ok_and(|stat| stat.contains(") T "))
    }

    /// Kills it and waits for its death: what it held is then for the driver to free.
    pub fn kill(mut self) {
        self.signal(libc::SIGKILL);
        let _ = self.child.wait();
    }

    fn errors(&mut self) -> String {
        let reader = self.errors.take().expect("read once");
        reader.join().expect("readable")
    }

    /// Ends its script: its status, and what it wrote to standard error.
    pub fn end(mut self) -> (ExitStatus, String) {
        self.input = None;
        let status = self.child.wait().expect("it ends");
        (status, self.errors())
    }

    /// Ends its script, which must go well and without a word on standard error.
    #[track_caller]
    pub fn end_quietly(self) {
        let (status, errors) = self.end();
        assert!(status.success(), "{status:?}: {errors}");
        assert_eq!(errors, "");
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[allow(unsafe_code)]
fn kill(pid: u32, signal: i32) {
    // SAFETY: a child of ours that nobody has waited for.
    unsafe { libc::kill(pid as i32, signal) };
}
