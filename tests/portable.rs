//! `scripts/portable` refuses files that a user's system could not load. The build checks that the
//! real files pass.
#![allow(clippy::unwrap_used, reason = "a test that runs compilers")]

use gpulimit_support::Scratch;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

/// A folder of a test's own.
struct Place(Scratch);

impl Place {
    fn new() -> Place {
        Place(Scratch::new())
    }

    /// Compiles this C text into a shared library without the C library.
    fn library(&self, file: &str, source: &str, arguments: &[&str]) -> PathBuf {
        let text = self.0.write(&format!("{file}.c"), source);
        let library = self.0.join(file);
        let status = Command::new("cc")
            .args(["-shared", "-fPIC", "-nostdlib", "-o"])
            .args([&library, &text])
            .args(arguments)
            .current_dir(&*self.0)
            .status();
        assert!(status.unwrap().success(), "{file}");
        library
    }

    /// Makes a library that uses `f` of another one, which is called `name` and gives `f` the
    /// version `version`.
    fn with(&self, name: &str, version: &str) -> PathBuf {
        self.0.write("versions", &format!("{version} {{ f; }};"));
        let arguments = [
            "-Wl,--version-script=versions",
            &format!("-Wl,-soname,{name}"),
        ];
        let other = self.library("libother.so", "int f(void) { return 1; }", &arguments);
        let source = "int f(void); int g(void) { return f(); }";
        self.library("libours.so", source, &[other.to_str().unwrap()])
    }
}

fn check(file: &Path) -> Output {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("scripts/portable");
    let mut command = Command::new(script);
    command.arg("--check").arg(file).output().unwrap()
}

#[track_caller]
fn refused(file: &Path, why: &str) {
    let output = check(file);
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(!output.status.success(), "{file:?} passed");
    assert!(said.contains(why), "{said}");
}

#[test]
fn files_that_need_a_newer_glibc_are_refused() {
    let place = Place::new();
    refused(
        &place.with("libc.so.6", "GLIBC_2.18"),
        "GLIBC_2.18, newer than 2.17",
    );
    refused(
        &place.with("libc.so.6", "GLIBC_2.100"),
        "GLIBC_2.100, newer",
    );
    // Loaders before glibc 2.36 do not know these relocations; the mark has no number.
    refused(
        &place.with("libc.so.6", "GLIBC_ABI_DT_RELR"),
        "GLIBC_ABI_DT_RELR",
    );
    for old in ["GLIBC_2.17", "GLIBC_2.2.5", "GLIBC_2.4"] {
        let output = check(&place.with("libc.so.6", old));
        assert!(output.status.success(), "{old}: {output:?}");
    }
}

#[test]
fn files_that_need_a_compiler_runtime_or_the_driver_are_refused() {
    let place = Place::new();
    for name in [
        "libstdc++.so.6",
        "libgcc_s.so.1",
        "libcuda.so.1",
        "libnvidia-ml.so.1",
    ] {
        refused(&place.with(name, "ANY_1"), name);
    }
}

#[test]
fn files_that_are_too_large_are_refused() {
    let place = Place::new();
    let large = place.library("libours.so", "char data[4 << 20] = { 1 };", &[]);
    refused(&large, "more than");
    let small = place.library("libours.so", "char data[4 << 10] = { 1 };", &[]);
    assert!(check(&small).status.success());
}

#[test]
fn debug_builds_are_refused() {
    let place = Place::new();
    let source = r#"const char name[] = "GPULIMIT_DEBUG_LOOK_MS";"#;
    let file = place.library("libours.so", source, &[]);
    refused(&file, "is a debug build");
}
