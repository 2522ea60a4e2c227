//! Packages of two versions, each built once.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use gpulimit_programs::world;
use gpulimit_support::{Scratch, have};
use rustix::fs::{FlockOperation, flock};

/// The version of this repository, and an earlier one.
pub const NEW: &str = env!("CARGO_PKG_VERSION");
pub const OLD: &str = "0.0.9";

/// The machine's name of its processor, and Debian's.
pub const ARCH: &str = std::env::consts::ARCH;
pub const DEBIAN_ARCH: &str = if cfg!(target_arch = "aarch64") {
    "arm64"
} else {
    "amd64"
};

/// Returns the binaries to pack: those that all tests run.
fn binaries() -> [PathBuf; 2] {
    [world::controller(), world::shim()]
}

/// Returns what the packages depend on, so that other packages are built if it changes: the
/// binaries, and the files of the repository except tests and build outputs.
fn stamp(binaries: &[PathBuf; 2]) -> String {
    let script = r#"
stat -L -c '%n %s %Y' "$@"
find . \( -name target -o -name .git -o -name .cache -o -name dist -o -name tests \
    -o -name __pycache__ \) -prune -o -type f -printf '%P %s %T@\n' | sort | sha256sum
"#;
    let mut command = Command::new("sh");
    command
        .args(["-euc", script, "sh"])
        .args(binaries)
        .current_dir(world::repository());
    let output = world::finish(command);
    assert!(output.status.success(), "{output:?}");
    world::text(&output.stdout)
}

/// Runs scripts/package, which must succeed.
pub fn package(arguments: &[&str]) {
    let mut command = Command::new(world::repository().join("scripts/package"));
    command.args(arguments);
    let output = world::finish(command);
    assert!(output.status.success(), "{output:?}");
}

/// Builds the packages of a format in this folder.
fn make(format: &str, folder: &Path, binaries: &[PathBuf; 2]) {
    for version in [OLD, NEW] {
        let from = Scratch::new();
        for file in binaries {
            let to = from.at(file
                .file_name()
                .and_then(|name| name.to_str())
                .expect("a name"));
            let status = Command::new("strip").arg("-o").args([&to, file]).status();
            assert!(status.is_ok_and(|status| status.success()), "strip");
            if version == OLD {
                // Appended bytes, which no loader reads, make the files of the versions differ.
                let append = "printf old >>\"$0\"";
                let status = Command::new("sh").args(["-c", append]).arg(&to).status();
                assert!(status.is_ok_and(|status| status.success()), "sh");
            }
        }
        let out = folder.join(version);
        let [from, to] = [&*from, &out].map(|path| path.to_str().expect("text"));
        package(&["--version", version, "--from", from, "--out", to, format]);
    }
}

/// The packages of a format in the target folder. No other process replaces them before this value
/// is dropped.
struct Packages {
    folder: PathBuf,
    _lock: File,
}

impl Packages {
    /// Takes the packages that an earlier test has built, or builds them. Tests run in processes of
    /// their own, so a lock keeps others from building the same.
    fn new(format: &str) -> Packages {
        let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("packages-{format}"));
        fs::create_dir_all(&folder).expect("a folder");
        let binaries = binaries();
        let (stamp, stamped) = (stamp(&binaries), folder.join("stamp"));
        let is_current = || fs::read_to_string(&stamped).is_ok_and(|made| made == stamp);
        let lock = File::create(folder.join("lock")).expect("a lock");
        loop {
            flock(&lock, FlockOperation::LockShared).expect("locked");
            if is_current() {
                return Packages {
                    folder,
                    _lock: lock,
                };
            }
            flock(&lock, FlockOperation::LockExclusive).expect("locked");
            if !is_current() {
                for version in [OLD, NEW] {
                    let _ = fs::remove_dir_all(folder.join(version));
                }
                make(format, &folder, &binaries);
                fs::write(&stamped, &stamp).expect("written");
            }
        }
    }

    /// Returns the package of this version.
    fn of(&self, version: &str) -> PathBuf {
        let files = fs::read_dir(self.folder.join(version)).expect("listed");
        let mut files = files.map(|file| file.expect("listed").path());
        files
            .find(|file| !file.ends_with("SHA256SUMS"))
            .expect("a package")
    }
}

macro_rules! formats {
    ($($(#[$about:meta])* $name:ident $tool:literal)*) => {$(
        $(#[$about])*
        /// `None` if they cannot be built here.
        pub fn $name() -> Option<[PathBuf; 2]> {
            static MADE: OnceLock<Packages> = OnceLock::new();
            have($tool).then(|| {
                let made = MADE.get_or_init(|| Packages::new(stringify!($name)));
                [OLD, NEW].map(|version| made.of(version))
            })
        }
    )*};
}

formats! {
    /// The archives with install.sh, old and new.
    tar "tar"
    /// Debian's packages.
    deb "dpkg-deb"
    /// Fedora's and SUSE's packages.
    rpm "rpmbuild"
    /// Python's packages.
    wheel "python3"
}
