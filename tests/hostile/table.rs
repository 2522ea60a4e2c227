//! The table that docs/security.md opens with, compared with a real tree.

use crate::nothing::Nothing;
use crate::{ALICE, Ground, Guarded, Role, own, run};
use gpulimit_base::device::DeviceId;
use gpulimit_group::pod::Pod;
use gpulimit_group::{Access, Insistence, Member, Members, Root};
use gpulimit_limits::LimitSet;
use gpulimit_support::{Running, wait_until};
use serde_json::json;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::fs::{self, File, OpenOptions, Permissions};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// A user who is no member of Alice's groups, but of `team`.
const BOB: u32 = 40_002;
/// A user who is a member of no group, except of those that are for all.
const CAROL: u32 = 40_003;

/// A row of the table.
#[derive(Debug)]
struct Row {
    pattern: String,
    owner: String,
    modes: BTreeSet<u32>,
    readers: String,
    writers: String,
}

fn rows() -> Vec<Row> {
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/security.md");
    let page = fs::read_to_string(page).expect("the page");
    let start = page.find("| file | owner | mode |").expect("the table");
    let lines = page[start..].lines().skip(2);
    let row = |line: &str| {
        let cells: Vec<&str> = line.split('|').map(str::trim).collect();
        let mode = |text: &str| u32::from_str_radix(text.trim(), 8).expect("a mode");
        Row {
            pattern: cells[1].trim_matches('`').to_owned(),
            owner: cells[2].into(),
            modes: cells[3].split(',').map(mode).collect(),
            readers: cells[4].into(),
            writers: cells[5].into(),
        }
    };
    lines
        .take_while(|line| line.starts_with('|'))
        .map(row)
        .collect()
}

/// A file of the tree: the pattern of its row, and the users that the words of the row stand for.
struct Known {
    pattern: String,
    maker: u32,
    owner: u32,
    members: Vec<u32>,
    /// The users who reach the view that the file is in.
    holders: Vec<u32>,
}

const ALL: [u32; 4] = [0, ALICE, BOB, CAROL];

impl Known {
    fn of(path: &str, is_directory: bool, closed: &BTreeSet<String>) -> Self {
        let mut parts: Vec<&str> = path.split('/').filter(|part| !part.is_empty()).collect();
        let (mut view, mut holders) = (String::new(), vec![0]);
        let inside = match parts[..] {
            [".secret", _, ..] => Some(2),
            [".kubernetes", _, ..] => Some(2),
            [".containers", _, "view", ..] => Some(3),
            _ => None,
        };
        if let Some(count) = inside {
            if parts[0] == ".secret" {
                holders = ALL.into();
            }
            parts.drain(..count);
            view = "VIEW/".into();
        }
        let (mut maker, mut owner, mut members) = (0, 0, vec![0]);
        let mut pattern = match parts[..] {
            [] if view.is_empty() => "./".into(),
            [] => String::new(),
            [".containers", _, ref rest @ ..] => format!(".containers/NAME/{}", rest.join("/")),
            [".trail-jobs", _, ref rest @ ..] => format!(".trail-jobs/JOB/{}", rest.join("/")),
            [name, ..] if name.starts_with(".context-") => ".context-GPU".into(),
            [name, ..] if name.starts_with('.') => parts.join("/"),
            [name, ref rest @ ..] if closed.contains(name) => {
                format!("CLOSED/{}", rest.join("/"))
            }
            _ => {
                // The last directory on the way that is a group, at every second place.
                let names: Vec<&str> = parts.iter().step_by(2).copied().collect();
                let last = match parts.len() % 2 {
                    1 => None,
                    _ => parts.last().copied(),
                };
                // Alice has made the groups below her own.
                let of_alice = names.starts_with(&["lab", "alice"]);
                if of_alice || names[0].starts_with("run-") {
                    (owner, members) = (ALICE, vec![0, ALICE]);
                    maker = if names.len() > 2 { ALICE } else { 0 };
                }
                match names[..] {
                    ["lab"] => members = ALL.into(),
                    ["team"] => members = vec![0, BOB],
                    _ => {}
                }
                format!("GROUP/{}", last.unwrap_or_default())
            }
        };
        let has_name = view.is_empty() || !pattern.is_empty();
        if is_directory && has_name && !pattern.ends_with('/') {
            pattern.push('/');
        }
        let pattern = view + &pattern;
        Self {
            pattern,
            maker,
            owner,
            members,
            holders,
        }
    }

    fn users(&self, word: &str) -> Vec<u32> {
        match word {
            "root" => vec![0],
            "all" => ALL.into(),
            "maker" => vec![0, self.maker],
            "owner" => vec![0, self.owner],
            "members" => self.members.clone(),
            "holders" => self.holders.clone(),
            other => panic!("{other}"),
        }
    }
}

/// Tries for each path of a list what this user can do, and prints it: `r`ead, `w`rite (or make and
/// remove files in a directory), `d`elete.
#[test]
#[ignore = "a part of another test"]
fn tries() {
    let list = std::env::var("HOSTILE_LIST").expect("a file");
    let list = fs::read_to_string(list).expect("read");
    let mut out = String::from("\n");
    for path in list.lines().map(Path::new) {
        let (reads, writes) = if path.is_dir() {
            let new = path.join("new");
            let made = File::create_new(&new).is_ok() && fs::remove_file(&new).is_ok();
            (fs::read_dir(path).is_ok(), made)
        } else {
            let writes = OpenOptions::new().write(true).open(path).is_ok();
            (File::open(path).is_ok(), writes)
        };
        let moved = path.with_extension("moved");
        let deletes = fs::rename(path, &moved).is_ok() && fs::rename(&moved, path).is_ok();
        let _ = writeln!(out, "#{} {reads} {writes} {deletes}", path.display());
    }
    print!("{out}\n#end");
}

/// Makes a tree by use: a policy, groups of root and of Alice, jobs of both, a container, a pod,
/// and what programs store.
fn tree(ground: &Ground) -> (Vec<Running>, Guarded, BTreeSet<String>) {
    let root = ground.make("groups", 0, 0o755);
    let said = |command: &mut Command| {
        let (status, said) = run(command);
        assert_eq!(status, Some(0), "{said}");
    };
    let policy = "[group.lab]\nmax = '8G'\n[[rule]]\nuser = 'root'\ngroup = 'lab'\n";
    let policy = ground.write("policy.toml", policy, 0, 0o644);
    said(ground.gpulimit(&["apply"]).arg(policy));
    let (alice, both) = (ALICE.to_string(), format!("{ALICE}:{ALICE}"));
    said(&mut ground.gpulimit(&["create", "lab/alice", "--owner", &alice]));
    said(&mut ground.gpulimit(&["create", "team", "--members", &format!("@{BOB}")]));
    let hers = |arguments: &[&str]| {
        let mut command = ground.gpulimit(arguments);
        command.uid(ALICE).gid(ALICE);
        command
    };
    said(&mut hers(&["create", "lab/alice/night"]));
    said(&mut hers(&["set", "lab/alice/night", "max=1G"]));
    said(&mut ground.gpulimit(&["set", "lab", "max=7G"]));
    let groups = Root::at(&root).expect("a root");
    // As programs of root do with the library.
    let member = Member::join(&groups, "team").expect("joined");
    let device = member
        .device(DeviceId::gpu([1; 16]), 1 << 30)
        .expect("room");
    device.set_context_hint(256 << 20);
    member.remember_image(&[1; 32], [1, 2, 3, 4]);
    drop(member);
    let job = groups.create("run-7-7", &LimitSet::default());
    job.expect("created").group.keep_history().expect("begun");
    let member = Member::join(&groups, "run-7-7").expect("joined");
    let device = member
        .device(DeviceId::gpu([1; 16]), 1 << 30)
        .expect("room");
    let charged = device.charge(1 << 20, &Nothing, Insistence::Full);
    charged.expect("fits");
    drop(member);
    said(&mut ground.gpulimit(&["gc"]));
    let library = crate::library::library(ground, "libgpulimit.so");
    let runs = [
        ground.gpulimit(&["run", "--max", "1G", "--", "sleep", "600"]),
        ground.gpulimit(&["run", "--max", "1G", "--user", &both, "--", "sleep", "600"]),
        hers(&[
            "run",
            "--group",
            "lab/alice",
            "--max",
            "1G",
            "--",
            "sleep",
            "600",
        ]),
    ];
    let runs = runs.into_iter().map(|mut command| {
        command
            .env("GPULIMIT_LIBRARY", &library)
            .stdout(Stdio::null());
        Running::start(&mut command)
    });
    let runs: Vec<Running> = runs.collect();
    let init = Guarded::start(Command::new("sleep").arg("600"));
    ground.make("bundle", 0, 0o755);
    let config = json!({ "root": { "path": "rootfs" } });
    ground.write("bundle/config.json", config.to_string(), 0, 0o644);
    let mut hook = crate::containers::hook(ground, &["create", "--cap", "1G"], "web", init.id());
    said(&mut hook);
    // As the device plugin does.
    let access = Access {
        owner: None,
        members: Members::All,
    };
    let pod = groups
        .create_for("k8s-1", &LimitSet::default(), access)
        .expect("created")
        .group;
    fs::set_permissions(pod.path(), Permissions::from_mode(0o700)).expect("closed");
    let view = ground.make("groups/.kubernetes", 0, 0o700).join("k8s-1");
    pod.show_in(&view).expect("shown");
    fs::write(Pod::file(&view), "a/b/c").expect("written");
    let jobs = || -> Vec<String> {
        let groups = groups.groups().expect("listed").into_iter();
        groups
            .map(|group| group.name().to_owned())
            .filter(|name| name.contains("run-"))
            .collect()
    };
    wait_until("the jobs run", || jobs().len() == 3);
    let is_closed = |name: &String| {
        let about = fs::metadata(root.join(name));
        about.is_ok_and(|about| about.mode() & 0o777 == 0o700)
    };
    let mut closed: BTreeSet<String> = jobs().into_iter().filter(is_closed).collect();
    assert_eq!(closed.len(), 1, "the job of root");
    closed.extend(["container-web".into(), "k8s-1".into()]);
    (runs, init, closed)
}

/// Lists a directory and everything below it.
fn walk(path: &Path, found: &mut Vec<PathBuf>) {
    found.push(path.into());
    if path.is_dir() {
        for entry in fs::read_dir(path).expect("listed") {
            walk(&entry.expect("listed").path(), found);
        }
    }
}

#[test]
fn the_table_of_files_is_true() {
    let Some(ground) = Ground::new() else { return };
    let rows = rows();
    let (runs, init, closed) = tree(&ground);
    let root = ground.at("groups");
    let mut paths = Vec::new();
    walk(&root, &mut paths);
    let mut seen = BTreeSet::new();
    let mut known: BTreeMap<&Path, (Known, &Row)> = BTreeMap::new();
    for path in &paths {
        let about = fs::symlink_metadata(path).expect("there");
        let name = path
            .strip_prefix(&root)
            .expect("below")
            .to_str()
            .expect("text");
        let file = Known::of(name, about.is_dir(), &closed);
        let fits: Vec<&Row> = rows
            .iter()
            .filter(|row| row.pattern == file.pattern)
            .collect();
        let [row] = fits[..] else {
            panic!("{name}: {} has {} rows", file.pattern, fits.len());
        };
        let mode = about.mode() & 0o7777;
        assert!(
            row.modes.contains(&mode),
            "{name}: mode {mode:04o}, not as in {row:?}"
        );
        let owner = *file.users(&row.owner).last().expect("an owner");
        assert_eq!(about.uid(), owner, "{name}: {row:?}");
        seen.insert(&row.pattern);
        known.insert(path, (file, row));
    }
    let unseen: Vec<_> = rows
        .iter()
        .filter(|row| !seen.contains(&row.pattern))
        .collect();
    assert!(unseen.is_empty(), "the tree has no such files: {unseen:#?}");
    let list: Vec<&str> = paths.iter().filter_map(|path| path.to_str()).collect();
    let list = ground.write("list", list.join("\n"), 0, 0o644);
    for user in ALL {
        let mut command = own(user);
        command.env("HOSTILE_LIST", &list);
        let mut role = Role::start(&mut command, "table::tries");
        for (path, (file, row)) in paths.iter().map(|path| (path, &known[&**path])) {
            let may =
                |(file, row): &(Known, &Row)| user == 0 || file.users(&row.writers).contains(&user);
            let reads = user == 0 || file.users(&row.readers).contains(&user);
            let above = path.parent().and_then(|above| known.get(above));
            let removes = above.map_or(user == 0, may);
            let writes = user == 0 || file.users(&row.writers).contains(&user);
            let said = role.line(&format!("#{} ", path.display()));
            let path = path.display();
            assert_eq!(
                said,
                format!("{reads} {writes} {removes}"),
                "{user} {path}: {row:?}"
            );
        }
    }
    let saved = ground.at("saved");
    let (status, said) = run(ground.gpulimit(&["report", "--save"]).arg(&saved));
    assert_eq!(status, Some(0), "{said}");
    let mut paths = Vec::new();
    walk(&saved, &mut paths);
    let about = |path: &PathBuf| {
        let about = fs::metadata(path).expect("there");
        (about.uid(), about.mode() & 0o7777)
    };
    let found: Vec<_> = paths.iter().map(about).collect();
    assert_eq!(found, [(0, 0o755), (0, 0o644)]);
    drop((runs, init));
}
