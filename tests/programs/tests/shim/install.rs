//! The library in every program by /etc/ld.so.preload, in a mount namespace where /etc, /run and
//! /usr/local/lib belong to the test.

use std::os::unix::fs::chown;
use std::process::Output;

use gpulimit_base::units::Size;
use gpulimit_group::Root;
use gpulimit_limits::LimitSet;
use gpulimit_programs::world::{self, GROUP, MIB, World, text};
use gpulimit_support::{is_root, skip};

const CAP: u64 = 1024 * MIB;
/// The answer under that cap: five pieces of 100 MiB fit beside a context.
const LIMITED: &str = "library 1 blocks 5 status 2";
/// More blocks than any limit of these tests allows.
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
alone() {
    env -i GPULIMIT_SIM_STATE="$GPULIMIT_SIM_STATE" GPULIMIT_SIM_KILL_LAG_MS=0 HOME="$PLACE" \
        GPULIMIT_ROOT="$GPULIMIT_ROOT" GPULIMIT_GROUP="$GPULIMIT_GROUP" "$@"
}
"#;

/// Loads the library into every program from the test's own path: `gpulimit uninstall` in another
/// test counts all processes that have a library from the installed path.
const IN_PLACE: &str = "echo \"$LIBRARY\" > /etc/ld.so.preload\n";

/// Runs a script in a mount namespace of the test's own; `None` where the test may not mount.
fn run(world: &World, script: &str) -> Option<Output> {
    if !world::may_mount() {
        return None;
    }
    let driver = world::driver();
    let path = format!("-Wl,-rpath,{}", driver.display());
    let program = world::compile("secure", &["-lcuda", &path]);
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

/// Makes a group with the same limit, for another program: the next program of a full group waits
/// for the memory of the last one.
fn another_group(world: &World, name: &str) -> String {
    let group = format!("{GROUP}-{name}");
    let created = world
        .root()
        .create(&group, &LimitSet::all(Size::Bytes(CAP)));
    created.expect("a group");
    group
}

/// Returns the lines of the output. For a program without a limit, the number of blocks is replaced
/// by `many`.
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
    for name in ["login", "exec"] {
        another_group(&world, name);
    }
    let script = r#"
alone "$PROGRAM"
"$GPULIMIT" install --library "$LIBRARY" > /dev/null
alone "$PROGRAM"
alone GPULIMIT_GROUP="$GPULIMIT_GROUP-login" bash -lc "$PROGRAM"
alone GPULIMIT_GROUP="$GPULIMIT_GROUP-exec" bash -c "unset LD_PRELOAD; exec $PROGRAM"
env -u GPULIMIT_GROUP "$GPULIMIT" run --max 1G -- sh -c 'echo "$LD_PRELOAD"'
env -i sh -c 'echo quiet; ls / > /dev/null'
"$GPULIMIT" doctor | grep -o 'ok  *system-wide  *[^ ,]*'
sleep 600 & user=$!
trap 'kill $user 2> /dev/null || true' EXIT
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
            // The status names this path: another copy of the library would count a second time.
            library,
            "quiet",
            &format!("ok       system-wide  {library}"),
            "1",
            &format!("{library}: removed"),
            &free,
        ]
    );
    let errors = text(&output.stderr);
    assert_eq!(errors.matches("gpulimit: refused").count(), 3, "{errors}");
    assert!(!errors.contains("ld.so"), "{errors}");
    world.settle();
}

#[test]
fn setuid_programs_ignore_the_environment() {
    const USER: u32 = 40_001;
    if !is_root() {
        return;
    }
    let world = World::with(CAP, &[("GPULIMIT_SIM_KILL_LAG_MS", "0")]);
    // The test makes a root that belongs to the user, with a group that would refuse everything.
    let place = world.file("users");
    std::fs::create_dir(&place).expect("made");
    chown(&place, Some(USER), None).expect("given");
    let root = Root::at(&place).expect("a root");
    let created = root.create(GROUP, &LimitSet::all(Size::Bytes(0)));
    let group = created.expect("a group").group;
    let script = r#"
"$GPULIMIT" install --library "$LIBRARY" > /dev/null
cp "$PROGRAM" "$PLACE/setuid"
chmod 4755 "$PLACE/setuid"
GPULIMIT_ROOT="$USERS" alone GPULIMIT_MAX=1M \
    setpriv --reuid 40001 --regid 40001 --clear-groups "$PLACE/setuid"
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
    assert!(
        ledger.devices().is_empty(),
        "the program was counted in a group"
    );
    world.settle();
}

#[test]
fn root_by_su_loads_no_library_from_the_callers_environment() {
    if !is_root() {
        return;
    }
    let world = World::with(CAP, &[("GPULIMIT_SIM_KILL_LAG_MS", "0")]);
    let place = world.file("users");
    std::fs::create_dir(&place).expect("made");
    chown(&place, Some(40_001), None).expect("given");
    // Of the variables that `su` keeps, GPULIMIT_LIBRARY names a library of the user's and
    // GPULIMIT_ROOT a directory of the user's. The library records every program that runs it with
    // root's rights.
    let script = r#"
echo 'reda:x:40001:40001::/:/bin/sh' >> /etc/passwd
printf '%s sufficient pam_permit.so\n' auth account session > /etc/pam.d/su
cat > "$USERS/evil.c" <<END
#include <fcntl.h>
#include <unistd.h>
const char gpulimit_version_text[] = "$VERSION";
__attribute__((constructor)) static void evil(void) {
    if (geteuid() == 0) close(open("$PLACE/proof", O_CREAT | O_WRONLY, 0600));
}
END
cc -shared -fPIC -o "$USERS/libgpulimit.so" "$USERS/evil.c"
chown 40001 "$USERS/libgpulimit.so"
# The library is loaded and records its work, as the rest of the test expects.
LD_PRELOAD="$USERS/libgpulimit.so" /bin/true
test -e "$PLACE/proof"; rm "$PLACE/proof"
"$GPULIMIT" install --library "$LIBRARY" > /dev/null
reda() {
    setpriv --reuid 40001 --regid 40001 --clear-groups \
        env LD_PRELOAD="$USERS/libgpulimit.so" GPULIMIT_MAX=1M \
        GPULIMIT_LIBRARY="$USERS/libgpulimit.so" GPULIMIT_ROOT="$USERS/groups" su "$@"
}
reda -c true || exit 0
echo "su works"
reda -c 'echo "preload=$LD_PRELOAD library=${GPULIMIT_LIBRARY##*/}"'
for verb in doctor 'run --max 1G -- true' 'cdi generate --output -' 'apply /dev/null' install \
    "install --library $USERS/libgpulimit.so"; do
    reda -c "$GPULIMIT $verb" > "$PLACE/said" 2>&1 || true
    grep -q 'belongs to user 40001' "$PLACE/said" || { echo "$verb says:"; cat "$PLACE/said"; }
    test ! -e "$PLACE/proof" || { echo "$verb ran it"; rm "$PLACE/proof"; }
done
"#;
    let version = gpulimit_base::version::text();
    let script = format!("USERS={}\nVERSION='{version}'\n{script}", place.display());
    let Some(output) = run(&world, &script) else {
        return;
    };
    let said = said(&output);
    if said.is_empty() {
        skip(format_args!("su lets nobody in here: {output:?}"));
        return;
    }
    assert_eq!(said, ["su works", "preload= library=libgpulimit.so"]);
    world.settle();
}

#[test]
fn libraries_in_ld_preload_cannot_bypass_the_hooks() {
    let world = World::with(CAP, &[("GPULIMIT_SIM_KILL_LAG_MS", "0")]);
    let driver = world::driver();
    let path = format!("-Wl,-rpath,{}", driver.display());
    let mut programs = Vec::new();
    for arguments in [&["-lcuda"][..], &["-DNAMED", "-ldl"]] {
        for bound in ["lazy", "now"] {
            let bound = format!("-Wl,-z,{bound}");
            let arguments = [arguments, &[path.as_str(), bound.as_str()]].concat();
            programs.push(world::compile("secure", &arguments));
        }
    }
    let wrapper = world::library("wraps_dlsym", &[]);
    let both = world::library("wraps_dlsym", &["-DDLOPEN"]);
    let driver = driver.display();
    let (wrapper, both) = (wrapper.display(), both.display());
    let preloads = [
        "libc.so.6".to_owned(),
        "libdl.so.2".to_owned(),
        format!("{driver}/libcuda.so.1"),
        format!("{driver}/libnvidia-ml.so.1:{driver}/libcuda.so.1"),
        format!("libc.so.6:{driver}/libcuda.so.1"),
        wrapper.to_string(),
        format!("libc.so.6:{wrapper}"),
        both.to_string(),
        format!("{driver}/libcuda.so.1:{both}"),
    ];
    let mut script = String::from(IN_PLACE);
    for (at, preload) in preloads.iter().enumerate() {
        for (number, program) in programs.iter().enumerate() {
            let program = program.display();
            let group = format!("{GROUP}-{at}-{number}");
            let created = world
                .root()
                .create(&group, &LimitSet::all(Size::Bytes(CAP)));
            created.expect("a group");
            script += &format!(
                "alone GPULIMIT_GROUP={group} LD_PRELOAD={preload} LD_LIBRARY_PATH={driver} \
                 {program}\n\
                 alone env -u GPULIMIT_GROUP LD_PRELOAD={preload} LD_LIBRARY_PATH={driver} \
                 {program}\n"
            );
        }
    }
    let Some(output) = run(&world, &script) else {
        return;
    };
    let said = said(&output);
    let mut said = said.iter();
    for preload in &preloads {
        for program in &programs {
            let what = format!("LD_PRELOAD={preload} {}", program.display());
            let limited = format!("secure 0 {LIMITED}");
            assert_eq!(said.next(), Some(&limited), "{what}");
            let free = "secure 0 library 1 blocks many status 2".to_owned();
            assert_eq!(said.next(), Some(&free), "{what} without a limit");
        }
    }
    assert_eq!(said.next(), None);
    let errors = text(&output.stderr);
    let wrapped = preloads.iter().filter(|it| it.contains("wraps_dlsym"));
    let times = wrapped.count() * programs.len() * 2;
    assert_eq!(errors.matches("wraps_dlsym: alive").count(), times);
    assert!(!errors.contains("ld.so"), "{errors}");
    world.settle();
}

#[test]
fn a_static_runtime_cannot_bypass_the_hooks_by_ld_preload() {
    let Some(archive) = world::static_runtime() else {
        skip("there is no libcudart_static.a");
        return;
    };
    let world = World::with(CAP, &[("GPULIMIT_SIM_KILL_LAG_MS", "0")]);
    let archive = archive.display().to_string();
    let mut script = String::from(IN_PLACE);
    let driver = world::driver();
    let driver = driver.display();
    for bound in ["lazy", "now"] {
        let flag = format!("-Wl,-z,{bound}");
        let arguments = [
            "-DLINKED",
            &flag,
            &archive,
            "-lpthread",
            "-lrt",
            "-lm",
            "-ldl",
        ];
        let program = world::compile("runtime", &arguments);
        for preload in ["libc.so.6", &format!("{driver}/libcuda.so.1")] {
            script += &format!(
                "alone LD_PRELOAD={preload} LD_LIBRARY_PATH={driver} {} \
                    | grep -m1 '^cudaMalloc '\n",
                program.display()
            );
        }
    }
    let Some(output) = run(&world, &script) else {
        return;
    };
    assert_eq!(said(&output), ["cudaMalloc 2"; 4], "{output:?}");
    world.settle();
}
