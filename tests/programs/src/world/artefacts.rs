//! The programs and libraries that the tests run, built at their first use.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use gpulimit_support::Scratch;

/// Returns the path of the repository.
pub fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

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
    std::env::var_os("GPULIMIT_TEST_BUILT").map(PathBuf::from)
}

/// Returns the path of the preloaded library to test instead of cargo's: the released one, or one
/// that scripts/prove-hooks has built.
fn other_library() -> Option<PathBuf> {
    std::env::var_os("GPULIMIT_TEST_LIBRARY").map(PathBuf::from)
}

/// Builds the simulated driver and the preloaded library, once per test binary.
fn built_once() -> &'static Path {
    static TARGET: OnceLock<PathBuf> = OnceLock::new();
    TARGET.get_or_init(|| {
        if let Some(folder) = elsewhere() {
            return folder;
        }
        let target = target();
        let build = |program: &Path, arguments: &[&str]| {
            let status = Command::new(program)
                .args(arguments)
                .current_dir(repository())
                .env("CARGO_TARGET_DIR", &target)
                .env_remove("GPULIMIT_SIM_BUILT")
                .status();
            assert!(
                status.is_ok_and(|status| status.success()),
                "{program:?} {arguments:?}"
            );
        };
        build(&repository().join("scripts/sim"), &["true"]);
        if other_library().is_none() {
            let cargo = std::env::var("CARGO").unwrap_or("cargo".into());
            let arguments = ["build", "--quiet", "--release", "-p", "gpulimit-shim"];
            build(Path::new(&cargo), &arguments);
        }
        target
    })
}

/// Returns the folder with the simulated `libcuda.so.1` and its companions.
pub fn driver() -> PathBuf {
    built_once().join("sim-driver")
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
    other_library().unwrap_or_else(|| built_once().join("release/libgpulimit.so"))
}

/// Returns a debug build of the library, which panics at the point that `GPULIMIT_FAULT` names.
/// `None` if the tests run files built elsewhere.
pub fn faulty_shim() -> Option<PathBuf> {
    static BUILT: OnceLock<()> = OnceLock::new();
    if elsewhere().is_some() {
        return None;
    }
    BUILT.get_or_init(|| {
        let cargo = std::env::var("CARGO").unwrap_or("cargo".into());
        let status = Command::new(cargo)
            .args(["build", "--quiet", "-p", "gpulimit-shim"])
            .current_dir(repository())
            .env("CARGO_TARGET_DIR", target())
            .status();
        assert!(status.is_ok_and(|status| status.success()), "a debug build");
    });
    Some(target().join("debug/libgpulimit.so"))
}

/// Returns the path of `gpulimit`, the controller.
pub fn controller() -> PathBuf {
    static CONTROLLER: OnceLock<PathBuf> = OnceLock::new();
    let build = || built_program("gpulimit");
    let there = || elsewhere().map(|folder| folder.join("debug/gpulimit"));
    CONTROLLER
        .get_or_init(|| there().unwrap_or_else(build))
        .clone()
}

/// Returns the path of `fill`, the program of the demo.
pub fn demo() -> PathBuf {
    static DEMO: OnceLock<PathBuf> = OnceLock::new();
    DEMO.get_or_init(|| built_program("fill")).clone()
}

/// Builds a program of another package with the features of the tests, since other features would
/// need another build.
pub fn built_program(name: &str) -> PathBuf {
    if let Some(folder) = elsewhere() {
        return folder.join("debug").join(name);
    }
    let cargo = std::env::var("CARGO").unwrap_or("cargo".into());
    let status = Command::new(cargo)
        .args(["build", "--quiet", "--workspace", "--bin", name])
        .current_dir(repository())
        .env("CARGO_TARGET_DIR", target())
        .status();
    assert!(status.is_ok_and(|status| status.success()), "{name}");
    target().join("debug").join(name)
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
    compile_for(name, "", arguments)
}

/// Compiles a C file into a program whose file name ends in `tag`.
pub fn compile_for(name: &str, tag: &str, arguments: &[&str]) -> PathBuf {
    build(name, tag, arguments)
}

/// Compiles a C file of tests/programs/c into a shared library.
pub fn library(name: &str, arguments: &[&str]) -> PathBuf {
    library_for(name, "", arguments)
}

/// Compiles a C file into a shared library whose file name ends in `tag`.
pub fn library_for(name: &str, tag: &str, arguments: &[&str]) -> PathBuf {
    let shared: Vec<_> = ["-shared", "-fPIC"]
        .iter()
        .chain(arguments)
        .copied()
        .collect();
    build(name, &format!("{tag}.so"), &shared)
}

fn build(name: &str, suffix: &str, arguments: &[&str]) -> PathBuf {
    let source = repository().join(format!("tests/programs/c/{name}.c"));
    let folder = built_once().join("c-programs");
    std::fs::create_dir_all(&folder).expect("a folder");
    let place = folder.join(format!("{name}{suffix}"));
    // The file is built in another directory and then moved, since other test processes build the
    // same one.
    let drafts = Scratch::below(&folder);
    let draft = drafts.at(name);
    let driver = driver();
    let status = Command::new(std::env::var("CC").unwrap_or("cc".into()))
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
        let _ = Command::new(repository().join("scripts/wheels")).status();
        look()
    })
}

/// Returns the folders of NVIDIA's own driver libraries by version, which scripts/drivers fetches;
/// empty if they are not available.
pub fn real_drivers() -> Vec<(String, PathBuf)> {
    let _ = Command::new(repository().join("scripts/drivers")).status();
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
