//! The examples in C, compiled against NVIDIA's own header, and the program of the demo where there
//! is no driver. The GPU checks run the examples in Python.

use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::process::{Command, Stdio};

use gpulimit_programs::world::{self, MIB, World, repository, text};
use gpulimit_support::skip;

/// Compiles the example in C with this name; `None` where NVIDIA's header is not available.
fn compiled(world: &World, name: &str, options: &[&str]) -> Option<PathBuf> {
    let Some(header) = world::header() else {
        skip("cuda.h is not there and scripts/wheels cannot fetch it");
        return None;
    };
    let program = world.file(name);
    let status = Command::new("cc")
        .args(["-Wall", "-Werror", "-I"])
        .arg(header.parent().expect("a folder"))
        .arg(repository().join(format!("examples/{name}.c")))
        .arg(format!("-L{}", world::driver().display()))
        .arg("-lcuda")
        .args(options)
        .arg("-o")
        .arg(&program)
        .status();
    assert!(status.is_ok_and(|status| status.success()), "cc {name}.c");
    Some(program)
}

#[test]
fn tiles_fit_into_the_free_memory() {
    const CAP: u64 = 2048 * MIB;
    let world = World::new(CAP);
    let Some(program) = compiled(&world, "tiles", &[]) else {
        return;
    };
    let output = world::finish(world.limited(&program));
    let out = text(&output.stdout);
    assert!(output.status.success(), "{output:?}");
    assert!(out.starts_with("memory: 2048 MiB, free 1"), "{out}");
    assert!(
        out.contains("all at once: CUDA_ERROR_OUT_OF_MEMORY\n"),
        "{out}"
    );
    assert!(out.contains("in 3 tiles: "), "{out}");
    world.judge_end(CAP);
}

#[test]
fn the_program_of_the_demo_has_help_and_names_a_missing_driver() {
    let fill = |argument| {
        let mut command = Command::new(world::demo());
        command.arg(argument).env_clear();
        let output = world::finish(command);
        let said = text(&output.stdout) + &text(&output.stderr);
        (output.status.code(), said)
    };
    let (status, said) = fill("--help");
    assert!(
        status == Some(0) && said.starts_with("usage: fill "),
        "{said}"
    );
    let (status, said) = fill("1M");
    if status != Some(0) {
        assert_eq!(status, Some(2), "{said}");
        assert!(
            said.starts_with("fill: ") && !said.contains("panicked"),
            "{said}"
        );
    }
}

#[test]
fn a_program_gives_its_cache_back() {
    const CAP: u64 = 2048 * MIB;
    let world = World::new(CAP);
    let include = format!("-I{}", repository().join("include").display());
    let Some(program) = compiled(&world, "gives_back", &[&include, "-lpthread", "-ldl"]) else {
        return;
    };
    let mut command = world.limited(&program);
    command.stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut child = command.spawn().expect("it starts");
    let mut lines = BufReader::new(child.stdout.take().expect("piped")).lines();
    let mut line = || lines.next().expect("a line").expect("readable");
    assert!(line().starts_with("limit 2048 MiB, available 1"));
    assert_eq!(line(), "cached 704 MiB");
    let mut other = world.on_gpu();
    other.expect(&[("alloc a 500M", "0")]);
    let said = line();
    assert!(
        said.starts_with("group world needs ") && said.contains("freed "),
        "{said}"
    );
    drop(child.stdin.take());
    assert!(child.wait().expect("it ends").success());
    other.end_quietly();
    world.judge_end(CAP);
}
