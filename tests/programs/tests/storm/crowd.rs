//! Many processes at once, each forked without exec from a program that has done nothing yet.

use std::collections::HashMap;
use std::fs;
use std::path::PathBuf;

use gpulimit_programs::world::{self, Session, World};

/// The processes of a group below the world's, or of the world's own group for an empty name.
pub struct Nursery {
    session: Session,
    folder: PathBuf,
    living: HashMap<i32, PathBuf>,
    born: usize,
}

/// A process that has ended, with the family that it leaves behind.
pub struct Ended {
    pub pid: i32,
    /// The exit code, or minus a signal.
    pub code: i32,
    /// The program and its answers; `None` for processes that the child left behind.
    pub files: Option<(String, String)>,
}

/// Sends a signal to a process.
#[allow(unsafe_code)]
pub fn signal(pid: i32, signal: i32) {
    // SAFETY: the pid belongs to a process that a nursery has forked and not waited for.
    unsafe { libc::kill(pid, signal) };
}

impl Nursery {
    pub fn open(world: &World, group: &str) -> Nursery {
        let folder = world.file(&format!("nursery-{}", group.replace('/', "-")));
        fs::create_dir(&folder).expect("a folder");
        let mut command = world.limited(world::program());
        command
            .env("GPULIMIT_GROUP", group)
            .env("GPULIMIT_SIM_DATA", "off");
        Nursery {
            session: Session::start(command),
            folder,
            living: HashMap::new(),
            born: 0,
        }
    }

    /// Starts a process that runs this program; returns its pid.
    pub fn spawn(&mut self, program: &str) -> i32 {
        self.born += 1;
        let script = self.folder.join(self.born.to_string());
        fs::write(&script, program).expect("a script");
        let (from, to) = (script.display(), script.with_extension("log"));
        let answer = self.session.say(&format!("spawn {from} {}", to.display()));
        let pid = answer.parse().expect("a pid");
        assert!(pid > 0, "no more processes: {answer}");
        self.living.insert(pid, script);
        pid
    }

    /// Returns the pids of processes that are not known to have ended.
    pub fn living(&self) -> Vec<i32> {
        let mut living: Vec<i32> = self.living.keys().copied().collect();
        living.sort_unstable();
        living
    }

    pub fn has(&self, pid: i32) -> bool {
        self.living.contains_key(&pid)
    }

    /// Returns the answers of a process's program so far.
    pub fn log(&self, pid: i32) -> String {
        let log = self.living[&pid].with_extension("log");
        fs::read_to_string(log).unwrap_or_default()
    }

    /// Returns the processes that have ended since the last call.
    pub fn reap(&mut self) -> Vec<Ended> {
        let answer = self.session.say("reap");
        let ended = |word: &str| {
            let (pid, code) = word.split_once(':').expect("PID:CODE");
            let pid = pid.parse().expect("a pid");
            let files = self.living.remove(&pid).map(|script| {
                let log = script.with_extension("log");
                let read = |path: &PathBuf| fs::read_to_string(path).unwrap_or_default();
                let files = (read(&script), read(&log));
                for path in [script, log] {
                    let _ = fs::remove_file(path);
                }
                files
            });
            Ended {
                pid,
                code: code.parse().expect("a code"),
                files,
            }
        };
        answer.split_whitespace().map(ended).collect()
    }
}

impl Drop for Nursery {
    fn drop(&mut self) {
        // Their families are killed, too; the nursery ends with its session.
        for pid in self.living.keys() {
            signal(*pid, libc::SIGKILL);
        }
        self.session.tell("reap");
    }
}
