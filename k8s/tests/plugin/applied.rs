//! Tests that start containers as a container runtime would, with the plugin's variables and
//! mounts. Needs root.

use crate::rig::{GIB, Node, gpu_script, group_of};
use gpulimit_k8s::api::Edits;
use gpulimit_programs::world::{self, BLOCK, CONTEXT, MIB, Session};
use gpulimit_support::{finish, may_mount, text, wait_until};
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::process::{Command, Output};

const USER: u32 = 41_007;
/// The prefix that marks a variable to be removed from the container's environment.
const WITHOUT: &str = "without ";

/// A script that applies all mounts in a new mount namespace, and then runs the program as the
/// user.
const ENTER: &str = r#"
set -e
mount --make-rprivate /
mkdir -p "$PLACE"
mount -t tmpfs -o mode=755 tmpfs "$PLACE"
mkdir -m 755 "$PLACE/etc" "$PLACE/lib" "$PLACE/run"
cp -a /etc/ld.so.* /etc/passwd /etc/group "$PLACE/etc"
mount --bind "$PLACE/etc" /etc
mount --bind "$PLACE/lib" /usr/local/lib
mount --bind "$PLACE/run" /run
rm -f /etc/ld.so.preload
bind() {
    if [ -d "$1" ]; then mkdir -p "$2"; elif [ ! -e "$2" ]; then : > "$2"; fi
    mount --bind "$1" "$2"
    [ "$3" = rw ] || mount -o remount,bind,ro "$2"
}
eval "$MOUNTS"
exec setpriv --reuid="$USER_ID" --regid="$USER_ID" --clear-groups env -i "$@"
"#;

/// Returns the command that runs `program` in a container with the plugin's `edits`. The pod's
/// variables `more` override `edits`.
fn container(node: &Node, edits: &Edits, uid: u32, more: &[&str], program: &[&str]) -> Command {
    let machine = node.world.machine();
    let open = fs::Permissions::from_mode(0o666);
    fs::set_permissions(machine.state(), open).expect("all users may open the GPU");
    let mount = |mount: &gpulimit_k8s::api::Mount| {
        let how = if mount.read_only { "ro" } else { "rw" };
        format!(
            "bind '{}' '{}' {how}\n",
            mount.host_path, mount.container_path
        )
    };
    let mounts: String = edits.mounts.iter().map(mount).collect();
    let mut command = Command::new("unshare");
    command.args(["--mount", "--", "sh", "-c", ENTER, "sh"]);
    let mut inside = Command::new("true");
    machine.enter(&mut inside);
    let text = |value: &std::ffi::OsStr| value.to_str().unwrap().to_owned();
    for (name, value) in inside.get_envs() {
        command.arg(format!("{}={}", text(name), text(value.unwrap())));
    }
    let (without, more): (Vec<&str>, Vec<&str>) =
        more.iter().partition(|word| word.starts_with(WITHOUT));
    for (name, value) in &edits.variables {
        if without.contains(&&*format!("{WITHOUT}{name}")) {
            continue;
        }
        command.arg(format!("{name}={value}"));
        if name == "NVIDIA_VISIBLE_DEVICES" {
            // NVIDIA's runtime would show the container only this GPU.
            command.arg(format!("CUDA_VISIBLE_DEVICES={value}"));
        }
    }
    command
        .args(more)
        .args(program)
        .env("PLACE", node.world.file("container"))
        .env("MOUNTS", mounts)
        .env("USER_ID", uid.to_string());
    command
}

fn start(node: &Node, edits: &Edits, uid: u32, more: &[&str]) -> Session {
    let program = gpu_script().to_str().unwrap();
    Session::start(container(node, edits, uid, more, &[program]))
}

fn shell(node: &Node, edits: &Edits, uid: u32, script: &str) -> Output {
    finish(&mut container(node, edits, uid, &[], &["sh", "-c", script]))
}

/// Returns what `gpulimit show --json` prints about the group on the node.
fn shown(node: &Node, name: &str) -> serde_json::Value {
    let mut command = node.world.bare(&world::controller());
    let output = command
        .args(["show", "--json", name])
        .output()
        .expect("it runs");
    assert!(output.status.success(), "{output:?}");
    serde_json::from_slice(&output.stdout).expect("JSON")
}

#[test]
fn a_container_gets_exactly_its_allocation() {
    if !may_mount() {
        return;
    }
    let node = Node::new();
    let edits = node.kubelet.allocate(&node.ids(1, 0..2)).expect("granted");
    let name = group_of(&edits);
    for uid in [USER, 0] {
        let mut program = start(&node, &edits, uid, &[]);
        assert_eq!(program.say("start"), "0 0");
        // The program sees a GPU of 2 GiB.
        let view = program.numbers("info");
        assert_eq!((view[0], view[2]), (0, 2 * GIB), "{view:?}");
        program.expect(&[
            ("alloc a 1400M", "0"),
            ("alloc b 200M", "2"),
            ("alloc b 100M", "0"),
        ]);
        let (used, peak) = {
            let gpu = node.world.machine().gpu(1);
            (gpu.used, gpu.peak)
        };
        assert!(used.abs_diff(CONTEXT + 1500 * MIB) <= 2 * BLOCK, "{used}");
        assert!(peak <= 2 * GIB, "{peak}");
        let shown = shown(&node, &name);
        let text = shown.to_string();
        assert!(text.contains(&name), "{text}");
        let gpus = shown["groups"][0]["gpus"].as_array().expect("GPUs").clone();
        let granted = gpus.iter().find(|gpu| gpu["index"] == 1);
        let usage = granted
            .and_then(|gpu| gpu["usage"].as_u64())
            .expect("usage");
        assert!(usage.abs_diff(used) <= BLOCK, "{text}");
        let (status, errors) = program.end();
        assert!(status.success());
        assert!(errors.contains(&format!("in {name};")), "{errors}");
        wait_until("the memory is free", || {
            node.world.machine().gpu(1).used == 0
        });
    }
}

#[test]
fn two_containers_on_one_gpu_are_independent() {
    if !may_mount() {
        return;
    }
    let node = Node::new();
    let edits =
        [0..2, 2..5].map(|units| node.kubelet.allocate(&node.ids(0, units)).expect("granted"));
    let mut programs = edits.each_ref().map(|edits| start(&node, edits, USER, &[]));
    for program in &mut programs {
        assert_eq!(program.say("start"), "0 0");
    }
    programs[0].expect(&[("alloc a 1400M", "0"), ("alloc b 200M", "2")]);
    programs[1].expect(&[("alloc a 2400M", "0"), ("alloc b 200M", "2")]);
    programs[0].expect(&[("free a", "0"), ("alloc a 1400M", "0")]);
    let used = node.world.machine().gpu(0).used;
    assert!(
        (2 * CONTEXT + 3800 * MIB..=5 * GIB).contains(&used),
        "{used}"
    );
    // The first container cannot see the second's group.
    let other = group_of(&edits[1]);
    let output = shell(&node, &edits[0], 0, "ls -A /run/gpulimit");
    assert!(!text(&output.stdout).contains(&other), "{output:?}");
}

#[test]
fn variables_of_a_pod_do_not_raise_its_limit() {
    if !may_mount() {
        return;
    }
    let node = Node::new();
    let edits = node.kubelet.allocate(&node.ids(0, 0..2)).expect("granted");
    let name = group_of(&edits);
    let other = node.kubelet.allocate(&node.ids(0, 2..42)).expect("granted");
    let other = group_of(&other);
    let elsewhere = node.world.file("elsewhere");
    fs::create_dir(&elsewhere).unwrap();
    fs::set_permissions(&elsewhere, fs::Permissions::from_mode(0o777)).unwrap();
    let root = format!("GPULIMIT_ROOT={}", elsewhere.display());
    let without = format!("{WITHOUT}GPULIMIT_GROUP");
    // These variables do not contradict the rule, and the rule's limit still holds.
    for more in [
        &["LD_PRELOAD="][..],
        &[&root],
        &[&without],
        &["CUDA_DEVICE_MEMORY_LIMIT=0"],
        &["GPULIMIT_MAX=40G"],
    ] {
        let mut program = start(&node, &edits, USER, more);
        assert_eq!(program.say("start"), "0 0", "{more:?}");
        program.expect(&[("alloc a 1400M", "0"), ("alloc b 200M", "2")]);
    }
    // These variables ask for other groups, so the program gets no GPU memory.
    let foreign = format!("GPULIMIT_GROUP={other}");
    for more in [
        &[&*foreign][..],
        &[&foreign, &root],
        &["GPULIMIT_GROUP=own", &root],
    ] {
        let mut program = start(&node, &edits, USER, more);
        program.expect(&[("init", "0"), ("retain 0", "800")]);
        let (_, errors) = program.end();
        assert!(
            errors.contains("no GPU memory for this program"),
            "{more:?} {errors}"
        );
    }
    // The program can see the second GPU, but gets no memory there.
    let second = format!("CUDA_VISIBLE_DEVICES={}", node.world.machine().gpu(1).uuid);
    let mut program = start(&node, &edits, USER, &[&second]);
    program.expect(&[("init", "0"), ("retain 0", "2")]);
    drop(program);
    // As the container's root, try to change files that must not change.
    let script = format!(
        "cd /run/gpulimit || exit 9
         for try in 'rm -f .rules' 'touch x' 'rm -f {name}/limits' ': > {name}/limits' \
             'mv {name} y' 'rm {name}/ledger' 'rm /etc/ld.so.preload' ': > /etc/ld.so.preload' \
             'umount /etc/ld.so.preload.x' 'touch /usr/local/lib/gpulimit/x'; do
             (eval \"$try\") 2>/dev/null && echo \"$try\"
         done; true"
    );
    let output = shell(&node, &edits, 0, &script);
    assert!(output.status.success(), "{output:?}");
    assert_eq!(text(&output.stdout), "");
    let gpu = node.world.machine().gpu(0);
    assert!(gpu.peak <= 2 * GIB, "{gpu:?}");
}

#[test]
fn a_container_started_before_the_plugin_gets_no_gpu_memory() {
    if !may_mount() {
        return;
    }
    let mut node = Node::new();
    let edits = node.kubelet.allocate(&node.ids(0, 0..2)).expect("granted");
    node.plugin.kill();
    // After a reboot, the root of groups is empty. Container runtimes make a directory where the
    // source of a mount is missing.
    for entry in fs::read_dir(node.world.root().path()).unwrap() {
        fs::remove_dir_all(entry.unwrap().path()).unwrap();
    }
    for mount in &edits.mounts {
        if !std::path::Path::new(&mount.host_path).exists() {
            fs::create_dir_all(&mount.host_path).unwrap();
        }
    }
    let closed = |more: &[&str]| {
        let mut program = start(&node, &edits, USER, more);
        program.expect(&[("init", "0"), ("retain 0", "800")]);
        let (_, errors) = program.end();
        assert!(
            errors.contains("no GPU memory for this program"),
            "{errors}"
        );
    };
    closed(&[]);
    closed(&["GPULIMIT_MAX=40G"]);
    // After the plugin has started, a restarted container gets its GPU memory.
    node.replace_plugin();
    let mut program = start(&node, &edits, USER, &[]);
    assert_eq!(program.say("start"), "0 0");
    program.expect(&[("alloc a 1400M", "0"), ("alloc b 200M", "2")]);
}
