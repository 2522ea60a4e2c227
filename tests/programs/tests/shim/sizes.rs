//! Sizes that depend on the GPU: `-2G` means the GPU's memory less 2 GiB, wherever a size is
//! accepted; and limits that make no sense for the GPU.

use gpulimit_programs::world::{self, Session, World, text};
use std::process::Output;

const GIB: u64 = 1 << 30;
/// The memory of the two GPUs, as CUDA reports it.
const CAPACITIES: [u64; 2] = [80 * GIB, 24 * GIB];

fn world(gpus: usize) -> World {
    let capacities: Vec<String> = CAPACITIES[..gpus].iter().map(u64::to_string).collect();
    World::without_group(&[
        ("GPULIMIT_SIM_GPUS", &gpus.to_string()),
        ("GPULIMIT_SIM_CAPACITY", &capacities.join(",")),
    ])
}

fn controller(world: &World, arguments: &[&str]) -> Output {
    let mut command = world.bare(&world::controller());
    command.env("GPULIMIT_LIBRARY", world::shim());
    command.args(arguments).output().expect("run")
}

#[track_caller]
fn said(world: &World, arguments: &[&str]) -> String {
    let output = controller(world, arguments);
    assert!(output.status.success(), "{arguments:?}: {output:?}");
    text(&output.stdout)
}

/// Returns the UUID of a GPU.
fn uuid(world: &World, gpu: usize) -> String {
    world.machine().gpu(gpu).uuid.clone()
}

#[test]
fn a_negative_max_is_relative_to_each_gpu() {
    let world = world(2);
    for (max, expected) in [
        ("-2G", [78, 22]),
        ("0=-1G,all=-4G", [79, 20]),
        ("1=8G,all=-2G", [78, 8]),
    ] {
        let mut command = world.preloaded(world::program());
        command.env("GPULIMIT_MAX", max);
        let mut program = Session::start(command);
        program.expect(&[("init", "0")]);
        for (gpu, gib) in expected.into_iter().enumerate() {
            let total = format!("0 {}", gib * GIB);
            program.expect(&[(&format!("total {gpu}"), &total)]);
        }
    }
    // Another process of the same job sees only one of the GPUs.
    let job = [("GPULIMIT_MAX", "-2G"), ("GPULIMIT_GROUP", "job-1-1")];
    for (visible, gib) in [("0", 78), ("1", 22)] {
        let mut command = world.preloaded(world::program());
        command.envs(job).env("CUDA_VISIBLE_DEVICES", visible);
        let mut program = Session::start(command);
        program.expect(&[("init", "0"), ("total 0", &format!("0 {}", gib * GIB))]);
    }
}

#[test]
fn every_verb_accepts_negative_sizes_in_both_forms() {
    let world = world(2);
    let get = |name: &str| {
        let gpu = |gpu| {
            said(
                &world,
                &["get", name, "max", "--device", &uuid(&world, gpu)],
            )
        };
        format!("{}{}", gpu(0), gpu(1))
    };
    said(&world, &["create", "a", "--max", "-2G"]);
    assert_eq!(get("a"), "78GiB\n22GiB\n");
    said(&world, &["create", "b", "max=-2G"]);
    assert_eq!(get("b"), "78GiB\n22GiB\n");
    let lines = said(&world, &["set", "a", "--max=-4G"]);
    assert!(
        lines.contains("max=-4GiB applied to GPU 1") && lines.contains(": 20.0 GiB"),
        "{lines}"
    );
    assert_eq!(get("a"), "76GiB\n20GiB\n");
    said(&world, &["set", "b", "max=-1G", "--device", "1"]);
    assert_eq!(get("b"), "78GiB\n23GiB\n");
    let own = world::controller().display().to_string();
    let show = format!("{own} get $GPULIMIT_GROUP max --device {}", uuid(&world, 1));
    for limit in [&["--max", "-3G"][..], &["max=-3G"]] {
        let mut run = vec!["run"];
        run.extend(limit);
        run.extend(["--", "sh", "-c", &show]);
        assert_eq!(said(&world, &run), "21GiB\n", "{limit:?}");
    }
    let policy = world.file("p.toml");
    std::fs::write(
        &policy,
        "[group.c]\nmax = '-2G'\n[group.d]\nmax = { all = '-2G', 1 = '-6G' }\n",
    )
    .expect("written");
    let policy = policy.display().to_string();
    said(&world, &["apply", &policy]);
    assert_eq!(get("c"), "78GiB\n22GiB\n");
    assert_eq!(get("d"), "78GiB\n18GiB\n");
    assert_eq!(said(&world, &["apply", &policy]), "nothing to change\n");
}

#[test]
fn sizes_larger_than_the_gpu_are_reported() {
    let world = world(1);
    let refused = |arguments: &[&str]| {
        let output = controller(&world, arguments);
        // The status is that of a usage error, and not of a machine fault, for which Slurm's Prolog
        // drains a node.
        assert_eq!(output.status.code(), Some(2), "{arguments:?}: {output:?}");
        text(&output.stderr)
    };
    let error = refused(&["create", "a", "--max", "-80G"]);
    assert!(error.contains("has only 80.0 GiB"), "{error}");
    let mut command = world.preloaded(world::program());
    command.env("GPULIMIT_MAX", "-80G");
    let mut program = Session::start(command);
    assert_ne!(program.say("start"), "0 0");
    // Such a size is allowed, with a warning that it has no effect.
    for arguments in [
        &["create", "a", "--max", "200G"][..],
        &["set", "a", "--max", "200G"],
        &["set", "a", "max=90G", "high=100G"],
    ] {
        let output = controller(&world, arguments);
        let error = text(&output.stderr);
        assert!(output.status.success(), "{output:?}");
        let warning = "is more than the 80.0 GiB of GPU 0";
        assert!(
            error.contains("warning: a: max=") && error.contains(warning),
            "{error}"
        );
    }
    // `run` warns about the command's own limit if it runs on a terminal.
    let own = world::controller();
    let run = format!("{} run --max 200G -- true", own.display());
    let mut terminal = world.bare(std::path::Path::new("script"));
    terminal
        .env("GPULIMIT_LIBRARY", world::shim())
        .args(["-qec", &run, "/dev/null"]);
    let output = terminal.output().expect("script, of util-linux");
    let seen = text(&output.stdout);
    assert!(output.status.success(), "{output:?}");
    assert!(seen.contains("warning: max=200GiB is more than"), "{seen}");
}

/// A GPU smaller than the size left out of it causes no error if `CUDA_VISIBLE_DEVICES` hides the
/// GPU, in whatever order CUDA counts the GPUs.
#[test]
fn run_considers_only_visible_gpus() {
    let world = world(2);
    let visible = |devices: &str, order: &str| {
        let gpu = uuid(&world, 0);
        let show = format!(
            "{} get $GPULIMIT_GROUP max --device {gpu}",
            world::controller().display()
        );
        let mut command = world.bare(&world::controller());
        command
            .env("GPULIMIT_LIBRARY", world::shim())
            .env("CUDA_VISIBLE_DEVICES", devices)
            .env("CUDA_DEVICE_ORDER", order)
            .args(["run", "--max=-30G", "--", "sh", "-c", &show]);
        let output = command.output().expect("run");
        (
            output.status.code(),
            text(&output.stdout),
            text(&output.stderr),
        )
    };
    let large = uuid(&world, 0);
    for (devices, order) in [
        ("0", "PCI_BUS_ID"),
        ("0", "FASTEST_FIRST"),
        (&large, "PCI_BUS_ID"),
    ] {
        let (code, max, error) = visible(devices, order);
        assert_eq!((code, &*max), (Some(0), "50GiB\n"), "{devices}: {error}");
    }
    for devices in ["1", "0,1"] {
        let (code, _, error) = visible(devices, "PCI_BUS_ID");
        assert_eq!(code, Some(2), "{devices}: {error}");
        assert!(error.contains("has only 24.0 GiB"), "{error}");
    }
    // The limit is computed for hidden GPUs, too, since another command may share the group.
    let mut command = world.bare(&world::controller());
    let run = ["run", "--max=-2G", "--name", "shared", "--", "true"];
    command.env("GPULIMIT_LIBRARY", world::shim());
    command.env("CUDA_VISIBLE_DEVICES", "0").args(run);
    assert!(command.status().expect("run").success());
    let max = |gpu: usize| {
        said(
            &world,
            &["get", "shared", "max", "--device", &uuid(&world, gpu)],
        )
    };
    assert_eq!((&*max(0), &*max(1)), ("78GiB\n", "22GiB\n"));
}

/// `--check` reports what `apply` refuses: with status 1 if this machine's GPUs are too small, and
/// in words what this machine lacks.
#[test]
fn check_reports_what_apply_refuses_on_this_machine() {
    let world = world(1);
    let policy = world.file("p.toml");
    let path = policy.display().to_string();
    let answers = |text_of_policy: &str| {
        std::fs::write(&policy, text_of_policy).expect("written");
        [&["apply", "--check", &*path][..], &["apply", &path]].map(|arguments| {
            let output = controller(&world, arguments);
            let said = format!("{}{}", text(&output.stdout), text(&output.stderr));
            (output.status.code(), said)
        })
    };
    for (code, said) in answers("[group.a]\nmax = '-80G'\n") {
        assert_eq!(code, Some(1), "{said}");
        assert!(said.contains("p.toml:2: -80GiB leaves no memory"), "{said}");
        assert!(said.contains("has only 80.0 GiB"), "{said}");
    }
    let [check, apply] = answers("[group.a]\nmax = { 7 = '4G' }\n");
    assert_eq!((check.0, apply.0), (Some(0), Some(1)), "{}", check.1);
    for words in [
        "p.toml:2: unknown GPU '7'",
        "(may be valid on another machine)",
        "on this machine `gpulimit apply` rejects the policy",
    ] {
        assert!(check.1.contains(words), "{words}: {}", check.1);
    }
}

/// Every verb that sets a limit warns if not even a context fits into it.
#[test]
fn a_limit_too_small_for_a_context_is_reported() {
    let world = world(1);
    let policy = world.file("p.toml");
    std::fs::write(&policy, "[group.c]\nmax = '10M'\n").expect("written");
    let policy = policy.display().to_string();
    for arguments in [
        &["create", "a", "--max", "10M"][..],
        &["create", "b", "--max=-81910M"],
        &["set", "a", "--max", "0.01%"],
        &["run", "--max", "10M", "--", "true"],
        &["apply", "--check", &policy],
        &["apply", &policy],
    ] {
        let output = controller(&world, arguments);
        let error = text(&output.stderr);
        assert!(output.status.success(), "{output:?}");
        assert!(
            error.contains("warning: ") && error.contains("leaves no room for a CUDA context"),
            "{arguments:?}: {error}"
        );
    }
}

/// GPUs to which only the rule for all GPUs applies are shown beside those with rules of their own.
#[test]
fn show_lists_every_gpu_with_a_limit() {
    let world = world(2);
    said(&world, &["create", "a", "--max", "4G"]);
    said(&world, &["set", "a", "--max", "2G", "--device", "1"]);
    let figures = |option: &str| {
        let out = said(&world, &["show", "a", option]);
        let lines = out.lines().skip(1).map(|line| {
            let words: Vec<&str> = line.split_whitespace().collect();
            words.join(" ")
        });
        lines.collect::<Vec<_>>()
    };
    let [shown, tree] = ["--device=all", "--tree"].map(figures);
    for (lines, of) in [(&shown, "show"), (&tree, "tree")] {
        assert_eq!(lines.len(), 2, "{of}: {lines:?}");
        assert!(
            lines[0].starts_with("a 0 ") || lines[0].starts_with("0 "),
            "{lines:?}"
        );
        assert!(
            lines[0].contains("4.0 GiB") && lines[1].contains("2.0 GiB"),
            "{lines:?}"
        );
    }
    let json = said(&world, &["show", "a", "--json"]);
    for gpu in [0, 1] {
        assert!(
            json.contains(&format!("\"uuid\": \"{}\"", uuid(&world, gpu))),
            "{json}"
        );
    }
}
