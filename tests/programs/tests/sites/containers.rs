//! Containers with devices of `gpulimit.dev/mem`, as `gpulimit cdi generate` makes them and
//! docs/containers.md describes them: by runc, with the edits applied to a bundle, and by podman,
//! which reads the file itself.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::process::Command;

use gpulimit_programs::world::{self, CONTEXT, MIB, Session, eventually, text};
use gpulimit_support::{have, skip};
use serde_json::{Value, json};

use crate::engine::{Engine, Start};

const CAPS: [&str; 4] = ["--cap", "2G", "--cap", "3g"];

/// In a group of 2 GiB, the first request fits beside a context, and the second does not.
const FITS: (&str, &str) = ("alloc a 1000M", "0");
const OVER: (&str, &str) = ("alloc over 1000M", "2");

#[test]
fn a_container_has_the_limit_of_its_device() {
    let Some(engine) = Engine::new(&CAPS) else {
        return;
    };
    let small = Start {
        devices: &["2g"],
        ..Start::default()
    };
    let mut one = engine.start(&small);
    let mut two = engine.start(&small);
    for container in [&mut one, &mut two] {
        container.session.expect(&[("start", "0 0"), FITS, OVER]);
    }
    // Each container has its own group.
    for container in [&one, &two] {
        let counted = engine.counted(&container.inside.group()).expect("a group");
        assert!(
            counted.abs_diff(CONTEXT + 1000 * MIB) <= 3 * MIB,
            "{counted}"
        );
    }
    // A program started later is in the same group, whatever its user and its environment are.
    let (gpu, lag) = ("GPULIMIT_SIM_STATE=/gpu", "GPULIMIT_SIM_KILL_LAG_MS=50");
    let bare = ["/bin/env", "-i", gpu, lag, "/bin/gpu-script"];
    let preload = ["/bin/env", "LD_PRELOAD=/no/such.so", "/bin/gpu-script"];
    let escape = [
        "/bin/env",
        "GPULIMIT_ROOT=/tmp",
        "GPULIMIT_LIBRARY=",
        "/bin/gpu-script",
    ];
    for (user, command) in [
        ("0", &bare[..]),
        ("1000:1000", &bare),
        ("1000:1000", &preload),
        ("0", &escape),
    ] {
        let mut session = Session::start(one.inside.exec(user, command));
        session.expect(&[
            ("start", "0 0"),
            ("alloc over 100M", "2"),
            ("alloc b 4M", "0"),
        ]);
        assert!(engine.counted(&one.inside.group()) > Some(2 * CONTEXT + 1000 * MIB));
        assert!(session.end().0.success());
    }
    two.session.expect(&[("free a", "0"), FITS]);
    // Another device has another limit.
    let mut large = engine.start(&Start {
        devices: &["3g"],
        ..small
    });
    large.session.expect(&[
        ("start", "0 0"),
        ("alloc a 2400M", "0"),
        ("alloc over 400M", "2"),
    ]);
    assert_eq!(engine.groups().len(), 3);
    for container in [one, two, large] {
        let group = container.inside.group();
        drop(container);
        assert_eq!(engine.counted(&group), None);
    }
    engine.nothing_is_left();
}

#[test]
fn users_and_namespaces_of_a_container_are_limited_alike() {
    let Some(engine) = Engine::new(&CAPS) else {
        return;
    };
    for (user, mapped) in [(1000, false), (0, true)] {
        let mut container = engine.start(&Start {
            devices: &["2g"],
            user,
            mapped,
            variables: &["LD_PRELOAD=/usr/lib/libnone.so"],
            ..Start::default()
        });
        container.session.expect(&[("start", "0 0"), FITS, OVER]);
        // Only root can write the record of the container's group.
        let folder = engine.world.root().path().join(".containers");
        let entries = fs::read_dir(&folder).expect("listed");
        let mut ahead: Vec<_> = entries.map(|entry| entry.expect("there").path()).collect();
        assert_eq!(ahead.len(), 1);
        while let Some(path) = ahead.pop() {
            let about = fs::symlink_metadata(&path).expect("there");
            let is_members = path.ends_with("ledger") || path.ends_with("lock");
            let writable = about.mode() & 0o022 != 0 && !is_members;
            assert!(about.uid() == 0 && !writable, "{}", path.display());
            if about.is_dir() {
                let entries = fs::read_dir(&path).expect("listed");
                ahead.extend(entries.map(|entry| entry.expect("there").path()));
            }
        }
        drop(container);
    }
    engine.nothing_is_left();
}

#[test]
fn a_killed_container_leaves_no_group_or_memory() {
    let Some(engine) = Engine::new(&CAPS) else {
        return;
    };
    let start = Start {
        devices: &["2g"],
        id: Some("again"),
        ..Start::default()
    };
    // The container runs twice, since its name is free again.
    for _ in 0..2 {
        let mut container = engine.start(&start);
        container.session.expect(&[("start", "0 0"), FITS]);
        kill(container.inside.init());
        // runc notices the death and calls the hook.
        container.session.end();
        assert_eq!(engine.counted("container-again"), None);
        engine.nothing_is_left();
    }
    // The runtime is killed as well and calls no hook: the next container, or gc, cleans up.
    for by_gc in [true, false] {
        let mut container = engine.start(&start);
        container.session.expect(&[("start", "0 0"), FITS]);
        let init = container.inside.init();
        let record = engine
            .world
            .root()
            .path()
            .join(".containers/container-again/record");
        assert!(record.exists());
        container.session.signal(libc::SIGKILL);
        kill(init);
        assert!(eventually(|| engine.world.machine().used() == 0));
        assert!(engine.counted("container-again").is_some());
        if by_gc {
            let said = text(&engine.gpulimit(&["gc"]).stdout);
            assert!(said.contains("container-again: removed"), "{said}");
            engine.nothing_is_left();
        } else {
            let mut other = engine.start(&Start {
                id: Some("other"),
                ..start
            });
            other.session.expect(&[("start", "0 0"), FITS]);
            assert_eq!(engine.groups(), ["container-other"]);
        }
    }
    engine.nothing_is_left();
}

/// Commands by which a container's root loses the library for later programs, in a file system that
/// it may write.
const AWAY: &str = "mv /run /other\nmv /etc /other\nmv /usr /other\n";

/// Commands that a container's root can try in any file system.
const ATTEMPTS: &str = "\
echo >> OWN/limits
truncate -s 0 OWN/limits
chmod 666 OWN/limits
rm OWN/limits
mv OWN OWN.old
touch OWN/new
touch OWN/sub/new
echo >> OWN/lock
rm OWN/ledger
rm /run/gpulimit/.rules
echo >> /run/gpulimit/.rules
umount /run/gpulimit
umount -l /run/gpulimit
mount -o remount,rw /run/gpulimit
mount -t tmpfs tmpfs /run/gpulimit
mv /run/gpulimit /run/other
rm /etc/ld.so.preload
echo > /etc/ld.so.preload
umount /etc/ld.so.preload
echo >> /usr/local/lib/gpulimit/libgpulimit.so
rm /usr/local/lib/gpulimit/libgpulimit.so
";

#[test]
fn a_containers_root_cannot_raise_its_limit() {
    let Some(engine) = Engine::new(&["--cap", "2g", "--group", "lab/alice"]) else {
        return;
    };
    for (name, max) in [
        ("lab", "max=4G"),
        ("lab/alice", "max=2G"),
        ("lab/bob", "max=2G"),
        ("other", "max=2G"),
    ] {
        let made = engine.gpulimit(&["create", name, max, "--members", "all"]);
        assert!(made.status.success(), "{made:?}");
    }
    for (device, own) in [("2g", "container-c-0"), ("lab.alice", "lab/sub/alice")] {
        for (mapped, read_only) in [(false, false), (false, true), (true, false)] {
            let mut container = engine.start(&Start {
                devices: &[device],
                mapped,
                read_only,
                ..Start::default()
            });
            let own = own.replace("container-c-0", &container.inside.group());
            container.session.expect(&[("start", "0 0"), FITS]);
            let own = format!("/run/gpulimit/{own}");
            let may = "cd /dev/shm && touch a && chmod 600 a && echo > a && truncate -s 0 a \
                && mv a b && rm b";
            let (status, said) = container.inside.shell("0", may);
            assert_eq!(status, Some(0), "{said}");
            let attempts = ATTEMPTS.replace("OWN", &own) + if read_only { AWAY } else { "" };
            let each = format!(
                "cd /; while read -r attempt; do if (eval \"$attempt\") 2> /dev/null; then \
                    echo \"$attempt\"; fi; done <<END\n{attempts}END\necho tried"
            );
            let (_, said) = container.inside.shell("0", &each);
            assert_eq!(said, "tried\n");
            // The container's root cannot see other groups.
            let (_, seen) = container
                .inside
                .shell("0", "cd /run/gpulimit; ls; ls lab/sub 2> /dev/null");
            for other in ["other", "bob"] {
                assert!(!seen.lines().any(|name| name == other), "{seen}");
            }
            container.session.expect(&[OVER]);
            let mut later = Session::start(container.inside.exec("0", &["/bin/gpu-script"]));
            later.expect(&[("start", "0 0"), ("alloc over 100M", "2")]);
            // A limit set on the host holds.
            let name = if device == "2g" {
                container.inside.group()
            } else {
                "lab/alice".to_owned()
            };
            let set = engine.gpulimit(&["set", &name, "max=3G"]);
            assert!(set.status.success(), "{set:?}");
            container.session.expect(&[("alloc b 500M", "0")]);
            let back = engine.gpulimit(&["set", &name, "max=2G"]);
            assert!(back.status.success(), "{back:?}");
        }
    }
    engine.nothing_is_left();
}

#[test]
fn a_named_group_is_shared_by_containers_and_stays() {
    let Some(engine) = Engine::new(&["--group", "lab"]) else {
        return;
    };
    let start = Start {
        devices: &["lab"],
        ..Start::default()
    };
    let said = engine.refused(&start);
    assert!(said.contains("no group 'lab'"), "{said}");
    engine.nothing_is_left();
    let made = engine.gpulimit(&["create", "lab", "max=3000M"]);
    assert!(made.status.success(), "{made:?}");
    let (mut one, mut two) = (engine.start(&start), engine.start(&start));
    one.session.expect(&[("start", "0 0"), FITS]);
    two.session
        .expect(&[("start", "0 0"), OVER, ("alloc a 900M", "0")]);
    let counted = engine.counted("lab").expect("there");
    assert!(
        counted.abs_diff(2 * CONTEXT + 1900 * MIB) <= 5 * MIB,
        "{counted}"
    );
    drop((one, two));
    assert_eq!(engine.groups(), ["lab"]);
    engine.nothing_is_left();
}

#[test]
fn without_its_group_a_container_has_no_gpu_memory() {
    let Some(engine) = Engine::new(&CAPS) else {
        return;
    };
    // This engine ignores hooks.
    let mut container = engine.start(&Start {
        devices: &["2g"],
        without_hooks: true,
        ..Start::default()
    });
    assert_ne!(container.session.say("start"), "0 0");
    let (_, errors) = container.session.end();
    assert!(
        errors.contains("no GPU memory for this program"),
        "{errors}"
    );
    // Two devices with limits are refused.
    let said = engine.refused(&Start {
        devices: &["2g", "3g"],
        ..Start::default()
    });
    assert!(said.contains("only one gpulimit device"), "{said}");
    engine.nothing_is_left();
    // The image has a link that leads out of it.
    let run = engine.image().join("run");
    fs::remove_dir_all(&run).expect("removed");
    std::os::unix::fs::symlink("/tmp/elsewhere", &run).expect("made");
    let said = engine.refused(&Start {
        devices: &["2g"],
        ..Start::default()
    });
    assert!(said.contains("symbolic link"), "{said}");
    engine.nothing_is_left();
}

#[test]
fn an_image_that_brings_the_library_is_limited_by_a_variable() {
    let Some(engine) = Engine::new(&CAPS) else {
        return;
    };
    let place = engine.image().join("usr/local/lib/gpulimit");
    fs::create_dir_all(&place).expect("made");
    fs::copy(world::shim(), place.join("libgpulimit.so")).expect("copied");
    let entry = engine.image().join("container-entrypoint");
    fs::copy(
        world::repository().join("config/container-entrypoint"),
        entry,
    )
    .expect("copied");
    let start = Start {
        command: &["/bin/sh", "/container-entrypoint", "/bin/gpu-script"],
        ..Start::default()
    };
    for (variables, answer) in [(&["GPULIMIT_MAX=2G"][..], "2"), (&[], "0")] {
        let mut container = engine.start(&Start { variables, ..start });
        let over = ("alloc over 1000M", answer);
        container.session.expect(&[("start", "0 0"), FITS, over]);
    }
    // If the container also has a device, the device's limit holds: there is no other group.
    let mut container = engine.start(&Start {
        devices: &["2g"],
        ..start
    });
    container.session.expect(&[("start", "0 0"), FITS, OVER]);
    drop(container);
    engine.nothing_is_left();
}

/// Calls the hook directly, with states that runtimes could pass.
#[test]
fn an_image_that_cannot_load_the_library_is_refused_on_demand() {
    let Some(engine) = Engine::new(&["--cap", "1g", "--on-error", "refuse"]) else {
        return;
    };
    let devices = fs::read_to_string(engine.path("cdi/gpulimit.json")).expect("there");
    let devices: Value = serde_json::from_str(&devices).expect("JSON");
    let hook = &devices["devices"][0]["containerEdits"]["hooks"][0]["args"];
    let hook: Vec<&str> = (hook.as_array().expect("a list").iter())
        .map(|word| word.as_str().expect("a text"))
        .collect();
    // These files are those of an image for musl: there is no C library by the name of glibc's.
    let bundle = engine.world.file("hand");
    fs::create_dir_all(bundle.join("rootfs/lib")).expect("made");
    fs::write(bundle.join("rootfs/lib/ld-musl-x86_64.so.1"), "").expect("written");
    let init = Session::start(Command::new("cat"));
    let state = json!({
        "ociVersion": "1.0.2",
        "id": "c",
        "pid": init.pid(),
        "status": "creating",
        "bundle": bundle,
    });
    let image = |path: &Path| {
        let config = json!({ "root": { "path": path } });
        fs::write(bundle.join("config.json"), config.to_string()).expect("written");
    };
    image("rootfs".as_ref());
    let (status, said) = engine.hook(&hook[2..], &state);
    assert!(
        status == 1 && said.contains("cannot load libgpulimit.so: it has no glibc"),
        "{said}"
    );
    assert_eq!(engine.groups(), <[&str; 0]>::default());
    image("/".as_ref());
    assert_eq!(engine.hook(&hook[2..], &state), (0, String::new()));
    image("rootfs".as_ref());
    assert_eq!(engine.hook(&["remove"], &state).0, 1, "it lives");
    init.signal(libc::SIGKILL);
    assert_eq!(engine.hook(&["remove"], &state), (0, String::new()));
    let run = ["create", "--cap", "1g"];
    let init = Session::start(Command::new("cat"));
    let mut state = state;
    state["pid"] = json!(init.pid());
    assert_eq!(
        engine.hook(&run, &state),
        (0, String::new()),
        "without the option it runs"
    );
    init.signal(libc::SIGKILL);
    assert_eq!(engine.hook(&["remove"], &state), (0, String::new()));
}

#[test]
fn the_hook_handles_repeated_and_conflicting_calls() {
    let Some(engine) = Engine::new(&CAPS) else {
        return;
    };
    let bundle = engine.world.file("hand");
    fs::create_dir(&bundle).expect("made");
    let config = json!({ "root": { "path": "rootfs" } });
    fs::write(bundle.join("config.json"), config.to_string()).expect("written");
    // These programs wait for input, and are killed at the end of the test.
    let sleeper = || Session::start(Command::new("cat"));
    let init = sleeper();
    let id = "0123456789abcdef".repeat(4);
    let group = "container-0123456789ab";
    let of = |id: &str, pid: u32| {
        json!({
            "ociVersion": "1.0.2",
            "id": id,
            "pid": pid,
            "status": "creating",
            "bundle": bundle,
        })
    };
    let state = of(&id, init.pid());
    let create = |cap| ["create", "--cap", cap];
    assert_eq!(engine.hook(&create("2g"), &state), (0, String::new()));
    assert_eq!(engine.groups(), [group]);
    // The same call succeeds twice; another limit, or another container of this name, is refused.
    assert_eq!(engine.hook(&create("2g"), &state), (0, String::new()));
    let (status, said) = engine.hook(&create("3g"), &state);
    assert!(
        status == 1 && said.contains("already has cap 2GiB"),
        "{said}"
    );
    let other = sleeper();
    let (status, said) = engine.hook(&create("2g"), &of(&id, other.pid()));
    assert!(status == 1 && said.contains("another container"), "{said}");
    let namesake = id.replace("cdef", "ffff");
    let (status, said) = engine.hook(&create("2g"), &of(&namesake, other.pid()));
    assert!(status == 1 && said.contains("another container"), "{said}");
    // The end of either container must not remove the other's group.
    assert_eq!(
        engine.hook(&["remove"], &of(&namesake, 0)),
        (0, String::new())
    );
    assert_eq!(engine.groups(), [group]);
    let (status, said) = engine.hook(&["remove"], &of(&id, 0));
    assert!(
        status == 1 && said.contains("still runs and uses group"),
        "{said}"
    );
    assert_eq!(engine.groups(), [group]);
    // The container's group is removed after its end, even if its process was not reaped.
    init.signal(libc::SIGKILL);
    assert_eq!(engine.hook(&["remove"], &of(&id, 0)), (0, String::new()));
    assert_eq!(engine.hook(&["remove"], &of(&id, 0)), (0, String::new()));
    drop(init);
    engine.nothing_is_left();
    // A killed hook has left a group without a record.
    assert!(engine.gpulimit(&["create", group]).status.success());
    assert_eq!(
        engine.hook(&create("2g"), &of(&id, other.pid())),
        (0, String::new())
    );
    let limit = engine.gpulimit(&["get", group, "max"]);
    assert_eq!(text(&limit.stdout).trim(), "2GiB");
    other.kill();
    // A truncated record is not interpreted.
    let record = engine
        .world
        .root()
        .path()
        .join(format!(".containers/{group}/record"));
    let whole = fs::read(&record).expect("there");
    fs::write(&record, &whole[..whole.len() / 2]).expect("written");
    let (status, said) = engine.hook(&["remove"], &of(&id, 0));
    assert!(status == 1 && said.contains("damaged"), "{said}");
    fs::write(&record, whole).expect("written");
    assert_eq!(engine.hook(&["remove"], &of(&id, 0)), (0, String::new()));
    engine.nothing_is_left();

    for (arguments, state, status, why) in [
        (
            &create("2g")[..],
            json!({}),
            1,
            "not the state of a container",
        ),
        (&create("2g"), json!("x"), 1, "not the state of a container"),
        (&create("2g"), of("", 1), 1, "invalid id ''"),
        (&create("2g"), of("a", 0), 1, "has no process 0"),
        (&create("lots"), of("a", 1), 2, "lots"),
        (&["create"], of("a", 1), 2, "--cap SIZE or --group NAME"),
        (
            &["create", "--group", "../x"],
            of("a", 1),
            2,
            "invalid group name",
        ),
        (&["mount"], of("a", 1), 1, "has no group"),
        (
            &["mount", "--cap", "2g"],
            of("a", 1),
            2,
            "apply only to create",
        ),
        (&["remove"], of("a", 1), 0, ""),
    ] {
        let (code, said) = engine.hook(arguments, &state);
        assert!(
            code == status && said.contains(why),
            "{arguments:?} {state}: {code} {said}"
        );
    }
    engine.nothing_is_left();
}

#[allow(unsafe_code)]
fn kill(pid: u32) {
    // SAFETY: the call gets only numbers.
    unsafe { libc::kill(pid as i32, libc::SIGKILL) };
}

/// podman reads the file, applies it and calls the hooks, by the commands of docs/containers.md.
#[test]
fn podman_applies_the_devices() {
    const PODMAN: &str = r#"
set -e
mount --make-rprivate /
mount -t tmpfs tmpfs /run
# runc refuses root file systems below /dev.
mkdir -p /run/cdi /run/image
mount --bind "$PLACE/image" /run/image
cp "$PLACE/cdi/gpulimit.json" /run/cdi
# This file replaces the one that NVIDIA's toolkit writes.
cat > /run/cdi/nvidia.json <<END
{"cdiVersion": "0.3.0", "kind": "nvidia.com/gpu", "devices": [{"name": "all", "containerEdits": {
 "env": ["GPULIMIT_SIM_STATE=/gpu"],
 "mounts": [{"hostPath": "$PLACE/machine", "containerPath": "/gpu", "options": ["bind"]}]}}]}
END
engine() {
    command podman --root "$PLACE/podman" --runroot /run/podman-test --storage-driver vfs \
        --cgroup-manager cgroupfs --runtime "$(command -v runc)" "$@"
}
trap 'engine rm --all --force -t 0 > /dev/null 2>&1' EXIT
podman() {
    shift
    engine run --rm -i --network none --ulimit nofile=1000:1000 --ulimit nproc=1000:1000 \
        --log-driver none --tmpfs /tmp "$@"
}
if ! podman run --rootfs /run/image /bin/true 2> "$PLACE/why"; then
    echo "no podman here: $(cat "$PLACE/why")"
    exit 0
fi
ask() { printf 'start\nalloc a 7000M\nalloc b 1000M\n'; }
echo as the page says
COMMAND="$(printf %s "$PAGE" | sed 's|IMAGE|--rootfs /run/image /bin/gpu-script|')"
ask | eval "$COMMAND" || true
echo another user, no environment
ask | podman run --user 1000 --device nvidia.com/gpu=all --device gpulimit.dev/mem=8g \
    --rootfs /run/image /bin/env -i GPULIMIT_SIM_STATE=/gpu /bin/gpu-script || true
echo another device
ask | podman run --device nvidia.com/gpu=all --device gpulimit.dev/mem=half \
    --rootfs /run/image /bin/gpu-script || true
echo no device
podman run --device gpulimit.dev/mem=7g --rootfs /run/image /bin/true || echo none
echo later
podman run -d --name later --device nvidia.com/gpu=all --device gpulimit.dev/mem=8g \
    --rootfs /run/image /bin/sh -c 'read never' > /dev/null
ask | engine exec -i later /bin/gpu-script || true
engine rm -f -t 0 later > /dev/null
"#;
    let page = fs::read_to_string(world::repository().join("docs/containers.md")).expect("there");
    let line = |start: &str| {
        let found = page.lines().find(|line| line.starts_with(start));
        found.expect(start).to_owned()
    };
    let generate = line("gpulimit cdi generate ");
    let caps: Vec<_> = generate.split(' ').skip(3).collect();
    let Some(engine) = Engine::new(&caps) else {
        return;
    };
    if !have("podman") {
        return;
    }
    let mut command = Command::new("unshare");
    command
        .args(["--mount", "sh", "-c", PODMAN])
        .env("PLACE", engine.world.file(""))
        .env("PAGE", line("podman run "))
        .env_remove("LD_PRELOAD");
    let output = world::finish(command);
    let said = text(&output.stdout);
    if let Some(why) = said.strip_prefix("no podman here: ") {
        skip(format_args!("podman runs no container here: {why}"));
        return;
    }
    let errors = text(&output.stderr);
    assert!(output.status.success(), "{said}{errors}");
    let answers = |last: u32| format!("start = 0 0\nalloc a 7000M = 0\nalloc b 1000M = {last}\n");
    let (limited, free) = (answers(2), answers(0));
    let expected = format!(
        "as the page says\n{limited}another user, no environment\n{limited}another device\n\
            {free}no device\nnone\nlater\n{limited}"
    );
    assert_eq!(said, expected, "{errors}");
    assert!(errors.contains("gpulimit: refused"), "{errors}");
    engine.nothing_is_left();
}
