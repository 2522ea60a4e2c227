//! A root and files of a test's own, and checks of what the machine offers.

use gpulimit_support::Scratch;
use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use gpulimit_support::executable;

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

/// Returns whether a program is installed; prints a message if not.
pub fn have(program: &str) -> bool {
    let found = Command::new("sh")
        .args(["-c", &format!("command -v {program}")])
        .output()
        .is_ok_and(|output| output.status.success());
    if !found {
        eprintln!("skipped: there is no {program}");
    }
    found
}

/// Returns whether this process may mount in a namespace of its own; prints a message if not.
pub fn may_mount() -> bool {
    let mounted = Command::new("unshare")
        .args(["-m", "mount", "-t", "tmpfs", "tmpfs", "/run"])
        .output();
    let may = mounted.is_ok_and(|output| output.status.success());
    if !may {
        eprintln!("skipped: mounts take root");
    }
    may
}

/// A folder that is removed when the value is dropped.
pub struct Place(Scratch);

impl Place {
    pub fn new() -> Place {
        let folder = Scratch::new();
        // Groups of other users are made below this folder with these users' rights.
        fs::set_permissions(&folder.0, fs::Permissions::from_mode(0o755)).expect("changed");
        Place(folder)
    }

    /// Returns a path in the folder.
    pub fn at(&self, path: &str) -> PathBuf {
        self.0.at(path)
    }

    /// Writes a file, and makes the folders above it.
    pub fn write(&self, path: &str, text: &str) -> PathBuf {
        let path = self.at(path);
        fs::create_dir_all(path.parent().expect("a folder")).expect("made");
        fs::write(&path, text).expect("written");
        path
    }

    /// Writes an executable script, in place of any file or link there.
    pub fn script(&self, path: &str, text: &str) -> PathBuf {
        let path = self.at(path);
        fs::create_dir_all(path.parent().expect("a folder")).expect("made");
        executable::script(&path, text);
        path
    }

    /// Runs the controller with its root in this folder.
    pub fn gpulimit(&self, arguments: &[&str]) -> Output {
        let mut command = Command::new(GPULIMIT);
        command
            .args(arguments)
            .env_remove("LD_PRELOAD")
            .env("GPULIMIT_ROOT", self.at("root"));
        command.output().expect("started")
    }

    /// Returns the names of the groups.
    pub fn groups(&self) -> Vec<String> {
        let output = self.gpulimit(&["ls"]);
        assert!(output.status.success(), "{output:?}");
        text(&output.stdout).lines().map(str::to_owned).collect()
    }
}

/// Returns a program's output as text.
pub fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}
