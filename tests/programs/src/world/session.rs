//! A running `gpu-script` that gets its commands line by line.

use std::io::{BufRead, BufReader, Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::process::CommandExt;
use std::process::{Child, ChildStdin, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, TryRecvError, channel};

use gpulimit_support::{patience, wait_until};

/// The program, which is killed with its children when the value is dropped.
pub struct Session {
    child: Child,
    input: Option<ChildStdin>,
    output: Receiver<String>,
    /// The whole standard error, when every process has closed it.
    errors: Receiver<String>,
}

impl Session {
    /// Starts the program, in a process group of its own.
    pub fn start(mut command: Command) -> Session {
        command
            .process_group(0)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        let mut child = command.spawn().expect("the program starts");
        let mut printed = child.stderr.take().expect("piped");
        let (all, errors) = channel();
        // A thread reads all the time, so that a program that prints much need not wait.
        std::thread::spawn(move || {
            let mut bytes = Vec::new();
            let _ = printed.read_to_end(&mut bytes);
            all.send(String::from_utf8_lossy(&bytes).into_owned())
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
            errors,
            child,
        }
    }

    /// Returns the pid of the program.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Sends lines without waiting for an answer.
    pub fn tell(&mut self, lines: &str) {
        let input = self.input.as_mut().expect("not ended");
        input
            .write_all(format!("{lines}\n").as_bytes())
            .expect("it listens");
    }

    /// Returns the next line that the program prints.
    #[track_caller]
    pub fn line(&mut self) -> String {
        match self.output.recv_timeout(patience()) {
            Ok(line) => line.trim_end().to_owned(),
            Err(RecvTimeoutError::Timeout) => panic!("the program hangs"),
            Err(RecvTimeoutError::Disconnected) => {
                let status = self.child.wait();
                panic!("the program ended: {status:?} {}", self.errors());
            }
        }
    }

    /// Sends a command or a block, and returns its answer.
    #[track_caller]
    pub fn say(&mut self, command: &str) -> String {
        self.tell(command);
        self.answer()
    }

    /// Returns the answer to an earlier command.
    #[track_caller]
    pub fn answer(&mut self) -> String {
        let line = self.line();
        match line.rsplit_once(" =") {
            Some((_, answer)) => answer.trim_start().to_owned(),
            None => panic!("no answer: {line}"),
        }
    }

    /// Waits until the program has read its commands and sleeps in another call than the one that
    /// reads the next command, and asserts that it has printed nothing.
    #[track_caller]
    pub fn waits(&mut self) {
        wait_until("the program waits", || {
            let call = std::fs::read_to_string(format!("/proc/{}/syscall", self.pid()));
            let call = call.unwrap_or_default();
            let words: Vec<&str> = call.split_whitespace().collect();
            // A read has the descriptor 0 and a buffer; some sleeps have two zeros.
            let reads = words.get(1) == Some(&"0x0") && words.get(2) != Some(&"0x0");
            words.len() > 2 && !reads && self.has_read()
        });
        assert_eq!(self.printed(), None, "the program goes on");
    }

    /// Waits until a program that waits has looked again several times for what it waits for, and
    /// asserts that it has printed nothing.
    #[track_caller]
    pub fn waits_on(&mut self) {
        self.waits();
        self.sleeps_again();
        assert_eq!(self.printed(), None, "the program goes on");
    }

    /// Waits until threads of the program have gone to sleep several times more. A call that the
    /// simulated driver delays sleeps again and again.
    #[track_caller]
    pub fn sleeps_again(&self) {
        let seen = self.sleeps();
        wait_until("the program looks again", || self.sleeps() >= seen + 5);
    }

    /// Returns how often the threads of the program have gone to sleep.
    pub fn sleeps(&self) -> u64 {
        let threads = std::fs::read_dir(format!("/proc/{}/task", self.pid()));
        let count = |thread: std::io::Result<std::fs::DirEntry>| {
            let status = std::fs::read_to_string(thread.ok()?.path().join("status")).ok()?;
            let mut lines = status.lines();
            let count = lines.find_map(|line| line.strip_prefix("voluntary_ctxt_switches:"));
            count?.trim().parse::<u64>().ok()
        };
        threads.expect("the program runs").filter_map(count).sum()
    }

    /// Returns the next line if the program has printed one already.
    ///
    /// # Panics
    /// If the program has ended.
    #[track_caller]
    pub fn printed(&mut self) -> Option<String> {
        match self.output.try_recv() {
            Ok(line) => Some(line),
            Err(TryRecvError::Empty) => None,
            Err(TryRecvError::Disconnected) => panic!("the program has ended"),
        }
    }

    /// Returns whether the program has read all commands.
    #[allow(unsafe_code)]
    fn has_read(&self) -> bool {
        let pipe = self.input.as_ref().expect("not ended").as_raw_fd();
        let mut bytes: libc::c_int = 0;
        // SAFETY: FIONREAD writes a number to this local variable.
        let asked = unsafe { libc::ioctl(pipe, libc::FIONREAD, &mut bytes) };
        asked == 0 && bytes == 0
    }

    /// Sends these commands and asserts their answers.
    #[track_caller]
    pub fn expect(&mut self, commands: &[(&str, &str)]) {
        for (command, expected) in commands {
            let answer = self.say(command);
            if answer != *expected {
                // It can be stopped, or wait for memory.
                let _ = self.child.kill();
                let errors = self.errors();
                panic!("{command} = {answer} instead of {expected}; it said: {errors}");
            }
        }
    }

    /// Sends a command and returns the numbers of its answer.
    #[track_caller]
    pub fn numbers(&mut self, command: &str) -> Vec<u64> {
        let answer = self.say(command);
        let numbers: Result<_, _> = answer.split_whitespace().map(str::parse).collect();
        numbers.unwrap_or_else(|_| panic!("{command}: {answer}"))
    }

    /// Sends the program a signal.
    pub fn signal(&self, signal: i32) {
        kill(self.pid(), signal);
    }

    /// Returns whether a signal has stopped the program.
    pub fn is_stopped(&self) -> bool {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", self.pid()));
        stat.is_ok_and(|stat| stat.contains(") T "))
    }

    /// Returns whether the program has ended by itself.
    pub fn has_ended(&self) -> bool {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", self.pid()));
        stat.is_ok_and(|stat| stat.contains(") Z "))
    }

    /// Kills the program and waits for its death; the driver has yet to free its memory.
    pub fn kill(mut self) {
        self.signal(libc::SIGKILL);
        let _ = self.child.wait();
    }

    fn errors(&self) -> String {
        let errors = self.errors.recv_timeout(patience());
        errors.unwrap_or_else(|_| "a background process has its standard error open".into())
    }

    /// Ends the script; returns the status and the standard error.
    pub fn end(mut self) -> (ExitStatus, String) {
        self.input = None;
        let status = self.child.wait().expect("it ends");
        (status, self.errors())
    }

    /// Ends the script, which must succeed without output on standard error.
    #[track_caller]
    pub fn end_quietly(self) {
        let (status, errors) = self.end();
        assert!(status.success(), "{status:?}: {errors}");
        assert_eq!(errors, "");
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        if let Ok(None) = self.child.try_wait() {
            kill_group(self.pid());
        }
        let _ = self.child.wait();
    }
}

#[allow(unsafe_code)]
fn kill_group(leader: u32) {
    // SAFETY: the group's leader is a child of this process that has not been waited for.
    unsafe { libc::kill(-(leader as i32), libc::SIGKILL) };
}

#[allow(unsafe_code)]
fn kill(pid: u32, signal: i32) {
    // SAFETY: the pid belongs to a child of this process that has not been waited for.
    unsafe { libc::kill(pid as i32, signal) };
}
