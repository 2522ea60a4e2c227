//! Code with large variables is refused before the driver takes memory for the variables.

use gpulimit_group::Member;
use gpulimit_ledger::Category;
use gpulimit_programs::world::{self, CONTEXT, HOUR, MIB, Session, World};
use std::os::unix::fs::PermissionsExt;

/// Room for two images of 300 MiB, and not for three.
const CAP: u64 = CONTEXT + 800 * MIB;

#[test]
fn modules_with_large_variables_are_refused_at_the_limit() {
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

/// Frameworks compile kernels at run time, also after they have filled their memory.
#[test]
fn small_modules_fit_into_a_full_group() {
    let world = World::new(CAP);
    let mut program = world.on_gpu();
    program.say("fill large 50M");
    program.say("fill small 2M");
    program.expect(&[("module m 1000", "0"), ("launch m", "0")]);
    world.judge(CAP);
    // The modules fit as long as the reserve lasts. A small request gets no part of the reserve
    // then, not even for the length of a call.
    let answer = program.say("repeat 5 {\nmodule n 1000\n}");
    assert!(answer.ends_with("2:4"), "{answer}");
    assert_eq!(world.machine().used(), CAP);
    program.expect(&[("alloc crumb 1", "2")]);
    world.judge(CAP);
    program.end();
    world.judge_end(CAP);
}

#[test]
fn libraries_are_charged_at_their_first_use() {
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
            // A loaded library needs no further memory.
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
fn eagerly_loaded_libraries_are_refused_at_the_limit() {
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

/// These are nvcc's fat binaries, whose image for the simulated GPU has a variable of 300 MiB and a
/// table of 4,000 bytes.
#[test]
fn compressed_images_are_charged_for_their_variables() {
    let fixtures = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../../crates/fatbin/src/fixtures"
    );
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

/// nvcc puts compressed PTX into a fat binary for GPUs newer than those it was compiled for.
#[test]
fn compressed_ptx_is_charged_for_its_variables() {
    let world = World::new(CAP);
    let file = world.file("text.fatbin");
    let mut image = include_bytes!("../../../../crates/fatbin/src/fixtures/zstd.fatbin").to_vec();
    // The text is the first entry; the test leaves out the machine code behind it.
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

pub const FIXTURES: &str = concat!(
    env!("CARGO_MANIFEST_DIR"),
    "/../../crates/fatbin/src/fixtures"
);

/// Returns a PTX text with these declarations and a kernel.
fn ptx(declarations: &str) -> String {
    format!(
        ".version 8.0\n.target sm_52\n.address_size 64\n{declarations}\n.visible .entry kernel()\n\
            {{\n ret;\n}}\n"
    )
}

/// Returns a fat binary with these PTX texts, each for GPUs of a compute capability.
fn fatbin(texts: &[(u8, String)]) -> Vec<u8> {
    let mut body = Vec::new();
    for (capability, text) in texts {
        let mut header = [0u8; 64];
        (header[0], header[4], header[28]) = (1, 64, *capability);
        header[8..16].copy_from_slice(&(text.len() as u64).to_le_bytes());
        body.extend(header);
        body.extend(text.as_bytes());
    }
    let mut image = vec![0x50, 0xed, 0x55, 0xba, 1, 0, 16, 0];
    image.extend((body.len() as u64).to_le_bytes());
    image.extend(body);
    image
}

/// Returns a fat binary with a compressed PTX text that declares a variable of `mib` MiB. The text
/// has 256 KiB, most of them spaces.
fn long_image(mib: u64) -> Vec<u8> {
    let text = ptx(&format!(
        ".visible .global .align 4 .b8 data[{}];",
        mib << 20
    ));
    let (run, runs) = (64u32 << 10, 4);
    let size = text.len() as u32 + runs * run;
    // A zstd frame: its header with the size, a block of bytes as they are, and blocks of runs.
    let mut frame = vec![0x28, 0xb5, 0x2f, 0xfd, 0xa0];
    frame.extend(size.to_le_bytes());
    frame.extend(&(text.len() as u32 * 8).to_le_bytes()[..3]);
    frame.extend(text.as_bytes());
    for number in 1..=runs {
        let header = run * 8 + 2 + u32::from(number == runs);
        frame.extend(&header.to_le_bytes()[..3]);
        frame.push(b' ');
    }
    let mut image = fatbin(&[(90, String::new())]);
    image[8..16].copy_from_slice(&(64 + frame.len() as u64).to_le_bytes());
    let entry = &mut image[16..80];
    entry[8..16].copy_from_slice(&(frame.len() as u64).to_le_bytes());
    entry[16..20].copy_from_slice(&(frame.len() as u32).to_le_bytes());
    entry[40..48].copy_from_slice(&0x8011u64.to_le_bytes());
    entry[56..64].copy_from_slice(&u64::from(size).to_le_bytes());
    image.extend(frame);
    image
}

/// The needs of a large compressed image are stored in the root. Later programs believe what is
/// stored, if only root or their own user could have written it.
#[test]
fn the_needs_of_images_are_stored() {
    let world = World::new(CAP);
    let file = world.file("image");
    std::fs::write(&file, long_image(300)).expect("an image");
    let load = |program: &mut Session, status: &str| {
        program.expect(&[(&format!("image a {}", file.display()), status)]);
    };
    let stored = world.root().path().join(".images");
    let mut program = world.on_gpu();
    load(&mut program, "0");
    world.judge(CAP);
    program.end();
    let bytes = std::fs::read(&stored).expect("the stored needs");
    let at = bytes.iter().position(|byte| *byte != 0).expect("an entry") / 64 * 64;
    let key = bytes[at..at + 32].try_into().expect("a key");

    // A stored answer that says more than is true shows that it is used.
    let member = Member::join(world.root(), world.group().name()).expect("a member");
    assert_eq!(member.known_image(&key), Some([300 << 20, 300 << 20, 0, 0]));
    member.remember_image(&key, [900 << 20, 0, 0, 0]);
    drop(member);
    let mut program = world.on_gpu();
    load(&mut program, "2");
    program.end();

    // The program reads the image itself where the file is damaged or not to be believed.
    let lie = std::fs::read(&stored).expect("the stored needs");
    let too_open = std::fs::Permissions::from_mode(0o666);
    std::fs::set_permissions(&stored, too_open).expect("permissions");
    let mut program = world.on_gpu();
    load(&mut program, "0");
    program.end();
    std::fs::remove_file(&stored).expect("removed");
    let mut damaged = lie;
    damaged[at + 40] ^= 1;
    std::fs::write(&stored, &damaged).expect("written");
    let mut program = world.on_gpu();
    load(&mut program, "0");
    world.judge(CAP);
    program.end();
    assert_ne!(std::fs::read(&stored).expect("mended"), damaged);
    std::fs::remove_file(&stored).expect("removed");
    std::os::unix::fs::symlink("/dev/full", &stored).expect("a link");
    let mut program = world.on_gpu();
    load(&mut program, "0");
    world.judge(CAP);
    program.end();
    world.judge_end(CAP);
}

const LARGE: &str = ".visible .global .align 4 .b8 data[1073741824];";

/// A declaration is charged before the driver takes its memory, whatever text surrounds it.
#[test]
fn odd_declarations_are_charged_in_full() {
    let mut entries = vec![(50, ptx("")); 5000];
    entries.push((90, ptx(LARGE)));
    let texts = [
        ptx(&format!("// .extern declarations: none\n{LARGE}")),
        ptx(&format!("/* .extern */ {LARGE}")),
        ptx(&LARGE.replace(".align", "/* .managed */ .align")),
        ptx(&LARGE.replace("1073741824", "0x40000000")),
        ptx(&LARGE.replace("1073741824", "1024][1048576")),
    ];
    let images = texts.into_iter().map(String::into_bytes);
    for image in images.chain([fatbin(&entries)]) {
        let world = World::new(CAP);
        let file = world.file("image");
        std::fs::write(&file, image).expect("an image");
        let file = file.display();
        let mut program = world.on_gpu();
        program.expect(&[
            (&format!("image a {file}"), "2"),
            (&format!("image-file a {file}"), "2"),
            (&format!("library-image a {file}"), "0"),
            ("library-module a", "2"),
            ("unload-library a", "0"),
        ]);
        world.judge(CAP);
        program.end();
        world.judge_end(CAP);
    }
}

#[test]
fn commented_out_declarations_are_not_charged() {
    let world = World::new(CAP);
    let file = world.file("image");
    std::fs::write(&file, ptx(&format!("// {LARGE}\n/*\n{LARGE}\n*/"))).expect("an image");
    let mut program = world.on_gpu();
    program.expect(&[
        ("alloc a 790M", "0"),
        (&format!("image b {}", file.display()), "0"),
        ("launch b", "0"),
    ]);
    world.judge(CAP);
    program.end();
    world.judge_end(CAP);
}

/// The size of a library that cannot be read shows only when the library is loaded. The library
/// under test therefore loads it at once, so that it can be closed again where it does not fit.
#[test]
fn unreadable_libraries_are_loaded_when_opened() {
    let world = World::new(CAP);
    let mut image = std::fs::read(format!("{FIXTURES}/managed.cubin")).expect("a cubin");
    // The first change damages the size of an entry in the table of sections, which the simulated
    // driver does not read. The second makes the managed variable an ordinary one.
    image[58] = 128;
    let symbols = u64::from_le_bytes(image[40..48].try_into().expect("eight")) as usize + 3 * 64;
    image[symbols + 4] = 0;
    let file = world.file("odd.cubin");
    std::fs::write(&file, image).expect("an image");
    let open = |name| format!("library-image {name} {}", file.display());
    let mut program = world.on_gpu();
    program.expect(&[(&open("a"), "0")]);
    assert!(world.machine().used() > CONTEXT + 400 * MIB, "loaded");
    program.expect(&[(&open("b"), "2"), ("library-launch a", "0")]);
    assert!(world.machine().used() < CONTEXT + 410 * MIB, "undone");
    assert!(world.counted(0).abs_diff(world.machine().used()) <= 2 * MIB);
    program.expect(&[("context other 0 v2", "2"), ("unload-library a", "0")]);
    assert_eq!(world.machine().used(), CONTEXT);
    program.expect(&[("alloc c 780M", "0"), ("free c", "0")]);
    program.end();
    world.settle();
    assert_eq!(world.usage(0).charged, 0);
}

/// Managed variables are charged before their code is loaded, in a category of their own, because
/// NVML does not show them.
#[test]
fn managed_variables_are_charged_before_their_code_is_loaded() {
    for image in ["managed.cubin", "managed.ptx"] {
        let world = World::new(CAP);
        let (module, library) = (
            |name| format!("image {name} {FIXTURES}/{image}"),
            |name| format!("library-image {name} {FIXTURES}/{image}"),
        );
        let is = |managed: u64, own: u64| {
            let usage = world.usage(0);
            let taken = world.machine().used().saturating_sub(CONTEXT);
            assert_eq!(
                usage.by[Category::Managed as usize],
                managed * MIB,
                "{image}"
            );
            assert_eq!(taken / (100 * MIB), own / 100, "{image}");
            assert!(usage.charged >= CONTEXT + (managed + own) * MIB);
        };
        let mut program = world.on_gpu();
        program.expect(&[(&module("a"), "0")]);
        is(302, 100);
        program.expect(&[(&module("b"), "2"), ("alloc c 400M", "2")]);
        is(302, 100);
        program.expect(&[("launch a", "0"), ("unload a", "0")]);
        is(0, 0);
        // Managed variables of a library exist as long as the library, in every context.
        program.expect(&[(&library("a"), "0")]);
        is(302, 0);
        program.expect(&[("library-module a", "0"), (&library("b"), "0")]);
        is(604, 100);
        program.expect(&[
            ("library-launch b", "2"),
            ("unload-library a", "0"),
            ("library-launch b", "0"),
        ]);
        is(302, 100);
        program.expect(&[("unload-library b", "0")]);
        is(0, 0);
        // A module is unloaded with its context.
        program.expect(&[(&module("a"), "0"), ("reset 0", "0")]);
        assert_eq!(world.usage(0).by[Category::Managed as usize], 0);
        program.end();
        world.judge_end(CAP);
    }
}

/// A first launch measures; NVML does not answer here, so a known function is launched without.
#[test]
fn an_unload_forgets_no_other_code() {
    let world = World::new(8192 * MIB);
    let mut program = world.on_gpu();
    let keep = ["launch module", "library-launch library"];
    let load = ["module module 1M", "library library 1M"];
    program.expect(&load.map(|line| (line, "0")));
    program.expect(&keep.map(|line| (line, "0")));
    let silent = format!("nvmlDeviceGetComputeRunningProcesses:{HOUR}");
    for gone in [
        ["module gone 1M", "launch gone", "unload gone"],
        [
            "library gone 1M",
            "library-launch gone",
            "unload-library gone",
        ],
        ["context gone 0 v2", "destroy gone", "current 0"],
    ] {
        program.expect(&gone.map(|line| (line, "0")));
        world.machine().knob("delay", &silent);
        program.expect(&keep.map(|line| (line, "0")));
        world.machine().knob("delay", "0");
    }
    world.judge(8192 * MIB);
    program.end();
    world.judge_end(8192 * MIB);
}

/// The driver has freed a function's handle before the unloading call returns to the library:
/// another thread gets the same handle for a function that needs more memory.
#[test]
fn a_reused_function_handle_is_charged() {
    for (load, first, unload) in [
        ("module old 64M", "launch old", "unload old"),
        (
            "library old 64M",
            "library-launch old",
            "unload-library old",
        ),
    ] {
        let cap = CONTEXT + 200 * MIB;
        let world = World::new(cap);
        let mut command = world.limited(world::program());
        command.env("GPULIMIT_SIM_REUSE", "1");
        let mut program = Session::start(command);
        program.expect(&[("start", "0 0"), (load, "0"), (first, "0")]);
        let call = if load.starts_with("library") {
            "cuLibraryUnload"
        } else {
            "cuModuleUnload"
        };
        world.machine().knob("delay", &format!("{call}:{HOUR}"));
        program.expect(&[(&format!("aside {{\n{unload}\n}}"), "0")]);
        let is_gone = || world.machine().used() < CONTEXT + 64 * MIB;
        assert!(world::eventually(is_gone), "{unload}");
        let launch = if load.starts_with("library") {
            program.expect(&[("kernel-library new 8192", "0")]);
            "library-launch new"
        } else {
            program.expect(&[("kernels new 8192", "0")]);
            "launch new"
        };
        // The launch needs more than the group has left.
        program.expect(&[(launch, "2")]);
        world.machine().knob("delay", "0");
        program.expect(&[("await", "0:1"), (launch, "2")]);
        world.judge(cap);
        program.end();
        world.judge_end(cap);
    }
}
