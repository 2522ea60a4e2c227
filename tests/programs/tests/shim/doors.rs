//! Every way in which a program can reach the driver leads to the library's hooks, and to all of
//! them.

use std::path::Path;
use std::process::Command;

use gpulimit_programs::world::{self, MIB, Session, World, text};
use gpulimit_support::side_by_side;

const CAP: u64 = 8192 * MIB;

/// Builds a library linked against libcuda with every name that the driver exports. A library
/// compiled and opened at run time, such as Triton's helper, is linked in this way.
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

/// Builds a library that is linked against libcuda and looks names up by `RTLD_NEXT`.
fn next_symbol_door() -> String {
    let arguments = ["-DNEXT", "-Wl,--no-as-needed", "-l:libcuda.so.1"];
    let library = world::library("asks", &arguments);
    format!("linked:{}", library.display())
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
        // The dynamic linker searches the dependencies of a library opened with `RTLD_DEEPBIND`
        // before every preload.
        doors.push(format!("linked-deepbind:{library}"));
    }
    doors.push(next_symbol_door());
    doors
}

#[test]
fn every_door_leads_to_every_hook() {
    let world = World::new(CAP);
    // CUDA 11.3 has no functions for libraries yet, but all others.
    for door in doors().into_iter().chain(["getproc1:11030".to_owned()]) {
        let mut program = world.start_with(&["--door", &door]);
        let answer = program.say("hooks");
        let (hooked, missed) = answer.split_once(' ').unwrap_or((&answer, ""));
        assert_eq!(missed, "", "{door} finds these unhooked");
        let hooked: u32 = hooked.parse().expect("a count");
        // A door cannot reach the hooks of another library or of a later CUDA version.
        assert!(hooked >= 50, "{door}: only {hooked}");
        program.end_quietly();
    }
}

/// Programs look up hundreds of names before NVML is loaded, if NVML is loaded at all.
#[test]
fn the_linker_does_not_search_for_a_library_at_each_look_up() {
    let world = World::new(CAP);
    let mut command = world.limited(&world::compile("looks_up", &["-ldl"]));
    command.env("LD_DEBUG", "libs");
    let output = world::finish(command);
    let (said, log) = (text(&output.stdout), text(&output.stderr));
    assert_eq!(said, "found 100\n", "{log}");
    let searches = log.matches("find library=libnvidia-ml.so.1").count();
    assert!((1..=5).contains(&searches), "{searches} searches");
}

#[test]
fn lookups_in_other_libraries_find_their_own_functions() {
    let stubs = world::library("stubs", &[]).display().to_string();
    let world = World::new(CAP);
    let mut program = world.start_with(&["--door", &format!("library:{stubs}")]);
    program.expect(&[
        ("owner cuMemAlloc_v2", "stubs.so"),
        ("owner cuMemFree_v2", "absent"),
    ]);
}

#[test]
fn preloaded_stubs_are_not_taken_for_the_driver() {
    let stubs = world::library("stubs", &[]).display().to_string();
    let world = World::new(1024 * MIB);
    let mut command = world.limited(world::program());
    let shim = world::shim().display().to_string();
    // The stubs follow the preloaded library and precede everything that the program loads.
    command.env("LD_PRELOAD", format!("{shim}:{stubs}"));
    let mut program = Session::start(command);
    program.expect(&[
        ("start", "0 0"),
        ("alloc a 600M", "2"),
        ("alloc a 400M", "0"),
    ]);
    assert_eq!(program.numbers("nvml 0")[2], 1024 * MIB);
    world.judge(1024 * MIB);
    program.end();
    world.judge_end(1024 * MIB);
}

#[test]
fn without_a_limit_nothing_is_redirected() {
    let asks = world::library("asks", &[]).display().to_string();
    let world = World::new(CAP);
    for door in [format!("linked-deepbind:{asks}"), next_symbol_door()] {
        let mut command = world.preloaded(world::program());
        command.args(["--door", &door]);
        let mut program = Session::start(command);
        program.expect(&[
            ("owner cuMemAlloc_v2", "libcuda.so.1"),
            ("owner cuInit", "libcuda.so.1"),
        ]);
    }
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

/// Runs a script and returns each command with its answer.
fn play(program: &mut Session, script: &str) -> Vec<String> {
    script
        .lines()
        .map(|line| line.split('#').next().unwrap_or_default().trim())
        .filter(|line| !line.is_empty())
        .map(|line| format!("{line} = {}", program.say(line)))
        .collect()
}

/// Commands that a program runs at this limit, each with the answer that it gets.
const AT_THE_LIMIT: &[(&str, &str)] = &[
    ("start", "0 0"),
    ("total 0", "0 1073741824"),
    ("info", "0 526385152 1073741824"),
    // 502 MiB are left.
    ("alloc a 600M", "2"),
    ("alloc a 300M", "0"),
    ("info", "0 211812352 1073741824"),
    ("alloc b 300M", "2"),
    ("free a", "0"),
    ("info", "0 526385152 1073741824"),
    ("pitch a 1048576 600", "2 0"),
    ("managed a 600M", "2"),
    ("alloc-v1 a 600M", "2"),
    ("create h 600M 0", "2"),
    ("create h 300M 0", "0"),
    ("alloc a 300M", "2"),
    ("release h", "0"),
    ("array a 8192,8192", "2"),
    ("array a 8192,8192 2d", "2"),
    ("mipmap a 8192,8192 3", "2"),
    ("async a 600M", "2"),
    ("async a 100M", "0"),
    ("async b 400M", "2"),
    ("free-async a", "0"),
    ("sync null", "0"),
    ("pool p 0", "0"),
    ("async-from a p 600M", "2"),
    ("destroy-pool p", "0"),
    ("info", "0 526385152 1073741824"),
    ("context a 0 v2", "2"),
    ("module a 600M", "2"),
    ("set-limit 0 4096", "2"),
    ("kernels deep 8192", "0"),
    ("launch deep", "2"),
    ("unload deep", "0"),
    ("graph g", "0"),
    ("alloc-node n g 600M", "0"),
    ("instantiate e g", "0"),
    ("launch-graph e", "2"),
    ("upload-graph e", "2"),
    ("destroy-exec e", "0"),
    ("alloc a 480M", "0"),
];

#[test]
fn the_limit_holds_at_every_door() {
    let cap = 1024 * MIB;
    side_by_side(doors(), |door| {
        for twins in [false, true] {
            let world = World::new(cap);
            let arguments = ["--door", &door, "--ptsz"];
            let mut program = world.start_with(&arguments[..2 + usize::from(twins)]);
            for (command, answer) in AT_THE_LIMIT {
                assert_eq!(program.say(command), *answer, "{command} {door} {twins}");
            }
            world.judge(cap);
            program.end();
            world.judge_end(cap);
        }
    });
}

#[test]
fn the_limit_holds_in_python() {
    let script = world::repository().join("tests/programs/python/doors.py");
    let driver = world::driver().join("libcuda.so.1").display().to_string();
    let helper = linked();
    let expected = "\
start 0 0 0
view 0 0 526385152 1073741824 1073741824
alloc 2 0
allocated 0 0 211812352 1073741824 1073741824
free 0
freed 0 0 526385152 1073741824 1073741824
pitch 2
managed 2
vmm 2 0
created 0 0 211812352 1073741824 1073741824
release 0
released 0 0 526385152 1073741824 1073741824
array 2 2
async 2 0
reserved 0 0 358612992 1073741824 1073741824
free async 0 0
pool 0 2
pool gone 0
synchronised 0 0 526385152 1073741824 1073741824
graph 0 0
launch 0 2
context 2
";
    let ways = [
        &["soname"][..],
        &["plain"],
        &["file", &driver],
        &["global"],
        &["program"],
        &["deepbind"],
        &["helper", &helper],
    ];
    side_by_side(ways, |arguments| {
        let world = World::new(1024 * MIB);
        let mut command = world.limited(Path::new("python3"));
        command.arg(&script).args(arguments);
        let output = world::finish(command);
        let errors = text(&output.stderr);
        assert!(output.status.success(), "{arguments:?}: {errors}");
        assert_eq!(text(&output.stdout), expected, "{arguments:?}: {errors}");
        world.judge_end(1024 * MIB);
    });
}

#[test]
fn unhooked_names_lead_to_the_driver() {
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
    // 506 MiB are left beside the context: five times 100 MiB, and no sixth.
    assert_eq!(text(&output.stdout), "5 2\n", "{}", text(&output.stderr));
    world.judge_end(1024 * MIB);
}

#[test]
fn variables_with_the_names_of_driver_functions_stay_variables() {
    let program = world::compile("variables", &["-DPROGRAM", "-ldl"]);
    for arguments in [["-Wl,-z,lazy", "-ldl"], ["-Wl,-z,now,-z,relro", "-ldl"]] {
        let opened = world::library("variables", &arguments);
        let path = world::library("variables", &[&arguments[..], &["-DLINKED"]].concat());
        let path = path.display().to_string();
        let linked = ["-DPROGRAM", "-DLINKED", "-Wl,--no-as-needed", &path, "-ldl"];
        let linked = world::compile("variables", &linked);
        let world = World::new(1024 * MIB);
        for (program, argument) in [(&program, Some(&opened)), (&linked, None)] {
            for (mut command, taken) in [
                (world.limited(program), "5\n"),
                (world.preloaded(program), "20\n"),
            ] {
                let output = world::finish({
                    command.args(argument);
                    command
                });
                let told = (&*text(&output.stdout), &*text(&output.stderr));
                assert_eq!(told.0, taken, "{arguments:?} {argument:?} {}", told.1);
            }
        }
    }
}

#[test]
fn a_library_between_the_program_and_the_driver_is_called() {
    for bind in ["-Wl,-z,lazy", "-Wl,-z,now,-z,relro"] {
        for asks in ["-UASKS", "-DASKS"] {
            let library = ["-DLIBRARY", asks, bind, "-ldl"];
            let path = world::library("interposes", &library).display().to_string();
            let linked = [bind, "-Wl,--no-as-needed", &path, "-l:libcuda.so.1", "-ldl"];
            let program = world::compile("interposes", &linked);
            let world = World::new(1024 * MIB);
            for (command, taken) in [
                (world.limited(&program), "5 0\n"),
                (world.preloaded(&program), "20 0\n"),
            ] {
                let output = world::finish(command);
                assert_eq!(text(&output.stdout), taken, "{bind} {asks} {output:?}");
                world.settle();
            }
            assert_eq!(world.usage(0).charged, 0);
        }
    }
}

#[test]
fn other_preloads_keep_working() {
    for (name, arguments, says) in [
        ("wraps_malloc", &[][..], "alive"),
        ("wraps_dlsym", &[], "called"),
        ("wraps_dlsym", &["-DDLOPEN"], "called"),
    ] {
        let other = world::library(name, arguments).display().to_string();
        let shim = world::shim().display().to_string();
        for preload in [format!("{shim}:{other}"), format!("{other}:{shim}")] {
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
                errors.contains(&format!("{name}: {says}")),
                "{preload}: {errors}"
            );
            world.judge_end(1024 * MIB);
        }
    }
}

#[test]
#[cfg(target_arch = "x86_64")]
fn functions_that_tools_patch_are_charged_behind_the_patch() {
    // As MPI libraries do by UCX, which can move few instructions.
    let world = World::new(2048 * MIB);
    let mut command = world.limited(world::program());
    let preload = [world::shim(), world::library("patches", &["-ldl"])];
    let preload = preload.map(|path| path.display().to_string()).join(":");
    let report = world.file("report");
    command.env("LD_PRELOAD", preload).env("PATCHES", &report);
    let mut program = Session::start(command);
    program.expect(&[("start", "0 0")]);
    for call in [
        "alloc a 100M",
        "alloc-v1 b 20M",
        "pitch c 1000 1000",
        "pitch-v1 d 1000 1000",
        "managed e 30M",
        "async f 40M",
        "pool p 0",
        "async-from g p 40M",
        "create h 50M 0",
        "reserve r 50M",
        "map r 0 h 50M",
        "library l 5M",
        "library-global l",
    ] {
        let answer = program.say(call);
        assert!(answer.starts_with('0'), "{call}: {answer}");
    }
    world.judge(2048 * MIB);
    program.expect(&[("alloc large 1500M", "2"), ("unmap r 0 50M", "0")]);
    for freed in ["free a", "free-v1 b", "free-async f", "free-async g"] {
        program.expect(&[(freed, "0")]);
    }
    world.judge(2048 * MIB);
    program.end();
    let report = std::fs::read_to_string(report).expect("a report");
    for line in report.lines() {
        let called = line.contains("_ptsz") || !line.ends_with(" 0");
        assert!(called && !line.contains("not moved"), "{report}");
    }
    assert_eq!(report.lines().count(), 16, "{report}");
    world.judge_end(2048 * MIB);
}
