//! The library in every program, by /etc/ld.so.preload: in a mount namespace whose /etc, /run and /usr/local/lib are the test's own.

use std::os::unix::fs::chown;
use std::process::Output;

use gpulimit::group::Root;
use gpulimit::limits::LimitSet;
use gpulimit::units::Size;
use gpulimit_programs::world::{self, GROUP, MIB, World, text};

const CAP: u64 = 1024 * MIB;
/// What is left of it beside a context, in pieces of 100 MiB.
const LIMITED: &str = "library 1 blocks 5 status 2";
/// Beyond any limit of these tests.
const MANY: u32 = 700;

const PRIVATE: &str = r#"
set -e
mount --make-rprivate /
mkdir "$PLACE"
mount -t tmpfs -o mode=755 tmpfs "$PLACE"
cp -a /etc "$PLACE/etc"
mkdir -m 755 "$PLACE/lib" "$PLACE/run"
mount --bind "$PLACE/etc" /etc
mount --bind "$PLACE/lib" /usr/local/lib
mount --bind "$PLACE/run" /run
rm -f /etc/ld.so.preload
alone() { env -i GPULIMIT_SIM_STATE="$GPULIMIT_SIM_STATE" GPULIMIT_SIM_KILL_LAG_MS=0 GPULIMIT_ROOT="$GPULIMIT_ROOT" GPULIMIT_GROUP="$GPULIMIT_GROUP" HOME="$PLACE" "$@"; }
"#;

/// Runs a script where the system is the test's own; `None` where that cannot be.
fn run(world: &World, script: &str) -> Option<Output> {
    if !world::may_mount() {
        return None;
    }
    let driver = world::driver();
    let path = format!("-Wl,-rpath,{}", driver.display());
    let program = world::compile_for("secure", ".rpath", &["-lcuda", &path]);
    let mut command = world.bare(std::path::Path::new("unshare"));
    command
        .args(["--mount", "--", "sh", "-c", &format!("{PRIVATE}\n{script}")])
        .env_remove("LD_LIBRARY_PATH")
        .env("GPULIMIT_GROUP", GROUP)
        .env("PLACE", world.file("system"))
        .env("PROGRAM", program)
        .env("LIBRARY", world::shim())
        .env("GPULIMIT", world::controller());
    Some(world::finish(command))
}

/// The lines that it wrote; of the blocks of a program without a limit only that they are many.
#[track_caller]
fn said(output: &Output) -> Vec<String> {
    assert!(output.status.success(), "{output:?}");
    let blocks = |word: &str| match word.parse::<u32>() {
        Ok(MANY..) => "many".to_owned(),
        _ => word.to_owned(),
    };
    let line = |line: &str| line.split(' ').map(blocks).collect::<Vec<_>>().join(" ");
    text(&output.stdout).lines().map(line).collect()
}

#[test]
fn limits_hold_with_an_empty_environment_and_in_a_login_shell() {
    let world = World::with(CAP, &[("GPULIMIT_SIM_KILL_LAG_MS", "0")]);
    let script = r#"
alone "$PROGRAM"
"$GPULIMIT" install --library "$LIBRARY" > /dev/null
alone "$PROGRAM"
alone bash -lc "$PROGRAM"
alone bash -c "unset LD_PRELOAD; exec $PROGRAM"
env -u GPULIMIT_GROUP "$GPULIMIT" run --max 1G -- sh -c 'echo "$LD_PRELOAD"'
env -i sh -c 'echo quiet; ls / > /dev/null'
"$GPULIMIT" doctor | grep -o 'ok  *system-wide  *[^ ,]*'
sleep 600 & user=$!
# A child of this shell, which came before the library, until it has become `sleep`.
until grep -q libgpulimit /proc/$user/maps; do sleep 0.01; done
"$GPULIMIT" uninstall | grep -c stays
kill $user; wait $user || true
"$GPULIMIT" uninstall | tail -1
test ! -e /etc/ld.so.preload
alone "$PROGRAM"
"#;
    let Some(output) = run(&world, script) else {
        return;
    };
    let said = said(&output);
    let secure = |what: &str| format!("secure 0 {what}");
    let free = secure("library 0 blocks many status 2");
    let limited = secure(LIMITED);
    let library = "/usr/local/lib/gpulimit/libgpulimit.so";
    assert_eq!(
        said,
        [
            &free,
            &limited,
            &limited,
            &limited,
            // Not another copy, which would count a second time.
            library,
            "quiet",
            &format!("ok       system-wide  {library}"),
            "1",
            &format!("removed {library}"),
            &free,
        ]
    );
    let errors = text(&output.stderr);
    assert_eq!(errors.matches("gpulimit: refused").count(), 3, "{errors}");
    assert!(!errors.contains("ld.so"), "{errors}");
    world.settle();
}

#[test]
fn setuid_programs_are_not_led_by_the_environment() {
    const USER: u32 = 40_001;
    let world = World::with(CAP, &[("GPULIMIT_SIM_KILL_LAG_MS", "0")]);
    // A root of the user's own, with a group that would refuse everything.
    let place = world.file("users");
    std::fs::create_dir(&place).expect("made");
    if chown(&place, Some(USER), None).is_err() {
        eprintln!("SKIPPED: only root can make files of other users");
        return;
    }
    let root = Root::at(&place).expect("a root");
    let created = root.create(GROUP, &LimitSet::all(Size::Bytes(0)));
    let group = created.expect("a group").group;
    let script = r#"
"$GPULIMIT" install --library "$LIBRARY" > /dev/null
cp "$PROGRAM" "$PLACE/setuid"
chmod 4755 "$PLACE/setuid"
GPULIMIT_ROOT="$USERS" alone GPULIMIT_MAX=1M setpriv --reuid 40001 --regid 40001 --clear-groups "$PLACE/setuid"
"#;
    let Some(output) = run(&world, &format!("USERS={}\n{script}", place.display())) else {
        return;
    };
    assert_eq!(
        said(&output),
        ["secure 1 library 1 blocks many status 2"],
        "{output:?}"
    );
    assert_eq!(text(&output.stderr), "");
    let ledger = group.ledger().expect("readable");
    assert!(ledger.devices().is_empty(), "nobody was there");
    world.settle();
}
