//! The groups' own file system, `config/systemd/run-gpulimit.mount`: members of a group can fill
//! this file system, but not `/run`.

use crate::place::{GPULIMIT, Place, have, may_mount, read, repository, text};
use gpulimit_support::clean;
use std::process::Command;

/// A member of a group who is not root.
const USER: &str = "41021";

/// Returns the options of the mount unit with a small size and few inodes, so that a test need not
/// fill half a GiB.
fn options() -> String {
    let unit = read("config/systemd/run-gpulimit.mount");
    let options = unit.lines().find_map(|line| line.strip_prefix("Options="));
    let options: Vec<&str> = options.expect("options").split(',').collect();
    let small = options.iter().map(|option| match option.split_once('=') {
        Some(("size", _)) => "size=4M".to_owned(),
        Some(("nr_inodes", _)) => "nr_inodes=100".to_owned(),
        _ => (*option).to_owned(),
    });
    let small = small.collect::<Vec<_>>().join(",");
    assert!(
        small.contains("size=4M") && small.contains("nr_inodes=100"),
        "{options:?}"
    );
    small
}

/// A machine whose `/run` has 8 MiB more room than its groups may take. The user grows the ledger
/// and fills `sub/`; the script then prints what is left, and whether a service of root can still
/// write.
const MACHINE: &str = r#"set -eu
mount -t tmpfs -o size=12M,nr_inodes=2000,mode=755 tmpfs /run
mkdir -m 755 /run/gpulimit
[ -z "$OPTIONS" ] || mount -t tmpfs -o "$OPTIONS" gpulimit /run/gpulimit
"$GPULIMIT" create lab max=1G >&2
"$GPULIMIT" create lab/user max=1G --owner "$USER_ID" >&2
own=/run/gpulimit/lab/sub/user
as_user() { setpriv --reuid="$USER_ID" --regid="$USER_ID" --clear-groups "$@"; }
"$GPULIMIT" doctor | grep -c "is not a separate file system" || true
as_user dd if=/dev/zero of="$own/ledger" bs=1M seek=17 count=100 2>/dev/null \
    && echo "the ledger takes all"
"$GPULIMIT" show lab/user 2>&1 | grep -c "does not match its header" || true
as_user sh -c 'i=0
    while mkdir "$0/sub/$i" 2>/dev/null; do i=$((i + 1)); [ $i -lt 3000 ] || exit 1; done' "$own" \
    || echo "directories without end"
if dd if=/dev/zero of=/run/service bs=1M count=6 2>/dev/null; then echo "root has room"; fi
rm -f /run/service
if mkdir /run/service; then echo "root has inodes"; fi
"$GPULIMIT" create other max=1G 2>/dev/null && echo "and groups have room"
"$GPULIMIT" rm --recursive --force lab/user >&2 || rm -r "$own"
"$GPULIMIT" create other max=1G >&2 && echo "until it is removed"
"#;

fn machine(options: &str) -> String {
    let mut command = Command::new("unshare");
    clean(command.args(["-m", "sh", "-c", MACHINE]))
        .env("OPTIONS", options)
        .env("GPULIMIT", GPULIMIT)
        .env("USER_ID", USER);
    let output = command.output().expect("started");
    assert!(output.status.success(), "{output:?}");
    text(&output.stdout)
}

#[test]
fn members_cannot_fill_run() {
    if !may_mount() {
        return;
    }
    assert_eq!(
        machine(&options()),
        "0\n1\nroot has room\nroot has inodes\nuntil it is removed\n"
    );
    // Without the mount, members fill `/run`, and doctor says so.
    let said = machine("");
    assert!(said.starts_with("1\n1\n"), "{said}");
    assert!(
        !said.contains("root has room") && !said.contains("root has inodes"),
        "{said}"
    );
}

/// The unit does not mount over existing groups, which would hide them.
#[test]
fn the_mount_unit_is_valid_and_hides_no_groups() {
    let unit = read("config/systemd/run-gpulimit.mount");
    assert!(unit.contains("ConditionDirectoryNotEmpty=!/run/gpulimit\n"));
    assert!(unit.contains("Where=/run/gpulimit\n"));
    // The root is mounted before the groups are made, and the rules do not require the mount.
    let apply = read("config/systemd/gpulimit-apply.service");
    let after = apply.lines().find(|line| line.starts_with("After="));
    assert!(after.expect("an order").contains("run-gpulimit.mount"));
    assert!(!apply.contains("Requires"));
    let place = Place::new();
    if !have("systemd-analyze") {
        return;
    }
    let tried = Command::new("systemd-analyze")
        .args(["verify", "--man=no"])
        .arg(repository("config/systemd/run-gpulimit.mount"))
        .current_dir(place.at(""))
        .output()
        .expect("started");
    assert!(!text(&tried.stderr).contains("run-gpulimit"), "{tried:?}");
}
