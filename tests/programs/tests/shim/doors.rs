//! Whatever way a program takes to the driver, it meets our hooks, and all of them.

use std::process::Command;

use gpulimit_programs::world::{self, MIB, Session, World, text};

const CAP: u64 = 8192 * MIB;

/// A library linked against libcuda, with every name that the driver exports.
fn linked() -> String {
    let names = Command::new("nm")
        .args(["-D", "--defined-only", "--format=posix"])
        .arg(world::driver().join("libcuda.so.1"))
        .output()
        .expect("nm");
    let names: String = text(&names.stdout)
        .lines()
        .filter_map(|line| line.split(' ').next())
        .filter(|name| name.starts_with("cu"))
        .map(|name| format!("NAME({name})"))
        .collect();
    let arguments = [
        &format!("-DNAMES={names}"),
        "-Wl,--no-as-needed",
        "-l:libcuda.so.1",
    ];
    world::library("linked", &arguments).display().to_string()
}

fn doors() -> Vec<String> {
    let mut doors: Vec<String> = [
        "dlsym",
        "soname-so",
        "absolute",
        "deepbind",
        "default",
        "getproc1:12000",
        "getproc2:12000",
        "getproc2:12080",
        "getproc2:13000",
    ]
    .map(str::to_owned)
    .to_vec();
    let asks = world::library("asks", &[]).display().to_string();
    for library in [linked(), asks] {
        doors.push(format!("linked:{library}"));
        // The dynamic linker looks into such a library's own dependencies first, past every preload.
        doors.push(format!("linked-deepbind:{library}"));
    }
    doors
}

#[test]
fn every_door_leads_to_every_hook() {
    let world = World::new(CAP);
    // For CUDA 11.3 there are no libraries yet, but all else.
    for door in doors().into_iter().chain(["getproc1:11030".to_owned()]) {
        let mut program = world.start_with(&["--door", &door]);
        let answer = program.say("hooks");
        let (hooked, missed) = answer.split_once(' ').unwrap_or((&answer, ""));
        assert_eq!(missed, "", "{door} leads past these");
        let hooked: u32 = hooked.parse().expect("a count");
        // Some rows are of libraries and versions that a door does not reach.
        assert!(hooked >= 50, "{door}: only {hooked}");
        program.end_quietly();
    }
}

#[test]
fn other_libraries_functions_of_the_same_names_are_theirs() {
    let stubs = world::library("stubs", &[]).display().to_string();
    let world = World::new(CAP);
    let mut program = world.start_with(&["--door", &format!("library:{stubs}")]);
    program.expect(&[
        ("owner cuMemAlloc_v2", "stubs.so"),
        ("owner cuMemFree_v2", "absent"),
    ]);
}

#[test]
fn without_a_limit_nothing_is_redirected() {
    let asks = world::library("asks", &[]).display().to_string();
    let world = World::new(CAP);
    let mut command = world.preloaded(world::program());
    command.args(["--door", &format!("linked-deepbind:{asks}")]);
    let mut program = Session::start(command);
    program.expect(&[
        ("owner cuMemAlloc_v2", "libcuda.so.1"),
        ("owner cuInit", "libcuda.so.1"),
    ]);
}

#[test]
fn memory_is_counted_through_every_door() {
    let tour = std::fs::read_to_string(world::script("tour.gpu")).expect("a script");
    let mut first: Option<(String, Vec<String>)> = None;
    for door in doors() {
        for twins in [false, true] {
            let world = World::new(CAP);
            let arguments = ["--door", &door, "--ptsz"];
            let mut program = world.start_with(&arguments[..2 + usize::from(twins)]);
            let answers = play(&mut program, &tour);
            world.judge(CAP);
            let used = world.machine().used();
            assert!(
                used > world::CONTEXT + 55 * MIB,
                "{door}: something stays: {used}"
            );
            program.end_quietly();
            world.judge_end(CAP);
            match &first {
                None => first = Some((door.clone(), answers)),
                Some((other, expected)) => {
                    for (answer, expected) in answers.iter().zip(expected) {
                        assert_eq!(answer, expected, "{door} --ptsz={twins} and {other}");
                    }
                }
            }
        }
    }
}

/// All answers to a script.
fn play(program: &mut Session, script: &str) -> Vec<String> {
    script
        .lines()
        .map(|line| line.split('#').next().unwrap_or_default().trim())
        .filter(|line| !line.is_empty())
        .map(|line| format!("{line} = {}", program.say(line)))
        .collect()
}

#[test]
fn what_is_looked_up_is_what_was_asked_for() {
    let world = World::new(CAP);
    let mut program = world.start();
    program.expect(&[
        ("owner cuMemAlloc_v2", "libgpulimit.so"),
        ("owner cuInit", "libcuda.so.1"),
        ("owner cuMemcpy", "libcuda.so.1"),
        ("owner cuNoSuchFunction", "absent"),
        ("owner nvmlDeviceGetMemoryInfo", "libgpulimit.so"),
        ("owner nvmlInit_v2", "libnvidia-ml.so.1"),
    ]);
}

#[test]
fn a_program_linked_against_the_driver_is_limited() {
    let direct = world::compile("direct", &["-l:libcuda.so.1"]);
    let world = World::new(1024 * MIB);
    let output = world::finish(world.limited(&direct));
    // 506 MiB are left beside the context: 5 times 100 MiB, and no sixth.
    assert_eq!(text(&output.stdout), "5 2\n", "{}", text(&output.stderr));
    world.judge_end(1024 * MIB);
}

#[test]
fn other_preloads_keep_working() {
    for (name, arguments) in [("wraps_malloc", &[][..]), ("wraps_dlsym", &[])] {
        let other = world::library(name, arguments).display().to_string();
        let shim = world::shim().display().to_string();
        // A dlsym in front of ours that goes straight to the C library's goes past us: ours has to be the first.
        let mut orders = vec![format!("{shim}:{other}")];
        if name != "wraps_dlsym" {
            orders.push(format!("{other}:{shim}"));
        }
        for preload in orders {
            let world = World::new(1024 * MIB);
            let mut command = world.limited(world::program());
            command.env("LD_PRELOAD", &preload);
            let mut program = Session::start(command);
            program.expect(&[
                ("start", "0 0"),
                ("fill a 100M", "2 5"),
                ("owner cuMemAlloc_v2", "libgpulimit.so"),
            ]);
            world.judge(1024 * MIB);
            let (status, errors) = program.end();
            assert!(status.success(), "{preload}: {status:?} {errors}");
            assert!(
                errors.contains(&format!("{name}: alive")),
                "{preload}: {errors}"
            );
            world.judge_end(1024 * MIB);
        }
    }
}
