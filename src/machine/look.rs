//! Reads memory maps and files of other processes, in bounded time.
//!
//! Such a read can block forever, even after SIGKILL. So a child process (`gpulimit __probe`)
//! reads, and gpulimit does not wait for the child to end.

use super::child::{VERB, What};
use gpulimit_base::patience;
use gpulimit_ledger::MappedFile;
use serde::{Deserialize, Serialize};
use std::cell::Cell;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::ffi::OsStr;
use std::io::{self, BufRead, BufReader, ErrorKind, Write};
use std::process::{Child, Command, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError, mpsc};
use std::thread;
use std::time::{Duration, Instant};

/// Returns the total time that one verb waits for child processes that read other processes' files.
pub fn patience() -> Duration {
    patience::of("GPULIMIT_DEBUG_LOOK_MS", Duration::from_secs(10))
}

/// Asks `gpulimit __probe` in a child process about something, and passes output lines to `take`
/// until `take` returns false. Fails with `TimedOut` after `patience`.
pub fn in_child(
    (what, about): (What, Option<&OsStr>),
    input: String,
    patience: Duration,
    mut take: impl FnMut(String) -> bool,
) -> io::Result<()> {
    if ending().len() >= MOST_BLOCKED {
        return Err(io::Error::other(
            "earlier child processes that inspect processes are still blocked",
        ));
    }
    let until = Instant::now() + patience;
    let mut child = Command::new("/proc/self/exe")
        .arg(VERB)
        .arg(what.name())
        .args(about)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        // The child may never end, so it must not keep the caller's standard error open.
        .stderr(Stdio::null())
        .spawn()?;
    let (told, lines) = mpsc::channel();
    let (to, from) = (child.stdin.take(), child.stdout.take());
    let read = move || {
        // Write all pids first, because the child reads all of them before it starts to work.
        to.map(|mut to| to.write_all(input.as_bytes()));
        let lines = from
            .into_iter()
            .flat_map(|from| BufReader::new(from).lines());
        for line in lines {
            if told.send(line).is_err() {
                break;
            }
        }
    };
    let reader = thread::Builder::new().spawn(read);
    let ended = reader.and_then(|_| {
        loop {
            match lines.recv_timeout(until.saturating_duration_since(Instant::now())) {
                Ok(Ok(line)) => {
                    if !take(line) {
                        break Ok(());
                    }
                }
                Err(mpsc::RecvTimeoutError::Disconnected) => break Ok(()),
                Ok(Err(error)) => break Err(error),
                Err(mpsc::RecvTimeoutError::Timeout) => break Err(ErrorKind::TimedOut.into()),
            }
        }
    });
    let _ = child.kill();
    // Process 1 of a container may reap no child that this process leaves behind.
    let ends = Instant::now() + ENDS;
    while matches!(child.try_wait(), Ok(None)) {
        if Instant::now() > ends {
            ending().push(child);
            break;
        }
        thread::sleep(Duration::from_millis(1));
    }
    ended
}

/// How long a killed child process has time to end.
const ENDS: Duration = Duration::from_millis(500);

/// Child processes that were killed and had not ended yet. Do not wait for them: they may be
/// blocked forever. When this process ends, init reaps them.
static ENDING: Mutex<Vec<Child>> = Mutex::new(Vec::new());

/// The most child processes that may be blocked, so that they do not fill the table of processes.
const MOST_BLOCKED: usize = 16;

/// Reaps the child processes that have ended, and returns the others.
fn ending() -> MutexGuard<'static, Vec<Child>> {
    let mut children = ENDING.lock().unwrap_or_else(PoisonError::into_inner);
    children.retain_mut(|child| matches!(child.try_wait(), Ok(None)));
    children
}

/// What a child process has read of a process that may be outside of all groups.
#[derive(Debug, Deserialize, Serialize)]
pub struct Candidate {
    /// The ledgers of which the process has the mappings of a member; `None` if the caller may not
    /// read its memory map.
    pub ledgers: Option<Vec<String>>,
    /// Whether a rule or the process's environment puts it into a group.
    pub is_to_join: bool,
    /// Why the process is outside, if it is: in a word or two, and in a sentence.
    pub why: String,
    pub says: String,
    pub command: Option<String>,
}

/// The answer if the caller may not read the process's memory map.
pub const DENIED: &str = "denied";

/// Lets a child process answer a question about each of several processes. Returns by pid the
/// answers that come within the time `patience`.
pub fn ask(
    (what, about): (What, Option<&OsStr>),
    pids: &[u32],
    patience: Duration,
) -> io::Result<BTreeMap<u32, String>> {
    let mut answers = BTreeMap::new();
    // A process can hold several slots.
    let pids: BTreeSet<u32> = pids.iter().copied().collect();
    if pids.is_empty() {
        return Ok(answers);
    }
    let input = pids.iter().map(|pid| format!("{pid}\n")).collect();
    let looked = in_child((what, about), input, patience, |line| {
        if let Some((pid, answer)) = line.split_once(' ')
            && let Ok(pid) = pid.parse()
        {
            answers.insert(pid, answer.to_owned());
        }
        answers.len() < pids.len()
    });
    match looked {
        Err(error) if error.kind() != ErrorKind::TimedOut => Err(error),
        Ok(()) if answers.len() < pids.len() => Err(io::Error::other(
            "the child process that inspects processes ended without an answer",
        )),
        _ => Ok(answers),
    }
}

/// Returns the membership test that [`gpulimit_group::Targets`] needs. A memory map that the caller
/// may not read gives the kernel's error EACCES. All calls wait at most [`patience()`] together,
/// then a tenth of that each.
pub fn members() -> impl Fn(&MappedFile, &[u32]) -> Vec<io::Result<bool>> {
    let least = patience() / 10;
    // Without a common limit, a user could delay the caller forever by starting ever more
    // unreadable processes.
    let left = Cell::new(patience());
    move |file, pids| {
        let start = Instant::now();
        // Wait for at most half of the remaining time, because another call may follow.
        let member = file.to_string();
        let question = (What::Member, Some(member.as_ref()));
        let answers = ask(question, pids, (left.get() / 2).max(least));
        if matches!(&answers, Ok(answers) if answers.len() < pids.len()) {
            left.set(left.get().saturating_sub(start.elapsed()));
        }
        let of = |pid: &u32| match &answers {
            Ok(answers) => match answers.get(pid).map(String::as_str) {
                Some(DENIED) => Err(io::Error::from_raw_os_error(libc::EACCES)),
                Some(answer) => Ok(answer == "yes"),
                None => Err(ErrorKind::TimedOut.into()),
            },
            Err(error) => Err(io::Error::other(error.to_string())),
        };
        pids.iter().map(of).collect()
    }
}

/// Answers a question: calls `look` for each process and passes answers to `told`. A blocked thread
/// does not delay the others.
pub fn answer(
    pids: VecDeque<u32>,
    look: impl Fn(u32) -> String + Sync,
    mut told: impl FnMut(&str),
) {
    /// If no answer comes within this time, the number of threads doubles.
    const TICK: Duration = Duration::from_millis(20);
    const STACK: usize = 256 << 10;
    let mut left = pids.len();
    let pids = Mutex::new(pids);
    let queue = || pids.lock().unwrap_or_else(PoisonError::into_inner);
    let next = || queue().pop_front();
    let (tell, answers) = mpsc::channel();
    thread::scope(|scope| {
        let mut threads = 0;
        let mut wanted = 4;
        while left > 0 {
            while threads < wanted {
                let tell = tell.clone();
                let work = || {
                    let tell = tell;
                    while let Some(pid) = next() {
                        let _ = tell.send(format!("{pid} {}\n", look(pid)));
                    }
                };
                let thread = thread::Builder::new().stack_size(STACK);
                if thread.spawn_scoped(scope, work).is_err() {
                    break;
                }
                threads += 1;
            }
            match answers.recv_timeout(TICK) {
                Ok(answer) => {
                    told(&answer);
                    left -= 1;
                }
                Err(_) if !queue().is_empty() => wanted *= 2,
                Err(_) => {}
            }
        }
    });
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::{Condvar, PoisonError};

    #[test]
    fn no_child_is_left_behind() {
        let looked = in_child((What::Command, None), String::new(), patience(), |_| true);
        assert!(looked.is_ok(), "{looked:?}");
        let ending = ENDING.lock().unwrap_or_else(PoisonError::into_inner);
        assert!(ending.is_empty(), "{ending:?}");
    }

    #[test]
    fn processes_that_never_answer_do_not_block_the_others() {
        let (lock, bell) = (Mutex::new(false), Condvar::new());
        let look = |pid: u32| {
            // The calls for all other processes block until pid 99, the last process, has its turn.
            let mut over = lock.lock().unwrap_or_else(PoisonError::into_inner);
            *over |= pid == 99;
            bell.notify_all();
            while !*over {
                over = bell.wait(over).unwrap_or_else(PoisonError::into_inner);
            }
            "yes".into()
        };
        let mut all = Vec::new();
        answer((0..100).collect(), look, |line| all.push(line.to_owned()));
        all.sort();
        let mut expected: Vec<_> = (0..100).map(|pid| format!("{pid} yes\n")).collect();
        expected.sort();
        assert_eq!(all, expected);
    }
}
