//! Allocations: what containers get, and which requests are refused.

use crate::rig::{GIB, Node, UNITS, gpu_script, group_of, mount_at};
use gpulimit_base::device::DeviceId;
use gpulimit_base::units::Size;
use gpulimit_k8s::api::{
    AllocateRequest, Choice, Edits, PreStartRequest, PreferenceRequest, Units,
};
use gpulimit_limits::{Key, LimitSet, Selector};
use gpulimit_programs::world::{Session, shim};
use gpulimit_support::wait_until;
use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, SystemTime};
use tonic::Code;

fn mode(path: &Path) -> u32 {
    fs::metadata(path).expect("there").permissions().mode() & 0o7777
}

fn inode(path: &Path) -> u64 {
    fs::metadata(path).expect("there").ino()
}

fn card(node: &Node, gpu: usize) -> DeviceId {
    node.world.machine().gpu(gpu).uuid.parse().expect("a UUID")
}

/// Returns limits that allow this many units of this card, and no memory of other cards.
fn only(card: DeviceId, units: u64) -> LimitSet {
    let mut limits = LimitSet::all(Size::Bytes(0));
    limits.set(Selector::Device(card), Key::Max, Size::Bytes(units * GIB));
    limits
}

fn limits(node: &Node, name: &str) -> LimitSet {
    let limits = node.group(name).limits().expect("limits");
    limits.rules().expect("rules")
}

/// Starts a program in the container's group, as the node's root.
fn member(node: &Node, edits: &Edits) -> Session {
    let mut command = node.world.preloaded(gpu_script());
    command.env("GPULIMIT_GROUP", group_of(edits)).env(
        "CUDA_VISIBLE_DEVICES",
        &edits.variables["NVIDIA_VISIBLE_DEVICES"],
    );
    let mut session = Session::start(command);
    assert_eq!(session.say("start"), "0 0");
    session
}

#[test]
fn a_container_gets_a_group_a_view_and_the_library() {
    let node = Node::new();
    let edits = node.kubelet.allocate(&node.ids(1, 3..11)).expect("granted");
    let (name, gpu) = (group_of(&edits), card(&node, 1));
    assert!(name.starts_with(&format!("k8s-{}-8GiB-", &gpu.to_string()[4..12])));
    assert_eq!(limits(&node, &name), only(gpu, 8));
    assert_eq!(edits.variables["NVIDIA_VISIBLE_DEVICES"], gpu.to_string());
    assert_eq!((edits.variables.len(), edits.cdi.len()), (2, 0));

    let inside = [
        "/usr/local/lib/gpulimit",
        "/etc/ld.so.preload",
        "/run/gpulimit",
    ];
    let ledger = format!("/run/gpulimit/{name}/ledger");
    assert_eq!(edits.mounts.len(), 4);
    assert!(inside.iter().all(|path| mount_at(&edits, path).read_only));
    assert!(!mount_at(&edits, &ledger).read_only);
    let host = |inside: &str| Path::new(&mount_at(&edits, inside).host_path).to_owned();
    let library = host(inside[0]).join("libgpulimit.so");
    assert_eq!(fs::read(&library).unwrap(), fs::read(shim()).unwrap());
    let preload = fs::read_to_string(host(inside[1])).unwrap();
    assert_eq!(preload, "/usr/local/lib/gpulimit/libgpulimit.so\n");

    // The view has hard links to the group's files, and nothing else.
    let (group, view) = (node.group(&name), host(inside[2]));
    let files = view.join(&name);
    assert_eq!(inode(&host(&ledger)), inode(&group.ledger_path()));
    assert_eq!(inode(&files.join("limits")), inode(&group.limits_path()));
    let list = |path: &Path| {
        let entries = fs::read_dir(path).unwrap();
        let mut names: Vec<_> = entries.map(|entry| entry.unwrap().file_name()).collect();
        names.sort();
        names
    };
    assert_eq!(list(&view), [".rules", &*name]);
    assert_eq!(list(&files), ["ledger", "limits", "lock"]);
    // Programs of any user can be charged in the container. Users of the node cannot reach the
    // files.
    assert_eq!((mode(&view), mode(&files)), (0o755, 0o755));
    assert_eq!(mode(&files.join("ledger")), 0o666);
    assert_eq!(mode(&files.join("limits")), 0o644);
    assert_eq!(mode(group.path()), 0o700);
    assert_eq!(mode(view.parent().unwrap()), 0o700);
}

#[test]
fn the_gpu_can_come_as_a_cdi_device() {
    let arguments = ["--gpus", "cdi", "--cdi-kind", "example.com/gpu"];
    let node = Node::with(&[], &arguments);
    let edits = node.kubelet.allocate(&node.ids(0, 0..1)).expect("granted");
    assert_eq!(
        edits.variables.keys().collect::<Vec<_>>(),
        ["GPULIMIT_GROUP"]
    );
    let name = format!("example.com/gpu={}", card(&node, 0));
    assert_eq!(edits.cdi[0].name, name);
}

#[test]
fn each_container_of_a_request_gets_its_own_group() {
    let node = Node::new();
    let ids = [node.ids(0, 0..2), node.ids(0, 2..6), node.ids(1, 0..1)];
    let containers = ids.map(|ids| Units { ids }).to_vec();
    let request = AllocateRequest { containers };
    let answer = node
        .kubelet
        .call(async |plugin| plugin.allocate(request).await)
        .expect("granted");
    let names: Vec<String> = answer.containers.iter().map(group_of).collect();
    for (name, (gpu, units)) in names.iter().zip([(0, 2), (0, 4), (1, 1)]) {
        assert_eq!(limits(&node, name), only(card(&node, gpu), units));
    }
}

#[test]
fn units_that_are_not_on_one_gpu_are_refused() {
    let node = Node::new();
    let (one, two) = (node.ids(0, 0..3), node.ids(1, 0..2));
    let refused = |ids: &[String], code: Code, says: &[&str]| {
        let status = node.kubelet.allocate(ids).expect_err("refused");
        assert_eq!(status.code(), code, "{status}");
        for text in says {
            assert!(status.message().contains(text), "{status}");
        }
    };
    let (first, second) = (card(&node, 0).to_string(), card(&node, 1).to_string());
    let spans = [one.clone(), two.clone()].concat();
    let on = [format!("{first} (3)"), format!("{second} (2)")];
    refused(
        &spans,
        Code::ResourceExhausted,
        &["memory must be on one GPU", &on[0], &on[1]],
    );
    node.plugin
        .says("refused: a container's memory must be on one GPU");
    refused(&[], Code::InvalidArgument, &["no units"]);
    refused(&["x".into()], Code::InvalidArgument, &["'x' is not a unit"]);
    let escape = format!("{first}::0\n../..");
    refused(
        &[escape],
        Code::InvalidArgument,
        &["not a unit of this plugin"],
    );
    let twice = [&one[..], &one[..1]].concat();
    refused(&twice, Code::InvalidArgument, &["twice"]);
    let beyond = format!("{first}::{UNITS}");
    refused(
        &[beyond],
        Code::FailedPrecondition,
        &["this node has no unit"],
    );
    let elsewhere = "GPU-00000000-0000-0000-0000-000000000000::0".to_owned();
    refused(
        &[elsewhere],
        Code::FailedPrecondition,
        &["this node has no unit"],
    );
    // If one container of a request is refused, no container gets anything.
    let containers = vec![Units { ids: one }, Units { ids: spans }];
    let request = AllocateRequest { containers };
    let answer = node
        .kubelet
        .call(async |plugin| plugin.allocate(request).await);
    assert!(answer.is_err());
    assert!(node.world.root().groups().expect("listed").is_empty());
    assert_eq!(
        fs::read_dir(node.state().join("allocations"))
            .unwrap()
            .count(),
        0
    );
}

#[test]
fn the_fullest_gpu_that_fits_is_preferred() {
    let node = Node::new();
    // The first GPU has 30 free units, the second has 50.
    let free = [node.ids(0, 49..79), node.ids(1, 29..79)].concat();
    for (size, gpu) in [(1, 0), (30, 0), (31, 1), (50, 1)] {
        let chosen = node.kubelet.prefer(&free, size).expect("fits");
        assert_eq!(chosen.len(), size as usize);
        let card = format!("{}::", card(&node, gpu));
        assert!(chosen.iter().all(|id| id.starts_with(&card)), "{size}");
        assert!(chosen.iter().all(|id| free.contains(id)));
        assert!(node.kubelet.allocate(&chosen).is_ok());
    }
    // Kubernetes counts the units of both GPUs together, so it may ask for more than one GPU has.
    let status = node.kubelet.prefer(&free, 51).expect_err("refused");
    let most = format!("{} has the most units left: 50", card(&node, 1));
    assert_eq!(status.code(), Code::ResourceExhausted);
    assert!(status.message().contains(&most), "{status}");
    // The plugin must choose the init container's units, although the other GPU would fit better.
    let had = node.ids(1, 5..9);
    let choice = Choice {
        available: [&free[..], &had].concat(),
        must_include: had.clone(),
        size: 10,
    };
    let request = PreferenceRequest {
        containers: vec![choice],
    };
    let answer = node
        .kubelet
        .call(async |plugin| plugin.get_preferred_allocation(request).await)
        .expect("fits");
    let chosen = &answer.containers[0].ids;
    assert!(had.iter().all(|id| chosen.contains(id)));
    assert!(node.kubelet.allocate(chosen).is_ok());
}

#[test]
fn malformed_calls_are_refused_and_do_no_harm() {
    #[derive(Clone, PartialEq, prost::Message)]
    struct Other {
        #[prost(uint64, tag = "1")]
        number: u64,
    }
    let node = Node::new();
    let mut stream = node.kubelet.watch();
    stream.next().expect("a list");
    let code = |path| {
        let answer = node.kubelet.call_path(path, Other { number: 7 });
        answer.expect_err("refused").code()
    };
    for path in [
        "/v1beta1.DevicePlugin/Allocate",
        "/v1beta1.DevicePlugin/GetPreferredAllocation",
    ] {
        assert_eq!(code(path), Code::Internal, "{path}");
    }
    for path in ["/", "/v1beta1.DevicePlugin/", "/v1.DevicePlugin/Allocate"] {
        assert_eq!(code(path), Code::Unimplemented, "{path}");
    }
    let ids = Vec::new();
    let pre_start = PreStartRequest { ids };
    let answer = node
        .kubelet
        .call(async |plugin| plugin.pre_start_container(pre_start).await);
    assert!(answer.is_ok());
    // Send bytes that are not HTTP/2, and then a message that is too long.
    use std::io::Write;
    let socket = node.kubelet.folder().join("gpulimit.sock");
    for bytes in [
        &b"GET / HTTP/1.1\r\n\r\n"[..],
        &[0; 64],
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\xff",
    ] {
        let mut stream = std::os::unix::net::UnixStream::connect(&socket).expect("connected");
        stream.write_all(bytes).expect("written");
    }
    let ids = vec!["x".repeat(5 << 20)];
    let request = AllocateRequest {
        containers: vec![Units { ids }],
    };
    let status = node
        .kubelet
        .call(async |plugin| plugin.allocate(request).await);
    let status = status.expect_err("refused");
    assert_eq!(status.code(), Code::OutOfRange, "{status}");
    assert!(node.kubelet.allocate(&node.ids(0, 0..1)).is_ok());
}

#[test]
fn a_restarted_plugin_keeps_the_groups_of_running_containers() {
    let mut node = Node::new();
    let edits = node.kubelet.allocate(&node.ids(0, 0..4)).expect("granted");
    let name = group_of(&edits);
    let ledger = inode(&node.group(&name).ledger_path());
    let mut program = member(&node, &edits);
    program.expect(&[("alloc a 3000M", "0"), ("alloc b 1000M", "2")]);
    for _ in 0..2 {
        node.replace_plugin();
        assert_eq!(inode(&node.group(&name).ledger_path()), ledger);
        program.expect(&[
            ("alloc b 500M", "0"),
            ("alloc c 500M", "2"),
            ("free b", "0"),
        ]);
    }
    // Kubelet may ask for the same units again. The second allocation gets another group.
    let again = node.kubelet.allocate(&node.ids(0, 0..4)).expect("granted");
    assert_ne!(group_of(&again), name);
    assert_eq!(inode(&node.group(&name).ledger_path()), ledger);
    program.expect(&[("alloc b 500M", "0"), ("alloc c 500M", "2")]);
}

/// Returns the path on the node of the ledger, the only file that the container can write.
fn ledger_of(edits: &Edits) -> std::path::PathBuf {
    let inside = format!("/run/gpulimit/{}/ledger", group_of(edits));
    (&mount_at(edits, &inside).host_path).into()
}

/// Makes an allocation look old.
fn make_older(node: &Node, edits: &Edits) {
    let record = node.record(&group_of(edits));
    let file = fs::File::options().write(true).open(record).expect("there");
    // The allocation must look older than the next pod's allocation.
    let before = SystemTime::now() - Duration::from_secs(100_000);
    file.set_modified(before).expect("set");
}

#[test]
fn the_next_pod_with_the_same_units_gets_new_files() {
    let mut node = Node::new();
    let ids = node.ids(0, 0..4);
    let owner = fs::metadata(node.state()).expect("there").uid();
    // Things that a container's root can do to its ledger.
    type Deed = fn(&Path) -> Option<fs::File>;
    let cut: Deed = |ledger| {
        let file = fs::File::options().write(true).open(ledger).expect("there");
        file.set_len(100).expect("cut");
        None
    };
    let grow: Deed = |ledger| {
        let file = fs::File::options().write(true).open(ledger).expect("there");
        file.set_len(1 << 40).expect("grown");
        None
    };
    let close: Deed = |ledger| {
        fs::set_permissions(ledger, fs::Permissions::from_mode(0o000)).expect("closed");
        None
    };
    let give_away: Deed = |ledger| {
        std::os::unix::fs::chown(ledger, Some(41_009), Some(41_009)).expect("given");
        fs::set_permissions(ledger, fs::Permissions::from_mode(0o000)).expect("closed");
        None
    };
    // The container's root keeps a file open and locked after the pod has ended.
    let lock: Deed = |ledger| {
        let file = fs::File::open(ledger.with_file_name("lock")).expect("there");
        file.lock().expect("locked");
        Some(file)
    };
    let deeds: &[Deed] = match owner {
        0 => &[cut, grow, close, give_away, lock],
        // Only root can change the owner of a file.
        _ => &[cut, grow, close, lock],
    };
    for deed in deeds {
        let edits = node.kubelet.allocate(&ids).expect("granted");
        let before = inode(&ledger_of(&edits));
        let _kept = deed(&ledger_of(&edits));
        node.replace_plugin();
        let again = node.kubelet.allocate(&ids).expect("granted");
        assert_ne!(group_of(&again), group_of(&edits));
        assert_ne!(inode(&ledger_of(&again)), before);
        let mut program = member(&node, &again);
        program.expect(&[("alloc a 3000M", "0"), ("alloc b 1000M", "2")]);
        // The first container's files can be removed, whatever the container did to them.
        make_older(&node, &edits);
        node.plugin.says(&format!("removed {}", group_of(&edits)));
        assert!(!node.has_group(&group_of(&edits)) && !ledger_of(&edits).exists());
        drop(program);
        make_older(&node, &again);
    }
}

#[test]
fn an_init_container_keeps_its_group_when_the_pod_gets_its_units() {
    let node = Node::with(&[], &["--keep", "0s"]);
    // Kubelet's list has the units, but not the init container that also uses them.
    node.kubelet.set_pods(&[("pod", &node.ids(0, 0..8))]);
    let first = node.kubelet.allocate(&node.ids(0, 0..4)).expect("granted");
    let main = node.kubelet.allocate(&node.ids(0, 0..8)).expect("granted");
    let (init, main) = (group_of(&first), group_of(&main));
    assert_ne!(init, main);
    node.plugin
        .says(&format!("{main} belongs to default/pod/main"));
    assert!(node.has_group(&init) && node.has_group(&main));
    // An allocation that is more than a minute older must belong to another pod.
    make_older(&node, &first);
    node.plugin.says(&format!("removed {init}"));
    assert!(!node.has_group(&init) && node.has_group(&main));
}

#[test]
fn after_a_reboot_groups_are_made_again_before_the_registration() {
    let mut node = Node::new();
    let edits = node.kubelet.allocate(&node.ids(1, 0..5)).expect("granted");
    let other = node.kubelet.allocate(&node.ids(0, 0..2)).expect("granted");
    let (name, other) = (group_of(&edits), group_of(&other));
    node.plugin.kill();
    let root = node.world.root().path().to_owned();
    for entry in fs::read_dir(&root).unwrap() {
        fs::remove_dir_all(entry.unwrap().path()).unwrap();
    }
    // Container runtimes make a directory where the source of a mount is missing.
    for mount in &edits.mounts[2..] {
        fs::create_dir_all(&mount.host_path).unwrap();
    }
    // Files that are not records must not keep the plugin from reading the records.
    fs::write(node.record("k8s-damaged"), "{").unwrap();
    let long = fs::File::create(node.record("k8s-long")).unwrap();
    long.set_len(64 << 30).unwrap();
    let made = Command::new("mkfifo").arg(node.record("k8s-fifo")).status();
    assert!(made.is_ok_and(|status| status.success()), "mkfifo");
    node.replace_plugin();
    assert_eq!(limits(&node, &name), only(card(&node, 1), 5));
    assert_eq!(limits(&node, &other), only(card(&node, 0), 2));
    let view = Path::new(&mount_at(&edits, "/run/gpulimit").host_path);
    assert!(view.join(".rules").is_file());
    let ledger = view.join(&name).join("ledger");
    assert_eq!(inode(&ledger), inode(&node.group(&name).ledger_path()));
    member(&node, &edits).expect(&[("alloc a 4000M", "0"), ("alloc b 1000M", "2")]);
}

#[test]
fn a_plugin_killed_during_an_allocation_does_not_block_the_next() {
    let mut node = Node::new();
    for step in 0..4 {
        let ids = node.ids(0, 0..(step % 3 + 1));
        let granted = AtomicUsize::new(0);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while node.kubelet.allocate(&ids).is_ok() {
                    granted.fetch_add(1, Ordering::Relaxed);
                }
            });
            // The next call has begun, or is about to.
            wait_until("calls", || granted.load(Ordering::Relaxed) >= step);
            node.plugin.kill();
        });
        node.replace_plugin();
        let edits = node.kubelet.allocate(&ids).expect("granted");
        let mut program = member(&node, &edits);
        let size = ids.len() as u64 * 1024 - 600;
        program.expect(&[(&format!("alloc a {size}M"), "0"), ("alloc b 100M", "2")]);
    }
}
