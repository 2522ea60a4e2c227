//! Clients and containers that attack the plugin.

use crate::kubelet::Kubelet;
use crate::rig::{Node, group_of, mount_at};
use gpulimit_support::Running;
use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Command, Stdio};

/// A process that holds a write lease on a file (`F_SETLEASE`), as a container's root can.
struct Lease {
    _holder: Running,
}

impl Lease {
    /// Takes a lease and keeps it, even if another process waits for the lease's end. The error is
    /// the system's text.
    fn take(path: &Path) -> Result<Self, String> {
        Self::taken(path, "signal.SIG_IGN")
    }

    /// Takes a lease. The holder of the lease ends as soon as another process waits for the lease.
    fn take_until_asked(path: &Path) -> Self {
        Self::taken(path, "signal.SIG_DFL").expect("a lease")
    }

    fn taken(path: &Path, on_signal: &str) -> Result<Self, String> {
        let script = "import fcntl, os, signal, sys\n\
            signal.signal(signal.SIGIO, eval(sys.argv[2]))\n\
            file = os.open(sys.argv[1], os.O_RDONLY)\n\
            try: fcntl.fcntl(file, fcntl.F_SETLEASE, fcntl.F_WRLCK)\n\
            except OSError as error: print(error.strerror, flush=True)\n\
            else: print('held', flush=True)\n\
            sys.stdin.read()";
        let mut command = Command::new("python3");
        command.args(["-c", script]).arg(path).arg(on_signal);
        let mut holder = Running::start(command.stdin(Stdio::piped()).stdout(Stdio::piped()));
        let mut line = String::new();
        let mut output = BufReader::new(holder.stdout.take().unwrap());
        output.read_line(&mut line).expect("a line");
        match line.trim() {
            "held" => Ok(Self { _holder: holder }),
            why => Err(why.into()),
        }
    }
}

#[test]
fn a_lease_on_a_view_does_not_stop_the_next_plugin() {
    let mut node = Node::new();
    let edits = node.kubelet.allocate(&node.ids(0, 0..1)).expect("granted");
    let view = &mount_at(&edits, "/run/gpulimit").host_path;
    let rules = Path::new(view).join(".rules");
    let (text, before) = (fs::read(&rules).expect("rules"), inode(&rules));
    let _lease = Lease::take(&rules).expect("a lease");
    node.replace_plugin();
    // The plugin did not wait for the end of the lease, but replaced the file.
    assert_ne!(inode(&rules), before);
    assert_eq!(fs::read(&rules).expect("rules"), text);
    assert!(node.has_group(&group_of(&edits)));
}

#[test]
fn the_next_plugin_waits_for_the_end_of_leases_on_a_group() {
    let mut node = Node::new();
    let edits = node.kubelet.allocate(&node.ids(0, 0..1)).expect("granted");
    let view = mount_at(&edits, "/run/gpulimit").host_path.clone();
    let rules = Path::new(&view).join(".rules");
    let group = node.world.root().path().join(group_of(&edits));
    for names in [&["ledger"][..], &["lock"], &["limits", "ledger", "lock"]] {
        fs::remove_file(&rules).expect("removed");
        let take = |name: &&str| Lease::take_until_asked(&group.join(name));
        let _leases: Vec<_> = names.iter().map(take).collect();
        node.replace_plugin();
        let said = node.plugin.said();
        // The plugin has made the removed `.rules` file again.
        assert!(rules.exists(), "{names:?}: {said:?}");
        let complains = said.iter().any(|line| line.contains("lease"));
        assert!(!complains, "{names:?}: {said:?}");
    }
}

/// Programs of all containers open these two files when they start.
#[test]
fn leases_on_the_files_of_all_containers_are_prevented() {
    let mut node = Node::new();
    for name in ["ld.so.preload", "libgpulimit.so"] {
        let path = node.state().join("lib").join(name);
        let taken = Lease::take(&path).map(drop);
        assert_eq!(
            taken,
            Err("Resource temporarily unavailable".into()),
            "{name}"
        );
        // Take a lease while no plugin runs. The next plugin must replace the leased file.
        node.plugin.kill();
        let (bytes, before) = (fs::read(&path).expect("read"), inode(&path));
        let _lease = Lease::take(&path).expect("a lease");
        node.replace_plugin();
        assert_ne!(inode(&path), before, "{name}");
        assert_eq!(fs::read(&path).expect("read"), bytes, "{name}");
    }
}

#[test]
fn a_connection_has_a_bounded_number_of_calls() {
    let node = Node::new();
    let mut plugin = connect(&node.kubelet);
    plugin
        .write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0")
        .expect("written");
    let mut head = [0; 9];
    plugin.read_exact(&mut head).expect("a frame");
    let [_, _, length, kind, ..] = head;
    assert_eq!(kind, 4, "SETTINGS come first");
    let mut settings = vec![0; usize::from(length)];
    plugin.read_exact(&mut settings).expect("settings");
    let calls = settings.as_chunks::<6>().0.iter().find_map(|setting| {
        let [0, 3, value @ ..] = *setting else {
            return None;
        };
        Some(u32::from_be_bytes(value))
    });
    assert!(calls.is_some_and(|calls| calls <= 1_000), "{calls:?}");
}

#[test]
fn a_refusal_is_short_for_any_request() {
    let node = Node::new();
    let refused = node.kubelet.allocate(&["\x1b[31m".repeat(100_000)]);
    let status = refused.expect_err("no unit");
    assert!(
        status.message().len() < 10_000,
        "{}",
        status.message().len()
    );
    let card = |number: usize| format!("GPU-{number:08x}-0000-0000-0000-000000000000::0");
    let cards: Vec<String> = (0..10_000).map(card).collect();
    let status = node.kubelet.allocate(&cards).expect_err("many cards");
    assert!(
        status
            .message()
            .starts_with("a container's memory must be on one GPU")
    );
    assert!(node.plugin.said().iter().all(|line| line.len() < 10_000));
}

#[test]
fn a_failed_allocation_leaves_no_files() {
    let node = Node::new();
    // Replace the directory of the views by a symbolic link to nothing.
    let views = node.world.root().path().join(".kubernetes");
    fs::remove_dir_all(&views).expect("removed");
    symlink("nothing", &views).expect("linked");
    let status = node.kubelet.allocate(&node.ids(0, 0..1));
    assert!(
        status
            .expect_err("no views")
            .message()
            .contains("cannot make a group")
    );
    let names = |path: &Path| -> Vec<_> {
        let entries = fs::read_dir(path).expect("a directory");
        entries.map(|entry| entry.unwrap().file_name()).collect()
    };
    assert!(names(&node.state().join("allocations")).is_empty());
    let groups = names(node.world.root().path());
    assert!(
        !groups
            .iter()
            .any(|name| name.to_string_lossy().starts_with("k8s-")),
        "{groups:?}"
    );
}

#[test]
fn views_are_private_in_a_root_that_was_removed_and_made_again() {
    let node = Node::new();
    let root = node.world.root();
    fs::remove_dir_all(root.path()).expect("removed");
    node.kubelet.allocate(&node.ids(0, 0..1)).expect("granted");
    let views = root.path().join(".kubernetes");
    let mode = fs::metadata(views).expect("views").permissions().mode();
    assert_eq!(mode & 0o7777, 0o700);
}

fn inode(path: &Path) -> u64 {
    fs::metadata(path).expect("there").ino()
}

fn connect(kubelet: &Kubelet) -> UnixStream {
    UnixStream::connect(kubelet.folder().join("gpulimit.sock")).expect("a connection")
}
