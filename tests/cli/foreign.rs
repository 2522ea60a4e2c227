//! Files in a root that gpulimit did not make: they stay, whatever command is called.

use crate::place::{Place, Running, is_root, text};
use gpulimit_base::units::Size;
use gpulimit_group::{MAX_USER_NAMES, Root};
use gpulimit_support::{Scratch, wait_until};
use std::collections::BTreeMap;
use std::fs;
use std::io::Write;
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown, symlink};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// An unprivileged user without groups of their own.
const ALICE: u32 = 40_001;

/// The paths of planted files with their content, and of planted links with their targets.
#[derive(Default)]
struct Planted(BTreeMap<PathBuf, Vec<u8>>);

impl Planted {
    fn read(path: &Path) -> Option<Vec<u8>> {
        let about = fs::symlink_metadata(path).ok()?;
        if about.is_symlink() {
            let target = fs::read_link(path).ok()?;
            Some(target.into_os_string().into_encoded_bytes())
        } else if about.is_dir() {
            Some(b"a directory".into())
        } else {
            fs::read(path).ok()
        }
    }

    fn add(&mut self, path: PathBuf) {
        let content = Self::read(&path).expect("planted");
        self.0.insert(path, content);
    }

    #[track_caller]
    fn check(&self, after: &str) {
        for (path, content) in &self.0 {
            let left = Self::read(path);
            let path = path.display();
            assert_eq!(left.as_ref(), Some(content), "{path} after {after}");
        }
    }
}

/// Places where a user may leave a file: the root, groups, directories that look like groups, and
/// gpulimit's own directories.
const PLACES: [&str; 16] = [
    "",
    "lab",
    "lab/sub",
    "lab/sub/alice",
    "lab/sub/run-3-4",
    "lab/sub/run-3-4/sub",
    "run-1-2",
    "run-1-2/sub",
    "half",
    "half/sub",
    "job-7-8",
    "projects",
    "projects/sub",
    "projects/sub/run-5-6",
    ".containers/container-web",
    ".containers",
];

const NAMES: [&str; 13] = [
    "README",
    "notes.txt",
    ".gitignore",
    ".limits.bak",
    ".limits.1",
    ".ledger.1.new",
    ".limits.12.3",
    "limits.old",
    "ledger~",
    "sub2",
    "run-9-9",
    "with space",
    "job.sh",
];

#[test]
fn foreign_files_survive_every_command() {
    let mut random = gpulimit_support::random();
    for round in 1..=6 {
        let place = Place::new();
        for name in ["lab", "lab/alice", "lab/run-3-4", "run-1-2"] {
            place.group(name, Size::Percent(5_000));
        }
        let root = place.root_path();
        fs::create_dir_all(root.join("half/sub")).expect("made");
        fs::write(root.join("half/lock"), "").expect("made");
        let outside = place.0.join("outside");
        fs::create_dir_all(outside.join("tree")).expect("made");
        let mut planted = Planted::default();
        fs::write(outside.join("tree/file"), "theirs").expect("planted");
        planted.add(outside.join("tree/file"));
        for _ in 0..10 {
            let directory = root.join(random.choice(PLACES).expect("some"));
            fs::create_dir_all(&directory).expect("made");
            let path = directory.join(random.choice(NAMES).expect("some"));
            if fs::symlink_metadata(&path).is_ok() {
                continue;
            }
            match random.usize(..4) {
                0 => symlink(&outside, &path).expect("planted"),
                1 => {
                    fs::create_dir(&path).expect("planted");
                    fs::write(path.join("file"), "theirs").expect("planted");
                    planted.add(path.join("file"));
                }
                2 if !path.ends_with(".limits.12.3") => fs::write(&path, "").expect("planted"),
                _ => fs::write(&path, format!("theirs {round}")).expect("planted"),
            }
            planted.add(path);
        }
        let policy = place.0.join("policy.toml");
        fs::write(
            outside.join("config.json"),
            r#"{"root":{"path":"/nowhere"}}"#,
        )
        .expect("written");
        let policies = ["[group.lab]\nmax = \"4G\"\n", ""];
        let verbs: &[&[&str]] = &[
            &["gc"],
            &["show", "--names"],
            &["show"],
            &["doctor"],
            &["run", "--max", "4G", "--", "true"],
            &["run", "--max", "4G", "--stat", "--", "true"],
            &["run", "--max", "4G", "--", "no-such-command"],
            &["run", "--name", "projects", "--max", "4G", "--", "true"],
            &["create", "half/made", "max=1G"],
            &["create", "job-7-8", "max=1G"],
            &["set", "lab", "max=2G"],
            &["rm", "lab"],
            &["rm", "--recursive", "lab"],
            &["rm", "--recursive", "--force", "projects"],
            &["rm", "half"],
            &["oci-hook", "create", "--cap", "1G"],
            &["oci-hook", "remove"],
            &["apply", policy.to_str().expect("UTF-8")],
            &["rm", "--recursive", "--force", "lab", "run-1-2"],
            &["gc"],
        ];
        for text in policies {
            fs::write(&policy, text).expect("written");
            let mut container = Some(Running::start(Command::new("sleep").arg("600")));
            let state = format!(
                r#"{{"id":"web","pid":{},"bundle":"{}"}}"#,
                container.as_ref().expect("started").id(),
                outside.display()
            );
            for verb in verbs {
                if verb[..] == ["oci-hook", "remove"] {
                    drop(container.take());
                }
                // Most of these commands fail with a message.
                let mut command = place.gpulimit(verb);
                command.stdin(Stdio::piped()).stdout(Stdio::null());
                let mut child = Running::start(command.stderr(Stdio::null()));
                let input = child.stdin.as_mut();
                let _ = input.expect("piped").write_all(state.as_bytes());
                child.ended();
                planted.check(&format!("{verb:?} in round {round}"));
            }
        }
    }
}

#[test]
fn a_foreign_directory_as_root_is_reported_and_left_alone() {
    let place = Place::new();
    let root = place.root_path();
    fs::create_dir_all(root.join("proj/src")).expect("made");
    fs::write(root.join("proj/README"), "x").expect("written");
    fs::create_dir_all(root.join("empty")).expect("made");
    fs::write(root.join("limits"), "x").expect("written");
    let output = place.output(&["gc"]);
    assert!(output.status.success() && output.stdout.is_empty());
    let said = text(&output.stderr);
    for name in ["proj", "empty", "limits"] {
        let quoted = format!("'{}'", root.join(name).display());
        assert!(said.contains(&quoted), "{name}: {said}");
    }
    let left = fs::read_to_string(root.join("proj/README"));
    assert_eq!(left.expect("there"), "x");
    assert!(root.join("proj/src").is_dir() && root.join("empty").is_dir());
    let error = place.refused(1, &["create", "proj", "max=1G"]);
    assert!(error.contains("was not made by gpulimit"), "{error}");
    assert!(!root.join("proj/lock").exists(), "something was made");
}

#[test]
fn a_group_with_a_foreign_file_is_not_removed() {
    let place = Place::new();
    place.group("lab", Size::Percent(5_000));
    let notes = place.root_path().join("lab/sub/notes");
    fs::write(&notes, "theirs").expect("written");
    let error = place.refused(1, &["rm", "lab"]);
    assert!(
        error.contains(notes.to_str().expect("UTF-8"))
            && error.contains("was not made by gpulimit"),
        "{error}"
    );
    assert_eq!(place.said(&["show", "--names"]), "lab\n");
    let limits = place.said(&["get", "lab"]);
    assert!(limits.contains("max=50%"), "{limits}");
    fs::remove_file(notes).expect("removed");
    place.said(&["rm", "lab"]);
    assert_eq!(place.said(&["show", "--names"]), "");
}

/// Makes the tree to which a link leads, with a record like gpulimit's own:
/// `delme/container-web/record`.
fn victim(place: &Place, group: &str) -> PathBuf {
    let tree = place.0.join("delme");
    let container = tree.join("container-web");
    fs::create_dir_all(container.join("view")).expect("made");
    fs::write(container.join("view/precious"), "theirs").expect("written");
    fs::create_dir(tree.join("other")).expect("made");
    fs::write(tree.join("other/precious"), "theirs").expect("written");
    let record = format!(
        r#"{{"id":"web","init":{{"pid":4000000,"start":1}},"rootfs":"/nowhere","wanted":"cap 1G",
            "group":"{group}","own":true}}"#
    );
    fs::write(container.join("record"), record).expect("written");
    tree
}

fn is_whole(tree: &Path) -> bool {
    tree.join("container-web/view/precious").exists() && tree.join("other/precious").exists()
}

#[test]
fn root_follows_no_link_to_records_of_containers() {
    if !is_root() {
        return;
    }
    let place = Place::new();
    let root = place.root_path();
    fs::create_dir(&root).expect("made");
    let tree = victim(&place, "container-web");
    symlink(&tree, root.join(".containers")).expect("linked");
    for owner in [0, ALICE] {
        chown(&root, Some(owner), None).expect("given");
        let output = place.output(&["gc"]);
        assert!(output.status.success(), "{output:?}");
        let said = text(&output.stderr);
        let why = if owner == 0 {
            ".containers"
        } else {
            "users other than root"
        };
        assert!(said.contains(why), "{said}");
        assert!(is_whole(&tree), "{owner}");
    }
}

#[test]
fn root_ignores_records_that_others_could_write() {
    if !is_root() {
        return;
    }
    let place = Place::new();
    place.group("container-web", Size::Percent(5_000));
    let root = place.root_path();
    let tree = root.join(".containers");
    fs::rename(victim(&place, "container-web"), &tree).expect("moved");
    let container = tree.join("container-web");
    let own = |path: &Path, owner, mode| {
        chown(path, Some(owner), None).expect("given");
        fs::set_permissions(path, fs::Permissions::from_mode(mode)).expect("changed");
    };
    let wrong: [(&Path, u32, u32); 5] = [
        (&root, ALICE, 0o755),
        (&tree, ALICE, 0o711),
        (&tree, 0, 0o777),
        (&container, ALICE, 0o700),
        (&container, 0, 0o770),
    ];
    for (path, owner, mode) in wrong {
        own(path, owner, mode);
        let output = place.output(&["gc"]);
        assert!(output.status.success(), "{output:?}");
        let said = text(&output.stderr);
        assert!(said.contains("users other than root can write"), "{said}");
        assert!(is_whole(&tree), "{path:?} {owner} {mode:o}");
        assert!(root.join("container-web/limits").exists());
        own(path, 0, 0o700);
    }
    // With a record of root's own, the group is removed, except for files that gpulimit has not
    // made.
    let output = place.output(&["gc"]);
    assert!(is_whole(&tree) && !root.join("container-web").exists());
    assert!(text(&output.stderr).contains("precious"), "{output:?}");
    fs::remove_file(container.join("view/precious")).expect("removed");
    let said = place.said(&["gc"]);
    assert!(said.contains("container-web: removed"), "{said}");
    assert!(!container.exists() && tree.join("other/precious").exists());
}

#[test]
fn a_record_is_used_only_for_its_own_container() {
    if !is_root() {
        return;
    }
    let place = Place::new();
    place.group("lab", Size::Percent(5_000));
    let tree = place.root_path().join(".containers");
    fs::rename(victim(&place, "lab"), &tree).expect("moved");
    let output = place.output(&["gc"]);
    assert!(text(&output.stderr).contains("is damaged"), "{output:?}");
    assert_eq!(place.said(&["show", "--names"]), "lab\n");
}

#[test]
fn a_full_directory_of_a_user_slows_others_little() {
    if !is_root() {
        return;
    }
    let place = Place(Scratch::in_memory());
    place.group("lab", Size::Percent(5_000));
    place.group("lab/run-1-2", Size::Max);
    place.group("run-3-4", Size::Max);
    let below = place.root_path().join("lab/sub");
    for number in 0..2 * MAX_USER_NAMES {
        fs::create_dir(below.join(format!("run-{number}-9"))).expect("made");
    }
    chown(&below, Some(ALICE), None).expect("given");
    chown(place.root_path(), Some(0), None).expect("given");
    let inode = fs::metadata(&below).expect("there").ino();
    let root = Root::at(place.root_path()).expect("a root");
    let survey = root.survey().expect("looked");
    assert_eq!(survey.cut_short, std::slice::from_ref(&below));
    let seen = survey.groups.len() + survey.unfinished.len();
    assert!(seen <= MAX_USER_NAMES + 3, "{seen}");
    // Another user's `run` cleans up as well.
    let lab = root.path().join("lab");
    let (limits, root) = (lab.join("limits"), root.path().into());
    for path in [&root, &lab, &limits, &below] {
        fs::set_permissions(path, fs::Permissions::from_mode(0o755)).expect("opened");
    }
    let mut command = place.gpulimit(&["gc"]);
    let output = command.uid(ALICE + 1).current_dir("/").output();
    let said = text(&output.expect("started").stderr);
    assert!(said.contains("more than 4096 entries"), "{said}");
    // Groups outside that user's directory are cleaned up all the same. A process that starts
    // meanwhile may be taken for one of the job, whose group stays until the next time.
    wait_until("the group is removed", || {
        let output = place.output(&["gc"]);
        let said = text(&output.stderr);
        assert!(said.contains("more than 4096 entries"), "{said}");
        text(&output.stdout).contains("run-3-4: removed")
    });
    assert_eq!(fs::metadata(&below).expect("there").ino(), inode);
}
