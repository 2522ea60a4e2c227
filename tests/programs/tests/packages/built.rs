//! Packages of two versions, each built once.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use gpulimit_programs::world;

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

/// Returns the binaries to pack: those in `GPULIMIT_TEST_PORTABLE`, which scripts/test points to
/// the builds that users get, or else those that all tests run.
fn binaries() -> (PathBuf, PathBuf) {
    match std::env::var_os("GPULIMIT_TEST_PORTABLE").map(PathBuf::from) {
        Some(folder) => (folder.join("gpulimit"), folder.join("libgpulimit.so")),
        None => (world::controller(), world::shim()),
    }
}

/// Makes an empty folder for tests below the target folder.
pub fn folder(name: &str) -> PathBuf {
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    let _ = fs::remove_dir_all(&path);
    fs::create_dir_all(&path).expect("a folder");
    path
}

/// Runs scripts/package; returns false, with a message, if a tool is missing.
pub fn package(arguments: &[&str]) -> bool {
    let output = Command::new(world::repository().join("scripts/package"))
        .args(arguments)
        .output()
        .expect("started");
    let errors = world::text(&output.stderr);
    if errors.contains("is missing") {
        eprintln!("SKIPPED: {errors}");
        return false;
    }
    assert!(output.status.success(), "{errors}");
    true
}

fn make(format: &str) -> Option<[PathBuf; 2]> {
    let (controller, library) = binaries();
    let mut folders = Vec::new();
    for version in [OLD, NEW] {
        let from = folder(&format!("binaries-{format}-{version}"));
        for file in [&controller, &library] {
            let to = from.join(file.file_name().expect("a name"));
            let status = Command::new("strip").arg("-o").args([&to, file]).status();
            assert!(status.is_ok_and(|status| status.success()), "strip");
            if version == OLD {
                // Appended bytes, which no loader reads, make the files of the versions differ.
                let append = "printf old >>\"$0\"";
                let status = Command::new("sh").args(["-c", append]).arg(&to).status();
                assert!(status.is_ok_and(|status| status.success()), "sh");
            }
        }
        let out = folder(&format!("packages-{format}-{version}"));
        let [from, to] = [&from, &out].map(|path| path.to_str().expect("text"));
        if !package(&["--version", version, "--from", from, "--out", to, format]) {
            return None;
        }
        folders.push(out);
    }
    folders.try_into().ok()
}

/// Returns the old and the new package of a format, each in a folder of its own; `None` if they
/// cannot be built here.
fn packages(
    format: &'static str,
    made: &'static OnceLock<Option<[PathBuf; 2]>>,
) -> Option<[PathBuf; 2]> {
    let folders = made.get_or_init(|| make(format)).as_ref()?;
    Some(folders.clone().map(|folder| {
        let files = fs::read_dir(folder)
            .expect("listed")
            .map(|file| file.expect("listed").path());
        let mut files = files.filter(|file| !file.ends_with("SHA256SUMS"));
        files.next().expect("a package")
    }))
}

macro_rules! formats {
    ($($(#[$about:meta])* $name:ident)*) => {$(
        $(#[$about])*
        pub fn $name() -> Option<[PathBuf; 2]> {
            static MADE: OnceLock<Option<[PathBuf; 2]>> = OnceLock::new();
            packages(stringify!($name), &MADE)
        }
    )*};
}

formats! {
    /// The archives with install.sh, old and new.
    tar
    /// Debian's packages.
    deb
    /// Fedora's and SUSE's packages.
    rpm
    /// Python's packages.
    wheel
}
