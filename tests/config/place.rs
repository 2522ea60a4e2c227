//! A root and files of a test's own, and the shells that scripts must work in.

use gpulimit_support::{Scratch, clean};
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

pub use crate::root::Place;
pub use gpulimit_support::{have, may_mount, text};

/// The path of the controller.
pub const GPULIMIT: &str = env!("CARGO_BIN_EXE_gpulimit");

/// Returns the path of a file of the repository.
pub fn repository(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(path)
}

/// Returns the text of a file of the repository.
pub fn read(path: &str) -> String {
    fs::read_to_string(repository(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
}

/// Returns the id of the user who runs the test.
pub fn me() -> u32 {
    fs::metadata("/proc/self").expect("/proc").uid()
}

/// A shell that may be `/bin/sh`.
pub struct Shell {
    words: &'static [&'static str],
    /// `PATH` with the tools that come with the shell.
    pub path: String,
    _tools: Scratch,
}

impl Shell {
    /// Returns a shell; `None` if it is not installed. That of busybox has busybox's tools.
    pub fn new(words: &'static [&'static str]) -> Option<Self> {
        if !have(words[0]) {
            return None;
        }
        let tools = Scratch::new();
        if words[0] == "busybox" {
            let mut install = Command::new("busybox");
            let installed = install.args(["--install", "-s"]).arg(&tools).status();
            assert!(installed.is_ok_and(|status| status.success()));
        }
        Some(Self {
            words,
            path: format!("{}:/usr/bin:/bin", tools.display()),
            _tools: tools,
        })
    }

    /// Returns the shell in an environment with nothing but `PATH`.
    pub fn command(&self) -> Command {
        let mut command = Command::new(self.words[0]);
        command.args(&self.words[1..]).env_clear();
        command.env("PATH", &self.path);
        command
    }
}

/// Runs a test in each shell that may be `/bin/sh`.
pub fn in_each_shell(test: impl Fn(&Shell)) {
    const SHELLS: [&[&str]; 4] = [&["sh"], &["dash"], &["bash", "--posix"], &["busybox", "sh"]];
    SHELLS
        .into_iter()
        .filter_map(Shell::new)
        .for_each(|shell| test(&shell));
}

impl Place {
    /// Runs the controller with this root.
    pub fn gpulimit(&self, arguments: &[&str]) -> Output {
        let mut command = Command::new(GPULIMIT);
        clean(command.args(arguments)).env("GPULIMIT_ROOT", self.root_path());
        command.output().expect("started")
    }

    /// Returns the names of the groups.
    pub fn groups(&self) -> Vec<String> {
        let output = self.gpulimit(&["show", "--names"]);
        assert!(output.status.success(), "{output:?}");
        text(&output.stdout).lines().map(str::to_owned).collect()
    }
}
