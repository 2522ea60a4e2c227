//! Processes that are frozen by a control group.

use std::fs;
use std::path::{Path, PathBuf};

use gpulimit_support::{skip, unique};

use super::{Session, eventually};

/// A control group of the test's own.
pub struct Freezer(PathBuf);

impl Freezer {
    /// Makes the control group; skips the test without version 2, or if this user may not make one.
    pub fn new() -> Option<Freezer> {
        let mounts = fs::read_to_string("/proc/self/mounts").unwrap_or_default();
        let unified = mounts
            .lines()
            .map(|line| line.split(' ').collect::<Vec<_>>())
            .find(|words| words.get(2) == Some(&"cgroup2"));
        let Some(unified) = unified else {
            skip("there are no control groups of version 2");
            return None;
        };
        let folder = match unique(Path::new(unified[1]), "gpulimit-test-") {
            Ok(folder) => folder,
            Err(error) => {
                skip(format_args!("cannot make a control group: {error}"));
                return None;
            }
        };
        let freezer = Freezer(folder);
        if !freezer.0.join("cgroup.freeze").exists() {
            skip("the control groups have no freezer");
            return None;
        }
        Some(freezer)
    }

    /// Puts a process into the control group.
    ///
    /// # Panics
    /// If that fails.
    #[track_caller]
    pub fn hold(&self, process: &Session) {
        assert!(self.write("cgroup.procs", &process.pid().to_string()));
    }

    fn write(&self, file: &str, text: &str) -> bool {
        fs::write(self.0.join(file), text).is_ok()
    }

    /// Freezes or thaws the processes, and waits until they are so.
    ///
    /// # Panics
    /// If that fails.
    #[track_caller]
    pub fn set(&self, frozen: bool) {
        let number = u8::from(frozen);
        assert!(self.write("cgroup.freeze", &number.to_string()));
        let events = || fs::read_to_string(self.0.join("cgroup.events")).unwrap_or_default();
        let is_so = || events().contains(&format!("frozen {number}"));
        assert!(eventually(is_so), "{}", events());
    }
}

impl Drop for Freezer {
    fn drop(&mut self) {
        self.write("cgroup.freeze", "0");
        self.write("cgroup.kill", "1");
        let _ = eventually(|| fs::remove_dir(&self.0).is_ok());
    }
}
