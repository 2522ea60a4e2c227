//! The programs and libraries that the tests run, built at their first use. Nothing is built if
//! [`is_built`] says that all is there already.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

pub use gpulimit_support::repository;
use gpulimit_support::{Scratch, is_built};

/// Returns the build folder of the running test, …/target/debug.
fn built() -> PathBuf {
    // The test is …/target/debug/deps/shim-0123.
    let test = std::env::current_exe().expect("the test's own path");
    test.ancestors().nth(2).expect("a profile").to_owned()
}

fn target() -> PathBuf {
    built().parent().expect("a target folder").to_owned()
}

/// Returns the folder, laid out like cargo's, that scripts/aarch64 and scripts/userlands have built
/// for other systems.
fn elsewhere() -> Option<PathBuf> {
    std::env::var_os("GPULIMIT_TEST_ELSEWHERE").map(PathBuf::from)
}

/// Returns the path of the preloaded library to test instead of cargo's: the released one, or one
/// that scripts/mutants has built.
fn other_library() -> Option<PathBuf> {
    std::env::var_os("GPULIMIT_TEST_LIBRARY").map(PathBuf::from)
}

/// Runs a program that builds something, unless all is built.
fn build(program: impl AsRef<Path>, arguments: &[&str]) {
    if is_built() {
        return;
    }
    let program = program.as_ref();
    let status = Command::new(program)
        .args(arguments)
        .current_dir(repository())
        .env("CARGO_TARGET_DIR", target())
        .env_remove("GPULIMIT_SIM_BUILT")
        .status();
    let built = status.is_ok_and(|status| status.success());
    assert!(built, "{program:?} {arguments:?}");
}

fn cargo_build(arguments: &[&str]) {
    let cargo = std::env::var("CARGO").unwrap_or("cargo".into());
    build(cargo, &[&["build", "--quiet"], arguments].concat());
}

#[track_caller]
fn there(path: PathBuf) -> PathBuf {
    assert!(path.exists(), "{} was not built", path.display());
    path
}

/// Builds the simulated driver and the preloaded library, once per test binary; returns the folder
/// that they are in.
fn built_once() -> &'static Path {
    static TARGET: OnceLock<PathBuf> = OnceLock::new();
    TARGET.get_or_init(|| {
        elsewhere().unwrap_or_else(|| {
            build(repository().join("scripts/sim"), &["true"]);
            if other_library().is_none() {
                cargo_build(&["--release", "-p", "gpulimit-shim"]);
            }
            target()
        })
    })
}

/// Returns the folder with the simulated `libcuda.so.1` and its companions.
pub fn driver() -> PathBuf {
    there(built_once().join("sim-driver"))
}

/// Puts a library of the simulated driver into `folder` that lacks a function, as older drivers do.
pub fn older(library: &str, lacks: &str, folder: &Path) {
    let name = format!("\0{lacks}\0");
    let mut bytes = std::fs::read(driver().join(library)).expect("a library");
    let is_name = |at: &usize| bytes[*at..].starts_with(name.as_bytes());
    let places: Vec<_> = (0..bytes.len()).filter(is_name).collect();
    assert!(!places.is_empty(), "it has {lacks}");
    for at in places {
        bytes[at + 1] = b'x';
    }
    std::fs::create_dir_all(folder).expect("a folder");
    std::fs::write(folder.join(library), bytes).expect("written");
}

/// Returns the path of `libgpulimit.so`.
pub fn shim() -> PathBuf {
    there(other_library().unwrap_or_else(|| built_once().join("release/libgpulimit.so")))
}

/// Returns a debug build of the library, which panics at the point that `GPULIMIT_DEBUG_FAULT`
/// names.
/// `None` if the tests run files built elsewhere.
pub fn faulty_shim() -> Option<PathBuf> {
    static BUILT: OnceLock<()> = OnceLock::new();
    if elsewhere().is_some() {
        return None;
    }
    BUILT.get_or_init(|| cargo_build(&["--workspace", "--lib"]));
    Some(there(target().join("debug/libgpulimit.so")))
}

/// Returns the path of `gpulimit`, the controller.
pub fn controller() -> PathBuf {
    static CONTROLLER: OnceLock<PathBuf> = OnceLock::new();
    CONTROLLER.get_or_init(|| built_program("gpulimit")).clone()
}

/// Returns the path of `fill`, the program of the demo.
pub fn demo() -> PathBuf {
    static DEMO: OnceLock<PathBuf> = OnceLock::new();
    DEMO.get_or_init(|| built_program("fill")).clone()
}

/// Builds a program of another package with the features of the tests, since other features would
/// need another build.
pub fn built_program(name: &str) -> PathBuf {
    let folder = elsewhere().unwrap_or_else(|| {
        cargo_build(&["--workspace", "--bin", name]);
        target()
    });
    there(folder.join("debug").join(name))
}

/// Returns the path of `gpu-script`.
pub fn program() -> &'static Path {
    static PROGRAM: OnceLock<PathBuf> = OnceLock::new();
    PROGRAM.get_or_init(|| built().join("gpu-script"))
}

/// Returns the path of a script in tests/scripts.
pub fn script(name: &str) -> PathBuf {
    repository().join("tests/scripts").join(name)
}

/// Compiles a C file of tests/programs/c into a program.
pub fn compile(name: &str, arguments: &[&str]) -> PathBuf {
    compile_to(name, name, arguments)
}

/// Compiles a C file of tests/programs/c into a shared library.
pub fn library(name: &str, arguments: &[&str]) -> PathBuf {
    let arguments = [&["-shared", "-fPIC"], arguments].concat();
    compile_to(&format!("{name}.so"), name, &arguments)
}

/// Compiles a C file, unless an earlier test has done so with the same arguments and files.
fn compile_to(file: &str, name: &str, arguments: &[&str]) -> PathBuf {
    let sources = repository().join("tests/programs/c");
    let source = sources.join(format!("{name}.c"));
    let driver = driver();
    let compiler = std::env::var("CC").unwrap_or("cc".into());
    let mut hasher = DefaultHasher::new();
    (&compiler, file, arguments).hash(&mut hasher);
    let folder = built_once()
        .join("c-programs")
        .join(format!("{:016x}", hasher.finish()));
    let place = folder.join(file);
    let read = [
        source.clone(),
        sources.join("gpu.h"),
        repository().join("include/gpulimit.h"),
        driver.join("libcuda.so.1"),
    ];
    let changed = |path: &Path| path.metadata().and_then(|data| data.modified()).ok();
    // A file that is not there has the time `None`, which is less than all others.
    if read.iter().all(|path| changed(path) < changed(&place)) {
        return place;
    }
    std::fs::create_dir_all(&folder).expect("a folder");
    // The file is built in another directory and then moved, since other test processes may build
    // or run the same one.
    let drafts = Scratch::below(&folder);
    let draft = drafts.at(name);
    let status = Command::new(compiler)
        .args(["-O1", "-Wall", "-Werror", "-o"])
        .args([&draft, &source])
        .arg(format!("-L{}", driver.display()))
        .args(arguments)
        .arg("-ldl")
        .status();
    assert!(status.is_ok_and(|status| status.success()), "cc {name}.c");
    std::fs::rename(&draft, &place).expect("in place");
    place
}

/// Returns NVIDIA's own runtime of this major version, which scripts/wheels fetches; `None` if it
/// is not available.
pub fn runtime(major: u32) -> Option<PathBuf> {
    fetched(&format!("cudart-{major}"), "libcudart.so.")
}

/// Returns the runtime as a static library; `None` if it is not available.
pub fn static_runtime() -> Option<PathBuf> {
    fetched("cudart-13", "libcudart_static.a")
}

/// Returns NVIDIA's `cuda.h`; `None` if it is not available.
pub fn header() -> Option<PathBuf> {
    fetched("headers/12.4", "cuda.h")
}

/// Returns NVIDIA's Python module for NVML; `None` if it is not available.
pub fn nvml_bindings() -> Option<PathBuf> {
    fetched("nvidia-ml-py", "pynvml.py")
}

fn fetched(folder: &str, prefix: &str) -> Option<PathBuf> {
    let folder = repository().join(".cache").join(folder);
    let look = || {
        let files = std::fs::read_dir(&folder).ok()?.filter_map(Result::ok);
        let mut files = files.filter(|file| file.file_name().to_string_lossy().starts_with(prefix));
        files.next().map(|file| file.path())
    };
    look().or_else(|| {
        fetch("scripts/wheels");
        look()
    })
}

/// Runs a script that fetches what it can, unless all is there.
fn fetch(script: &str) {
    if !is_built() {
        let _ = Command::new(repository().join(script)).status();
    }
}

/// Returns the folders of NVIDIA's own driver libraries by version, which scripts/drivers fetches;
/// empty if they are not available.
pub fn real_drivers() -> Vec<(String, PathBuf)> {
    fetch("scripts/drivers");
    let Ok(folders) = std::fs::read_dir(repository().join(".cache/drivers")) else {
        return Vec::new();
    };
    let mut drivers: Vec<_> = folders
        .filter_map(Result::ok)
        .map(|folder| {
            (
                folder.file_name().to_string_lossy().into_owned(),
                folder.path(),
            )
        })
        .filter(|(_, folder)| folder.join("libnvidia-ml.so.1").exists())
        .collect();
    drivers.sort();
    drivers
}
