//! `apply` among groups whose directories belong to a user who changes files there at the same
//! time.

use crate::{Ground, Role, run};
use gpulimit_group::{Access, Members, Root};
use gpulimit_limits::LimitSet;
use rustix::fs::{CWD, RenameFlags, renameat_with};
use std::fs::{self, Permissions};
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;

/// A user that every system has, so that policies can name it.
const DAEMON: &str = "daemon";

/// The groups `lab`, `lab/hers`, which belongs to the user, and two nested groups below it; root
/// made all of them.
struct Tree {
    root: Root,
    user: u32,
    /// The directory of `lab/hers/team`, which belongs to the user.
    team: PathBuf,
    /// A file that belongs to root.
    secret: PathBuf,
}

impl Tree {
    fn new(ground: &Ground) -> Self {
        let uid = Command::new("id").args(["-u", DAEMON]).output();
        let uid = String::from_utf8(uid.expect("id").stdout).expect("text");
        let path = ground.make("groups", 0, 0o755);
        let secret = ground.write("secret", "for root only", 0, 0o600);
        let tree = Self {
            root: Root::at(&path).expect("a root"),
            user: uid.trim().parse().expect("a number"),
            team: path.join("lab/sub/hers/sub/team"),
            secret,
        };
        tree.create("lab", 0);
        for name in ["lab/hers", "lab/hers/team", "lab/hers/team/job"] {
            tree.create(name, tree.user);
        }
        tree
    }

    fn create(&self, name: &str, owner: u32) {
        let access = Access {
            owner: Some(owner),
            members: Members::Owner,
        };
        let made = self.root.create_for(name, &LimitSet::default(), access);
        assert!(made.expect("created").new);
    }

    fn secret_mode(&self) -> u32 {
        fs::metadata(&self.secret).expect("there").mode() & 0o7777
    }
}

/// Gives access to every user, and leaves the owner as it is.
const FOR_ALL: Access = Access {
    owner: None,
    members: Members::All,
};

#[test]
fn apply_gives_no_access_to_a_file_of_root() {
    let Some(ground) = Ground::new() else { return };
    let tree = Tree::new(&ground);
    let job = tree.root.group("lab/hers/team/job").expect("there");
    let ledger = tree.team.join("ledger");
    let own = fs::read(&ledger).expect("read");
    type Trap<'a> = (&'a str, &'a dyn Fn());
    let traps: [Trap<'_>; 3] = [
        // Users can make such a link on kernels without fs.protected_hardlinks.
        ("hard link", &|| {
            fs::hard_link(&tree.secret, &ledger).expect("linked")
        }),
        ("link", &|| symlink(&tree.secret, &ledger).expect("linked")),
        ("pipe", &|| {
            let made = Command::new("mkfifo").arg(&ledger).status();
            assert!(made.expect("mkfifo").success());
            chown(&ledger, Some(tree.user), None).expect("given");
        }),
    ];
    for (what, trap) in traps {
        fs::remove_file(&ledger).expect("hers to remove");
        trap();
        // The command may fail, since the user has spoiled their own group.
        let _ = job.give_access(FOR_ALL);
        let made = tree
            .root
            .create_for("lab/hers/team/new", &LimitSet::default(), FOR_ALL);
        drop(made);
        assert_eq!(tree.secret_mode(), 0o600, "{what}");
    }
    // With a regular ledger, every user gets access, at every level up to the top.
    fs::remove_file(&ledger).expect("hers to remove");
    fs::write(&ledger, own).expect("written");
    fs::set_permissions(&ledger, Permissions::from_mode(0o600)).expect("set");
    chown(&ledger, Some(tree.user), Some(tree.user)).expect("given");
    job.give_access(FOR_ALL).expect("changed");
    for name in ["lab", "lab/hers", "lab/hers/team", "lab/hers/team/job"] {
        let access = tree
            .root
            .group(name)
            .expect("there")
            .access()
            .expect("told");
        assert_eq!(access.members, Members::All, "{name}");
    }
}

/// The process of the user, started by another test, which exchanges a ledger for a link until the
/// test ends the process.
#[test]
#[ignore = "a part of another test"]
fn users_process() {
    let team = std::env::var_os("HOSTILE_TEAM").expect("a path");
    let team = Path::new(&team);
    println!("\n#begins");
    loop {
        let (ledger, link) = (team.join("ledger"), team.join("link"));
        let _ = renameat_with(CWD, &ledger, CWD, &link, RenameFlags::EXCHANGE);
        for path in [&ledger, &link] {
            if fs::symlink_metadata(path).is_ok_and(|about| about.is_file()) {
                let _ = fs::set_permissions(path, Permissions::from_mode(0o600));
            }
        }
    }
}

#[test]
fn apply_follows_no_link_that_replaces_a_file() {
    const APPLIED: u32 = 20;
    /// Rounds of the step of `apply` that the attack targets, by itself.
    const GIVEN: u32 = 2_000;
    let Some(ground) = Ground::new() else { return };
    let tree = Tree::new(&ground);
    symlink(&tree.secret, tree.team.join("link")).expect("linked");
    let mut user = crate::own(tree.user);
    user.env("HOSTILE_TEAM", &tree.team);
    let mut user = Role::start(&mut user, "apply::users_process");
    user.line("#begins");
    let mut changed = 0;
    for round in 0..APPLIED {
        let members = ["owner", "all"][round as usize % 2];
        let policy = format!(
            "[group.lab]\nmembers = 'all'\n\
             [group.'lab/hers']\nowner = '{DAEMON}'\nmembers = 'all'\n\
             [group.'lab/hers/team']\nowner = '{DAEMON}'\nmembers = 'all'\n\
             [group.'lab/hers/team/job']\nowner = '{DAEMON}'\nmembers = '{members}'\n"
        );
        let policy = ground.write("policy.toml", policy, 0, 0o644);
        let (_, said) = run(ground.gpulimit(&["apply"]).arg(policy));
        changed += u32::from(said.contains("lab/hers/team/job: members"));
        if tree.secret_mode() != 0o600 {
            break;
        }
    }
    let job = tree.root.group("lab/hers/team/job").expect("there");
    for _ in 0..GIVEN {
        changed += u32::from(job.give_access(FOR_ALL).is_ok());
        if tree.secret_mode() != 0o600 {
            break;
        }
    }
    drop(user);
    assert_eq!(tree.secret_mode(), 0o600);
    assert_eq!(
        fs::read_to_string(&tree.secret).expect("read"),
        "for root only"
    );
    assert!(
        changed > 0,
        "nothing was ever changed: the test attacks nothing"
    );
}

/// Whatever a user does to groups in their own directory, `apply` changes the groups of other users
/// and writes the rules.
#[test]
fn a_user_cannot_block_changes_to_other_groups() {
    let Some(ground) = Ground::new() else { return };
    let tree = Tree::new(&ground);
    tree.create("zoo", 0);
    let policy = |max: u32, removed: &str| {
        format!(
            "[group.lab]\nmembers = 'all'\n\
             [group.'lab/hers']\nowner = '{DAEMON}'\n\
             [group.'lab/hers/team']\nowner = '{DAEMON}'\n{removed}\
             [group.'lab/new{max}']\n\
             [group.zoo]\nmax = '{max}G'\n\
             [[rule]]\nuser = '{DAEMON}'\ngroup = 'lab/new{max}'\n"
        )
    };
    let apply = |max: u32, removed: &str| {
        let policy = ground.write("policy.toml", policy(max, removed), 0, 0o644);
        run(ground.gpulimit(&["apply"]).arg(policy))
    };
    let is_done = |max: u32| {
        let zoo = run(&mut ground.gpulimit(&["get", "zoo", "max"])).1;
        let rules = fs::read_to_string(tree.root.path().join(".rules")).unwrap_or_default();
        zoo.contains(&format!("{max}GiB")) && rules.contains(&format!("lab/new{max}"))
    };
    let own = format!("[group.'lab/hers/own']\nowner = '{DAEMON}'\n");
    let (status, said) = apply(1, &own);
    assert!(status == Some(0) && is_done(1), "{said}");
    // The traps are set for a group that exists, one that is to be made, and one that is to be
    // removed.
    type Trap<'a> = (&'a str, &'a str, &'a dyn Fn());
    let sub = tree.team.parent().expect("above");
    let traps: [Trap<'_>; 4] = [
        ("lab/hers/team", &own, &|| {
            fs::set_permissions(&tree.team, Permissions::from_mode(0o777)).expect("set");
        }),
        ("lab/hers/team", &own, &|| {
            fs::set_permissions(&tree.team, Permissions::from_mode(0o755)).expect("set");
            fs::write(tree.team.join("limits"), "spoiled").expect("written");
        }),
        ("lab/hers/own", "", &|| {
            fs::write(sub.join("own/sub/notes"), "foreign").expect("written");
        }),
        ("lab/hers/own", "", &|| {
            fs::set_permissions(sub.join("own"), Permissions::from_mode(0o777)).expect("set");
        }),
    ];
    for (max, (name, policy, trap)) in (2..).zip(traps) {
        trap();
        let (status, said) = apply(max, policy);
        assert!(
            status == Some(1) && said.contains(&format!("{name}: not changed: ")),
            "{said}"
        );
        assert!(is_done(max), "{name}: {said}");
    }
}

#[test]
fn apply_refuses_a_root_in_a_users_directory() {
    let Some(ground) = Ground::new() else { return };
    let policy = ground.write("policy.toml", "[group.lab]\n", 0, 0o644);
    fs::create_dir(ground.at("hers/groups")).expect("made");
    let mut command = ground.gpulimit(&["apply"]);
    command
        .arg(policy)
        .env("GPULIMIT_ROOT", ground.at("hers/groups"));
    let (status, said) = run(&mut command);
    assert!(
        status == Some(1) && said.contains("belongs to user 40001"),
        "{said}"
    );
    assert_eq!(
        fs::read_dir(ground.at("hers/groups"))
            .expect("listed")
            .count(),
        0
    );
}

#[test]
fn a_root_made_in_a_users_directory_belongs_to_the_user() {
    let Some(ground) = Ground::new() else { return };
    let root = Root::at(ground.at("hers/groups")).expect("a root");
    root.create("lab", &LimitSet::default()).expect("created");
    for path in [root.path(), root.group("lab").expect("there").path()] {
        let owner = fs::metadata(path).expect("there").uid();
        assert_eq!(owner, crate::ALICE, "{}", path.display());
    }
    // A link in place of the root is not followed.
    symlink(ground.at("groups"), ground.at("hers/link")).expect("linked");
    let root =
        Root::at(ground.at("hers/link")).map(|root| root.create("lab", &LimitSet::default()));
    assert!(!matches!(root, Ok(Ok(_))));
    assert!(!ground.at("groups").exists());
}
