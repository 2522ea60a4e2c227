//! Code with large variables: refused before the driver takes memory for them.

use gpulimit_programs::world::{CONTEXT, MIB, World};

/// Room for two of 300 MiB, and not for three.
const CAP: u64 = CONTEXT + 800 * MIB;

#[test]
fn modules() {
    for load in ["module", "module-ex", "module-fat", "module-file"] {
        let world = World::new(CAP);
        let mut program = world.on_gpu();
        program.expect(&[
            (&format!("{load} a 300M"), "0"),
            (&format!("{load} b 300M"), "0"),
            (&format!("{load} c 300M"), "2"),
            ("unload a", "0"),
            (&format!("{load} c 300M"), "0"),
            (&format!("{load} d 1000G"), "2"),
        ]);
        world.judge(CAP);
        program.expect(&[("unload b", "0"), ("unload c", "0"), ("alloc e 780M", "0")]);
        world.judge(CAP);
        program.end();
        world.judge_end(CAP);
    }
}

/// Frameworks compile kernels at run time, also when they have filled their memory.
#[test]
fn small_modules_fit_into_a_full_group() {
    let world = World::new(CAP);
    let mut program = world.on_gpu();
    program.say("fill large 50M");
    program.say("fill small 2M");
    program.expect(&[("module m 1000", "0"), ("launch m", "0")]);
    world.judge(CAP);
    // As long as the reserve lasts. What is small then gets nothing of it, not even for the length of a call.
    let answer = program.say("repeat 5 {\nmodule n 1000\n}");
    assert!(answer.ends_with("2:4"), "{answer}");
    assert_eq!(world.machine().used(), CAP);
    program.expect(&[("alloc crumb 1", "2")]);
    world.judge(CAP);
    program.end();
    world.judge_end(CAP);
}

#[test]
fn libraries_are_loaded_where_they_are_first_needed() {
    for (load, first_use) in [
        ("library", "library-module"),
        ("library", "library-global"),
        ("library", "library-launch"),
        ("library-file", "library-module"),
    ] {
        let world = World::new(CAP);
        let mut program = world.on_gpu();
        let fine = match first_use {
            "library-global" => "0 314572800",
            _ => "0",
        };
        for library in ["a", "b", "c"] {
            program.expect(&[(&format!("{load} {library} 300M"), "0")]);
        }
        assert_eq!(world.machine().used(), CONTEXT, "nothing is loaded yet");
        program.expect(&[
            (&format!("{first_use} a"), fine),
            (&format!("{first_use} b"), fine),
            (&format!("{first_use} c"), "2"),
            // What is there needs nothing more.
            (&format!("{first_use} a"), fine),
            ("alloc d 190M", "0"),
            (&format!("{first_use} b"), fine),
        ]);
        world.judge(CAP);
        program.expect(&[
            ("free d", "0"),
            ("unload-library a", "0"),
            (&format!("{first_use} c"), fine),
        ]);
        world.judge(CAP);
        program.end();
        world.judge_end(CAP);
    }
}

#[test]
fn each_context_has_its_own_copy_of_a_library() {
    let cap = 2 * CONTEXT + 400 * MIB;
    let world = World::new(cap);
    let mut program = world.on_gpu();
    program.expect(&[
        ("library a 300M", "0"),
        ("library-global a", "0 314572800"),
        ("context other 0 v2", "0"),
        ("library-module a", "2"),
        ("library-launch a", "2"),
    ]);
    world.judge(cap);
    program.expect(&[
        ("destroy other", "0"),
        ("current 0", "0"),
        ("library-launch a", "0"),
    ]);
    world.judge(cap);
    program.end();
    world.judge_end(cap);
}

#[test]
fn eager_loading() {
    let world = World::new(CAP);
    let mut command = world.limited(gpulimit_programs::world::program());
    command.env("CUDA_MODULE_LOADING", "EAGER");
    let mut program = gpulimit_programs::world::Session::start(command);
    program.expect(&[
        ("start", "0 0"),
        ("library a 300M", "0"),
        ("library b 300M", "0"),
        ("library c 300M", "2"),
    ]);
    assert_eq!(world.machine().used(), CONTEXT + 600 * MIB);
    world.judge(CAP);
    program.end();
    world.judge_end(CAP);
}

/// Fat binaries of nvcc, whose image for the simulated GPU has a variable of 300 MiB and a table of 4,000 bytes.
#[test]
fn compressed() {
    let fixtures = concat!(env!("CARGO_MANIFEST_DIR"), "/../../shim/src/image/fixtures");
    for compression in ["lz4", "zstd"] {
        for load in ["image", "image-file"] {
            let world = World::new(CAP);
            let mut program = world.on_gpu();
            let load = |name| format!("{load} {name} {fixtures}/{compression}.fatbin");
            program.expect(&[(&load("a"), "0"), (&load("b"), "0"), (&load("c"), "2")]);
            world.judge(CAP);
            program.expect(&[("unload a", "0"), (&load("c"), "0"), ("launch c", "0")]);
            world.judge(CAP);
            program.expect(&[("unload b", "0"), ("unload c", "0"), ("alloc d 780M", "0")]);
            world.judge(CAP);
            program.end();
            world.judge_end(CAP);
        }
        let world = World::new(CAP);
        let mut program = world.on_gpu();
        for library in ["a", "b", "c"] {
            let load = format!("library-image {library} {fixtures}/{compression}.fatbin");
            program.expect(&[(&load, "0")]);
        }
        assert_eq!(world.machine().used(), CONTEXT, "nothing is loaded yet");
        program.expect(&[
            ("library-module a", "0"),
            ("library-launch b", "0"),
            ("library-module c", "2"),
            ("library-launch c", "2"),
            ("unload-library a", "0"),
            ("library-launch c", "0"),
        ]);
        world.judge(CAP);
        program.end();
        world.judge_end(CAP);
    }
}

/// Compressed PTX, as a fat binary has it for GPUs newer than all that it was made for.
#[test]
fn compressed_text() {
    let world = World::new(CAP);
    let file = std::env::temp_dir().join(format!("gpulimit-text-{}.fatbin", std::process::id()));
    let mut image = include_bytes!("../../../../shim/src/image/fixtures/zstd.fatbin").to_vec();
    // The text is the first entry; the machine code behind it is left out.
    let end = 16 + 80 + 360;
    image.truncate(end);
    image[8..16].copy_from_slice(&(end as u64 - 16).to_le_bytes());
    std::fs::write(&file, image).unwrap();
    let mut program = world.on_gpu();
    let load = |name: u32| format!("image m{name} {}", file.display());
    for name in 0..15 {
        program.expect(&[(&load(name), "0")]);
        world.judge(CAP);
    }
    program.expect(&[(&load(15), "2"), ("unload m3", "0"), (&load(15), "0")]);
    world.judge(CAP);
    program.end();
    world.judge_end(CAP);
    std::fs::remove_file(file).unwrap();
}
