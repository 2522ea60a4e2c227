//! A limit that cannot be applied closes the GPU and is explained in one line, and no program
//! crashes.

use std::fs;
use std::os::unix::fs::FileExt;
use std::path::Path;

use gpulimit_programs::world::{self, GROUP, MIB, Session, World};

/// Asserts that the GPU is closed for the program, with one line that contains `says`.
#[track_caller]
fn closed(world: &World, mut program: Session, says: &str) {
    program.expect(&[
        ("init", "0"),
        ("retain 0", "800"),
        ("retain 0", "800"),
        ("context a 0 v2", "800"),
        ("create b 2M 0", "800"),
    ]);
    assert_eq!(world.machine().peak(), 0);
    let (status, errors) = program.end();
    assert!(status.success(), "{status:?}");
    assert_eq!(errors.lines().count(), 1, "{errors}");
    assert!(
        errors.starts_with("gpulimit: no GPU memory for this program: "),
        "{errors}"
    );
    assert!(errors.contains(says), "{errors}");
}

fn with(world: &World, variables: &[(&str, &str)]) -> Session {
    let mut command = world.preloaded(world::program());
    command.envs(variables.iter().copied());
    Session::start(command)
}

#[test]
fn invalid_sizes_close_the_gpu() {
    for text in [
        "",
        "4Q",
        "four",
        "-1",
        "1G=0",
        "0=1G,0=2G",
        "0=1G,7=2G",
        "GPU-ffffffff=1G",
        "4G,",
        "1.5.2G",
        "200000000000000000000G",
    ] {
        let world = World::without_group(&[]);
        let program = with(&world, &[("GPULIMIT_MAX", text)]);
        closed(
            &world,
            program,
            &format!("GPULIMIT_MAX{}", if text.is_empty() { "=''" } else { "" }),
        );
    }
}

#[test]
fn a_kernel_without_the_needed_locks_closes_the_gpu() {
    let world = World::new(4096 * MIB);
    let mut command = world.limited(&world::compile("old_kernel", &[]));
    command.arg("3.14").arg(world::program());
    let mut program = Session::start(command);
    assert_ne!(program.say("start"), "0 0");
    let (status, errors) = program.end();
    assert!(status.success(), "{status:?}");
    // The simulated driver needs these locks as well, and prints a line of its own.
    let ours: Vec<_> = errors
        .lines()
        .filter(|line| line.starts_with("gpulimit: "))
        .collect();
    assert!(
        matches!(ours[..], [line] if line.contains("3.15")),
        "{errors}"
    );
    assert_eq!(world.machine().peak(), 0);
}

#[test]
fn missing_groups_close_the_gpu() {
    let world = World::without_group(&[]);
    closed(
        &world,
        with(&world, &[("GPULIMIT_GROUP", "nobody")]),
        "nobody",
    );
    closed(&world, with(&world, &[("GPULIMIT_GROUP", "../up")]), "..");
    closed(
        &world,
        with(&world, &[("GPULIMIT_GROUP", "")]),
        "GPULIMIT_GROUP",
    );
    closed(
        &world,
        with(
            &world,
            &[("GPULIMIT_MAX", "1G"), ("GPULIMIT_ROOT", "not/absolute")],
        ),
        "GPULIMIT_ROOT",
    );
    closed(
        &world,
        with(
            &world,
            &[
                ("GPULIMIT_MAX", "1G"),
                ("GPULIMIT_ROOT", "/proc/nowhere/here"),
            ],
        ),
        "/proc/nowhere",
    );
}

#[test]
fn an_unsafe_root_closes_the_gpu() {
    use std::os::unix::fs::PermissionsExt;
    let world = World::without_group(&[]);
    fs::set_permissions(world.root().path(), fs::Permissions::from_mode(0o777)).expect("changed");
    closed(&world, with(&world, &[("GPULIMIT_MAX", "1G")]), "root");
    let file = world.file("file");
    fs::write(&file, "").expect("written");
    closed(
        &world,
        with(
            &world,
            &[
                ("GPULIMIT_MAX", "1G"),
                ("GPULIMIT_ROOT", &file.display().to_string()),
            ],
        ),
        "file",
    );
}

#[test]
fn damaged_files_close_the_gpu() {
    for name in ["ledger", "limits"] {
        type Damage = fn(&std::path::Path);
        let damages: [(&str, Damage); 6] = [
            ("empty", |path| fs::write(path, "").expect("written")),
            ("garbage", |path| {
                let bytes = fs::metadata(path).expect("there").len() as usize;
                fs::write(path, vec![0xa5; bytes]).expect("written");
            }),
            ("truncated", |path| {
                let file = fs::OpenOptions::new()
                    .write(true)
                    .open(path)
                    .expect("there");
                let bytes = file.metadata().expect("there").len();
                file.set_len(bytes / 2).expect("cut");
            }),
            ("of another version", |path| {
                let file = fs::OpenOptions::new()
                    .write(true)
                    .open(path)
                    .expect("there");
                file.write_all_at(&999u32.to_ne_bytes(), 8)
                    .expect("written");
            }),
            ("a folder", |path| {
                fs::remove_file(path).expect("removed");
                fs::create_dir(path).expect("made");
            }),
            ("missing", |path| fs::remove_file(path).expect("removed")),
        ];
        for (what, damage) in damages {
            let world = World::new(1024 * MIB);
            let path = world.root().path().join(GROUP).join(name);
            damage(&path);
            let program = with(&world, &[("GPULIMIT_GROUP", GROUP)]);
            println!("{name} {what}");
            closed(&world, program, GROUP);
        }
    }
}

#[test]
fn a_closed_gpu_still_answers_what_takes_no_memory() {
    let world = World::without_group(&[]);
    let mut program = with(&world, &[("GPULIMIT_MAX", "nonsense")]);
    program.expect(&[
        ("init", "0"),
        ("dlsym cuMemAlloc_v2", "1"),
        ("free-number 0", "0"),
    ]);
    let (status, _) = program.end();
    assert!(status.success());
}

#[test]
fn a_group_removed_by_hand_does_not_crash_its_members() {
    let world = World::new(1024 * MIB);
    let mut program = world.on_gpu();
    program.expect(&[("alloc a 100M", "0")]);
    fs::remove_dir_all(world.root().path().join(GROUP)).expect("removed");
    program.expect(&[
        ("alloc b 100M", "0"),
        ("alloc c 900M", "2"),
        ("free a", "0"),
        (
            "info",
            &format!("0 {} 1073741824", (1024 - 518 - 100 - 4) * MIB),
        ),
    ]);
    let (status, _) = program.end();
    assert!(status.success());
    assert!(world.machine().peak() <= 1024 * MIB);
}

#[test]
fn variables_of_other_tools_are_understood() {
    for (name, value) in [
        ("CUDA_DEVICE_MEMORY_LIMIT", "1G"),
        ("CUDA_DEVICE_MEMORY_LIMIT_0", "1024M"),
        ("CUDA_MPS_PINNED_DEVICE_MEM_LIMIT", "0=1G"),
        ("NVIDIA_GPU_MEMORY_LIMIT", "1024"),
    ] {
        let world = World::without_group(&[]);
        let mut program = with(&world, &[(name, value)]);
        program.expect(&[
            ("start", "0 0"),
            ("total 0", "0 1073741824"),
            ("alloc a 600M", "2"),
        ]);
        program.end();
        world.judge_end(1024 * MIB);
    }
}

#[test]
fn a_root_on_an_unsuitable_file_system_closes_the_gpu() {
    if !world::may_mount() {
        return;
    }
    let world = World::new(512 * MIB);
    let script = "mkdir -p \"$LAYER/up\" \"$LAYER/work\" && mount -t overlay none -o \
        lowerdir=\"$GPULIMIT_ROOT\",upperdir=\"$LAYER/up\",workdir=\"$LAYER/work\" \
        \"$GPULIMIT_ROOT\" && LD_PRELOAD=$LIBRARY exec \"$PROGRAM\"";
    let mut command = world.limited(Path::new("unshare"));
    command
        .args(["--mount", "--propagation", "private", "sh", "-c", script])
        .env_remove("LD_PRELOAD")
        .env("LIBRARY", world::shim())
        .env("LAYER", world.file("layer"))
        .env("PROGRAM", world::program());
    closed(&world, Session::start(command), "lies on overlayfs, which");
}

#[test]
fn an_unwritable_root_closes_the_gpu() {
    for root in ["/proc", "/proc/self", "/sys", "/sys/kernel"] {
        let world = World::without_group(&[]);
        let limit = [("GPULIMIT_MAX", "1G"), ("GPULIMIT_ROOT", root)];
        closed(&world, with(&world, &limit), root);
    }
    if !world::may_mount() {
        return;
    }
    // Root may make groups in these places, so the test mounts them read-only.
    for root in ["/dev", "/"] {
        let world = World::without_group(&[]);
        let script = "mount --rbind \"$GPULIMIT_ROOT\" \"$GPULIMIT_ROOT\" && \
            mount -o remount,bind,ro \"$GPULIMIT_ROOT\" && \
            ! mkdir \"$GPULIMIT_ROOT/gpulimit-test\" 2>/dev/null && \
            LD_PRELOAD=$LIBRARY GPULIMIT_MAX=1G exec \"$PROGRAM\"";
        let mut command = world.preloaded(Path::new("unshare"));
        command
            .args(["--mount", "--propagation", "private", "sh", "-c", script])
            .env_remove("LD_PRELOAD")
            .env("GPULIMIT_ROOT", root)
            .env("LIBRARY", world::shim())
            .env("PROGRAM", world::program());
        closed(&world, Session::start(command), root);
    }
}
