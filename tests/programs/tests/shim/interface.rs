//! The C interface (`include/gpulimit.h`): it compiles as every standard of C and C++, its
//! functions answer with and without the library, and captures are counted.

use std::path::PathBuf;
use std::process::Command;

use gpulimit_ledger::NoWitness;
use gpulimit_programs::world::{self, CONTEXT, MIB, Session, World, repository, text};
use gpulimit_support::skip;

const CAP: u64 = CONTEXT + 500 * MIB;

/// Compiles tests/programs/c/interface.c as one language and standard; `None` if no compiler is
/// there that knows the standard.
fn compiled(world: &World, compiler: &str, standard: &str, language: &str) -> Option<PathBuf> {
    let options = [standard, language];
    let mut empty = Command::new(compiler);
    empty.args(options).args(["-E", "/dev/null"]);
    if !empty.output().is_ok_and(|output| output.status.success()) {
        skip(format_args!("there is no {compiler} that knows {standard}"));
        return None;
    }
    if language == "-xc++" {
        let mut strict = Command::new(compiler);
        strict
            .args(options)
            .args(["-Wall", "-Wold-style-cast", "-Werror", "-fsyntax-only"]);
        let header = repository().join("include/gpulimit.h");
        let output = strict.arg("-include").arg(header).arg("/dev/null").output();
        let output = output.expect("it runs");
        assert!(
            output.status.success(),
            "{compiler}: {}",
            text(&output.stderr)
        );
    }
    let program = world.file(&format!("interface-{compiler}{standard}"));
    let source = repository().join("tests/programs/c/interface.c");
    let output = Command::new(compiler)
        .args(["-Wall", "-Wextra", "-Wpedantic", "-Wshadow", "-Werror"])
        .args(options)
        .arg(source)
        .arg("-o")
        .arg(&program)
        .arg("-ldl")
        .output()
        .expect("it runs");
    assert!(
        output.status.success(),
        "{compiler} {options:?}: {}",
        text(&output.stderr)
    );
    Some(program)
}

#[test]
fn the_header_serves_c_and_cpp_with_and_without_the_library() {
    let world = World::new(CAP);
    let c = ["c90", "c99", "c11", "c17", "c2x"].map(|standard| (standard, "-xc"));
    let cpp = ["c++98", "c++11", "c++14", "c++17", "c++20", "c++23"];
    let cpp = cpp.map(|standard| (standard, "-xc++"));
    let compilers = [
        ("cc", &c[..]),
        ("clang", &c[..]),
        ("g++", &cpp[..]),
        ("clang++", &cpp[..]),
    ];
    let programs: Vec<PathBuf> = compilers
        .into_iter()
        .flat_map(|(compiler, standards)| {
            let compiled = |(standard, language): &(&str, &str)| {
                compiled(&world, compiler, &format!("-std={standard}"), language)
            };
            standards.iter().filter_map(compiled).collect::<Vec<_>>()
        })
        .collect();
    assert!(programs.len() >= 3, "there is a C compiler");
    let seen = |command| {
        let output = world::finish(command);
        assert_eq!(output.status.code(), Some(0));
        assert_eq!(text(&output.stderr), "");
        text(&output.stdout)
    };
    for program in programs {
        let limited = "version 1\ncapabilities 1\ngroup 0 world\nno room 4 4\nerror 0 '' 4 4\n\
                       peak 3 4 4 4\nmemory 0 4\n\
                       captures 0\nunregistered 7 7\nregister 0\nwait 5\nno size 4 4\n\
                       no time 4 4\nunregister 0\n";
        assert_eq!(seen(world.limited(&program)), limited, "{program:?}");
        let unlimited = "version 1\ncapabilities 0\ngroup 2 \nno room 4 4\nerror 0 '' 4 4\n\
                       peak 2 4 2 4\nmemory 2 4\n\
                         captures 0\nunregistered 7 7\nregister 2\nwait 7\nno size 4 4\n\
                         no time 4 4\nunregister 7\n";
        assert_eq!(seen(world.preloaded(&program)), unlimited, "{program:?}");
        let absent = "version 0\ncapabilities 0\ngroup 1 \nno room 1 1\nerror 1 '' 1 1\n\
                      peak 1 1 1 1\nmemory 1 1\ncaptures 0\n\
                      unregistered 1 1\nregister 1\nwait 1\nno size 1 1\n\
                      no time 1 1\nunregister 1\n";
        assert_eq!(seen(world.bare(&program)), absent, "{program:?}");
    }
    world.judge_end(CAP);
}

#[test]
fn figures_are_those_of_the_group_and_of_the_process() {
    let world = World::new(CAP);
    let mut program = world.on_gpu();
    program.expect(&[
        ("group 4", "0 wor"),
        ("alloc a 100M", "0"),
        ("managed m 20M", "0"),
    ]);
    assert_eq!(program.say("alloc b 500M"), "2");
    let shown = program.say("figures");
    let of = |name: &str| {
        let is_it = |part: &&str| part.split('=').next() == Some(name);
        let part = shown.split(' ').find(is_it).expect("a figure");
        part.split('=').nth(1).expect("a value").to_owned()
    };
    assert!(shown.starts_with("0 size=104 "), "{shown}");
    assert_eq!(of("limit"), format!("{}M", CAP / MIB));
    assert_eq!(of("own"), format!("{}M", CONTEXT / MIB + 120));
    assert_eq!(of("usage"), of("own"));
    assert_eq!(of("peak"), of("own"));
    assert_eq!(
        (of("allocations"), of("managed")),
        ("100M".into(), "20M".into())
    );
    assert_eq!(
        (of("driver"), of("pools")),
        (format!("{}M", CONTEXT / MIB), "0M".into())
    );
    assert_eq!(of("refusals"), "1");
    let left: u64 = of("available")
        .trim_end_matches('M')
        .parse()
        .expect("a number");
    assert!((350..=380).contains(&left), "{shown}");
    program.expect(&[(&*format!("alloc c {left}M"), "0"), ("alloc d 4M", "2")]);
    let uuid = world.machine().gpu(0).uuid.clone();
    let first = program.say("figures 0");
    assert_eq!(program.say(&format!("figures {uuid}")), first);
    for (wrong, code) in [("1", "3"), ("99999999999", "3"), ("GPU-1", "4"), ("x", "4")] {
        let said = program.say(&format!("figures {wrong}"));
        assert_eq!(said.split(' ').next(), Some(code), "{wrong}");
    }
    program.end();
    world.judge_end(CAP);
}

#[test]
fn peaks_are_those_since_the_begin_of_each_measurement() {
    let world = World::new(4096 * MIB);
    let mut program = world.on_gpu();
    let uuid = world.machine().gpu(0).uuid.clone();
    let in_mib = |mib: u64| format!("0 {}M", CONTEXT / MIB + mib);
    program.expect(&[
        ("alloc a 900M", "0"),
        ("free a", "0"),
        ("peak-begin 0", "0 1"),
        ("peak-read 1", &in_mib(0)),
        ("alloc a 100M", "0"),
        (&*format!("peak-begin {uuid}"), "0 2"),
        ("free a", "0"),
        ("alloc b 40M", "0"),
        ("peak-begin", "0 3"),
        ("free b", "0"),
        // Threads that allocate meanwhile count as well.
        ("threads 4 {\nalloc c 50M\n}", "0:1, 0:1, 0:1, 0:1"),
        ("peak-read 3", &in_mib(200)),
        ("peak-end 3", &in_mib(200)),
        ("peak-end 3", "4"),
        ("peak-read 1", &in_mib(200)),
        ("peak-end 2", &in_mib(200)),
        ("peak-end 1", &in_mib(200)),
        ("peak-read 0", "4"),
    ]);
    // The peak of the process's life stays.
    let own = world.ledger().processes(&NoWitness);
    let peak = own[0].devices[0].peak / MIB;
    assert_eq!(peak, CONTEXT / MIB + 900);
    program.tell("fork {\npeak-begin\npeak-read 1\n}");
    assert_eq!(program.answer(), "3", "the child has not begun CUDA");
    assert_eq!(program.answer(), "4", "the parent's");
    assert_eq!(program.answer(), "0");
    program.end_quietly();
}

#[test]
fn a_process_that_cannot_join_tells_why() {
    let world = World::new(CAP);
    let mut command = world.preloaded(world::program());
    command.env("GPULIMIT_MAX", "4X");
    let mut program = Session::start(command);
    let said = program.say("error");
    assert!(said.contains("GPULIMIT_MAX='4X': invalid size"), "{said}");
    program.expect(&[("can", "0"), ("register", "8"), ("group 9", "8")]);
    assert_eq!(program.say("figures").split(' ').next(), Some("8"));
    program.expect(&[("init", "0"), ("peak-begin", "8")]);
    assert_eq!(program.say("error"), said);
    let (_, errors) = program.end();
    let reason = said.trim_start_matches("0 ");
    let line = format!("gpulimit: no GPU memory for this program: {reason}\n");
    assert_eq!(errors, line, "the text is that of standard error");
}

#[test]
fn a_missing_group_is_told_before_the_first_use_of_cuda() {
    let world = World::new(CAP);
    let mut command = world.limited(world::program());
    command.env("GPULIMIT_GROUP", "nope");
    let mut program = Session::start(command);
    let said = program.say("error");
    assert!(said.contains("no group 'nope'"), "{said}");
    program.expect(&[("can", "0"), ("register", "8"), ("group 9", "8")]);
    assert_eq!(program.say("figures").split(' ').next(), Some("8"));
    program.expect(&[("init", "0"), ("peak-begin", "8")]);
    assert_eq!(program.say("error"), said, "the same text as after joining");
    program.end();
}

#[test]
fn figures_are_known_before_cuda_starts() {
    let world = World::new(CAP);
    let mut holder = world.on_gpu();
    holder.expect(&[("alloc a 100M", "0")]);
    let usage = (CONTEXT + 100 * MIB) / MIB;
    let free = (CAP - world.usage(0).charged) / MIB;
    let mut program = world.start();
    let shown = program.say("figures");
    let expected = format!(
        "0 size=104 limit={cap}M usage={usage}M available={free}M ",
        cap = CAP / MIB,
    );
    assert!(shown.starts_with(&expected), "{shown}");
    assert!(shown.contains(" own=0M "), "{shown}");
    let uuid = world.machine().gpu(0).uuid;
    assert_eq!(program.say(&format!("figures {uuid}")), shown);
    assert_eq!(program.say("figures 0"), shown);
    let code = |program: &mut Session, name| program.say(name).split(' ').next().map(str::to_owned);
    assert_eq!(code(&mut program, "figures 1").as_deref(), Some("3"));
    // The process may count other GPUs than the machine.
    let mut command = world.limited(world::program());
    command.env("CUDA_VISIBLE_DEVICES", &uuid);
    let mut other = Session::start(command);
    assert_eq!(code(&mut other, "figures 0").as_deref(), Some("3"));
    assert_eq!(other.say(&format!("figures {uuid}")), shown);
}

#[test]
fn the_figures_are_those_of_the_smallest_limit() {
    let world = World::new(4096 * MIB);
    world.below("small", &["max=1G"]);
    let mut program = world.on_gpu_in("small");
    let shown = program.say("figures");
    assert!(shown.contains("limit=1024M"), "{shown}");
    assert!(
        shown.contains(&format!("usage={}M", CONTEXT / MIB)),
        "{shown}"
    );
    program.end_quietly();
}

#[test]
fn captures_are_counted_from_their_begin_to_their_end() {
    for twins in [false, true] {
        let world = World::new(CAP);
        let mut program = world.start_with(if twins { &["--ptsz"] } else { &[] });
        program.expect(&[
            ("start", "0 0"),
            ("stream s", "0"),
            ("stream t", "0"),
            ("captures", "0"),
            ("capture s", "0"),
            ("captures", "1"),
            ("capture-v1 t", "0"),
            ("captures", "2"),
            // A second capture of a stream is refused.
            ("capture s", "401"),
            ("captures", "2"),
            ("end-capture s", "0"),
            ("captures", "1"),
            // An allocation invalidates the capture; its end fails and ends it.
            ("alloc a 4M", "900"),
            ("end-capture t", "901"),
            ("captures", "0"),
            ("graph g", "0"),
            ("capture-to s g", "0"),
            ("captures", "1"),
            ("end-capture s", "0"),
            ("captures", "0"),
            ("recapture s g", "0"),
            ("captures", "1"),
            ("recapture s g", "401"),
            ("captures", "1"),
            ("end-capture s", "0"),
            ("captures", "0"),
        ]);
        program.end_quietly();
    }
}

#[test]
fn captures_end_with_their_stream_context_or_process() {
    let world = World::new(2 * CAP);
    let mut program = world.on_gpu();
    program.expect(&[
        ("stream s", "0"),
        ("capture s", "0"),
        // Only the thread that has begun a capture can end it.
        ("threads 1 {\nend-capture s\n}", "908:1"),
        ("captures", "1"),
        ("destroy-stream s", "0"),
        ("captures", "0"),
        ("stream s", "0"),
        ("capture s", "0"),
    ]);
    program.tell("fork {\ncaptures\n}");
    assert_eq!(program.answer(), "0", "a child has no captures");
    assert_eq!(program.answer(), "0", "the child's exit status");
    program.expect(&[("captures", "1"), ("reset 0", "0"), ("captures", "0")]);
    program.end();
}
