//! What a release page has besides this machine's packages: those for aarch64, the source, and the
//! image with the demo.

use std::fs;
use std::process::Command;

use gpulimit_programs::world::{self, finish, text};
use gpulimit_support::{Scratch, have, skip};

use super::built::{self, ARCH, NEW};

/// Returns the output of a shell script, which finds `place` as `$0`, and must succeed.
#[track_caller]
fn shell(script: &str, place: &Scratch) -> String {
    let mut command = Command::new("sh");
    command.args(["-euc", script]).arg(&**place);
    let output = finish(command);
    assert!(output.status.success(), "{output:?}");
    text(&output.stdout)
}

/// Makes a file with the head of a program for aarch64, which is all that the packers look at.
fn for_aarch64(from: &Scratch) {
    let mut head = [0_u8; 64];
    head[..7].copy_from_slice(b"\x7fELF\x02\x01\x01");
    // The type of the file, the machine, the version, and the size of the head.
    for (at, value) in [(16, 3), (18, 183), (20, 1), (52, 64)] {
        head[at] = value;
    }
    for name in ["gpulimit", "libgpulimit.so"] {
        fs::write(from.at(name), head).expect("written");
    }
}

/// `scripts/aarch64` installs and uses the archive under qemu.
#[test]
fn packages_for_aarch64_are_marked_as_such() {
    if !["tar", "dpkg-deb", "rpmbuild", "python3"]
        .iter()
        .all(|tool| have(tool))
    {
        return;
    }
    let (from, out) = (Scratch::new(), Scratch::new());
    for_aarch64(&from);
    let [binaries, to] = [&from, &out].map(|place| place.to_str().expect("text"));
    built::package(&["--arch", "aarch64", "--from", binaries, "--out", to]);
    let sums = shell("cd \"$0\" && sha256sum -c SHA256SUMS", &out);
    let tags = "manylinux2014_aarch64.manylinux_2_17_aarch64";
    let all = [
        format!("gpulimit-{NEW}-1.aarch64.rpm"),
        format!("gpulimit-{NEW}-linux-aarch64.tar.gz"),
        format!("gpulimit_{NEW}-1_arm64.deb"),
        format!("gpulimit_cap-{NEW}-py3-none-{tags}.whl"),
    ];
    let mut named: Vec<_> = sums
        .lines()
        .filter_map(|line| line.strip_suffix(": OK"))
        .collect();
    named.sort_unstable();
    assert_eq!(named, all);
    let marks = "cd \"$0\"; dpkg-deb -f *.deb Architecture; rpm -qp --qf '%{ARCH}\\n' *.rpm";
    assert_eq!(shell(marks, &out), "arm64\naarch64\n");
    if ARCH != "aarch64" {
        let install =
            "cd \"$0\"; tar xf *.tar.gz; ./gpulimit-*/install.sh --prefix \"$0/to\" 2>&1 || :";
        let said = shell(install, &out);
        assert!(
            said.contains("this is for Linux on aarch64, and not"),
            "{said}"
        );
    }
}

#[test]
fn the_source_has_the_files_of_the_commit() {
    let repository = world::repository();
    if !repository.join(".git").exists() {
        skip("this is not a git repository");
        return;
    }
    let out = Scratch::new();
    built::package(&["--out", out.to_str().expect("text"), "source"]);
    let list = "cd \"$0\"; tar xf gpulimit-*-source.tar.gz; cd gpulimit-*-source; \
                find . ! -type d | sed 's|^./||' | LC_ALL=C sort";
    let mut command = Command::new("git");
    command
        .args(["ls-tree", "-r", "--name-only", "-z", "HEAD"])
        .current_dir(&repository);
    let listed = text(&finish(command).stdout);
    let mut listed: Vec<&str> = listed.split_terminator('\0').collect();
    listed.sort_unstable();
    assert_eq!(shell(list, &out).lines().collect::<Vec<_>>(), listed);
    let builds = "cd \"$0\"/gpulimit-*-source; cargo metadata --locked --offline --no-deps \
                  --format-version 1 | grep -c gpulimit-shim";
    assert_eq!(shell(builds, &out), "1\n");
}

/// Podman shows the demo on a machine without a GPU, from the file alone.
#[test]
fn the_image_shows_the_demo() {
    if !have("podman") {
        return;
    }
    let (from, out) = (Scratch::new(), Scratch::new());
    for file in [world::controller(), world::shim(), world::demo()] {
        let to = from.at(file
            .file_name()
            .and_then(|name| name.to_str())
            .expect("a name"));
        let status = Command::new("strip").arg("-o").args([&to, &file]).status();
        assert!(status.is_ok_and(|status| status.success()), "strip");
    }
    std::os::unix::fs::symlink(world::driver(), from.at("sim-driver")).expect("linked");
    let [binaries, to] = [&from, &out].map(|place| place.to_str().expect("text"));
    built::package(&["--from", binaries, "--out", to, "oci"]);
    let image = out.at(&format!("gpulimit-demo-{NEW}-{ARCH}.oci.tar"));
    if !image.exists() {
        skip("the image's base could not be fetched");
        return;
    }
    // Images in memory and of the test's own. Limits that a sandbox allows, and no network. Podman
    // wants a short path for what runs.
    let run = format!(
        "run=$(TMPDIR=/tmp mktemp -d); trap 'rm -rf \"$run\"' EXIT
         podman --root \"$0/images\" --runroot \"$run\" --storage-driver vfs run --rm \
         --network none --ulimit nofile=1024:1024 --ulimit nproc=1024:1024 oci-archive:{} --fast",
        image.display()
    );
    let mut command = Command::new("sh");
    command.args(["-euc", &run]).arg(&*out);
    let output = finish(command);
    let said = text(&output.stdout);
    if said.is_empty() {
        let why = text(&output.stderr);
        skip(format_args!("podman runs no container here: {why}"));
        return;
    }
    assert!(output.status.success(), "{output:?}");
    for text in [
        "running on the simulated driver",
        "out of memory (CUDA_ERROR_OUT_OF_MEMORY)",
        "lab    0  ",
        "This is the end of the demo.",
    ] {
        assert!(said.contains(text), "{text}: {said}");
    }
}
